"""Plain keys, which run no user code, and keys of other classes in the same shard: the same operations are found."""

import gc
import weakref
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.core.watch.validation import is_plain
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import AtCollection, Boom, Op, Same
from tests.sansio import QuietPurgatory, make_purgatory


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


FIRST: dict[str, Any] = {"one": ["a"], "many": ["a", "b"], "threshold": {"a": 3}, "general": [Same("a")]}
SECOND: dict[str, Any] = {**FIRST, "reversed": ["b", "a"], "another key in the shard": ["a", _Text("a")]}


@pytest.mark.skipif(not hasattr(gc, "get_threshold"), reason="PyPy's garbage collector has no thresholds")
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
def test_the_garbage_collector_ends_an_operation_while_another_one_joins_it(
    no_gc: None, first: str, second: str
) -> None:
    """Whichever allocation starts the collection, the ended operation leaves its keys, and the other one is found."""
    for allocations in range(40):
        room = make_purgatory(ManualClock())
        ends, stays = Op(name="ends"), Op(name="stays")
        room.try_complete_else_watch(ends, FIRST[first])
        gc.collect()
        AtCollection(ends.cancel)
        gc.set_threshold(max(1, gc.get_count()[0] + allocations), 1000, 1000)
        gc.enable()
        room.try_complete_else_watch(stays, SECOND[second])
        gc.disable()
        gc.collect()
        assert ends.outcome is Outcome.CANCELLED
        room._check()
        assert room.hot_keys(1)[0][1] == 1
        stays.ready = True
        assert room.check_and_complete("a" if "a" in SECOND[second] else SECOND[second][0]) == 1
        room._check()
        assert list(room.keys()) == []
