"""The figures of a relay."""

from dataclasses import dataclass

from purgatory.events import Quantiles

__all__ = ["RelayStatistics"]


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """A relay at one moment.  Counters count from the moment the relay was entered.

    =======================  ======================================================================================
    field                    meaning
    =======================  ======================================================================================
    ``purgatory``            the name of the purgatory
    ``connected``            a ping has come back through the engine, and the connection is not known to be lost
    ``lag``                  seconds that a ping took through the engine and back, or takes already; None: not connected
    ``peers``                other relays on the channel that sent a message in the last three heartbeats
    ``connects``             times the subscription was confirmed
    ``losses``               times a connection, or an attempt to connect, failed
    ``last_loss``            the reason of the last of those, or None
    ``resyncs``              times all watched keys were to be refreshed and checked
    ``sent``                 keys sent, each once per notice
    ``received``             keys received from others
    ``messages_sent``        messages published, pings included
    ``messages_received``    messages received, pings and own echoes included
    ``collapsed``            times a set of keys grew above ``max_keys`` and became "every key", outgoing and incoming
    ``everything_sent``      notices "check every key" sent
    ``everything_received``  notices "check every key" received
    ``unreadable``           payloads that could not be read, and were treated as "check every key"
    ``pending``              keys that wait to be sent
    ``stale``                keys that wait to be refreshed
    ``refreshed``            keys that ``refresh`` has read
    ``reads``                calls of ``refresh`` that returned
    ``failed_reads``         calls of ``refresh`` that raised, or took too long
    ``read_duration``        seconds that the calls of ``refresh`` took, those that failed included
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
