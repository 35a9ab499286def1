"""A partition's log in memory: segments of record batches.

Offsets count records; every batch has the offsets ``base_offset .. last_offset``, and the next one follows without a
gap.  A segment is closed when it has reached its size, and the next begins.  As in Kafka, a read stays within one
segment, and what is deleted is deleted in whole segments: the start of the log may lie inside one.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from .records import Batch, search_timestamp

__all__ = ["Log", "Read"]


class Read(NamedTuple):
    """What a read found: whole batches, the first of which holds the offset that was asked for."""

    batches: list[bytes]
    size: int


class Segment:
    """Batches one after another.  ``ends[i]`` is the number of bytes up to and with batch ``i``."""

    __slots__ = ("base_offset", "bases", "batches", "ends", "max_timestamp")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.batches: list[Batch] = []
        self.bases: list[int] = []
        self.ends: list[int] = []
        self.max_timestamp = -1

    @property
    def size(self) -> int:
        """Bytes held."""
        return self.ends[-1] if self.ends else 0

    def append(self, batch: Batch) -> None:
        self.ends.append(self.size + len(batch.data))
        self.bases.append(batch.base_offset)
        self.batches.append(batch)
        self.max_timestamp = max(self.max_timestamp, batch.max_timestamp)

    def index_of(self, offset: int) -> int:
        """The index of the batch that holds the offset; the number of batches if it lies behind the last."""
        index = bisect_right(self.bases, offset) - 1
        if index < 0:
            return 0
        return index if offset <= self.batches[index].last_offset else index + 1

    def bytes_before(self, offset: int) -> int:
        """Bytes of the batches that lie before the one that holds the offset."""
        index = self.index_of(offset)
        return self.ends[index - 1] if index else 0


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
        if segment.batches and segment.size + len(batch.data) > self.segment_bytes:
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
        found: list[bytes] = []
        size = 0
        for batch in _from(segment, offset):
            if batch.last_offset >= below:
                break
            if size + len(batch.data) > max_bytes and (found or not at_least_one):
                break
            found.append(batch.data)
            size += len(batch.data)
        return Read(found, size)

    def bytes_between(self, offset: int, below: int) -> int:
        """Bytes of the batches from the one that holds ``offset`` to below ``below``, both in one segment."""
        segment = self._segment(offset)
        return max(0, segment.bytes_before(below) - segment.bytes_before(offset))

    def on_older_segment(self, offset: int, than: int) -> bool:
        """Whether ``offset`` lies on an older segment than the offset ``than``."""
        return self._segment(offset) is not self._segment(than)

    def find_timestamp(self, timestamp: int, below: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record below ``below`` that is not older; None: there is none."""
        for segment in self._segments:
            if segment.max_timestamp < timestamp:
                continue
            for batch in segment.batches:
                if batch.max_timestamp >= timestamp and batch.last_offset >= self.start_offset:
                    if batch.last_offset >= below:
                        return None
                    return search_timestamp(batch, timestamp, self.start_offset)
        return None

    def delete_before(self, offset: int) -> None:
        """The log starts here from now on; segments that lie wholly before are let go of."""
        self.start_offset = max(self.start_offset, offset)
        while len(self._segments) > 1 and self._bases[1] <= self.start_offset:
            self.size -= self._segments[0].size
            del self._segments[0], self._bases[0]
        if self.start_offset == self.end_offset and self._segments[0].batches:
            self.size -= self._segments[0].size
            self._segments = [Segment(self.end_offset)]
            self._bases = [self.end_offset]

    def second_segment(self) -> int | None:
        """Where the second segment begins: the log can be cut there.  None: there is only one."""
        return self._bases[1] if len(self._bases) > 1 else None

    def _segment(self, offset: int) -> Segment:
        return self._segments[max(0, bisect_right(self._bases, offset) - 1)]


def _from(segment: Segment, offset: int) -> Iterator[Batch]:
    for index in range(segment.index_of(offset), len(segment.batches)):
        yield segment.batches[index]
