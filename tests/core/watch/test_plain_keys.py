"""Plain keys, which run no user code, and keys of other classes in the same shard: the same operations are found."""

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.core.watch.validation import is_plain
from purgatory.core.watch.watch import WatchList
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op
from tests.sansio import QuietPurgatory, make_purgatory


@dataclass(frozen=True)
class Same:
    """A key of its own class, with the hash of another key, and so in the same shard."""

    other: Any

    def __hash__(self) -> int:
        return hash(self.other)


class _Text(str):
    __slots__ = ()


def park(room: QuietPurgatory, *keys: Any) -> Op:
    operation = Op(5)
    assert not room.try_complete_else_watch(operation, keys)
    room._check()
    return operation


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        ("a", True),
        (5, True),
        (("a", 5), True),
        ((), True),
        (_Text("a"), False),
        (True, False),
        (5.0, False),
        (None, False),
        (("a", 5.0), False),
        (("a", ("b",)), False),
        (Same("a"), False),
    ],
)
def test_a_plain_key_is_exactly_a_str_an_int_or_a_tuple_of_them(key: Any, plain: bool) -> None:
    """A subclass may override the hash or the equality."""
    assert is_plain(key) is plain


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


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("keys", [("a", "a"), ("a", 5, "a"), ("a", Same("a"), "a"), ("a", Same("b"), "b")])
def test_duplicate_keys_count_once(room: QuietPurgatory, others: int, keys: tuple[Any, ...]) -> None:
    """Plain keys and others, on keys with and without operations."""
    for _ in range(others):
        park(room, "a")
    operation = park(room, *keys)
    assert operation.keys == tuple(dict.fromkeys(keys))
    operation.ready = True
    assert room.check_and_complete("a") == 1
    room._check()
    assert len(room) == others


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


def test_a_pending_iteration_survives_the_end_of_the_operation_alone_on_the_key(room: QuietPurgatory) -> None:
    """A cursor that was made before the operation ended returns nothing."""
    operation = park(room, "a")
    cursor = room._core.cursor("a", None)
    assert cursor is not None
    operation.cancel()
    assert cursor.next() is None


def test_the_limit_per_key_counts_the_operation_without_a_watch() -> None:
    """One is as many as it is."""
    room = make_purgatory(ManualClock(), max_parked_per_key=1)
    park(room, "a")
    assert room._core.watcher_lists.count("a") == 1
    assert room._core.watcher_lists.count("b") == 0


@pytest.mark.parametrize("keys", [["a"], ["a", "b"], [Same("a")], {"a": 3}])
@pytest.mark.parametrize("number", [1, 3])
async def test_a_purgatory_that_is_dropped_without_aclose_is_freed(clock: VirtualClock, keys: Any, number: int) -> None:
    """The garbage collector finds it with everything that is parked on it."""
    purgatory = Purgatory[Op]("test", clock=clock)
    operations = [Op(None) for _ in range(number)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, keys)
    dropped = [weakref.ref(purgatory), *map(weakref.ref, operations)]
    del purgatory, operation, operations
    gc.collect()
    assert [ref() for ref in dropped] == [None] * (number + 1)


class Twin:
    """A key that equals "b", and that cannot be hashed while it is broken."""

    broken = False

    def __hash__(self) -> int:
        if self.broken:
            raise Boom
        return hash("b")

    def __eq__(self, other: object) -> bool:
        return other == "b" or other is self


def test_plain_keys_in_a_shard_with_other_keys(room: QuietPurgatory) -> None:
    """An operation on several plain keys takes the place of one whose key could not be removed."""
    twin = Twin()
    left = park(room, twin)
    twin.broken = True
    left.cancel()
    twin.broken = False
    waiting = park(room, "a", "b")
    waiting.ready = True
    assert room.check_and_complete("b") == 1
    assert waiting.outcome is Outcome.COMPLETED
    room._check()
    assert room.watched == 0
