"""Watch lists: what a walk over all of them costs, and keys that cannot be hashed any more."""

from collections.abc import Hashable, ValuesView
from typing import Any

import pytest

from purgatory import DelayedOperation, Outcome, Purgatory
from purgatory.testing import VirtualClock
from purgatory.watch import Watch
from purgatory.watchers import SHARDS, Watchers
from tests.helpers import Boom, Op
from tests.sansio import HandClock, make_room


class _CountingDict(dict[Hashable, Watch]):
    """Counts how often it is walked: a dict from which all was deleted still walks over what it once held."""

    walks = 0

    def values(self) -> ValuesView[Watch]:
        _CountingDict.walks += 1
        return super().values()


class _Never(DelayedOperation[None]):
    __slots__ = ()

    def try_complete(self) -> bool:
        return False


def test_taking_some_of_those_who_wait_walks_no_shard_that_is_empty() -> None:
    """Closing takes them slice by slice: if every slice walked the emptied shards again, it would be quadratic."""
    watchers = Watchers()
    watchers._shards[:] = [_CountingDict() for _ in range(SHARDS)]
    operation: DelayedOperation[Any] = _Never(None)
    watch = Watch("key", operation)
    watchers.add(watchers.shard("key"), watch)
    operation._watch = watch
    _CountingDict.walks = 0
    assert watchers.some(10) == [operation]
    assert _CountingDict.walks == 1


class Fickle:
    """A key that cannot be hashed while ``broken``."""

    broken = False

    def __hash__(self) -> int:
        if self.broken:
            raise Boom
        return 7


def _break(key: Fickle, op: Op) -> None:
    key.broken = True
    op.cancel()
    key.broken = False


def test_who_comes_after_a_lost_key_takes_its_place() -> None:
    """A key that raises when it is taken out leaves a husk, without an operation: the next one to wait replaces it."""
    key, room = Fickle(), make_room(HandClock())
    lost = Op()
    room.try_complete_else_watch(lost, [key])
    _break(key, lost)
    assert lost.outcome is Outcome.CANCELLED
    assert [type(error) for error in room.reported] == [Boom]
    assert (len(room), room.watched) == (0, 0)
    assert room.check_and_complete(key) == 0
    room._check()
    first, second = Op(name="first", ready=False), Op(name="second", ready=False)
    room.try_complete_else_watch(first, [key])
    room.try_complete_else_watch(second, [key, "other"])
    room._check()
    assert room.hot_keys(1) == [(key, 2)]
    first.ready = second.ready = True
    assert room.check_and_complete(key) == 2
    room._check()
    assert room.statistics().keys == 0


def test_one_with_several_keys_takes_the_place_of_a_lost_key() -> None:
    """It is on all of its keys, counted once on each, and off all of them when it ends."""
    key, room = Fickle(), make_room(HandClock())
    lost = Op()
    room.try_complete_else_watch(lost, [key])
    _break(key, lost)
    op = Op()
    room.try_complete_else_watch(op, ["other", key])
    assert op.keys == ("other", key)
    assert room.watched == 2
    room._check()
    op.cancel()
    assert (room.watched, room.statistics().keys) == (0, 0)
    room._check()


def test_a_ranked_watcher_takes_the_place_of_a_lost_key() -> None:
    """The husk is no member of the list that is made for who waits with a threshold."""
    key, room = Fickle(), make_room(HandClock())
    lost = Op()
    room.try_complete_else_watch(lost, [key])
    _break(key, lost)
    ranked = Op()
    room.try_complete_else_watch(ranked, {key: 3})
    room._check()
    ranked.ready = True
    assert room.check_and_complete(key, 2) == 0
    assert room.check_and_complete(key, 3) == 1
    room._check()
    assert room.statistics().keys == 0


@pytest.mark.parametrize("neighbours", [0, 1, 2])
def test_ranked_watchers_of_a_lost_key_are_served_when_it_is_found_again(neighbours: int) -> None:
    """One with a threshold ends though its key raises, and those who wait beside it lose nothing."""
    key, room = Fickle(), make_room(HandClock())
    room.try_complete_else_watch(Op(), {"another key": 1})
    lost = Op()
    room.try_complete_else_watch(lost, {key: 1})
    others = [Op(ready=False) for _ in range(neighbours)]
    for other in others:
        room.try_complete_else_watch(other, {key: 2})
    _break(key, lost)
    assert lost.outcome is Outcome.CANCELLED
    assert room.watched == 1 + neighbours
    room._check()
    for other in others:
        other.ready = True
    assert room.check_and_complete(key, 2) == neighbours
    late = Op(ready=False)
    room.try_complete_else_watch(late, [key])
    late.ready = True
    assert room.check_and_complete(key) == 1
    room._check()


@pytest.mark.parametrize("shape", ["plain", "ranked"])
def test_the_last_of_a_list_ends_though_its_key_raises(shape: str) -> None:
    """The list stays behind empty, and is filled again by whoever comes next."""
    key, room = Fickle(), make_room(HandClock())
    ops = [Op(ready=False) for _ in range(2)]
    for op in ops:
        room.try_complete_else_watch(op, [key] if shape == "plain" else {key: 1})
    assert ops[0].cancel()
    _break(key, ops[1])
    assert [op.outcome for op in ops] == [Outcome.CANCELLED] * 2
    assert (len(room), room.watched) == (0, 0)
    late = Op(ready=False)
    room.try_complete_else_watch(late, [key])
    late.ready = True
    room._check()
    assert room.check_and_complete(key) == 1
    room._check()


@pytest.mark.parametrize("shape", ["one key", "two keys"])
async def test_a_lost_key_is_reported_with_its_operation(
    clock: VirtualClock, reported: list[dict[str, Any]], shape: str
) -> None:
    """The loop's handler is told which operation it was that waited on the key."""
    key, purgatory = Fickle(), Purgatory[Op]("test", clock=clock)
    op = Op()
    purgatory.try_complete_else_watch(op, [key] if shape == "one key" else ["a", key])
    _break(key, op)
    assert [(type(context["exception"]), context["operation"]) for context in reported] == [(Boom, op)]


async def test_keys_that_raise_one_after_the_other(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """The second raises as it is watched, the first as it is left again: both are told, and nothing is parked."""
    first = Fickle()

    class Second:
        left = 1  # its hash is asked for once before anything has changed

        def __hash__(self) -> int:
            if not self.left:
                first.broken = True
                raise ValueError("second")
            self.left -= 1
            return 1

    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(5)
    with pytest.raises(ValueError, match="second"):
        purgatory.try_complete_else_watch(op, [first, Second()])
    first.broken = False
    assert [(type(context["exception"]), context["operation"]) for context in reported] == [(Boom, op)]
    assert op.outcome is Outcome.PENDING
    assert (len(purgatory), purgatory.watched, purgatory.statistics().submitted) == (0, 0, 0)
