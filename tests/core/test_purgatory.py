"""The purgatory without an event loop: what it does for its owner, and that a key that raises leaves nothing behind."""

import weakref
from typing import Any

import pytest

from purgatory import Outcome
from purgatory.core.hooks import Hooks
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op, check, park, waiting
from tests.sansio import QuietPurgatory, make_purgatory


def test_expire_some_returns_how_many_have_left() -> None:
    """Closing continues as long as operations leave."""
    room = make_purgatory(ManualClock())
    for number in range(5):
        room.try_complete_else_watch(Op(), [number])
    assert [room._core.expire_some(2) for _ in range(4)] == [2, 2, 1, 0]
    check(room, parked=0, expired_by_closing=5)


def test_expire_some_keeps_no_operation() -> None:
    """The position in the keys, at which the next call would continue, is dropped with the last operation."""
    room = make_purgatory(ManualClock())
    left = [weakref.ref(park(room, number)) for number in range(3)]
    assert [room._core.expire_some(1) for _ in range(3)] == [1, 1, 1]
    assert [reference() for reference in left] == [None, None, None]


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
    check(room, parked=0, watched=0, keys=0, submitted=0)


def test_a_callback_that_raises_when_its_operation_has_ended_is_reported_with_it() -> None:
    """The operation keeps its outcome, and the hook gets the error together with the operation."""
    reported: list[tuple[BaseException, object]] = []

    class Recording(Hooks):
        def report(self, error: BaseException, operation: Any) -> None:
            reported.append((error, operation))

    def fail() -> None:
        raise boom

    boom = Boom()
    room = BasePurgatory("test", BaseTimer(1, 20, ManualClock(0)), hooks=Recording())
    operation = park(room, "key")
    room._core.call_when_ended(operation, fail)
    assert operation.cancel()
    assert operation.outcome is Outcome.CANCELLED
    assert reported == [(boom, operation)]
    room._check()


def listening(room: QuietPurgatory, key: Any, **arguments: Any) -> Op:
    """An operation that every check of the key tries, and that never completes."""
    operation = Op(**arguments)
    room.try_complete_else_watch(operation, [key])
    operation.calls.clear()
    room._core.listen(operation, key)
    return operation


def test_a_limited_check_tries_the_listeners_of_its_own_key(room: QuietPurgatory) -> None:
    """The check does not try listeners of other keys."""
    waiting(room, 2)
    mine, other = listening(room, "key"), listening(room, "other")
    assert room.check_and_complete("key", limit=1) == 1
    assert mine.calls
    assert not other.calls
    waiting(room, 1, "third")
    assert room.check_and_complete("third", limit=1) == 1
    assert not other.calls


def test_a_key_without_listeners_needs_no_search() -> None:
    """Nothing raises, so it makes no difference which exceptions are contained."""
    room = make_purgatory(ManualClock(), contained=(Boom,))
    waiting(room, 2)
    other = listening(room, "other")
    assert room.check_and_complete("key", limit=1) == 1
    assert not other.calls


def test_a_key_that_raises_hides_the_check_from_none_of_its_listeners(room: QuietPurgatory) -> None:
    """They are then searched for among the listeners of all keys; the check does not reach them in any other way."""

    class Raising:
        hashes_left = 1_000

        def __hash__(self) -> int:
            self.hashes_left -= 1
            if self.hashes_left == 0:
                raise Boom
            return 1

    key = Raising()
    waiting(room, 1, key)  # type: ignore[arg-type]
    mine, other = [listening(room, key), listening(room, key)], listening(room, "other")
    key.hashes_left = 3  # the check has found the key's entry when it raises
    assert room.check_and_complete(key, limit=1) == 1
    assert [operation.calls for operation in mine] == [["try"], ["try"]]
    assert not other.calls
    assert key.hashes_left <= 0


def test_a_listener_that_another_one_ends_is_not_tried(room: QuietPurgatory) -> None:
    """A listener that another one ends is not tried, because its operation has left the key."""
    waiting(room, 1)
    first = listening(room, "key")
    second = listening(room, "key")
    first._on_try = lambda _: second.cancel()
    assert room.check_and_complete("key", limit=1) == 1
    assert second.calls == []


def test_a_listener_whose_key_is_not_found_any_more(room: QuietPurgatory) -> None:
    """If a key has changed its hash, its listener is removed nevertheless; only the key's entry remains."""

    class Changing:
        value = 1

        def __hash__(self) -> int:
            return self.value

    key = Changing()
    operation = Op()
    room.try_complete_else_watch(operation, [key])
    listeners = room._core.listen(operation, key)
    key.value = 2
    room._core.unlisten(operation, key, listeners)
    assert operation.outcome is Outcome.PENDING
    key.value = 1
    assert room._core._listeners == {key: {}}


def test_an_idle_purgatory_is_true() -> None:
    """Code such as ``given or make_purgatory()`` uses the purgatory that it was given, although its length is 0."""
    room = make_purgatory(ManualClock())
    assert len(room) == 0
    assert room
