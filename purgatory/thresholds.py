"""Thresholds: watchers of a key that know from which value on it is worth trying them.  Floor 3.

**What it must do.**  Ten thousand consumers wait at the end of a log, each for an offset of its own.  A check that
knows the new end must try those whose offset is reached, in the order in which they came, and touch no other.

**Prior art.**  Kafka's purgatory tries every watcher of a key on every check.  Its raft module has a separate
``ThresholdPurgatory`` for a single value that only grows.

**What is done here.**  A binary heap per key, lowest threshold first.  A check does not take the reached entries out
and put back those that are not completed: it walks the heap from the top and turns back wherever an entry is not
reached, because nothing below it can be.  So it costs what it tries, and a value may fall again without anything
being moved.

**Costs.**  Watching is O(log n), a check O(reached).  An entry whose operation has ended lets go of it at once, and
stays in the heap as a husk, an empty entry, until it comes to the top or until husks are more than half of the heap, so
the heap is never larger than twice what waits, plus a few.

**What it is not.**  A threshold never decides anything.  It only says that ``try_complete()`` would be False below
it; an operation whose threshold says so wrongly waits for its next check with a value that is high enough, one
without a value, or its deadline.
"""

import heapq
import math
from collections.abc import Hashable, Mapping
from typing import Any, Final

from .operation import Operation
from .watch import Watch, WatchRoot

__all__ = ["Rank", "Ranks", "ThresholdWatch", "check_thresholds", "check_value"]

_FEW: Final = 8  # below this many, husks are not worth a thought


class ThresholdWatch(Watch):
    """A place in the watch list of a key, with the value from which on it is worth a try."""

    __slots__ = ("rank", "threshold")

    def __init__(self, key: Hashable, operation: Operation, threshold: Any) -> None:
        super().__init__(key, operation)
        self.threshold: Any = threshold
        self.rank: Rank = Rank(operation)


class Rank:
    """What stands in the heap for a watch; without an operation it is a husk.

    It is not the watch itself: a watch that has left leads on to those behind it, which may have left as well, and a
    husk would keep the whole chain of them alive.
    """

    __slots__ = ("operation",)

    def __init__(self, operation: Operation) -> None:
        self.operation: Operation | None = operation


class Ranks:
    """The watchers of one key that gave a threshold: a list in the order of arrival, and a heap by threshold."""

    __slots__ = ("_heap", "_husks", "members")

    def __init__(self, key: Hashable) -> None:
        self.members: WatchRoot = WatchRoot(key)
        self._heap: list[tuple[Any, int, Rank]] = []
        self._husks: int = 0

    def add(self, watch: ThresholdWatch) -> None:
        operation = watch.operation
        assert operation is not None
        heapq.heappush(self._heap, (watch.threshold, operation._op_id, watch.rank))
        self.members.append(watch)

    def remove(self, watch: ThresholdWatch) -> None:
        """Take the watch out of the list; its entry in the heap becomes a husk."""
        self.members.unlink(watch)
        watch.rank.operation = None
        self._husks += 1
        heap = self._heap
        while heap and heap[0][2].operation is None:
            heapq.heappop(heap)
            self._husks -= 1
        if self._husks > _FEW and self._husks * 2 > len(heap):
            heap[:] = [entry for entry in heap if entry[2].operation is not None]
            heapq.heapify(heap)
            self._husks = 0

    def reached(self, value: Any) -> list[Operation]:
        """The operations whose threshold is at most ``value``, in the order of arrival."""
        heap = self._heap
        size = len(heap)
        found: list[tuple[int, Operation]] = []
        todo = [0]
        while todo:
            index = todo.pop()
            if index >= size:
                continue
            threshold, op_id, rank = heap[index]
            if threshold <= value:
                if rank.operation is not None:
                    found.append((op_id, rank.operation))
                todo.append(2 * index + 1)
                todo.append(2 * index + 2)
        found.sort()
        return [operation for _, operation in found]

    def _check(self) -> int:
        """Assert the invariants; return the number of watchers."""
        heap = self._heap
        live = 0
        for index, (threshold, op_id, rank) in enumerate(heap):
            if index:
                assert heap[(index - 1) // 2][:2] <= (threshold, op_id), "the heap is no heap"
            if rank.operation is not None:
                assert rank.operation._op_id == op_id
                live += 1
        assert len(heap) - live == self._husks, f"{len(heap) - live} husks, counted {self._husks}"
        assert self._husks <= max(_FEW, live + 1), f"{self._husks} husks beside {live} watchers"
        assert live == self.members.weight, f"{live} in the heap, {self.members.weight} in the list"
        return live


def check_thresholds(keys: Mapping[Hashable, Any]) -> None:
    """Raise TypeError or ValueError unless every threshold is a number that can be compared."""
    for key, threshold in keys.items():
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise TypeError(f"the threshold for key {key!r} is a number, not {threshold!r}")
        if math.isnan(threshold):
            raise ValueError(f"the threshold for key {key!r} is NaN, which no value ever reaches")


def check_value(value: Any) -> None:
    """Raise TypeError or ValueError unless the value of a check is a number that can be compared."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"the value of a check is a number, not {value!r}")
    if math.isnan(value):
        raise ValueError("the value of a check is NaN, which reaches no threshold")
