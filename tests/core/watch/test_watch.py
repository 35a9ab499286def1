"""The watches of a shard: which operations have one, and that they leave it."""

from typing import Any

import pytest

from purgatory import Outcome
from purgatory.core.watch.watch import WatchList
from tests.helpers import Op, Same, park
from tests.sansio import QuietPurgatory


@pytest.mark.parametrize("key", ["a", 5, ("orders", 7)])
def test_an_operation_alone_on_its_only_key_has_no_watch(room: QuietPurgatory, key: Any) -> None:
    """It is the entry of the key itself, and gets a watch when the second operation arrives."""
    first = park(room, key)
    assert room._core.watcher_lists.entry(key) is first
    assert first._lone_key is not None
    assert first.keys == (key,)
    assert room._core.watcher_lists.count(key) == 1
    second = park(room, key)
    assert first._lone_key is None
    assert isinstance(room._core.watcher_lists.entry(key), WatchList)
    assert (first.keys, second.keys) == ((key,), (key,))
    assert room._core.watcher_lists.operations(key) == [first, second]
    assert first.cancel()
    room._check()
    assert second.cancel()
    room._check()
    assert not room.is_watched(key)


def test_a_key_of_another_class_gives_the_operations_of_its_shard_watches(room: QuietPurgatory) -> None:
    """The operations that were there stay where they are, and are found by checks as before."""
    key = "a"
    shard = room._core.watcher_lists.shard(key)
    lone = park(room, key)
    assert shard.plain
    assert lone._lone_key is not None
    other = park(room, Same(key))
    assert not shard.plain
    assert lone._lone_key is None
    assert room._core.watcher_lists.entry(key) is lone._watch
    late = park(room, key)
    for operation in (lone, other, late):
        operation.ready = True
    assert room.check_and_complete(key) == 2
    assert room.check_and_complete(Same(key)) == 1
    room._check()
    assert len(room) == 0


def test_a_shard_stays_general(room: QuietPurgatory) -> None:
    """After the last key of another class has gone, plain keys still have watches."""
    park(room, Same("a")).cancel()
    operation = park(room, "a")
    assert operation._lone_key is None
    assert operation.cancel()
    room._check()
    assert room.statistics().keys == 0


def test_a_list_in_a_shard_that_becomes_general_is_still_removed(room: QuietPurgatory) -> None:
    """Watches that were added while the shard was plain leave it by the general way."""
    operations = [park(room, "a"), park(room, "a"), park(room, "a", "b")]
    park(room, Same("a")).cancel()
    for operation in operations:
        assert operation.cancel()
        room._check()
    assert room.statistics().keys == 0


@pytest.mark.parametrize("key", ["a", Same("a")])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_threshold_joins_an_operation_without_one(room: QuietPurgatory, key: Any, others: int) -> None:
    """The operation that is alone on the key gets a watch."""
    before = [park(room, "a") for _ in range(others)]
    waiting = Op(5)
    assert not room.try_complete_else_watch(waiting, {key: 3})
    room._check()
    waiting.ready = True
    assert room.check_and_complete(key, 2) == 0
    assert room.check_and_complete(key, 3) == 1
    assert [operation.outcome for operation in before] == [Outcome.PENDING] * others
    room._check()
