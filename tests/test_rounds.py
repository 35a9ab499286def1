"""The rounds in which checks are done later: a portion of tries, spent on the keys in turn."""

from typing import Any

import pytest

from purgatory.desk import Desk
from purgatory.rounds import Rounds
from tests.helpers import Op, park
from tests.sansio import HandClock, QuietRoom, make_room


def rounds_of(room: QuietRoom) -> Rounds:
    desk: Desk = room._desk
    return Rounds(desk)


def test_a_portion_is_spent_on_several_keys(room: QuietRoom) -> None:
    """Ten tries serve ten keys of one watcher each."""
    watchers = [park(room, number) for number in range(25)]
    rounds = rounds_of(room)
    for number in range(25):
        rounds.add(number)
    rounds.work(10)
    assert [bool(watcher.calls) for watcher in watchers] == [True] * 10 + [False] * 15


def test_keys_take_turns(room: QuietRoom) -> None:
    """Each portion goes to the next key in the queue."""
    order: list[str] = []
    for key in "ab":
        for number in range(3):
            park(room, key, name=f"{key}{number}", on_try=lambda operation: order.append(operation.name))
    order.clear()
    rounds = rounds_of(room)
    rounds.add("a")
    rounds.add("b")
    while rounds:
        rounds.work(1)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("keys", [["a"], {"a": 5}])
def test_an_interrupt_loses_neither_the_walk_nor_the_other_keys(room: QuietRoom, keys: Any) -> None:
    """Ctrl-C in the midst of a slice passes through; the next slice goes on behind the one that it struck."""
    watchers = [Op(name=str(number)) for number in range(5)]
    for watcher in watchers:
        room.try_complete_else_watch(watcher, keys)
        watcher.calls.clear()
    other = park(room, "b")

    def interrupt(operation: Op) -> None:
        operation._on_try = lambda _: None
        raise KeyboardInterrupt

    watchers[2]._on_try = interrupt
    rounds = rounds_of(room)
    rounds.add("a")
    rounds.add("b")
    with pytest.raises(KeyboardInterrupt):
        rounds.work(10)
    rounds.work(10)
    assert [watcher.calls for watcher in watchers] == [["try"]] * 5
    assert other.calls == ["try"]
    assert not rounds
    room._check()


def test_a_key_named_before_its_turn_is_checked_once(room: QuietRoom) -> None:
    """Only what is named while its watchers are being tried begins anew."""
    watchers = [park(room, "key") for _ in range(4)]
    rounds = rounds_of(room)
    rounds.add("key")
    rounds.add("key")
    rounds.work(2)
    rounds.add("key")
    rounds.add("key")
    while rounds:
        rounds.work(3)
    assert {len(watcher.calls) for watcher in watchers} == {2}
    rounds.add("key")
    rounds.work(10)
    assert {len(watcher.calls) for watcher in watchers} == {3}


def test_a_hundred_thousand_keys_cost_no_more_each_than_a_thousand(room: QuietRoom) -> None:
    """Taking the next key does not search among those that have been taken."""
    rounds = rounds_of(room)
    for number in range(100_000):
        rounds.add(number)
    portions = 0
    while rounds:
        rounds.work(32)
        portions += 1
    assert portions == 100_000 // 32
    assert not rounds._walks


def test_a_key_without_watchers_counts_as_one_try() -> None:
    """So a crowd of keys that nobody waits on is worked off in portions, too."""
    rounds = Rounds(make_room(HandClock())._desk)
    for number in range(7):
        rounds.add(number)
    portions = 0
    while rounds:
        rounds.work(3)
        portions += 1
    assert portions == 3
