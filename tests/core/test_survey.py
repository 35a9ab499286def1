"""The survey of the parked operations: what it counts, and that it may stop anywhere."""

import asyncio
import gc
import itertools
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Purgatory
from purgatory.core.operation.wait_until import MISSING, until_wait
from purgatory.core.survey import AGES_MS, OTHERS, Survey, rows_of_key
from purgatory.core.watch.watcher_lists import SHARDS
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import AtCollection, Op
from tests.sansio import make_purgatory


def survey(room: Any, portion: int = 1000, **options: Any) -> Survey:
    """Return a complete survey, made in portions."""
    made = Survey(room._core, room._core.timer.clock.now_ms(), **{"most_keys": 5, "most_rows": 5, **options})
    while made.step(portion):
        pass
    return made


def test_each_operation_is_counted_once_and_each_key_with_its_watchers() -> None:
    """An operation on several keys counts once as an operation, and once for each key; thresholds are keys, too."""
    clock = ManualClock()
    room = make_purgatory(clock=clock)
    room.try_complete_else_watch(Op(), ["a", "b", ("c", 1)])
    clock.time_ms += 1000
    room.try_complete_else_watch(Op(30.0), {"a": 5, "d": 7})
    room.try_complete_else_watch(Op(30.0), ["a"])
    room.try_complete_else_watch(Op(30.0), ["e"])
    clock.time_ms += 2000
    found = survey(room)
    assert (found.visited, found.keys) == (4, 5)
    kind = found.kinds["Op"]
    assert (kind.parked, kind.endless, kind.unawaited, kind.oldest_ms) == (
        4,
        1,
        4,
        room._core.timer.clock.now_ms() - 3000,
    )
    assert found.ages == [0, 4, 0, 0, 0]
    first = found.by_watchers()[0]
    assert (first.key, first.watchers, first.total_wait_ms) == ("a", 3, 3000 + 2000 + 2000)
    assert {hot.key: hot.total_wait_ms for hot in found.by_total_wait()} == {
        "a": 7000, "b": 3000, ("c", 1): 3000, "d": 2000, "e": 2000,
    }  # fmt: skip
    rows = found.rows()
    assert [row.op_id for row in rows] == [1, 2, 3, 4]
    assert rows[0].keys == [("a", None), ("b", None), (("c", 1), None)]
    assert rows[1].keys == [("a", 5), ("d", 7)]
    assert [row.until_ms is None for row in rows] == [True, False, False, False]


def test_operations_of_subscriptions_are_counted_as_such() -> None:
    """The survey counts the operations of exactly the class that it is given, and none if it is given none."""

    class Subscription(Op):
        pass

    class Other(Subscription):
        pass

    room = make_purgatory(clock=ManualClock())
    for operation in (Subscription(), Subscription(), Other(), Op()):
        room.try_complete_else_watch(operation, ["a"])
    for subscribed, counted in ((Subscription, 2), (None, 0)):
        kinds = survey(room, subscribed=subscribed).kinds
        assert sum(kind.parked for kind in kinds.values()) == 4
        assert {name: kind.subscribed for name, kind in kinds.items() if kind.subscribed} == (
            {"Subscription": counted} if counted else {}
        )


def test_ages_have_the_documented_edges() -> None:
    """An operation is counted below the first edge that is greater than its age."""
    clock = ManualClock()
    room = make_purgatory(clock=clock)
    for pause in (3600.0, 300.0, 30.0, 5.0, 0.5):
        room.try_complete_else_watch(Op(), [pause])
        clock.time_ms += int(pause * 1000)
    assert AGES_MS == (1_000, 10_000, 60_000, 600_000)
    assert survey(room).ages == [1, 1, 1, 1, 1]
    for index, edge_ms in enumerate(AGES_MS):
        room = make_purgatory(clock=clock)
        room.try_complete_else_watch(Op(), ["a"])
        clock.time_ms += 1
        room.try_complete_else_watch(Op(), ["a"])
        clock.time_ms += edge_ms - 1
        assert survey(room).ages[index : index + 2] == [1, 1]


@given(st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=4), max_size=25), st.integers(1, 7))
def test_the_size_of_a_portion_changes_nothing(keys: list[list[str]], portion: int) -> None:
    """A survey in small portions has the results of one in a single portion."""
    room = make_purgatory(clock=ManualClock())
    for some in keys:
        room.try_complete_else_watch(Op(), some)
    whole, sliced = survey(room, 10**6), survey(room, portion)
    assert (sliced.visited, sliced.keys, sliced.ages) == (whole.visited, whole.keys, whole.ages)
    assert whole.visited == len(keys)
    assert whole.keys == len({key for some in keys for key in some})
    assert [row.op_id for row in sliced.rows()] == [row.op_id for row in whole.rows()]
    assert [(hot.key, hot.watchers) for hot in sliced.by_watchers()] == [
        (hot.key, hot.watchers) for hot in whole.by_watchers()
    ]


@given(st.data())
def test_operations_may_come_and_go_between_two_portions(data: st.DataObject) -> None:
    """What is parked all the time is counted exactly once, and the rest at most once."""
    room = make_purgatory(clock=ManualClock())
    keys: list[Hashable] = ["a", "b", ("c",), 4]
    parked: list[Op] = []

    def park() -> None:
        operation = Op()
        some = data.draw(st.lists(st.sampled_from(keys), min_size=1, unique=True))
        room.try_complete_else_watch(operation, data.draw(st.sampled_from([some, dict.fromkeys(some, 3)])))
        parked.append(operation)

    for _ in range(data.draw(st.integers(0, 8))):
        park()
    stay = list(parked)
    arrived = len(parked)
    made = Survey(room._core, room._core.timer.clock.now_ms(), 100, 100)
    for portion in data.draw(st.lists(st.integers(1, 200), max_size=12)):
        made.step(portion)
        if data.draw(st.booleans()):
            park()
            arrived += 1
        elif parked:
            gone = parked.pop(data.draw(st.integers(0, len(parked) - 1)))
            gone.cancel()
            stay = [operation for operation in stay if operation is not gone]
        room._check()
    while made.step(100):
        pass
    numbers = [row.op_id for row in made.rows()]
    assert len(set(numbers)) == len(numbers) == made.visited <= arrived
    assert {operation._op_id for operation in stay} <= set(numbers)


def test_of_equal_keys_the_one_that_waits_longest_comes_first() -> None:
    """Keys with equally many operations, or equal total waits, are in the order of their oldest operation."""
    clock = ManualClock()
    room = make_purgatory(clock=clock)
    for number in range(100):
        clock.time_ms += 1000
        room.try_complete_else_watch(Op(), [f"key-{number}"])
    found = survey(room, most_keys=3)
    assert [hot.key for hot in found.by_watchers()] == ["key-0", "key-1", "key-2"]
    for number in range(100, 200):  # all of them wait for 0 s, and their ages are equal
        room.try_complete_else_watch(Op(), [f"key-{number}"])
    room.try_complete_else_watch(Op(), ["key-7"])
    found = survey(room, most_keys=2)
    assert [hot.key for hot in found.by_watchers()] == ["key-7", "key-0"]
    assert [hot.key for hot in found.by_total_wait()] == ["key-0", "key-1"]


def test_rows_and_kinds_are_bounded() -> None:
    """The rows are the longest waiting operations, of one kind if that is given; very many kinds become one."""
    room = make_purgatory(clock=ManualClock())
    for number in range(300):
        kind = type(f"Kind{number}", (Op,), {})
        room.try_complete_else_watch(kind(), [number])
        room.try_complete_else_watch(Op(), [number])
    found = survey(room, most_rows=3)
    assert [row.op_id for row in found.rows()] == [1, 2, 3]
    assert len(found.kinds) == 201
    assert sum(kind.parked for kind in found.kinds.values()) == 600
    assert found.kinds["Op"].parked == 300
    assert found.kinds[OTHERS].parked > 90
    assert [row.kind for row in survey(room, most_rows=2, only_kind="Kind7").rows()] == ["Kind7"]
    assert [row.op_id for row in survey(room, most_rows=1).rows()] == [1]
    assert survey(room, most_rows=0, most_keys=0).rows() == []


@pytest.mark.parametrize("forward", [True, False])
def test_the_longest_waits_are_found_in_any_order(forward: bool) -> None:
    """Whether the survey visits the oldest operations first or last."""
    room = make_purgatory(clock=ManualClock())
    for key in range(20) if forward else reversed(range(20)):  # the survey visits the smaller keys first
        room.try_complete_else_watch(Op(), [key])
    for most in range(1, 5):
        assert [row.op_id for row in survey(room, most_rows=most).rows()] == list(range(1, most + 1))


def test_a_row_has_what_is_known_of_its_operation() -> None:
    """Its kind, its times, and the first five of its keys."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock=clock)
    wait = until_wait(room._core.timer, lambda: False, None, MISSING, "next job")
    room.try_complete_else_watch(wait, ["alone"])
    clock.time_ms += 1000
    room.try_complete_else_watch(Op(0), ["a", "b"])
    room.try_complete_else_watch(Op(5), list("abcdef"))
    found = survey(room)
    assert [(row.kind, row.since_ms, row.until_ms, row.num_keys) for row in found.rows()] == [
        ("next job", 1_000_000, None, 1),
        ("Op", 1_001_000, 1_001_000, 2),
        ("Op", 1_001_000, 1_006_000, 6),
    ]
    assert [[key for key, _ in row.keys] for row in found.rows()] == [["alone"], ["a", "b"], list("abcde")]
    assert {name: (kind.kind, kind.parked, kind.endless) for name, kind in found.kinds.items()} == {
        "next job": ("next job", 1, 1),
        "Op": ("Op", 2, 0),
    }


def test_the_operations_without_a_deadline_are_counted() -> None:
    """All of them; an operation with a timeout of zero has a deadline."""
    room = make_purgatory(clock=ManualClock())
    for timeout in (None, None, 0, 5):
        room.try_complete_else_watch(Op(timeout), ["a"])
    assert survey(room).kinds["Op"].endless == 2


def test_the_first_and_the_last_shard_are_visited_once() -> None:
    """As all others are."""
    room = make_purgatory(clock=ManualClock())
    lists = room._core.watcher_lists
    for shard in (lists._shards[0], lists._shards[-1]):
        key = next(key for key in itertools.count() if lists.shard(key) is shard)
        room.try_complete_else_watch(Op(), [key])
    found = survey(room)
    assert (found.visited, found.keys) == (2, 2)


_NUMBER = 3000


@pytest.mark.parametrize(
    ("parked", "things"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([["a"]] * _NUMBER, _NUMBER, id="one key"),
        pytest.param([[key] for key in range(_NUMBER)], _NUMBER, id="one on each key"),
        pytest.param([[key // 2] for key in range(_NUMBER)], 2 * _NUMBER, id="two on each key"),
        pytest.param([{key // 2: 5} for key in range(_NUMBER)], 5 * _NUMBER // 2, id="two with thresholds on each key"),
    ],
)
def test_a_portion_is_as_large_as_the_caller_wants(parked: list[Any], things: int) -> None:
    """Each step visits about that many things, whatever they are: keys, watches, ends of lists, and shards."""
    room = make_purgatory(clock=ManualClock())
    for keys in parked:
        room.try_complete_else_watch(Op(), keys)
    made = Survey(room._core, 0, 5, 5)
    portion, steps, visited = 50, 1, 0
    while made.step(portion):
        steps += 1
        assert made.visited - visited <= portion
        visited = made.visited
    assert made.visited == len(parked)
    assert steps == pytest.approx((things + SHARDS) / portion, abs=2)


def test_no_code_of_the_user_runs() -> None:
    """Neither a key nor an operation is hashed, compared or shown."""
    room = make_purgatory(clock=ManualClock())
    armed = False

    class Key:
        def __hash__(self) -> int:
            assert not armed
            return 1

        def __eq__(self, other: object) -> bool:
            assert not armed
            return self is other

        def __repr__(self) -> str:
            raise AssertionError

        __str__ = __lt__ = __repr__  # type: ignore[assignment]

    class Hostile(Op):
        __repr__ = __str__ = Key.__repr__

    keys = [Key() for _ in range(4)]
    for key in keys:
        for _ in range(2):
            room.try_complete_else_watch(Hostile(), [key])
    armed = True
    found = survey(room, 1)
    assert (found.visited, found.keys) == (8, 4)
    assert {id(hot.key) for hot in found.by_watchers()} == {id(key) for key in keys}
    armed = False


def test_the_buckets_of_the_timer_are_counted() -> None:
    """Each operation with a deadline counts in the last item of the list that belongs to its bucket."""
    room = make_purgatory(clock=ManualClock())
    for seconds in (0.005, 0.005, 30.0, None):
        room.try_complete_else_watch(Op(seconds), ["a"])
    places = {
        id(bucket): [level, 0, 0]
        for level, wheel in enumerate(room._core.timer.wheel.levels())
        for bucket in wheel._buckets
    }
    survey(room, buckets=places)
    assert sorted(place for place in places.values() if any(place[1:])) == [[0, 0, 2], [3, 0, 1]]


def test_rows_of_a_key_come_in_the_order_of_arrival() -> None:
    """At most ``number`` of them; none for a key that is not watched; TypeError for one that cannot be hashed."""
    room = make_purgatory(clock=ManualClock())
    for _ in range(4):
        room.try_complete_else_watch(Op(), ["a"])
    assert [row.op_id for row in rows_of_key(room._core, "a", 3)] == [1, 2, 3]
    assert len(rows_of_key(room._core, "a", 9)) == 4
    assert rows_of_key(room._core, "b", 3) == []
    with pytest.raises(TypeError):
        rows_of_key(room._core, [], 3)  # type: ignore[arg-type]


def test_a_second_operation_may_join_a_key_before_the_survey_reaches_it() -> None:
    """The first one was alone on its key when the shard was read; both are counted once."""
    for first in (["a"], ["a", "b"]):
        room = make_purgatory(clock=ManualClock())
        stays = Op()
        room.try_complete_else_watch(stays, first)
        made = Survey(room._core, 0, 5, 5)
        while not made._entries:  # until the shard has been read and no operation of it is counted yet
            made.step(1)
        assert made.visited == 0
        room.try_complete_else_watch(Op(), ["a"])
        while made.step(1):
            pass
        assert [row.op_id for row in made.rows()] == [1, 2]
        assert made.visited == 2


def test_operations_that_end_before_the_survey_reaches_them_are_left_out() -> None:
    """Whether the operation was alone on its key, one of several, or has a threshold."""
    for parked in (["a"], ["a", "b"], {"a": 3}):
        room = make_purgatory(clock=ManualClock())
        ops = [Op(), Op()]
        room.try_complete_else_watch(ops[0], parked)
        made = Survey(room._core, 0, 5, 5)
        while not made._entries:
            made.step(1)
        ops[0].cancel()
        while made.step(1):
            pass
        assert (made.visited, made.keys, made.rows()) == (0, 0, [])


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])  # the survey visits the smaller key first
def test_the_keys_of_the_longest_waits_need_not_be_those_with_the_most_watchers(old: int, new: int) -> None:
    """One old operation waits longer than several new ones, and each list has its own keys."""
    clock = ManualClock()
    room = make_purgatory(clock=clock)
    room.try_complete_else_watch(Op(), [old])
    clock.time_ms += 60_000
    for _ in range(3):
        room.try_complete_else_watch(Op(), [new])
    clock.time_ms += 1_000
    for portion in (1, 1000):
        found = survey(room, portion, most_keys=1)
        assert [(hot.key, hot.watchers) for hot in found.by_watchers()] == [(new, 3)]
        assert [(hot.key, hot.watchers, hot.total_wait_ms, hot.oldest_ms) for hot in found.by_total_wait()] == [
            (old, 1, 61_000, clock.time_ms - 61_000)
        ]


def test_an_operation_parked_after_the_time_of_the_survey_has_waited_for_nothing() -> None:
    """The time of a survey is that of its beginning; a later operation counts with the age zero."""
    clock = ManualClock()
    room = make_purgatory(clock=clock)
    made = Survey(room._core, clock.time_ms, 5, 5)
    clock.time_ms += 5_000
    room.try_complete_else_watch(Op(), ["a"])
    while made.step(100):
        pass
    assert made.ages == [1, 0, 0, 0, 0]
    assert [hot.total_wait_ms for hot in made.by_total_wait()] == [0]


async def test_operations_that_a_task_awaits_are_told_apart(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """In ``park()`` or by awaiting the operation itself; one that nobody awaits counts as unawaited."""
    awaited, left = Op(), Op()
    tasks = [asyncio.ensure_future(purgatory.park(Op(), ["a"]))]
    for op in (awaited, left):
        purgatory.try_complete_else_watch(op, ["a"])

    async def wait() -> None:
        await awaited

    tasks.append(asyncio.ensure_future(wait()))
    await clock.settle()
    found = survey(purgatory)
    assert (found.kinds["Op"].parked, found.kinds["Op"].unawaited) == (3, 1)
    assert sorted((row.op_id, row.awaited) for row in found.rows()) == [(1, True), (2, False), (3, True)]
    purgatory.cancel_for_key("a")
    await asyncio.gather(*tasks, return_exceptions=True)


def test_an_operation_in_no_listed_bucket_counts_in_none() -> None:
    """The caller chooses the buckets."""
    room = make_purgatory(clock=ManualClock())
    room.try_complete_else_watch(Op(5.0), ["a"])
    places = {0: [0]}
    assert survey(room, buckets=places).visited == 1
    assert places == {0: [0]}


@pytest.mark.skipif(not hasattr(gc, "get_threshold"), reason="PyPy's garbage collector has no thresholds")
def test_the_garbage_collector_withdraws_an_operation_during_a_survey(no_gc: None) -> None:
    """Whichever allocation starts the collection, the others are counted."""
    room = make_purgatory(clock=ManualClock())
    shard = room._core.watcher_lists.shard
    keys = [key for key in range(20_000) if shard(key) is shard(0)]
    for allocations in range(0, 120, 2):
        operations = [Op() for _ in keys]
        for operation, key in zip(operations, keys, strict=True):
            room.try_complete_else_watch(operation, [key])
        gc.collect()
        AtCollection(operations[5].cancel)
        gc.set_threshold(gc.get_count()[0] + allocations + 1, 1000, 1000)
        gc.enable()
        found = survey(room)
        gc.disable()
        gc.collect()
        assert len(keys) - 1 <= found.visited <= len(keys)
        for operation in operations:
            operation.cancel()
