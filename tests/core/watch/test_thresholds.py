"""Thresholds: which operations a check with a value tries, in which order, and what this costs."""

import math
import random
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperation, Outcome
from purgatory.core.watch.thresholds import ThresholdHeap, ThresholdWatch
from purgatory.core.watch.watch import WatchList
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import QuietPurgatory, make_purgatory, pass_time


def park(room: QuietPurgatory, name: str, keys: Any, **arguments: Any) -> Op:
    operation = Op(name=name, **arguments)
    room.try_complete_else_watch(operation, keys)
    operation.calls.clear()
    return operation


def tried(*operations: Op) -> str:
    """Return the names of the operations that were tried since the last call."""
    names = "".join(operation.name for operation in operations if "try" in operation.calls)
    for operation in operations:
        operation.calls.clear()
    return names


def heap_size(room: QuietPurgatory, key: str) -> int:
    root = room._core.watcher_lists.entry(key)
    assert isinstance(root, WatchList)
    assert root.thresholds is not None
    return len(root.thresholds._heap)


def test_only_operations_whose_threshold_is_reached_are_tried(room: QuietPurgatory) -> None:
    """A check tries operations whose threshold is at most the value, and no others."""
    low, middle, high = (park(room, name, {"log": value}) for name, value in zip("lmh", (5, 7.5, 10), strict=True))
    room.check_and_complete("log", 4)
    assert tried(low, middle, high) == ""
    room.check_and_complete("log", 7)
    assert tried(low, middle, high) == "l"
    room.check_and_complete("log", 7.5)
    assert tried(low, middle, high) == "lm"
    room.check_and_complete("log", 10**30)
    assert tried(low, middle, high) == "lmh"


def test_without_a_value_every_operation_is_tried(room: QuietPurgatory) -> None:
    """A check without a value skips no operation."""
    first, second = park(room, "1", {"log": 5}), park(room, "2", {"log": math.inf})
    room.check_and_complete("log")
    assert tried(first, second) == "12"


def test_a_value_may_fall_again(room: QuietPurgatory) -> None:
    """Each check uses its own value, not the highest one so far."""
    first, second = park(room, "1", {"log": 5}), park(room, "2", {"log": 8})
    for value, names in ((9, "12"), (6, "1"), (3, ""), (8, "12")):
        room.check_and_complete("log", value)
        assert tried(first, second) == names


def test_plain_watchers_of_the_same_key_are_always_tried(room: QuietPurgatory) -> None:
    """Watchers without a threshold, and those whose threshold is reached, are tried in order of arrival."""
    order: list[str] = []
    for name, keys in (("a", ["log"]), ("b", {"log": 3}), ("c", ["log"]), ("d", {"log": 9}), ("e", {"log": 1})):
        park(room, name, keys, on_try=lambda operation: order.append(operation.name))
    order.clear()
    room.check_and_complete("log", 5)
    assert "".join(order) == "abce"
    order.clear()
    room.check_and_complete("log")
    assert "".join(order) == "abcde"


def test_a_plain_watcher_that_came_first_completes_first(room: QuietPurgatory) -> None:
    """Watchers with and without a threshold complete in order of arrival, and all are counted."""
    order: list[str] = []
    ops = [
        park(room, name, keys, on_complete=lambda op: order.append(op.name))
        for name, keys in (("p", ["a"]), ("r", {"a": 3}), ("q", ["a"]), ("s", {"a": 2}), ("t", ["a"]))
    ]
    for op in ops:
        op.ready = True
    assert room.check_and_complete("a", 3) == 5
    assert order == ["p", "r", "q", "s", "t"]
    room._check()


def test_each_key_has_its_own_threshold(room: QuietPurgatory) -> None:
    """An operation on several keys is tried for the key whose threshold is reached."""
    operation = park(room, "x", {"a": 5, "b": 50})
    room.check_and_complete("b", 5)
    assert tried(operation) == ""
    room.check_and_complete("a", 5)
    assert tried(operation) == "x"
    assert room.watched == 2


def test_one_that_ended_through_one_key_is_off_the_others(room: QuietPurgatory) -> None:
    """The operation is on no key, and empty keys are removed."""
    operation = park(room, "x", {"a": 5, "b": 50})
    operation.ready = True
    assert room.check_and_complete("a", 6) == 1
    assert (room.watched, room.statistics().keys) == (0, 0)
    room._check()


def test_an_operation_ended_by_an_earlier_callback_is_not_tried(room: QuietPurgatory) -> None:
    """An ended operation is skipped, with or without a threshold; the call that completed it counts it."""
    others: list[Op] = []

    def end_others(_: Op) -> None:
        others[0].cancel()
        others[1].force_complete()
        others[2].cancel()

    first = park(room, "1", {"log": 1}, on_complete=end_others)
    others += [park(room, "2", ["log"]), park(room, "3", ["log"]), park(room, "4", {"log": 1})]
    last = park(room, "5", {"log": 1})
    first.ready = True
    assert room.check_and_complete("log", 1) == 1
    assert tried(*others) == ""
    assert tried(last) == "5"
    assert [other.outcome for other in others] == [Outcome.CANCELLED, Outcome.COMPLETED, Outcome.CANCELLED]
    room._check()


def test_one_that_raises_does_not_keep_the_others_from_their_try(room: QuietPurgatory) -> None:
    """The operation that raises fails, and the operations after it are tried."""

    def boom(operation: Op) -> None:
        if operation.ready:
            raise Boom

    first, second = park(room, "1", {"log": 1}, on_try=boom), park(room, "2", {"log": 1})
    first.ready = second.ready = True
    assert room.check_and_complete("log", 1) == 1
    assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.COMPLETED)


def test_an_operation_that_arrives_during_a_check_is_not_tried_again(room: QuietPurgatory) -> None:
    """The operation was already tried when it was submitted."""
    late: list[Op] = []

    def arrive(_: Op) -> None:
        late.append(park(room, "late", {"log": 0}))

    first = park(room, "1", {"log": 0}, on_complete=arrive)
    first.ready = True
    room.check_and_complete("log", 5)
    assert tried(*late) == ""
    room.check_and_complete("log", 5)
    assert tried(*late) == "late"


class Counted:
    """A threshold that counts how often thresholds are compared."""

    comparisons = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return self.number < (other.number if isinstance(other, Counted) else other)

    def __le__(self, other: Any) -> bool:
        Counted.comparisons += 1
        return self.number <= (other.number if isinstance(other, Counted) else other)

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, Counted) and self.number == other.number

    __hash__ = None  # type: ignore[assignment]


def make_heap(thresholds: Sequence[int]) -> tuple[ThresholdHeap, list[ThresholdWatch]]:
    """Return a heap and its watches, in the order of arrival."""
    heap = ThresholdHeap(WatchList("key"))
    watches = []
    for number, threshold in enumerate(thresholds):
        operation = Op(10)
        operation._op_id = number + 1
        watches.append(ThresholdWatch("key", operation, Counted(threshold)))
        heap.add(watches[-1])
    return heap, watches


def oldest_in_the_middle(numbers: list[int]) -> list[int]:
    return numbers[1:512] + numbers[:1] + numbers[512:]


ORDERS = {
    "oldest first": list,
    "newest first": lambda numbers: numbers[::-1],
    "at random": lambda numbers: random.Random(1).sample(numbers, len(numbers)),
    "oldest in the middle": oldest_in_the_middle,
}
THRESHOLDS = {
    "rising": list(range(1024)),
    "falling": list(range(1024, 0, -1)),
    "equal": [7] * 1024,
    "random": random.Random(2).choices(range(500), k=1024),
}


@pytest.mark.parametrize("thresholds", THRESHOLDS)
@pytest.mark.parametrize("order", ORDERS)
def test_no_addition_and_no_removal_compares_more_than_the_height_of_the_heap(thresholds: str, order: str) -> None:
    """Each single call costs O(log n), also when many operations have ended before it."""
    heap, watches = make_heap(THRESHOLDS[thresholds][:-1])
    last = ThresholdWatch("key", Op(10), Counted(THRESHOLDS[thresholds][-1]))
    assert last.operation is not None
    last.operation._op_id = 1024
    Counted.comparisons = 0
    heap.add(last)
    assert Counted.comparisons <= 10  # one for each level above the new one
    watches.append(last)
    for ended, number in enumerate(ORDERS[order](list(range(1024)))):
        Counted.comparisons = 0
        heap.remove(watches[number])
        assert Counted.comparisons <= 21  # two for each level down, and one to see that the way up is closed
        if ended % 64 == 0:
            assert heap._check() == 1023 - ended
    assert heap._check() == 0


def test_a_check_compares_only_the_reached_thresholds_and_those_below_them() -> None:
    """Operations that have ended cost a check nothing."""
    heap, watches = make_heap([1] + [2] * 500 + [100] * 500)
    for watch in watches[1:501]:
        heap.remove(watch)
    Counted.comparisons = 0
    assert heap.reached(5) == [watches[0].operation]
    assert Counted.comparisons == 3


def test_an_operation_that_ends_during_a_removal_leaves_afterward(room: QuietPurgatory) -> None:
    """A finalizer may end an operation at any point, also while another one is being removed."""
    operations = [park(room, str(number), {"log": number}) for number in range(20)]

    class Ends:
        """Compares like 3, and ends other operations, as a finalizer does that runs at this point."""

        def __le__(self, other: Any) -> bool:
            return bool(other >= 3)

        def __gt__(self, other: Any) -> bool:
            return bool(other < 3)

        def __ge__(self, other: Any) -> bool:
            for operation in operations[4:12]:
                operation.cancel()
            return bool(other <= 3)

    watch: Any = operations[3]._watch
    watch.threshold = Ends()
    operations[1].cancel()
    watch.threshold = 3
    room._check()
    assert [operation.outcome is Outcome.CANCELLED for operation in operations] == [
        number == 1 or 4 <= number < 12 for number in range(20)
    ]
    room.check_and_complete("log", 13)
    assert tried(*operations) == "0231213"


def test_ended_operations_leave_the_heap(room: QuietPurgatory) -> None:
    """The heap contains the waiting operations, and no others."""
    waiting = [park(room, str(number), {"log": number}) for number in range(100)]
    for number, operation in enumerate(reversed(waiting)):
        operation.cancel()
        if number < 99:
            assert heap_size(room, "log") == 99 - number
    assert room.statistics().keys == 0


def test_an_ended_operation_is_freed_while_others_wait(room: QuietPurgatory, no_gc: None) -> None:
    """Neither the heap nor an iteration that has not reached it yet keeps it alive longer than its turn."""

    class Held:
        pass

    park(room, "low", {"log": 0})
    park(room, "high", {"log": 100})
    held = Held()
    freed = weakref.ref(held)
    operation = park(room, "x", {"log": 50})
    operation._on_expiration = lambda _, held=held: None  # type: ignore[misc]
    cursor = room._core.cursor("log", 60)
    assert cursor is not None
    operation.cancel()
    assert heap_size(room, "log") == 2
    del operation, held
    assert cursor.next() is not None
    assert cursor.next() is None
    assert freed() is None


@pytest.mark.parametrize(
    ("bad", "error"), [("5", TypeError), (None, TypeError), (True, TypeError), (float("nan"), ValueError)]
)
def test_a_threshold_is_a_number(room: QuietPurgatory, bad: Any, error: type[Exception]) -> None:
    """A threshold that is not a number is refused, and nothing is parked."""
    with pytest.raises(error, match="threshold for key 'b'"):
        room.try_complete_else_watch(Op(), {"a": 1, "b": bad})
    assert (len(room), room.watched) == (0, 0)


@pytest.mark.parametrize(("bad", "error"), [("5", TypeError), (True, TypeError), (float("nan"), ValueError)])
def test_a_value_is_a_number(room: QuietPurgatory, bad: Any, error: type[Exception]) -> None:
    """A value that is not a number is refused, also without waiting operations and inside a callback."""
    with pytest.raises(error):
        room.check_and_complete("log", bad)
    operation = park(room, "x", {"log": 1}, on_complete=lambda _: room.check_and_complete("log", bad))
    operation.ready = True
    room.check_and_complete("log", 2)
    assert operation.outcome is Outcome.FAILED
    room._check()


def test_a_check_within_a_callback_keeps_its_value(room: QuietPurgatory) -> None:
    """A check inside a callback is queued with its value."""
    first = park(room, "1", ["go"], on_complete=lambda _: room.check_and_complete("log", 5))
    low, high = park(room, "l", {"log": 5}), park(room, "h", {"log": 6})
    first.ready = low.ready = high.ready = True
    assert room.check_and_complete("go") == 2
    assert tried(low, high) == "l"
    assert high.outcome is Outcome.PENDING


def test_an_int_beyond_every_float_is_refused_by_name(room: QuietPurgatory) -> None:
    """The error says whether it is the threshold or the value."""
    with pytest.raises(ValueError, match=r"^threshold must fit a float"):
        room.try_complete_else_watch(Op(10), {"key": 10**400})
    with pytest.raises(ValueError, match=r"^value must fit a float"):
        room.check_and_complete("key", 10**400)


@pytest.mark.parametrize("most", [0, 1, 4, 5, 6])
def test_a_search_for_reached_thresholds_stops_at_its_bound(most: int) -> None:
    """Up to ``most`` reached operations are returned in the order of arrival; beyond that the search gives up."""
    heap, watches = make_heap(range(10, 2, -1))
    found = heap.few_reached(7, most)
    assert found == (None if most < 5 else [watch.operation for watch in watches[3:]])


# A threshold skips unnecessary tries and never changes an outcome: the same schedule with and without thresholds


KEYS = "abc"
VALUES = st.integers(0, 12)
TIMEOUTS = st.none() | st.integers(0, 900)


@dataclass
class Park:
    """Park an operation that waits until all of its keys, or any of them, have reached their thresholds."""

    wants: dict[str, int]
    every: bool
    timeout_ms: int | None
    plain: bool  # parked without thresholds in both runs
    then: tuple[str, int] | None  # its callback raises a value and checks
    fails: bool  # its condition raises once it holds


@dataclass
class Put:
    """Set the value of a key, which may be lower than before, and check the key."""

    key: str
    value: int
    with_value: bool  # the check passes the value


@dataclass
class Wait:
    milliseconds: int


@dataclass
class Cancel:
    key: str


@dataclass
class Extend:
    number: int
    timeout_ms: int | None


PARKS = st.builds(
    Park,
    wants=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1),
    every=st.booleans(),
    timeout_ms=TIMEOUTS,
    plain=st.sampled_from([False, False, True]),
    then=st.none() | st.tuples(st.sampled_from(KEYS), VALUES),
    fails=st.sampled_from([False, False, False, True]),
)
STEPS = st.lists(
    PARKS
    | st.builds(Put, key=st.sampled_from(KEYS), value=VALUES, with_value=st.sampled_from([True, True, True, False]))
    | st.builds(Wait, milliseconds=st.integers(1, 500))
    | st.builds(Cancel, key=st.sampled_from(KEYS))
    | st.builds(Extend, number=st.integers(0, 30), timeout_ms=TIMEOUTS),
    max_size=60,
)


@dataclass
class World:
    """One run: the values of the keys, the operations, and the outcome and time of each."""

    thresholds: bool
    tick_ms: int
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000_000))
    values: dict[str, int] = field(default_factory=dict)
    operations: list["Waiter"] = field(default_factory=list)
    moments: dict[int, tuple[str, int]] = field(default_factory=dict)
    tries: int = 0

    def __post_init__(self) -> None:
        self.room: QuietPurgatory = make_purgatory(self.clock, tick_ms=self.tick_ms)

    def run(self, steps: Sequence[Any]) -> None:
        for step in steps:
            match step:
                case Park():
                    self.park(step)
                case Put():
                    self.put(step.key, step.value, step.with_value)
                case Wait():
                    pass_time(self.clock, self.room, step.milliseconds)
                case Cancel():
                    self.room.cancel_for_key(step.key)
                case Extend() if step.number < len(self.operations):
                    self.operations[step.number].extend(None if step.timeout_ms is None else step.timeout_ms / 1000)
            self.note_moments()
            self.room._check()

    def park(self, step: Park) -> None:
        waiter = Waiter(self, step)
        self.operations.append(waiter)
        keys: Any = step.wants if self.thresholds and not step.plain else list(step.wants)
        try:
            self.room.try_complete_else_watch(waiter, keys)
        except Failed:
            assert step.fails

    def put(self, key: str, value: int, with_value: bool = True) -> None:
        self.values[key] = value
        self.room.check_and_complete(key, value if with_value else None)

    def note_moments(self) -> None:
        for number, operation in enumerate(self.operations):
            outcome = operation.outcome.name
            if outcome != "PENDING":
                self.moments.setdefault(number, (outcome, operation.ended_ms or self.clock.time_ms))


class Failed(Exception):
    pass


class Waiter(DelayedOperation[None]):
    def __init__(self, world: World, step: Park) -> None:
        super().__init__(None if step.timeout_ms is None else step.timeout_ms / 1000)
        self.world = world
        self.step = step
        self.ended_ms: int | None = None

    def try_complete(self) -> bool:
        self.world.tries += 1
        values = self.world.values
        reached = [values.get(key, 0) >= wanted for key, wanted in self.step.wants.items()]
        holds = all(reached) if self.step.every else any(reached)
        if holds and self.step.fails:
            raise Failed
        return holds

    def on_complete(self) -> None:
        self.ended_ms = self.world.clock.time_ms
        if self.step.then is not None:
            key, value = self.step.then
            self.world.put(key, max(value, self.world.values.get(key, 0)))


@given(STEPS, st.sampled_from([1, 1, 7, 100]))
def test_outcomes_and_moments_are_the_same_with_and_without(steps: list[Any], tick_ms: int) -> None:
    """In any schedule, every operation ends the same way at the same millisecond, with no more tries."""
    hinted, plain = World(thresholds=True, tick_ms=tick_ms), World(thresholds=False, tick_ms=tick_ms)
    hinted.run(steps)
    plain.run(steps)
    assert hinted.moments == plain.moments
    assert hinted.values == plain.values
    assert hinted.tries <= plain.tries
    assert len(hinted.room) == len(plain.room)


@given(STEPS)
def test_waiting_operations_are_below_their_thresholds(steps: list[Any]) -> None:
    """After any schedule, the condition of every waiting operation is false, so no required try was skipped."""
    world = World(thresholds=True, tick_ms=1)
    world.run(steps)
    for waiter in world.operations:
        if waiter.outcome.name == "PENDING" and not waiter.step.fails:
            assert not waiter.try_complete()
