"""Handling of received payloads: own echoes, pings, and the notices of other processes."""

from collections.abc import Callable
from typing import Final

from purgatory import Clock

from .codec import decode
from .refresh import Refresher

__all__ = ["Receiver"]

_MOST_PEERS: Final = 4096


class Receiver:
    """Reads payloads and marks the keys as stale.  ``pong`` is called when a ping of this relay has come back."""

    def __init__(self, refresher: Refresher, clock: Clock) -> None:
        self.origin = ""
        self.keys_received: int = 0
        self.messages_received: int = 0
        self.everything_received: int = 0
        self.unreadable: int = 0
        self._refresher = refresher
        self._clock = clock
        self._peers: dict[str, int] = {}  # the time of the last message of each

    def receive(self, payload: str | bytes, pong: Callable[[int], None]) -> None:
        """Handle a message."""
        self.messages_received += 1
        try:
            notice = decode(payload)
        except ValueError:
            self.unreadable += 1
            self._refresher.mark_everything()
            return
        if notice.origin == self.origin:
            if notice.ping is not None:
                pong(notice.ping)
            return
        if notice.origin and (notice.origin in self._peers or len(self._peers) < _MOST_PEERS):
            self._peers[notice.origin] = self._clock.now_ms()
        if notice.entries is None:
            self.everything_received += 1
            self._refresher.mark_everything()
            return
        self.keys_received += len(notice.entries)
        for key, value in notice.entries:
            self._refresher.mark(key, value)

    def peers(self, since_ms: int) -> int:
        """Return how many other relays sent a message since then.  It changes nothing, so any thread may call it."""
        return sum([heard_ms >= since_ms for heard_ms in list(self._peers.values())])

    def forget_peers(self, before_ms: int) -> None:
        """Forget the relays whose last message is older."""
        for origin in [origin for origin, heard_ms in self._peers.items() if heard_ms < before_ms]:
            del self._peers[origin]
