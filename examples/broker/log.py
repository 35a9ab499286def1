"""A partition's log in memory: segments of record batches.

Offsets count records; every batch has the offsets ``base_offset .. last_offset``, and the next one follows without a
gap.  A segment is closed when it has reached its size, and the next begins.  As in Kafka, a read stays within one
segment, and what is deleted is deleted in whole segments: the start of the log may lie inside one.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from .records import Batch, search_timestamp, stored_batch

__all__ = ["NOTHING", "Log", "Read", "Segment"]


class Segment:
    """Batches one after another, as bytes, and what is looked for in them: 24 bytes for each batch.

    Batch ``i`` begins with the offset ``bases[i]``, ``ends[i]`` is the number of bytes up to and with it, and
    ``max_timestamps[i]`` is that of its youngest record.  ``end_offset`` is the offset behind the last.
    """

    __slots__ = ("base_offset", "bases", "data", "end_offset", "ends", "max_timestamp", "max_timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.data = bytearray()
        self.bases = array("q")
        self.ends = array("q")
        self.max_timestamps = array("q")
        self.max_timestamp = -1

    def append(self, batch: Batch) -> None:
        self.data += batch.data
        self.bases.append(batch.base_offset)
        self.ends.append(len(self.data))
        self.max_timestamps.append(batch.max_timestamp)
        self.max_timestamp = max(self.max_timestamp, batch.max_timestamp)
        self.end_offset = batch.last_offset + 1

    def index_of(self, offset: int) -> int:
        """The index of the batch that holds the offset; the number of batches if it lies behind the last."""
        return len(self.bases) if offset >= self.end_offset else max(0, bisect_right(self.bases, offset) - 1)

    def bytes_before(self, index: int) -> int:
        """Bytes of the batches that lie before the one with this index."""
        return self.ends[index - 1] if index else 0

    def bytes_of(self, begin: int, end: int) -> bytes:
        """A copy of the bytes ``begin`` to below ``end``."""
        with memoryview(self.data) as whole:
            return bytes(whole[begin:end])

    def not_older(self, timestamp: int, from_offset: int) -> Iterator[Batch]:
        """The batches with a record that is not older, of those that hold an offset from this one on."""
        if self.max_timestamp < timestamp:
            return
        for index in range(self.index_of(from_offset), len(self.bases)):
            if self.max_timestamps[index] >= timestamp:
                yield stored_batch(self.bytes_of(self.bytes_before(index), self.ends[index]))


class Read(NamedTuple):
    """What a read found: whole batches, the first of which holds the offset that was asked for.

    It names the bytes and copies none of them until ``data`` is asked for; they stay what they are even if the segment
    grows, or the log lets go of it.
    """

    segment: Segment
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes found."""
        return self.end - self.begin

    @property
    def data(self) -> bytes:
        """The batches, one after another."""
        return self.segment.bytes_of(self.begin, self.end)


NOTHING = Read(Segment(0), 0, 0)


class Log:
    """The log of one partition.

    ``start_offset``: the first offset that can be read.  ``end_offset``: the offset that the next record will get.
    ``segment_bytes``: a segment that has reached it is closed.
    """

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.start_offset = 0
        self.end_offset = 0
        self.size = 0
        self._segments = [Segment(0)]
        self._bases = [0]

    def append(self, batch: Batch) -> None:
        """Put a batch at the end; it is placed there already."""
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
        """Batches of one segment from the one that holds ``offset``, of records below ``below``, up to ``max_bytes``.

        ``at_least_one``: the first batch comes even if it is larger than that.
        """
        segment = self._segment(offset)
        first, behind = segment.index_of(offset), segment.index_of(below)
        begin = segment.bytes_before(first)
        last = bisect_right(segment.ends, begin + max_bytes, first, max(first, behind))
        if last == first < behind and at_least_one:
            last += 1
        return Read(segment, begin, segment.bytes_before(last))

    def bytes_between(self, offset: int, below: int) -> int:
        """Bytes of the batches from the one that holds ``offset`` to below ``below``, both in one segment."""
        segment = self._segment(offset)
        begin = segment.bytes_before(segment.index_of(offset))
        return max(0, segment.bytes_before(segment.index_of(below)) - begin)

    def on_older_segment(self, offset: int, than: int) -> bool:
        """Whether ``offset`` lies on an older segment than the offset ``than``."""
        return self._segment(offset) is not self._segment(than)

    def find_timestamp(self, timestamp: int, below: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record below ``below`` that is not older; None: there is none."""
        for segment in self._segments:
            for batch in segment.not_older(timestamp, self.start_offset):
                if batch.last_offset >= below:
                    return None
                found = search_timestamp(batch, timestamp, self.start_offset)
                if found is not None:
                    return found
        return None

    def delete_before(self, offset: int) -> None:
        """The log starts here from now on; segments that lie wholly before are let go of."""
        self.start_offset = max(self.start_offset, offset)
        while len(self._segments) > 1 and self._bases[1] <= self.start_offset:
            self.size -= len(self._segments[0].data)
            del self._segments[0], self._bases[0]
        if self.start_offset == self.end_offset and self._segments[0].data:
            self.size -= len(self._segments[0].data)
            self._segments = [Segment(self.end_offset)]
            self._bases = [self.end_offset]

    def second_segment(self) -> int | None:
        """Where the second segment begins: the log can be cut there.  None: there is only one."""
        return self._bases[1] if len(self._bases) > 1 else None

    def _segment(self, offset: int) -> Segment:
        return self._segments[max(0, bisect_right(self._bases, offset) - 1)]
