"""A partition: its log, its simulated followers, and the two watermarks that operations wait for."""

import asyncio
from collections.abc import Callable

from examples.broker.protocol.error_codes import Code
from examples.broker.settings import Settings
from purgatory import SystemTimer

from .log import Log
from .producer_state import ProducerCount, Producers
from .record_batch import Batch, Rejected, placed
from .storage_limit import StorageLimit

__all__ = ["Key", "Moved", "Partition"]

Key = tuple[str, int]
Moved = Callable[["Partition", bool], object]


class Follower:
    """A replica that has copied the log up to ``end_offset`` and deleted it up to ``start_offset``."""

    __slots__ = ("copying", "end_offset", "start_offset")

    def __init__(self) -> None:
        self.end_offset = 0
        self.start_offset = 0
        self.copying = False


class Partition:
    """One partition of a topic.

    ``key``: the key of the operations that wait for this partition.  ``high_watermark``: the offset that all replicas
    have reached; consumers read up to it.  ``low_watermark``: the offset up to which all replicas have deleted their
    records.  ``moved(partition, check_all)``: called when a watermark has changed, and with ``check_all=True`` after
    any other change that affects all waiting operations.  ``stalled``: whether the followers have stopped copying.
    ``gone``: whether the topic is deleted.  All partitions share ``storage`` and ``producer_count``.
    """

    def __init__(
        self,
        key: Key,
        followers: int,
        settings: Settings,
        timer: SystemTimer,
        moved: Moved,
        storage: StorageLimit | None = None,
        producer_count: ProducerCount | None = None,
    ) -> None:
        self.key = key
        self.log = Log(settings.segment_bytes)
        self.leader_epoch = 0
        self.high_watermark = 0
        self.low_watermark = 0
        self.gone = False
        self.stalled = bool(settings.stall_prefix) and key[0].startswith(settings.stall_prefix)
        self._producers = Producers(settings.max_producers, producer_count)
        self._storage = storage or StorageLimit(settings.max_log_bytes, lambda: (self,))
        self._stored = 0  # bytes of this log that count toward the storage limit
        self._followers = [Follower() for _ in range(followers or int(self.stalled))]
        self._delay = settings.replication_delay
        self._retention_bytes = settings.retention_bytes
        self._timer = timer
        self._moved = moved

    def append(self, batch: Batch) -> tuple[int, int]:
        """Append a batch, or find an earlier copy of it.  Return its first and last offset.

        Raise :class:`~examples.broker.storage.record_batch.Rejected` if a batch of an idempotent producer is out of
        order, or if the log is full of records that the followers do not have yet.
        """
        known = self._producers.duplicate_of(batch)
        if known is not None:
            return known
        size = len(batch.data)
        if self._holds_too_much() or not self._storage.make_room(self, size):
            raise Rejected(Code.KAFKA_STORAGE_ERROR, f"no room for {size} bytes in {self.key}")
        batch = placed(batch, self.log.end_offset, self.leader_epoch)
        self.log.append(batch)
        self._producers.remember(batch)
        self._retain()
        self._count()
        self._replicate()
        return batch.base_offset, batch.last_offset

    def delete_before(self, offset: int) -> None:
        """Delete the records before ``offset`` (at most the high watermark); the followers delete them later."""
        assert offset <= self.high_watermark, f"{offset} is above the high watermark {self.high_watermark}"
        self.log.delete_before(offset)
        self._count()
        self._replicate()

    def delete_oldest_segment(self) -> bool:
        """Delete the oldest segment, even if it is the only one.  Return False if a follower still needs it."""
        cut = self.log.second_segment()
        if cut is None:
            cut = self.log.end_offset
        if not self.log.size or cut > self.high_watermark:
            return False
        self.delete_before(cut)
        return True

    def elect(self) -> None:
        """Begin a new leader epoch.  Requests with the old epoch get FENCED_LEADER_EPOCH."""
        self.leader_epoch += 1
        self._moved(self, True)

    def delete(self) -> None:
        """Mark the partition as deleted, and complete the operations that wait for it."""
        self.gone = True
        self._producers.clear()
        self._count()
        self._moved(self, True)

    def resume(self) -> None:
        """Let the followers of a stalled partition copy again."""
        self.stalled = False
        self._replicate()

    def _holds_too_much(self) -> bool:
        """Return whether slow followers keep the log at more than twice its retention size."""
        cut = self.log.second_segment()
        return self.log.size > 2 * self._retention_bytes and cut is not None and cut > self.high_watermark

    def _retain(self) -> None:
        while self.log.size > self._retention_bytes:
            cut = self.log.second_segment()
            if cut is None or cut > self.high_watermark:
                return
            self.log.delete_before(cut)

    def _count(self) -> None:
        stored = 0 if self.gone else self.log.size
        self._storage.used += stored - self._stored
        self._stored = stored

    def _replicate(self) -> None:
        """Start every follower that has something to copy, and update the watermarks."""
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
