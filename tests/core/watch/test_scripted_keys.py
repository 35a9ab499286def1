"""Keys whose equality changes between two lookups: no watch is lost, and no watch of another key is taken."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Event, Observer, Outcome, PurgatoryError
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import QuietPurgatory, make_purgatory


class Key:
    """A key whose comparisons follow a script of True, False and exceptions, and then return False."""

    def __init__(self, *answers: Any) -> None:
        self.answers = deque(answers)

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        answer = self.answers.popleft() if self.answers else False
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)


def park(room: QuietPurgatory, key: Key) -> Op:
    operation = Op(5)
    assert not room.try_complete_else_watch(operation, [key])
    return operation


def refused(room: QuietPurgatory, keys: Any) -> None:
    """Check that parking on the keys fails because of their equality, and leaves nothing behind."""
    parked = len(room)
    with pytest.raises(LookupError, match="the hash or the equality of a key changed"):
        room.try_complete_else_watch(Op(5), keys)
    assert len(room) == parked
    room._check()


def close(room: QuietPurgatory) -> None:
    """End the remaining operations, and check that nothing remains."""
    while len(room):
        assert room._core.expire_some(10)
    room._check()
    assert room.statistics().keys == 0
    assert not room._core.watcher_lists._misplaced


def test_a_threshold_on_a_key_that_becomes_equal_to_another_is_refused(room: QuietPurgatory) -> None:
    """The lookup finds no entry, but the insertion finds the entry of the other key."""
    first = Key()
    park(room, first)
    first.answers.extend([False, True])
    refused(room, {Key(): 3})
    close(room)


@pytest.mark.parametrize("back", [False, True, Boom()], ids=["put back", "equal to another", "raises"])
def test_the_entry_of_another_key_is_given_back(room: QuietPurgatory, back: Any) -> None:
    """A removal that hits another key's entry restores it or keeps it aside, and its operation still ends."""
    first, second = Key(), Key()
    one, two = park(room, first), park(room, second)
    first.answers.extend([True, True, False, back])
    second.answers.append(True)
    refused(room, [Key()])
    first.answers.clear()
    assert room._core.watcher_lists.all_operations() == [one, two]
    assert set(room._core.watcher_lists.some(10)) == {one, two}
    assert room.is_watched(first)
    assert room.is_watched(second) == (back is False)
    assert one.cancel()
    room._check()
    assert two.cancel()
    close(room)
    assert room.reported == []


def test_entries_that_were_kept_aside_leave_in_any_order(room: QuietPurgatory) -> None:
    """If two entries have no place, they can leave in any order."""
    first, second, third = Key(), Key(), Key()
    operations = [park(room, key) for key in (first, second, third)]
    for other in (second, third):
        first.answers.extend([True, True, False, True])
        second.answers.extend([True] if other is second else [])
        third.answers.extend([True] if other is third else [])
        refused(room, [Key()])
        first.answers.clear()
    assert room.statistics().keys == 3
    assert len(room._core.watcher_lists.some(2)) == 2
    assert operations[2].cancel()
    room._check()
    assert operations[1].cancel()
    close(room)
    assert room.reported == []


def test_an_entry_that_cannot_be_replaced_is_put_back(room: QuietPurgatory) -> None:
    """The new key becomes equal to a third key after the old entry has been deleted."""
    first, second = Key(), Key()
    one, two = park(room, first), park(room, second)
    first.answers.extend([True, True, True])
    second.answers.extend([True, False])
    refused(room, [Key()])
    assert room._core.watcher_lists.all_operations() == [one, two]
    assert room.is_watched(first)
    assert room.is_watched(second)
    close(room)


class Acting:
    """A key that runs one of its actions at each hash, as long as there are any."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.actions = deque(actions)

    def __hash__(self) -> int:
        if self.actions:
            self.actions.popleft()()
        return 7


def boom() -> None:
    raise Boom


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_key_that_ends_another_operation_and_then_raises(room: QuietPurgatory) -> None:
    """The other operation leaves its key as soon as no key comparison is running."""
    operation = park(room, Key())
    other = Op(5)
    room.try_complete_else_watch(other, ["other"])

    class Ending(Key):
        def __eq__(self, _: object) -> bool:
            assert other.cancel()
            raise Boom

        __hash__ = Key.__hash__

    with pytest.raises(Boom):
        room.try_complete_else_watch(Op(5), [Ending()])
    assert other.outcome is Outcome.CANCELLED
    assert not room.is_watched("other")
    room._check()
    assert operation.cancel()
    close(room)


def test_a_key_that_ends_another_operation_while_its_own_leaves(room: QuietPurgatory) -> None:
    """Both operations are off their keys when the call returns."""
    other = park(room, Key())
    leaving = Acting()
    operation = Op(5)
    room.try_complete_else_watch(operation, [leaving])
    leaving.actions.append(other.cancel)
    assert operation.cancel()
    assert room.statistics().keys == 0
    close(room)


class Ending(Key):
    """A key that cancels an operation when it is compared, whose own key then runs an action at its next hash."""

    def __init__(self, ended: Op, leaving: Acting, action: Callable[[], object] | None) -> None:
        super().__init__()
        self.ended, self.leaving, self.action = ended, leaving, action

    def __eq__(self, _: object) -> bool:
        if self.ended.cancel() and self.action is not None:
            self.leaving.actions.append(self.action)
        return False

    __hash__ = Key.__hash__


@pytest.mark.parametrize("end", ["cancel", "force_complete"])
@pytest.mark.parametrize("refused", [False, True])
def test_a_key_that_ends_the_operation_being_submitted_while_its_own_leaves(
    room: QuietPurgatory, refused: bool, end: str
) -> None:
    """The key's own operation ended while keys were compared, so it leaves its key before the call returns.

    ``refused``: whether another key raises; the operation keeps the outcome that it got while it was removed.
    """
    leaving, ended, submitted = Acting(), Op(5), Op(5)
    room.try_complete_else_watch(ended, [leaving])
    room.try_complete_else_watch(Op(5), ["other"])
    park(room, Key())
    key = Ending(ended, leaving, getattr(submitted, end))
    if refused:
        with pytest.raises(Boom):
            room.try_complete_else_watch(submitted, [key, Acting(lambda: None, boom)])
    else:
        assert room.try_complete_else_watch(submitted, [key]) is (end == "force_complete")
    assert submitted.outcome is (Outcome.CANCELLED if end == "cancel" else Outcome.COMPLETED)
    assert len(room) == 2
    room._check()
    close(room)


@pytest.mark.parametrize("ends", [False, True])
def test_an_observer_finds_that_an_operation_that_a_key_has_ended_has_left_its_key(ends: bool) -> None:
    """``ends``: whether that operation's key then ends the operation being parked, which is not reported as parked."""
    seen: list[Any] = []

    class Watching(Observer):
        def parked(self, event: Event) -> None:
            seen.append((event.keys, room.is_watched(leaving), room.statistics().keys))

        def cancelled(self, event: Event) -> None:
            seen.append(event.keys)

    room = make_purgatory(ManualClock(1_000), observers=[Watching()])
    leaving, ended, parking, other = Acting(), Op(5), Op(5), Key()
    room.try_complete_else_watch(ended, [leaving])
    park(room, other)
    seen.clear()

    key = Ending(ended, leaving, parking.cancel if ends else None)
    room.try_complete_else_watch(parking, [key])
    assert seen == [(leaving,), (key,) if ends else ((key,), False, 2)]
    assert len(room) == 2 - ends
    room._check()
    close(room)


def test_a_key_that_raises_as_the_check_of_its_watchers_ends_the_last_one(room: QuietPurgatory) -> None:
    """The ended watcher remains as a tombstone, which the check passes over; the error of its key is reported."""
    key = Acting()

    def end_the_last(_: Op) -> None:
        key.actions.append(boom)
        assert last.cancel()

    first, last = Op(5, on_complete=end_the_last), Op(5)
    for operation in (first, last):
        room.try_complete_else_watch(operation, [key])
    first.ready = True
    assert room.check_and_complete(key) == 1
    assert (first.outcome, last.outcome) == (Outcome.COMPLETED, Outcome.CANCELLED)
    assert [type(error) for error in room.reported] == [Boom]
    close(room)


def test_a_key_that_submits_an_operation_while_its_own_leaves_is_refused(room: QuietPurgatory) -> None:
    """The operation has ended, the error of its key is reported, and nothing else is parked."""
    leaving, operation = Acting(), Op(5)
    room.try_complete_else_watch(operation, [leaving])
    leaving.actions.append(lambda: room.try_complete_else_watch(Op(5), ["other"]))
    assert operation.cancel()
    assert [type(error) for error in room.reported] == [PurgatoryError]
    assert not room.is_watched("other")
    close(room)


def test_both_keys_raise_when_their_operations_leave(room: QuietPurgatory) -> None:
    """Each error is reported; both operations have ended."""
    keys = [Acting(), Acting()]
    operations = [Op(5), Op(5)]
    for operation, key in zip(operations, keys, strict=True):
        room.try_complete_else_watch(operation, [key])
    keys[0].actions.append(operations[1].cancel)
    keys[1].actions.append(boom)
    assert operations[0].cancel()
    assert [type(error) for error in room.reported] == [Boom]
    assert [operation.outcome for operation in operations] == [Outcome.CANCELLED] * 2
    close(room)


def test_an_interrupt_by_the_key_of_a_queued_check(room: QuietPurgatory) -> None:
    """The key is hashed when the check is requested; when the check runs, the hash raises KeyboardInterrupt."""
    key = Acting()
    watcher, begin = Op(5), Op(5, on_complete=lambda _: room.check_and_complete(key))
    room.try_complete_else_watch(watcher, [key])
    room.try_complete_else_watch(begin, ["begin"])
    begin.ready = True
    key.actions.extend([int, int, interrupt])  # a lookup hashes it twice
    with pytest.raises(KeyboardInterrupt):
        room.check_and_complete("begin")
    assert begin.outcome is Outcome.COMPLETED
    assert watcher.outcome is Outcome.PENDING
    close(room)
