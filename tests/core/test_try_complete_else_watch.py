"""Submitting an operation: its one try, its keys, and operations that never wait."""

from typing import Any

import pytest

from purgatory import Outcome, PurgatoryClosed
from tests.helpers import Op, check
from tests.sansio import QuietPurgatory


def test_an_operation_that_is_complete_never_waits(room: QuietPurgatory) -> None:
    """The operation has one try, no watch and no timer; it counts as immediate and completed."""
    op = Op(5, ready=True)
    assert room.try_complete_else_watch(op, ["a", "b"])
    assert op.calls == ["try", "complete"]
    check(room, parked=0, watched=0, num_delayed=0, submitted=1, immediate=1, completed=1)
    assert room._core.timer.size == 0


def test_an_operation_may_complete_itself_as_in_kafka(room: QuietPurgatory) -> None:
    """try_complete may call force_complete and return its result."""

    class Kafka(Op):
        def try_complete(self) -> bool:
            self.calls.append("try")
            return self.ready and self.force_complete()

    now, later = Kafka(5, ready=True), Kafka(5)
    assert room.try_complete_else_watch(now, ["a"])
    assert not room.try_complete_else_watch(later, ["a"])
    later.ready = True
    assert room.check_and_complete("a") == 1
    assert (now.completions, later.completions) == (1, 1)
    check(room, parked=0, completed=2, immediate=1)


def test_an_operation_that_completed_itself_and_returns_false_is_complete(room: QuietPurgatory) -> None:
    """The outcome counts, not the return value of ``try_complete`` after ``force_complete``."""
    op = Op(5, on_try=lambda op: op.force_complete())
    assert room.try_complete_else_watch(op, ["a"])
    check(room, parked=0, completed=1)


def test_an_operation_is_tried_once_when_it_is_handed_over(room: QuietPurgatory) -> None:
    """An operation is tried once when it is submitted; Kafka needs two tries."""
    op = Op(5)
    assert not room.try_complete_else_watch(op, ["a", "b", "c"])
    assert op.calls == ["try"]
    check(room, parked=1, watched=3, num_delayed=1)


def test_duplicate_keys_count_once(room: QuietPurgatory) -> None:
    """A key that is given twice is watched once."""
    op = Op(5)
    room.try_complete_else_watch(op, ["a", "b", "a", "a"])
    assert op.keys == ("a", "b")
    check(room, watched=2)
    op.ready = True
    assert room.check_and_complete("a") == 1
    assert op.completions == 1


@pytest.mark.parametrize("make", [list, tuple, iter, dict.fromkeys, set, frozenset])
def test_keys_are_any_iterable(room: QuietPurgatory, make: Any) -> None:
    """Lists, tuples, generators, sets and the keys of a dict are accepted."""
    op = Op(5)
    keys = make(["a", ("b", 1), 3])
    room.try_complete_else_watch(op, keys.keys() if isinstance(keys, dict) else keys)
    assert set(op.keys) == {"a", ("b", 1), 3}
    check(room, watched=3)


@pytest.mark.parametrize("closed", ["purgatory", "timer"])
def test_what_is_closed_does_not_try_it(room: QuietPurgatory, closed: str) -> None:
    """An operation that would complete at once is refused as well."""
    if closed == "purgatory":
        room._core.closed = True
    else:
        room._core.timer.closed = True
    op = Op(5, ready=True)
    with pytest.raises(PurgatoryClosed, match=closed):
        room.try_complete_else_watch(op, ["a"])
    assert (op.outcome, op.calls) == (Outcome.PENDING, [])
    check(room, submitted=0)
