"""The delay queue: the buckets that hold tasks, by expiration.  The clock jumps from bucket to bucket."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from .task import NOT_QUEUED

if TYPE_CHECKING:
    from .wheel import TimingWheel

__all__ = ["DelayQueue"]

_AFTER_ALL_LEVELS: Final = 1 << 30


class DelayQueue:
    """A heap of buckets by expiration.  Among equal expirations the coarser one comes later, and level 1 last.

    The heap has one entry per queued bucket, however many tasks the bucket holds: an entry is pushed when a bucket is
    first filled in its round, not when a task is added.
    """

    __slots__ = ("_heap", "operations")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimingWheel]] = []
        self.operations: int = 0  # pushes and pops so far: the cost that a wheel saves

    def push(self, expiration_ms: i64, wheel: TimingWheel) -> None:
        """Queue the wheel's bucket with this expiration."""
        rank = _AFTER_ALL_LEVELS if wheel.level == 1 else wheel.level
        heapq.heappush(self._heap, (expiration_ms, rank, wheel))
        self.operations += 1

    def peek_ms(self) -> int | None:
        """Return the expiration of the earliest bucket that is not empty; empty ones before it are dropped."""
        heap = self._heap
        while heap:
            expiration_ms, _, wheel = heap[0]
            if not wheel.bucket_at(expiration_ms).is_empty:
                return expiration_ms
            self._drop(expiration_ms, wheel)
        return None

    def next_ms(self) -> int | None:
        """Return the expiration of the earliest queued bucket, empty or not."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: i64) -> tuple[int, TimingWheel] | None:
        """Remove and return the earliest bucket that is not empty, if it is due; the caller then owns its tasks."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            expiration_ms, _, wheel = heap[0]
            if not wheel.bucket_at(expiration_ms).is_empty:
                heapq.heappop(heap)
                self.operations += 1
                return expiration_ms, wheel
            self._drop(expiration_ms, wheel)
        return None

    def __len__(self) -> int:
        return len(self._heap)

    def _drop(self, expiration_ms: i64, wheel: TimingWheel) -> None:
        heapq.heappop(self._heap)
        self.operations += 1
        wheel.bucket_at(expiration_ms).expiration_ms = NOT_QUEUED
