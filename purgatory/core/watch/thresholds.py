"""Thresholds, for watches that need not be tried until the value of their key is high enough.

**Requirement.**  Suppose that 10,000 consumers wait at the end of a log, each for a different offset.  A check with the
new end must try the consumers whose offset has been reached, in the order of arrival, and touch no others.

**Prior art.**  Kafka's purgatory tries every watcher of a key on every check.  Kafka's raft module has a separate
``ThresholdPurgatory`` for a single value that only grows.

**Design.**  Each key has a binary heap with the lowest threshold first.  A check does not pop the reached entries and
push back those that did not complete.  It walks the heap from the top and turns back at every entry that is not
reached, because no entry below it can be reached.  The cost of a check is therefore proportional to the number of
operations that it tries, and a value that falls again changes nothing.

**Costs.**  Adding a watch and removing one cost O(log n) at worst, because each watch stores its place in the heap.  A
check costs O(reached).  (The functions of heapq cannot keep the places up to date.  Without the places, an ended watch
would have to stay in the heap until it reaches the top, and a single removal could then have to pop all n of them.)

**Moving a hole.**  A watch that is added or removed leaves a hole in the heap.  The hole moves up or down until the new
watch, or the last one, fits into it.  Each move copies a neighbor into the hole, so the list is a valid heap with every
other watch in it after each step.

**A hint only.**  A threshold never decides an outcome.  It only states that ``try_complete()`` would return False for
lower values.  An operation with a wrong threshold waits until the next check that has no value or a high enough value,
or until its deadline.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Any, Final

from mypy_extensions import i64

from purgatory.core.operation.operation import Operation
from purgatory.texts import safe_repr

from .watch import Watch, WatchList

__all__ = ["ThresholdHeap", "ThresholdWatch", "validated_threshold_map", "validated_value", "wider"]

_ALL: Final = 1 << 60  # more entries than there can be


class ThresholdWatch(Watch):
    """The place of an operation on one key, with the lowest value at which the operation is tried.

    ``place``: the index of the watch in the heap.
    """

    __slots__ = ("place", "threshold")

    def __init__(self, key: Hashable, operation: Operation, threshold: Any) -> None:
        super().__init__(key, operation)
        self.threshold: Any = threshold
        self.place: i64 = 0


class ThresholdHeap:
    """The watches of one key that have a threshold: a list in the order of arrival, and a heap by threshold."""

    __slots__ = ("_heap", "members", "root")

    def __init__(self, root: WatchList) -> None:
        self.root: WatchList = root  # the watches of the key that have no threshold
        self.members: WatchList = WatchList(root.key)
        self.members.thresholds = self
        self._heap: list[ThresholdWatch] = []

    def add(self, watch: ThresholdWatch) -> None:
        """Add the watch, in O(log n)."""
        heap = self._heap
        heap.append(watch)
        self.members.append(watch)
        self._rise(watch, len(heap) - 1)

    def remove(self, watch: ThresholdWatch) -> None:
        """Remove the watch, in O(log n)."""
        self.members.unlink(watch)
        heap = self._heap
        end: i64 = len(heap) - 1
        last = heap[end]
        if last is not watch:
            self._rise(last, self._sink(last.threshold, watch.place, end))
        heap.pop()

    def _rise(self, watch: ThresholdWatch, hole: i64) -> None:
        """Put the watch into the hole, or into the highest place to which the hole can move up."""
        heap = self._heap
        threshold = watch.threshold
        while hole > 0:
            above = (hole - 1) >> 1
            parent = heap[above]
            if parent.threshold <= threshold:
                break
            heap[hole] = parent
            parent.place = hole
            hole = above
        heap[hole] = watch
        watch.place = hole

    def _sink(self, threshold: Any, hole: i64, end: i64) -> i64:
        """Move the hole down past the thresholds that are lower than the given one; return its index.

        ``end``: the index of the last watch, which is about to move into the hole.
        """
        heap = self._heap
        while True:
            below = 2 * hole + 1
            if below >= end:
                return hole
            child = heap[below]
            if below + 1 < end:
                other = heap[below + 1]
                if other.threshold < child.threshold:
                    child = other
                    below += 1
            if threshold <= child.threshold:
                return hole
            heap[hole] = child
            child.place = hole
            hole = below

    def detach(self) -> None:
        """Detach the empty heap from its key and break its reference cycles, to save the garbage collector work."""
        self.members.thresholds = None
        self.members._clear_links()
        self.root.thresholds = None

    def reached(self, value: Any) -> list[Operation]:
        """Return the operations whose threshold is at most ``value``, in the order of arrival."""
        found = self.few_reached(value, _ALL)
        assert found is not None
        return found

    def few_reached(self, value: Any, most: i64) -> list[Operation] | None:
        """Do the same as :meth:`reached`, but return None if there are more than ``most``.  Cost: O(``most``)."""
        heap = self._heap
        found: list[Operation] = []
        todo = [0]
        while todo:
            index: i64 = todo.pop()
            if index >= len(heap):
                continue
            watch = heap[index]
            if watch.threshold <= value:
                if len(found) >= most:
                    return None
                operation = watch.operation
                assert operation is not None
                found.append(operation)
                todo.append(2 * index + 1)
                todo.append(2 * index + 2)
        found.sort(key=_op_id)
        return found

    def _check(self) -> int:
        """Assert the invariants; return the number of watchers."""
        heap = self._heap
        for index, watch in enumerate(heap):
            assert watch.place == index, f"the watch at {index} stores the place {watch.place}"
            assert watch.list_root is self.members, f"the watch at {index} is not in the list"
            if index:
                assert heap[(index - 1) // 2].threshold <= watch.threshold, "the heap is out of order"
        assert len(heap) == self.members.weight, f"{len(heap)} in the heap, {self.members.weight} in the list"
        return len(heap)


def _op_id(operation: Operation) -> i64:
    return operation._op_id


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
