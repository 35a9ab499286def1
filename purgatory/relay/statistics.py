"""What a relay has counted, and the state that it is in."""

from dataclasses import dataclass

from purgatory.events import Quantiles

__all__ = ["RelayStatistics"]


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """A snapshot of a relay.  The counters start when the relay is entered.

    =======================  ======================================================================================
    field                    meaning
    =======================  ======================================================================================
    ``purgatory``            the name of the purgatory
    ``connected``            a ping has come back through the engine, and the connection is not known to be lost
    ``lag``                  seconds that the last or the current ping has taken; None if not connected
    ``peers``                other relays on the channel that have sent a message in the last three heartbeats
    ``connects``             confirmed subscriptions
    ``losses``               connections, and attempts to connect, that failed
    ``last_loss``            the reason for the last of these losses, or None
    ``resyncs``              requests to refresh and check all watched keys
    ``sent``                 keys sent, each counted once per notice
    ``received``             keys received from other relays
    ``messages_sent``        messages published, including pings
    ``messages_received``    messages received, including pings and the relay's own echoes
    ``collapsed``            sets of outgoing or incoming keys that outgrew ``max_keys`` and became "every key"
    ``everything_sent``      "check every key" notices sent
    ``everything_received``  "check every key" notices received
    ``unreadable``           payloads that could not be read and were treated as "check every key"
    ``pending``              keys that are waiting to be sent; "every key" counts as one
    ``stale``                keys that are waiting to be refreshed; "every key" counts as one
    ``refreshed``            keys that ``refresh`` has read
    ``reads``                calls to ``refresh`` that returned
    ``failed_reads``         calls to ``refresh`` that raised or took too long
    ``read_duration``        seconds that the calls to ``refresh`` took, including failed calls
    =======================  ======================================================================================
    """

    purgatory: str
    connected: bool
    lag: float | None
    peers: int
    connects: int
    losses: int
    last_loss: str | None
    resyncs: int
    sent: int
    received: int
    messages_sent: int
    messages_received: int
    collapsed: int
    everything_sent: int
    everything_received: int
    unreadable: int
    pending: int
    stale: int
    refreshed: int
    reads: int
    failed_reads: int
    read_duration: Quantiles
