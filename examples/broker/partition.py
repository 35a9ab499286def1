"""A partition: its log, its simulated followers, and the two watermarks that requests wait for."""

import asyncio
from collections.abc import Callable

from purgatory import SystemTimer

from .log import Log
from .producers import Producers
from .records import Batch, placed
from .settings import Settings

__all__ = ["Key", "Moved", "Partition"]

Key = tuple[str, int]
Moved = Callable[["Partition", bool], object]


class Follower:
    """A replica that has copied the log up to ``end_offset``, and has deleted it up to ``start_offset``."""

    __slots__ = ("copying", "end_offset", "start_offset")

    def __init__(self) -> None:
        self.end_offset = 0
        self.start_offset = 0
        self.copying = False


class Partition:
    """One partition of a topic.

    ``high_watermark``: what all replicas have; consumers read up to here.  ``low_watermark``: what all replicas have
    deleted.  ``moved`` is called whenever one of them has changed, and with True when something else has that everyone
    who waits must know.  ``stalled``: its followers copy nothing.  ``gone``: its topic has been deleted.  ``key``: what
    requests that wait for it are parked on.
    """

    def __init__(self, key: Key, followers: int, settings: Settings, timer: SystemTimer, moved: Moved) -> None:
        self.key = key
        self.log = Log(settings.segment_bytes)
        self.leader_epoch = 0
        self.high_watermark = 0
        self.low_watermark = 0
        self.gone = False
        self.stalled = bool(settings.stall_prefix) and key[0].startswith(settings.stall_prefix)
        self._producers = Producers(settings.max_producers)
        self._followers = [Follower() for _ in range(followers or int(self.stalled))]
        self._delay = settings.replication_delay
        self._retention_bytes = settings.retention_bytes
        self._timer = timer
        self._moved = moved

    def append(self, batch: Batch) -> tuple[int, int]:
        """Put a batch at the end of the log, or find it there; its first and last offset.

        Raises :class:`~examples.broker.records.Rejected` for an idempotent producer's batch out of order.
        """
        known = self._producers.duplicate_of(batch)
        if known is not None:
            return known
        batch = placed(batch, self.log.end_offset, self.leader_epoch)
        self.log.append(batch)
        self._producers.remember(batch)
        self._retain()
        self._replicate()
        return batch.base_offset, batch.last_offset

    def delete_before(self, offset: int) -> None:
        """Delete the records before ``offset``, at most the high watermark; the followers do so when they copy."""
        assert offset <= self.high_watermark, f"{offset} is above the high watermark {self.high_watermark}"
        self.log.delete_before(offset)
        self._replicate()

    def elect(self) -> None:
        """A new leader epoch: whoever knows only the old one is fenced."""
        self.leader_epoch += 1
        self._moved(self, True)

    def delete(self) -> None:
        """Its topic is deleted."""
        self.gone = True
        self._moved(self, True)

    def resume(self) -> None:
        """Let the followers of a stalled partition copy from now on."""
        self.stalled = False
        self._replicate()

    def _retain(self) -> None:
        while self.log.size > self._retention_bytes:
            cut = self.log.second_segment()
            if cut is None or cut > self.high_watermark:
                return
            self.log.delete_before(cut)

    def _replicate(self) -> None:
        """Set every follower to work that has something to copy; then look how far all have come."""
        if not self.stalled and not self.gone:
            end, start = self.log.end_offset, self.log.start_offset
            for follower in self._followers:
                if not follower.copying and (follower.end_offset < end or follower.start_offset < start):
                    follower.copying = True
                    if self._delay:
                        self._timer.call_later(self._delay, self._copied, follower, end, start)
                    else:
                        asyncio.get_running_loop().call_soon(self._copied, follower, end, start)
        self._advance()

    def _copied(self, follower: Follower, end_offset: int, start_offset: int) -> None:
        follower.copying = False
        if not self.stalled:
            follower.end_offset, follower.start_offset = end_offset, start_offset
        self._replicate()

    def _advance(self) -> None:
        high = min([self.log.end_offset, *[follower.end_offset for follower in self._followers]])
        low = min([self.log.start_offset, *[follower.start_offset for follower in self._followers]])
        if high != self.high_watermark or low != self.low_watermark:
            self.high_watermark, self.low_watermark = high, low
            self._moved(self, False)
