"""A purgatory without a loop: its counters, and that a try or a key that raises leaves nothing behind."""

from typing import Any

import pytest

from purgatory import Outcome
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op, check
from tests.sansio import make_purgatory


def test_operations_that_complete_at_once_are_counted() -> None:
    """Operations that complete at once are counted as completed, and also separately."""
    room = make_purgatory(ManualClock())
    for _ in range(3):
        assert room.try_complete_else_watch(Op(ready=True), ["a"])
    check(room, immediate=3, completed=3, submitted=3)  # type: ignore[arg-type]


def test_one_that_raises_in_its_first_try_keeps_its_error() -> None:
    """The result of the operation raises the error that reached the caller."""

    def fail(_: Op) -> None:
        raise Boom

    room = make_purgatory(ManualClock())
    operation = Op(on_try=fail)
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, ["a"])
    assert operation.outcome is Outcome.FAILED
    with pytest.raises(Boom):
        operation.result()


def test_expire_some_returns_how_many_have_left() -> None:
    """Closing continues as long as operations leave."""
    room = make_purgatory(ManualClock())
    for number in range(5):
        room.try_complete_else_watch(Op(), [number])
    assert [room._core.expire_some(2) for _ in range(4)] == [2, 2, 1, 0]
    check(room, parked=0, expired_by_closing=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_a_key_that_raises_while_it_is_parked_leaves_nothing_behind(bad: int) -> None:
    """Whichever of four keys raises, the operation is on none of them, and still PENDING."""

    class Once:
        left = 1  # the hash is computed once before the state changes

        def __hash__(self) -> int:
            if not self.left:
                raise Boom
            self.left -= 1
            return 1

    room = make_purgatory(ManualClock())
    operation = Op(5)
    keys: list[Any] = ["a", "b", "c"]
    keys.insert(bad, Once())
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, keys)
    assert operation.outcome is Outcome.PENDING
    assert operation.expiration_ms is None
    check(room, parked=0, watched=0, keys=0, submitted=0)  # type: ignore[arg-type]


def test_an_idle_purgatory_is_true() -> None:
    """Code such as ``given or make_purgatory()`` uses the purgatory that it was given, although its length is 0."""
    room = make_purgatory(ManualClock())
    assert len(room) == 0
    assert room
