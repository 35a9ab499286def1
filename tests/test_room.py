"""A room without a loop: what it counts, and that a first try or a key that raises leaves nothing behind."""

from typing import Any

import pytest

from purgatory import Outcome
from tests.helpers import Boom, Op, check
from tests.sansio import HandClock, make_room


def test_what_never_waits_is_counted_each_time() -> None:
    """Those that complete at once are counted among the completed, and by themselves."""
    room = make_room(HandClock())
    for _ in range(3):
        assert room.try_complete_else_watch(Op(ready=True), ["a"])
    check(room, immediate=3, completed=3, submitted=3)  # type: ignore[arg-type]


def test_one_that_raises_in_its_first_try_keeps_its_error() -> None:
    """Whoever asks for its result gets what reached the caller."""

    def fail(_: Op) -> None:
        raise Boom

    room = make_room(HandClock())
    operation = Op(on_try=fail)
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, ["a"])
    assert operation.outcome is Outcome.FAILED
    with pytest.raises(Boom):
        operation.result()


def test_expiring_some_tells_how_many_have_left() -> None:
    """Closing goes on for as long as somebody leaves."""
    room = make_room(HandClock())
    for number in range(5):
        room.try_complete_else_watch(Op(), [number])
    assert [room._desk.expire_some(2) for _ in range(4)] == [2, 2, 1, 0]
    check(room, parked=0, expired=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_a_key_that_raises_while_it_is_parked_leaves_nothing_behind(bad: int) -> None:
    """At whichever of four keys: the operation is on none of them, and still PENDING."""

    class Once:
        left = 1  # its hash is asked for once before anything has changed

        def __hash__(self) -> int:
            if not self.left:
                raise Boom
            self.left -= 1
            return 1

    room = make_room(HandClock())
    operation = Op(5)
    keys: list[Any] = ["a", "b", "c"]
    keys.insert(bad, Once())
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, keys)
    assert operation.outcome is Outcome.PENDING
    assert operation.expiration_ms is None
    check(room, parked=0, watched=0, keys=0, submitted=0)  # type: ignore[arg-type]
