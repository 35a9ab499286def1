"""Keys whose equality changes between two lookups: no watch is lost, and no watch of another key is taken."""

from collections import deque
from typing import Any

import pytest

from tests.helpers import Boom, Op
from tests.sansio import QuietPurgatory


class Key:
    """A key that is compared by a script: True, False or an exception for each comparison, then False."""

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
    """Parking on the keys fails because of their equality, and leaves no trace."""
    parked = len(room)
    with pytest.raises(LookupError):
        room.try_complete_else_watch(Op(5), keys)
    assert len(room) == parked
    room._check()


def close(room: QuietPurgatory) -> None:
    """End what is left: nothing may remain."""
    while len(room):
        assert room._core.expire_some(10)
    room._check()
    assert room.statistics().keys == 0


def test_a_threshold_on_a_key_that_becomes_equal_to_another_is_refused(room: QuietPurgatory) -> None:
    """The lookup finds no entry, and the insertion finds the other key's."""
    first = Key()
    park(room, first)
    first.answers.extend([False, True])
    refused(room, {Key(): 3})
    close(room)


@pytest.mark.parametrize("back", [False, True, Boom()], ids=["put back", "equal to another", "raises"])
def test_the_entry_of_another_key_is_given_back(room: QuietPurgatory, back: Any) -> None:
    """A removal that hits another key's entry restores it, or keeps it aside: its operation still ends."""
    first, second = Key(), Key()
    one, two = park(room, first), park(room, second)
    first.answers.extend([True, True, False, back])
    second.answers.append(True)
    refused(room, [Key()])
    first.answers.clear()
    assert room._core.watcher_lists.everyone() == [one, two]
    assert set(room._core.watcher_lists.some(10)) == {one, two}
    assert one.cancel()
    room._check()
    assert two.cancel()
    close(room)


def test_entries_that_were_kept_aside_leave_in_any_order(room: QuietPurgatory) -> None:
    """Two entries without a place: the second to come leaves first."""
    first, second, third = Key(), Key(), Key()
    operations = [park(room, key) for key in (first, second, third)]
    for other in (second, third):
        first.answers.extend([True, True, False, True])
        second.answers.extend([True] if other is second else [])
        third.answers.extend([True] if other is third else [])
        refused(room, [Key()])
        first.answers.clear()
    assert room.statistics().keys == 3
    assert operations[2].cancel()
    room._check()
    assert operations[1].cancel()
    close(room)


def test_an_entry_that_cannot_be_replaced_is_put_back(room: QuietPurgatory) -> None:
    """The new key becomes equal to a third one after the old entry has been deleted."""
    first, second = Key(), Key()
    one, two = park(room, first), park(room, second)
    first.answers.extend([True, True, True])
    second.answers.extend([True, False])
    refused(room, [Key()])
    assert room._core.watcher_lists.everyone() == [one, two]
    close(room)
