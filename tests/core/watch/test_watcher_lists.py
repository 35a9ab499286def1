"""Watcher lists: the cost of iterating over all of them, and keys whose hash raises later."""

from collections import Counter
from collections.abc import Hashable, Sequence, ValuesView
from typing import Any

import pytest

from purgatory import COMPILED, DelayedOperation, Outcome, Purgatory
from purgatory.core.watch.thresholds import ThresholdHeap
from purgatory.core.watch.watch import WatchList
from purgatory.core.watch.watcher_lists import SHARDS, WatcherLists
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op
from tests.sansio import make_purgatory


class _CountingDict(dict[Hashable, Any]):
    """A dict that counts its iterations, because iterating over an emptied dict still visits its deleted entries."""

    walks = 0

    def values(self) -> ValuesView[Any]:
        _CountingDict.walks += 1
        return super().values()


class _Never(DelayedOperation[None]):
    __slots__ = ()

    def try_complete(self) -> bool:
        return False


def test_taking_some_operations_walks_no_empty_shard() -> None:
    """Closing takes operations in slices; iterating over the emptied shards in every slice would be quadratic."""
    watchers = WatcherLists()
    for shard in watchers._shards:
        shard.entries = _CountingDict()
    operation: DelayedOperation[Any] = _Never(None)
    watchers.add_operation(hash("key"), "key", operation)
    _CountingDict.walks = 0
    assert watchers.some(10) == [operation]
    assert _CountingDict.walks == 1


def test_closing_walks_each_shard_once() -> None:
    """The entries that closing has deleted are not visited again in every slice, however many keys share a shard."""
    room = make_purgatory(ManualClock())
    lists = room._core.watcher_lists
    for shard in lists._shards:
        shard.entries = _CountingDict()
    key = 0
    operations: list[Op] = []
    while len(operations) < 100:
        if lists.shard(key) is lists._shards[7]:
            operations.append(Op())
            room.try_complete_else_watch(operations[-1], [key])
        key += 1
    # The hashes of these keys do not depend on a seed, and closing takes their shards later.
    room.try_complete_else_watch(Op(), [9, 10])
    many = [Op() for _ in range(30)]
    for op in many:
        room.try_complete_else_watch(op, [8])
    _CountingDict.walks = 0
    operations[50].cancel()
    many[4]._on_complete = lambda _: many[6].cancel() and None
    assert room._core.expire_some(5) == 5
    while len(room):
        assert 0 < room._core.expire_some(5) <= 6
    assert {op.outcome for op in operations} == {Outcome.EXPIRED, Outcome.CANCELLED}
    assert _CountingDict.walks <= 4  # the shards of four keys
    assert room._core.expire_some(5) == 0
    room._check()


def test_what_closing_has_missed_is_found_later() -> None:
    """A callback may park operations on keys of a shard that closing has left; they end, too, and nothing is kept."""
    room = make_purgatory(ManualClock())
    later: list[Op] = []

    def park_more(_: Op) -> None:
        later.append(Op())
        room.try_complete_else_watch(later[-1], ["a"])

    room.try_complete_else_watch(Op(on_complete=park_more), ["a"])
    room.try_complete_else_watch(Op(on_complete=park_more), ["a", "b"])
    while len(room):
        assert room._core.expire_some(1) >= 0
    assert [op.outcome for op in later] == [Outcome.EXPIRED] * 2
    assert list(room._core.watcher_lists._rest) == []
    room._check()


def test_closing_skips_the_only_operation_of_a_key_that_has_ended() -> None:
    """It may end between two turns of closing; the two keys share a shard."""
    room = make_purgatory(ManualClock())
    ops = [Op() for _ in range(3)]
    for op, key in zip(ops, (0, 1021, 2042), strict=True):
        room.try_complete_else_watch(op, [key])
    assert room._core.expire_some(1) == 1
    parked = [op for op in ops if op.outcome is Outcome.PENDING]
    parked[0].cancel()
    assert room._core.expire_some(5) == 1
    assert [op.outcome for op in parked] == [Outcome.CANCELLED, Outcome.EXPIRED]
    room._check()


@pytest.mark.parametrize(
    "keys",
    [
        range(10_000),
        range(-5_000, 5_000),
        [((1_700_000_000_000 + 7 * number) << 22) | (3 << 12) for number in range(10_000)],
        [number << 61 for number in range(10_000)],
        *([number << shift for number in range(10_000)] for shift in range(1, 48)),
        [number * 4096 + 77 for number in range(10_000)],
        [f"orders-{number}" for number in range(20_000)],  # the hashes of these are random: no shard stays empty
        [("orders", number) for number in range(20_000)],
    ],
    ids=lambda keys: f"{keys[0]}, {keys[1]}",
)
def test_regular_keys_are_spread_over_all_shards(keys: Sequence[Hashable]) -> None:
    """All bits of the hash count: the low bits of identifiers, such as Snowflake's, may all be equal."""
    lists = WatcherLists()
    sizes = Counter(id(lists.shard(key)) for key in keys)
    assert len(sizes) == SHARDS
    assert max(sizes.values()) < 3 * len(keys) / SHARDS


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


def test_the_oldest_operations_are_behind_entries_without_any() -> None:
    """An entry that is left because its key raised has no operation, and hides none."""
    room = make_purgatory(ManualClock())
    keys = [Fickle() for _ in range(3)]
    operations = [Op(5) for _ in keys]
    for key, operation in zip(keys, operations, strict=True):
        room.try_complete_else_watch(operation, [key])
    _break(keys[0], operations[0])
    assert room._core.watcher_lists.oldest(10) == operations[1:]
    assert room._core.watcher_lists.oldest(1) == operations[1:2]


def test_the_oldest_operations_may_be_on_many_keys_of_a_shard() -> None:
    """The merge of the keys meets each of them once for each key, and returns them once."""
    room = make_purgatory(ManualClock())
    operations = [Op() for _ in range(3)]
    for operation in operations:
        room.try_complete_else_watch(operation, range(0, 20 * 1021, 1021))  # these keys share a shard
    for number in range(1, 4):
        assert room._core.watcher_lists.oldest(number) == operations[:number]


def test_a_watcher_after_a_lost_key_takes_its_place() -> None:
    """A key that raises on removal leaves an empty entry, which the next watcher replaces."""
    key, room = Fickle(), make_purgatory(ManualClock())
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
    """The operation is on all of its keys, counted once on each, and off all of them when it ends."""
    key, room = Fickle(), make_purgatory(ManualClock())
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
    """The empty entry is not moved to the list for watchers with a threshold."""
    key, room = Fickle(), make_purgatory(ManualClock())
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
    """A watcher with a threshold ends although its key raises, and the others on the key are not affected."""
    key, room = Fickle(), make_purgatory(ManualClock())
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
    """The empty list remains, and the next watcher uses it again."""
    key, room = Fickle(), make_purgatory(ManualClock())
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
    """The loop's handler receives the operation that waited on the key."""
    key, purgatory = Fickle(), Purgatory[Op]("test", clock=clock)
    op = Op()
    purgatory.try_complete_else_watch(op, [key] if shape == "one key" else ["a", key])
    _break(key, op)
    assert [(type(context["exception"]), context["operation"]) for context in reported] == [(Boom, op)]


async def test_keys_that_raise_one_after_the_other(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """The second key raises when it is added, and the first when it is removed: both are reported, nothing is
    parked.
    """
    first = Fickle()

    class Second:
        left = 1  # its hash is computed once before anything has changed

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


def test_the_counts_of_all_shards_are_those_of_all_keys() -> None:
    """A caller that works in slices reads one shard at a time; each key is in one of them."""
    room = make_purgatory(ManualClock())
    for number in range(20):
        room.try_complete_else_watch(Op(), [number])
        room.try_complete_else_watch(Op(), [number % 3, ("several", number)])
        room.try_complete_else_watch(Op(), {number % 2: 5})
    lists = room._core.watcher_lists
    found = [item for shard in range(SHARDS) for item in lists.counts_of_shard(shard)]
    assert sorted(found, key=repr) == sorted(lists.counts(), key=repr)
    assert sum(count for _, count in found) == room.statistics().watched == 80


@pytest.mark.skipif(COMPILED, reason="a compiled class cannot be subclassed here")
def test_the_last_threshold_of_a_key_may_leave_while_another_thread_counts() -> None:
    """Without the GIL, the loop may drop the heap of thresholds between two reads, so it is read once."""

    class Dropped(WatchList):
        reads = 0

        @property
        def thresholds(self) -> ThresholdHeap | None:  # type: ignore[override]
            self.reads += 1
            return heap if self.reads == 1 else None

        @thresholds.setter
        def thresholds(self, heap: ThresholdHeap | None) -> None:
            pass

    heap = ThresholdHeap(WatchList("a"))
    lists = make_purgatory(ManualClock())._core.watcher_lists
    lists._shards[5].entries["a"] = Dropped("a")
    assert lists.counts_of_shard(5) == [("a", 0)]
