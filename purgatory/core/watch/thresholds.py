"""Thresholds, for watches that need not be tried until the value of their key is high enough.

**Requirement.**  Suppose that 10,000 consumers wait at the end of a log, each for a different offset.  A check with the
new end must try the consumers whose offset has been reached, in the order of arrival, and touch no others.

**Prior art.**  Kafka's purgatory tries every watcher of a key on every check.  Kafka's raft module has a separate
``ThresholdPurgatory`` for a single value that only grows.

**Design.**  Each key has a binary heap with the lowest threshold first.  A check does not pop the reached entries and
push back those that did not complete.  It walks the heap from the top and turns back at every entry that is not
reached, because no entry below it can be reached.  The cost of a check is therefore proportional to the number of
operations that it tries, and a value that falls again changes nothing.

**Costs.**  Watching costs O(log n), and a check costs O(reached).  When an operation ends, its entry releases the
operation at once and stays in the heap as a tombstone until the tombstone reaches the top or more than half of the
entries are tombstones.  The heap is therefore never larger than twice the number of watchers plus a few entries.

**A hint only.**  A threshold never decides an outcome.  It only states that ``try_complete()`` would return False for
lower values.  An operation with a wrong threshold waits until the next check that has no value or a high enough value,
or until its deadline.
"""

import heapq
import math
from collections.abc import Hashable, Mapping
from typing import Any, Final

from mypy_extensions import i64

from purgatory.core.operation.operation import Operation
from purgatory.texts import safe_repr

from .watch import Watch, WatchList

__all__ = ["HeapEntry", "ThresholdHeap", "ThresholdWatch", "validated_threshold_map", "validated_value", "wider"]

_ALL: Final = 1 << 60  # more entries than there can be
_FEW_TOMBSTONES: Final = 8  # for up to this many, rebuilding the heap is not worth the cost


class ThresholdWatch(Watch):
    """The place of an operation on one key, with the lowest value at which the operation is tried."""

    __slots__ = ("heap_entry", "threshold")

    def __init__(self, key: Hashable, operation: Operation, threshold: Any) -> None:
        super().__init__(key, operation)
        self.threshold: Any = threshold
        self.heap_entry: HeapEntry = HeapEntry(operation)


class HeapEntry:
    """The entry of a watch in the heap; without an operation, it is a tombstone.

    The entry is not the watch itself: a removed watch refers to the watch after it, which may have been removed too, so
    a tombstone would keep that whole chain alive.
    """

    __slots__ = ("operation",)

    def __init__(self, operation: Operation) -> None:
        self.operation: Operation | None = operation


class ThresholdHeap:
    """The watches of one key that have a threshold: a list in the order of arrival, and a heap by threshold."""

    __slots__ = ("_heap", "_tombstones", "members", "root")

    def __init__(self, root: WatchList) -> None:
        self.root: WatchList = root  # the watches of the key that have no threshold
        self.members: WatchList = WatchList(root.key)
        self.members.thresholds = self
        self._heap: list[tuple[Any, int, HeapEntry]] = []
        self._tombstones: int = 0

    def add(self, watch: ThresholdWatch) -> None:
        """Add the watch, in O(log n)."""
        operation = watch.operation
        assert operation is not None
        heapq.heappush(self._heap, (watch.threshold, operation._op_id, watch.heap_entry))
        self.members.append(watch)

    def remove(self, watch: ThresholdWatch) -> None:
        """Remove the watch from the list; its entry in the heap becomes a tombstone."""
        self.members.unlink(watch)
        watch.heap_entry.operation = None
        self._tombstones += 1
        heap = self._heap
        while heap and heap[0][2].operation is None:
            heapq.heappop(heap)
            self._tombstones -= 1
        if self._tombstones > _FEW_TOMBSTONES and self._tombstones * 2 > len(heap):
            heap[:] = [item for item in heap if item[2].operation is not None]
            heapq.heapify(heap)
            self._tombstones = 0

    def detach(self) -> None:
        """Detach the empty heap from its key and break its reference cycles, to save the garbage collector work."""
        self.members.thresholds = None
        self.members._clear_links()
        self.root.thresholds = None

    def reached(self, value: Any) -> list[Operation]:
        """Return the operations whose threshold is at most ``value``, in the order of arrival."""
        found = self.reached_entries(value, _ALL)
        assert found is not None
        operations: list[Operation] = []
        for _, entry in found:
            assert entry.operation is not None
            operations.append(entry.operation)
        return operations

    def reached_entries(self, value: Any, most: i64) -> list[tuple[int, HeapEntry]] | None:
        """Return (arrival number, entry) for each threshold that is at most ``value``, in the order of arrival.

        If there are more than ``most``, return None, at a cost of O(``most``).
        """
        heap = self._heap
        size = len(heap)
        found: list[tuple[int, HeapEntry]] = []
        todo = [0]
        looked_at: i64 = 0
        while todo:
            index = todo.pop()
            if index >= size:
                continue
            threshold, op_id, entry = heap[index]
            if threshold <= value:
                looked_at += 1
                if looked_at > most:
                    return None
                if entry.operation is not None:
                    found.append((op_id, entry))
                todo.append(2 * index + 1)
                todo.append(2 * index + 2)
        found.sort()
        return found

    def _check(self) -> int:
        """Assert the invariants; return the number of watchers."""
        heap = self._heap
        live = 0
        for index, (threshold, op_id, entry) in enumerate(heap):
            if index:
                assert heap[(index - 1) // 2][:2] <= (threshold, op_id), "the heap is out of order"
            if entry.operation is not None:
                assert entry.operation._op_id == op_id
                live += 1
        assert len(heap) - live == self._tombstones, f"{len(heap) - live} tombstones, counted {self._tombstones}"
        assert self._tombstones <= max(_FEW_TOMBSTONES, live + 1), (
            f"{self._tombstones} tombstones beside {live} watchers"
        )
        assert live == self.members.weight, f"{live} in the heap, {self.members.weight} in the list"
        return live


def validated_threshold_map(keys: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Return the keys with their thresholds as plain ints and floats.

    An instance of a subclass could break the order of the heap by comparing differently or by raising.  Raises
    TypeError unless every threshold is an int or a float, and ValueError for NaN.
    """
    checked: dict[Hashable, Any] = {}
    for key, threshold in keys.items():
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise TypeError(
                f"the threshold for key {safe_repr(key)} must be an int or a float, got {safe_repr(threshold)}"
            )
        exact = _exact(threshold)
        if _is_nan(exact, "threshold"):
            raise ValueError(f"the threshold for key {safe_repr(key)} must be a number that a value can reach, got NaN")
        checked[key] = exact
    return checked


def validated_value(value: Any) -> Any:
    """Return a check's value as a plain int or float.  Raises TypeError for any other type, and ValueError for NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"value must be an int or a float, got {safe_repr(value)}")
    exact = _exact(value)
    if _is_nan(exact, "value"):
        raise ValueError("value must be a number that can reach a threshold, got NaN")
    return exact


def _exact(number: Any) -> Any:
    """Return an int or a float as a plain number, whatever its class overrides."""
    if type(number) is int or type(number) is float:
        return number
    return int.__index__(number) if isinstance(number, int) else float.__float__(number)


def _is_nan(number: Any, name: str) -> bool:
    try:
        return math.isnan(number)
    except OverflowError:
        raise ValueError(f"{name} must fit a float, at most about 1.8e308, got {safe_repr(number)}") from None


def wider(value: Any, other: Any) -> Any:
    """Return None (to try every watcher) if either value is None; otherwise, return the larger of the two."""
    return None if value is None or other is None else max(value, other)
