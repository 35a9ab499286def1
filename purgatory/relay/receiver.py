"""Handle received payloads: the relay's own echoes, pings, and the notices of other processes.

A payload that cannot be read is treated as "check every key".  The payload may come from another application on the
same channel, or from a later version of this package.  Each such payload would cause a read of every watched key, so
after a few of them, the keys are checked at most once per :data:`_UNREADABLE_MS`, and the reason is logged.
"""

import logging
from collections.abc import Callable
from typing import Final

from purgatory import Clock
from purgatory.types import Alarm

from .codec import decode
from .refresh import Refresher

__all__ = ["Receiver"]

_LOGGER = logging.getLogger("purgatory.relay")
_MOST_PEERS: Final = 4096
_UNREADABLE_MS: Final = 1_000  # the pause between checks of every key, if unreadable payloads cause them
_UNREADABLE_AT_ONCE: Final = 3  # the number of such checks that may follow one another without a pause
_LOG_MS: Final = 60_000  # the pause between two log lines about unreadable payloads


class Receiver:
    """Reads payloads and marks the keys as stale.  ``pong`` is called when a ping of this relay comes back.

    ``name``: the name of the purgatory, for the log.
    """

    def __init__(self, refresher: Refresher, clock: Clock, name: str) -> None:
        self.origin = ""
        self.keys_received: int = 0
        self.messages_received: int = 0
        self.everything_received: int = 0
        self.unreadable: int = 0
        self._refresher = refresher
        self._clock = clock
        self._name = name
        self._peers: dict[str, int] = {}  # the time of each peer's last message
        self._unreadable_until_ms = 0  # each unreadable payload advances it by _UNREADABLE_MS
        self._alarm: Alarm | None = None  # set while a check of every key is scheduled because of unreadable payloads
        self._logged_ms: int | None = None

    def receive(self, payload: str | bytes, pong: Callable[[int], None]) -> None:
        """Handle a message."""
        self.messages_received += 1
        try:
            notice = decode(payload)
        except ValueError:
            self.unreadable += 1
            self._unreadable(len(payload))
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

    def _unreadable(self, length: int) -> None:
        now_ms = self._clock.now_ms()
        if self._logged_ms is None or now_ms - self._logged_ms >= _LOG_MS:
            self._logged_ms = now_ms
            _LOGGER.warning(
                "the relay of purgatory %r has received %d payloads that it cannot read, the last one with a length of"
                " %d: text from another program on the channel, or a later version; it checks every key because of"
                " them, at most once a second",
                self._name,
                self.unreadable,
                length,
            )
        if self._alarm is not None:
            return  # the scheduled check of every key also covers this payload
        due_ms = self._unreadable_until_ms - _UNREADABLE_AT_ONCE * _UNREADABLE_MS
        self._unreadable_until_ms = max(self._unreadable_until_ms, now_ms) + _UNREADABLE_MS
        if due_ms < now_ms:
            self._refresher.mark_everything()
        else:
            self._alarm = self._clock.call_at(due_ms + 1, self._check_everything)

    def _check_everything(self) -> None:
        self._alarm = None
        self._refresher.mark_everything()

    def close(self) -> None:
        """Cancel the scheduled check."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def peers(self, since_ms: int) -> int:
        """Return the number of other relays that sent a message after ``since_ms``.

        Any thread may call this method, because it changes nothing.
        """
        return sum([heard_ms >= since_ms for heard_ms in list(self._peers.values())])

    def workers(self, since_ms: int) -> list[tuple[str, int]]:
        """Return a sorted list of the other relays that sent a message after ``since_ms``: the process and host of
        each, and the time of its last message.
        """
        heard = [(origin.partition(":")[2], at_ms) for origin, at_ms in list(self._peers.items()) if at_ms >= since_ms]
        return sorted([(worker, at_ms) for worker, at_ms in heard if worker])

    def forget_peers(self, before_ms: int) -> None:
        """Forget the relays whose last message came before ``before_ms``."""
        for origin in [origin for origin, heard_ms in self._peers.items() if heard_ms < before_ms]:
            del self._peers[origin]
