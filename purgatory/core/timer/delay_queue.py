"""The delay queue: the buckets that hold tasks, by expiration.  The clock jumps from bucket to bucket."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from .task import NOT_QUEUED

if TYPE_CHECKING:
    from .task_list import TimerTaskList
    from .wheel import TimingWheel

__all__ = ["DelayQueue"]

_AFTER_ALL_LEVELS: Final = 1 << 30


class DelayQueue:
    """A heap of buckets by expiration.  Among equal expirations, coarser buckets come later, except that level 1 comes
    last.

    The heap has one entry per queued bucket, however many tasks the bucket holds: an entry is pushed when a bucket
    receives its first task in a round, not for each added task.  No two entries have the same expiration and level, so
    the heap compares only these two.
    """

    __slots__ = ("_heap", "operations")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimingWheel, TimerTaskList]] = []
        self.operations: int = 0  # the number of pushes and pops so far: the cost that a wheel saves

    def push(self, expiration_ms: i64, wheel: TimingWheel, bucket: TimerTaskList) -> None:
        """Queue the wheel's bucket with this expiration."""
        rank = _AFTER_ALL_LEVELS if wheel.level == 1 else wheel.level
        heapq.heappush(self._heap, (expiration_ms, rank, wheel, bucket))
        self.operations += 1

    def peek_ms(self) -> int | None:
        """Return the expiration of the earliest nonempty bucket; drop the empty buckets before it."""
        heap = self._heap
        while heap:
            expiration_ms, _, _, bucket = heap[0]
            root = bucket._root
            if root._next is not root:
                return expiration_ms
            self._drop(bucket)
        return None

    def earliest_ms(self) -> int | None:
        """Return the same as :meth:`peek_ms`, but change nothing, so that any thread may call this method."""
        for expiration_ms, _, _, bucket in self._heap[:1]:
            if not bucket.is_empty:
                return expiration_ms
        return min([ms for ms, _, _, bucket in self._heap.copy() if not bucket.is_empty], default=None)

    def next_ms(self) -> int | None:
        """Return the expiration of the earliest queued bucket, empty or not."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: i64) -> tuple[int, TimingWheel] | None:
        """Remove and return the earliest nonempty bucket, if it is due; the caller then owns its tasks."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            expiration_ms, _, wheel, bucket = heap[0]
            root = bucket._root
            if root._next is not root:
                heapq.heappop(heap)
                self.operations += 1
                return expiration_ms, wheel
            self._drop(bucket)
        return None

    def __len__(self) -> int:
        return len(self._heap)

    def _drop(self, bucket: TimerTaskList) -> None:
        """Drop the earliest bucket, because it is empty."""
        heapq.heappop(self._heap)
        self.operations += 1
        bucket.expiration_ms = NOT_QUEUED
