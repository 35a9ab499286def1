"""The queue of coalesced checks: the keys take turns, each with a portion of tries."""

import weakref
from typing import Any

import pytest

from purgatory.aio.coalesced_checks import CoalescedChecks
from purgatory.core.purgatory import PurgatoryCore
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op, park
from tests.sansio import QuietPurgatory, make_purgatory


def queue_of(room: QuietPurgatory) -> CoalescedChecks:
    core: PurgatoryCore = room._core
    return CoalescedChecks(core)


def test_a_portion_is_spent_on_several_keys(room: QuietPurgatory) -> None:
    """Ten tries serve ten keys of one watcher each."""
    watchers = [park(room, number) for number in range(25)]
    queue = queue_of(room)
    for number in range(25):
        queue.add(number)
    queue.work(10)
    assert [bool(watcher.calls) for watcher in watchers] == [True] * 10 + [False] * 15


def test_keys_take_turns(room: QuietPurgatory) -> None:
    """Each portion goes to the next key in the queue."""
    order: list[str] = []
    for key in "ab":
        for number in range(3):
            park(room, key, name=f"{key}{number}", on_try=lambda operation: order.append(operation.name))
    order.clear()
    queue = queue_of(room)
    queue.add("a")
    queue.add("b")
    while queue:
        queue.work(1)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("keys", [["a"], {"a": 5}])
def test_an_interrupt_loses_neither_the_walk_nor_the_other_keys(room: QuietPurgatory, keys: Any) -> None:
    """A KeyboardInterrupt in a slice propagates; the next slice continues after the interrupted operation."""
    watchers = [Op(name=str(number)) for number in range(5)]
    for watcher in watchers:
        room.try_complete_else_watch(watcher, keys)
        watcher.calls.clear()
    other = park(room, "b")

    def interrupt(operation: Op) -> None:
        operation._on_try = lambda _: None
        raise KeyboardInterrupt

    watchers[2]._on_try = interrupt
    queue = queue_of(room)
    queue.add("a")
    queue.add("b")
    with pytest.raises(KeyboardInterrupt):
        queue.work(10)
    queue.work(10)
    assert [watcher.calls for watcher in watchers] == [["try"]] * 5
    assert other.calls == ["try"]
    assert not queue
    room._check()


def test_a_key_named_before_its_turn_is_checked_once(room: QuietPurgatory) -> None:
    """Only a call during the tries of a key starts another check of that key."""
    watchers = [park(room, "key") for _ in range(4)]
    queue = queue_of(room)
    queue.add("key")
    queue.add("key")
    queue.work(2)
    queue.add("key")
    queue.add("key")
    while queue:
        queue.work(3)
    assert {len(watcher.calls) for watcher in watchers} == {2}
    queue.add("key")
    queue.work(10)
    assert {len(watcher.calls) for watcher in watchers} == {3}


def test_a_hundred_thousand_keys_cost_no_more_each_than_a_thousand(room: QuietPurgatory) -> None:
    """Taking the next key does not search the keys already taken."""
    queue = queue_of(room)
    for number in range(100_000):
        queue.add(number)
    portions = 0
    while queue:
        queue.work(32)
        portions += 1
    assert portions == 100_000 // 32
    assert not queue._checks


def test_a_key_without_watchers_counts_as_one_try() -> None:
    """Many keys without watchers are therefore also processed in portions."""
    queue = CoalescedChecks(make_purgatory(ManualClock())._core)
    for number in range(7):
        queue.add(number)
    portions = 0
    while queue:
        queue.work(3)
        portions += 1
    assert portions == 3


def test_requests_of_many_keys_take_turns(room: QuietPurgatory) -> None:
    """If many keys are requested at once, several times, a key of each request enters the queue in turn."""
    order: list[str] = []
    for key in ("a0", "a1", "b0", "b1"):
        park(room, key, name=key, on_try=lambda operation: order.append(operation.name))
    order.clear()
    queue = queue_of(room)
    queue.add_many({"a0": None, "a1": None})
    queue.add_many({"b0": None, "b1": None})
    while queue:
        queue.work(1)
    assert order == ["a0", "b0", "a1", "b1"]


def test_a_checked_key_is_released_while_others_wait(room: QuietPurgatory) -> None:
    """The queue does not hold a key that has been checked until all others have been."""

    class Key:
        pass

    for _ in range(5):
        park(room, "long")
    key = Key()
    released = weakref.ref(key)
    queue = queue_of(room)
    queue.add(key)
    queue.add("long")
    queue.work(2)
    del key
    assert queue
    assert released() is None


def test_a_key_that_waits_is_checked_once_although_another_has_been_checked(room: QuietPurgatory) -> None:
    """The end of one key's check does not make the queue forget that another key is in it."""
    watcher = park(room, "b")
    queue = queue_of(room)
    queue.add("a")
    queue.add("b")
    queue.work(1)
    queue.add("b")
    while queue:
        queue.work(1)
    assert watcher.calls == ["try"]


def test_a_key_whose_hash_raises_at_the_end_of_its_check_can_be_requested_again(room: QuietPurgatory) -> None:
    """Its check cannot be removed, but serves the next request, even while the queue holds other keys."""

    class Key:
        broken = False

        def __hash__(self) -> int:
            if self.broken:
                raise Boom
            return 1

    key = Key()

    def spoil(operation: Op) -> None:
        key.broken = True

    watcher = park(room, key)
    watcher._on_try = spoil
    others = [park(room, "other") for _ in range(5)]
    queue = queue_of(room)
    queue.add(key)
    queue.add("other")
    queue.work(2)
    assert key.broken
    key.broken = False
    watcher._on_try = lambda _: None
    queue.add(key)
    while queue:
        queue.work(1)
    assert watcher.calls == ["try", "try"]
    assert [other.calls for other in others] == [["try"]] * 5


def test_a_key_that_changes_during_its_check_does_not_duplicate_the_check_of_another(room: QuietPurgatory) -> None:
    """A key that has become another one removes the check of that key, which is put back and stays the only one."""

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return self.number

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Key) and self.number == other.number

    first, second = Key(1), Key(2)

    def change(operation: Op) -> None:
        first.number = 2

    park(room, first)._on_try = change
    watcher = park(room, second)
    queue = queue_of(room)
    queue.add(first)
    queue.add(second)
    queue.work(1)
    assert first.number == 2
    queue.add(second)
    while queue:
        queue.work(1)
    assert watcher.calls == ["try"]


def test_a_key_that_becomes_equal_to_another_takes_no_check_of_it(room: QuietPurgatory) -> None:
    """A key that becomes equal to another key during its check does not remove the check of the other key."""

    class Key:
        def __init__(self) -> None:
            self.answers: list[bool] = []

        def __hash__(self) -> int:
            return 0

        def __eq__(self, other: object) -> bool:
            return self.answers.pop(0) if self.answers else False

    first, second = Key(), Key()
    watchers = [park(room, first) for _ in range(3)]
    queue = queue_of(room)
    queue.add(first)
    queue.add(second)
    queue.work(1)
    first.answers = [False, True]  # the lookup of the watchers of the second key, then the end of its check
    queue.work(1)
    queue.add(first)
    while queue:
        queue.work(1)
    assert [len(watcher.calls) for watcher in watchers] == [2, 2, 2]
    assert not queue._checks
