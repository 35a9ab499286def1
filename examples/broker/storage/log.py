"""The log of a partition in memory: segments of record batches.

Offsets count records.  A batch covers the offsets from ``base_offset`` to ``last_offset``, and the next batch follows
without a gap.  A segment that has reached its maximum size is closed, and a new one begins.  As in Kafka, a read stays
within one segment, and deletion frees whole segments, so the start of the log may lie inside a segment.
"""

from array import array
from bisect import bisect_right
from typing import NamedTuple

from .record_batch import Batch, SearchBudget, search_timestamp, stored_batch

__all__ = ["NOTHING", "Log", "Read", "Segment"]

_BLOCK = 256  # batches that share one entry in the index of timestamps


class Segment:
    """Consecutive batches as bytes, with an index of 24 bytes per batch.

    ``bases[i]`` is the first offset of batch ``i``, ``ends[i]`` is the position after the batch, and
    ``max_timestamps[i]`` is the timestamp of its latest record.  ``block_timestamps`` has the latest timestamp of each
    block of 256 batches.  ``end_offset`` is the offset after the last record.
    """

    __slots__ = (
        "base_offset",
        "bases",
        "block_timestamps",
        "data",
        "end_offset",
        "ends",
        "max_timestamp",
        "max_timestamps",
    )

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.data = bytearray()
        self.bases = array("q")
        self.ends = array("q")
        self.max_timestamps = array("q")
        self.block_timestamps = array("q")
        self.max_timestamp = -1

    def append(self, batch: Batch) -> None:
        self.data += batch.data
        self.bases.append(batch.base_offset)
        self.ends.append(len(self.data))
        if len(self.max_timestamps) % _BLOCK == 0:
            self.block_timestamps.append(batch.max_timestamp)
        else:
            self.block_timestamps[-1] = max(self.block_timestamps[-1], batch.max_timestamp)
        self.max_timestamps.append(batch.max_timestamp)
        self.max_timestamp = max(self.max_timestamp, batch.max_timestamp)
        self.end_offset = batch.last_offset + 1

    def index_of(self, offset: int) -> int:
        """Return the index of the batch with this offset, or the number of batches if there is no such batch."""
        return len(self.bases) if offset >= self.end_offset else max(0, bisect_right(self.bases, offset) - 1)

    def bytes_before(self, index: int) -> int:
        """Return the size of all batches before this index."""
        return self.ends[index - 1] if index else 0

    def bytes_of(self, begin: int, end: int) -> bytes:
        """Return a copy of the bytes from ``begin`` up to, but not including, ``end``."""
        with memoryview(self.data) as whole:
            return bytes(whole[begin:end])

    def not_older(self, timestamp: int, index: int) -> int:
        """Return the index of the first batch, from ``index`` on, that contains a record not older than ``timestamp``.

        If there is none, return the number of batches.
        """
        number = len(self.max_timestamps)
        if self.max_timestamp < timestamp:
            return number
        while index < number:
            block, within = divmod(index, _BLOCK)
            if not within and self.block_timestamps[block] < timestamp:
                index += _BLOCK
            elif self.max_timestamps[index] < timestamp:
                index += 1
            else:
                return index
        return number

    def batch(self, index: int) -> Batch:
        """Return the batch at this index."""
        return stored_batch(self.bytes_of(self.bytes_before(index), self.ends[index]))


class Read(NamedTuple):
    """The result of a read: whole batches, the first of which contains the requested offset.

    The object refers to the bytes; only ``data`` copies them.  The bytes do not change when the segment grows or when
    the log deletes it.
    """

    segment: Segment
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The size of the batches in bytes."""
        return self.end - self.begin

    @property
    def data(self) -> bytes:
        """The batches as bytes."""
        return self.segment.bytes_of(self.begin, self.end)


NOTHING = Read(Segment(0), 0, 0)


class Log:
    """The log of one partition.

    ``start_offset``: the first readable offset.  ``end_offset``: the offset of the next record.  ``segment_bytes``: the
    size at which a segment is closed.
    """

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.start_offset = 0
        self.end_offset = 0
        self.size = 0
        self._segments = [Segment(0)]
        self._bases = [0]

    def append(self, batch: Batch) -> None:
        """Append a batch whose base offset is the end of the log."""
        assert batch.base_offset == self.end_offset, f"batch at {batch.base_offset}, end at {self.end_offset}"
        segment = self._segments[-1]
        if segment.data and len(segment.data) + len(batch.data) > self.segment_bytes:
            segment = Segment(self.end_offset)
            self._segments.append(segment)
            self._bases.append(segment.base_offset)
        segment.append(batch)
        self.size += len(batch.data)
        self.end_offset = batch.last_offset + 1

    def read(self, offset: int, below: int, max_bytes: int, at_least_one: bool) -> Read:
        """Read batches from one segment, starting with the batch that contains ``offset``.

        The batches lie below the offset ``below`` and total at most ``max_bytes``.  ``at_least_one``: return the first
        batch even if it exceeds ``max_bytes``.
        """
        segment = self._segment(offset)
        first, behind = segment.index_of(offset), segment.index_of(below)
        begin = segment.bytes_before(first)
        last = bisect_right(segment.ends, begin + max_bytes, first, max(first, behind))
        if last == first < behind and at_least_one:
            last += 1
        return Read(segment, begin, segment.bytes_before(last))

    def bytes_between(self, offset: int, below: int) -> int:
        """Return the size of the batches from ``offset`` up to ``below``; both offsets must be in one segment."""
        segment = self._segment(offset)
        begin = segment.bytes_before(segment.index_of(offset))
        return max(0, segment.bytes_before(segment.index_of(below)) - begin)

    def on_older_segment(self, offset: int, than: int) -> bool:
        """Return whether ``offset`` lies in an older segment than ``than`` does."""
        return self._segment(offset) is not self._segment(than)

    def find_timestamp(self, timestamp: int, below: int, budget: SearchBudget) -> tuple[int, int] | None:
        """Return the offset and timestamp of the first matching record, or None.

        A record matches if it is below ``below`` and is not older than ``timestamp``.  ``budget``: the number of
        records that the search may read.
        """
        for segment in self._segments:
            index = segment.not_older(timestamp, segment.index_of(self.start_offset))
            while index < len(segment.bases):
                if self._last_offset(segment, index) >= below:
                    return None
                found = search_timestamp(segment.batch(index), timestamp, budget, self.start_offset)
                if found is not None:
                    return found
                index = segment.not_older(timestamp, index + 1)
        return None

    @staticmethod
    def _last_offset(segment: Segment, index: int) -> int:
        return (segment.bases[index + 1] if index + 1 < len(segment.bases) else segment.end_offset) - 1

    def delete_before(self, offset: int) -> None:
        """Move the start of the log to ``offset``, and free the segments before it."""
        self.start_offset = max(self.start_offset, offset)
        while len(self._segments) > 1 and self._bases[1] <= self.start_offset:
            self.size -= len(self._segments[0].data)
            del self._segments[0], self._bases[0]
        if self.start_offset == self.end_offset and self._segments[0].data:
            self.size -= len(self._segments[0].data)
            self._segments = [Segment(self.end_offset)]
            self._bases = [self.end_offset]

    def second_segment(self) -> int | None:
        """Return the first offset of the second segment, where the log can be truncated; None if there is only one."""
        return self._bases[1] if len(self._bases) > 1 else None

    def _segment(self, offset: int) -> Segment:
        return self._segments[max(0, bisect_right(self._bases, offset) - 1)]
