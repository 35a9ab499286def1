"""Checks with a value: which operations are tried, and in which order, while watchers arrive and leave."""

import random

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, check
from tests.sansio import QuietPurgatory


def _tried(ops: "list[Op]") -> list[int]:
    """Return the operations that were tried since the last call."""
    tried = [number for number, op in enumerate(ops) if op.calls.count("try") > 1]
    for op in ops:
        op.calls[:] = op.calls[:1]
    return tried


def test_only_reached_operations_are_tried(room: QuietPurgatory) -> None:
    """A check with a value tries the watchers whose threshold is at most that value."""
    ops = [Op(None) for _ in range(10)]
    for number, op in enumerate(ops):
        room.try_complete_else_watch(op, {"log": number * 10})
    for value, reached in ((-1, []), (0, [0]), (35, [0, 1, 2, 3]), (9.9, [0]), (1e9, list(range(10)))):
        assert room.check_and_complete("log", value) == 0
        assert _tried(ops) == reached


def test_without_a_value_every_operation_is_tried(room: QuietPurgatory) -> None:
    """A check without a value ignores the thresholds."""
    ops = [Op(None) for _ in range(5)]
    for op in ops:
        room.try_complete_else_watch(op, {"log": 1000})
    assert room.check_and_complete("log") == 0
    assert _tried(ops) == [0, 1, 2, 3, 4]


def test_operations_without_a_threshold_are_always_tried(room: QuietPurgatory) -> None:
    """Watchers of one key with and without a threshold are tried in order of arrival."""
    order: list[str] = []
    ops = [Op(None, name=str(number), on_try=lambda op: order.append(op.name)) for number in range(8)]
    for number, op in enumerate(ops):
        room.try_complete_else_watch(op, ["log"] if number % 2 else {"log": number})
    order.clear()
    room.check_and_complete("log", 4)
    assert order == ["0", "1", "2", "3", "4", "5", "7"]
    order.clear()
    room.check_and_complete("log")
    assert order == [str(number) for number in range(8)]
    assert room.check_and_complete("log", -5) == 0
    assert order[8:] == ["1", "3", "5", "7"]


def test_a_value_may_fall_again(room: QuietPurgatory) -> None:
    """A check changes no threshold, so a lower value later finds the right operations."""
    ops = [Op(None) for _ in range(4)]
    for number, op in enumerate(ops):
        room.try_complete_else_watch(op, {"log": number})
    for value, reached in ((3, [0, 1, 2, 3]), (1, [0, 1]), (2, [0, 1, 2])):
        room.check_and_complete("log", value)
        assert _tried(ops) == reached


def test_a_threshold_never_changes_an_outcome(room: QuietPurgatory) -> None:
    """The condition decides, and forcing, expiry and withdrawal need no value."""
    op = Op(None)
    room.try_complete_else_watch(op, {"log": 5})
    assert room.check_and_complete("log", 100) == 0
    op.ready = True
    assert room.check_and_complete("log", 4) == 0
    assert room.check_and_complete("log", 5) == 1
    others = [Op(None, ready=False) for _ in range(2)]
    for other in others:
        room.try_complete_else_watch(other, {"log": 1e18})
    assert others[0].force_complete()
    assert room.cancel_for_key("log") == [others[1]]


def test_different_thresholds_for_different_keys(room: QuietPurgatory) -> None:
    """Each key has its own threshold, and the thresholds are independent of each other."""
    op = Op(None)
    room.try_complete_else_watch(op, {"a": 5, "b": 50, "c": float("inf"), "d": float("-inf")})
    assert set(op.keys) == {"a", "b", "c", "d"}
    check(room, watched=4)
    for key, value, tried in (("a", 5, True), ("b", 49, False), ("b", 50, True), ("c", 1e300, False), ("d", 0, True)):
        room.check_and_complete(key, value)
        assert bool(_tried([op])) is tried


def test_equal_thresholds_are_tried_in_the_order_of_arrival(room: QuietPurgatory) -> None:
    """Operations with equal or different thresholds that are reached are tried in order of arrival."""
    order: list[str] = []
    thresholds = [5, 3, 5, 1, 3, 5]
    ops = [Op(None, name=str(number), on_try=lambda op: order.append(op.name)) for number in range(6)]
    for op, threshold in zip(ops, thresholds, strict=True):
        room.try_complete_else_watch(op, {"log": threshold})
    order.clear()
    room.check_and_complete("log", 5)
    assert order == ["0", "1", "2", "3", "4", "5"]


def test_the_heap_holds_little_more_than_what_waits(room: QuietPurgatory) -> None:
    """Entries of ended operations leave the heap within a constant factor and do not reference their operations."""
    source = random.Random(7)
    waiting: list[Op] = []
    for number in range(3000):
        op = Op(None)
        room.try_complete_else_watch(op, {"log": source.randrange(1000)})
        waiting.append(op)
        if number % 3:
            waiting.pop(source.randrange(len(waiting))).cancel()
        if number % 100 == 0:
            room._check()
    entry = room._core.watcher_lists.entry("log")
    assert entry is not None
    assert len(entry.thresholds._heap) <= 2 * len(waiting) + 10  # type: ignore[attr-defined]
    assert room.hot_keys(1) == [("log", len(waiting))]
    for op in waiting:
        op.cancel()
    check(room, keys=0, watched=0)


def test_callbacks_that_change_the_watchers_during_a_check(room: QuietPurgatory) -> None:
    """Operations that are withdrawn or parked during the check are not tried; the others are, in order."""
    order: list[str] = []
    late: list[Op] = []

    def meddle(op: Op) -> None:
        order.append(op.name)
        if op.name == "1" and not late:
            ops[2].cancel()
            ops[5].cancel()
            late.append(Op(None, name="late", on_try=lambda op: order.append(op.name)))
            room.try_complete_else_watch(late[0], {"log": 0})

    ops = [Op(None, name=str(number)) for number in range(8)]
    for number, op in enumerate(ops):
        room.try_complete_else_watch(op, {"log": 8 - number} if number % 2 else ["log"])
        op._on_try = meddle
    room.check_and_complete("log", 8)
    assert order == ["0", "1", "late", "3", "4", "6", "7"]
    order.clear()
    room.check_and_complete("log")
    assert order == ["0", "1", "3", "4", "6", "7", "late"]


async def test_a_check_soon_without_a_value_tries_every_operation(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """A coalesced check without a value ignores the thresholds."""
    ops = [Op(None) for _ in range(50)]
    for number, op in enumerate(ops):
        purgatory.try_complete_else_watch(op, {"log": 1000} if number % 2 else ["log"])
    purgatory.check_soon("log")
    await clock.settle()
    assert _tried(ops) == list(range(50))
