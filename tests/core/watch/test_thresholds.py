"""Thresholds: which operations a check with a value tries, in which order, and which entries stay in the heap."""

import gc
import math
import weakref
from typing import Any

import pytest

from purgatory import Outcome
from purgatory.core.watch.thresholds import ThresholdHeap, ThresholdWatch
from purgatory.core.watch.watch import WatchList
from tests.helpers import Boom, Op
from tests.sansio import QuietPurgatory


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


def test_ended_entries_leave_the_heap_within_a_constant_factor(room: QuietPurgatory) -> None:
    """The heap is at most about twice as large as the number of waiting operations."""
    waiting = [park(room, str(number), {"log": number}) for number in range(1000)]
    for number, operation in enumerate(reversed(waiting)):
        operation.cancel()
        left = 999 - number
        if left:
            assert heap_size(room, "log") <= 2 * left + 9
    assert room.statistics().keys == 0


def test_an_ended_operation_is_freed_though_its_entry_is_not(room: QuietPurgatory, no_gc: None) -> None:
    """An entry that is still in the heap does not reference the ended operation."""

    class Held:
        pass

    park(room, "low", {"log": 0})
    park(room, "high", {"log": 100})
    held = Held()
    freed = weakref.ref(held)
    operation = park(room, "x", {"log": 50})
    operation._on_expiration = lambda _, held=held: None  # type: ignore[misc]
    operation.cancel()
    assert heap_size(room, "log") == 3
    del operation, held
    assert freed() is None


def test_a_stale_heap_entry_keeps_no_later_operation_alive(room: QuietPurgatory, no_gc: None) -> None:
    """A stale entry deep in the heap references no operation, even after many others have come and gone."""

    class Key:
        """A hashable object that supports weak references."""

    park(room, "stays", {"log": 100})
    lingering = park(room, "high", {"log": 10**6})
    before = park(room, "relay", {"log": 50})
    lingering.cancel()
    keys = []
    for _ in range(100):
        key = Key()
        keys.append(weakref.ref(key))
        after = park(room, "relay", {key: 50, "log": 50})
        before.cancel()
        before = after
        del key, after
    before.cancel()
    del before
    assert not gc.isenabled()
    assert [key for key in keys if key() is not None] == []
    room._check()


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
    """Up to ``most`` reached entries are returned in the order of arrival; beyond that the search gives up."""
    heap = ThresholdHeap(WatchList("key"))
    operations = [Op(10) for _ in range(8)]
    for number, operation in enumerate(operations):
        operation._op_id = number + 1
        heap.add(ThresholdWatch("key", operation, 10 - number))
    found = heap.reached_entries(7, most)
    assert (None if found is None else [number for number, _ in found]) == (None if most < 5 else [4, 5, 6, 7, 8])
