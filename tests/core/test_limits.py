"""``max_parked`` and ``max_parked_per_key``: what counts toward them, and that a refusal changes nothing."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory, PurgatoryError, PurgatoryFull
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op, check, park
from tests.sansio import make_purgatory, pass_time


def test_a_full_purgatory_names_its_limit() -> None:
    """PurgatoryFull contains the limit in its message, and the operation is still PENDING."""
    room = make_purgatory(ManualClock(), name="room", max_parked=2)
    ops = [Op(5) for _ in range(3)]
    room.try_complete_else_watch(ops[0], ["a"])
    room.try_complete_else_watch(ops[1], ["a"])
    with pytest.raises(PurgatoryFull, match=r"'room' is full: max_parked=2") as caught:
        room.try_complete_else_watch(ops[2], ["b"])
    assert (caught.value.limit, caught.value.key) == (2, None)
    assert ops[2].outcome is Outcome.PENDING
    check(room, submitted=2, parked=2, keys=1)
    ops[0].cancel()
    assert not room.try_complete_else_watch(ops[2], ["b"])


def test_a_full_key_is_named_in_the_error() -> None:
    """Above ``max_parked_per_key`` nothing is parked, not even on the keys below their limit."""
    room = make_purgatory(ManualClock(), name="room", max_parked_per_key=1)
    room.try_complete_else_watch(Op(5), ["a"])
    with pytest.raises(PurgatoryFull, match=r"key 'a' of purgatory 'room' is full: max_parked_per_key=1") as e:
        room.try_complete_else_watch(Op(5), ["b", "a"])
    assert (e.value.limit, e.value.key) == (1, "a")
    check(room, submitted=1, parked=1, keys=1, watched=1)
    with pytest.raises(PurgatoryFull):
        room.try_complete_else_watch(Op(5), {"a": 5})
    assert not room.try_complete_else_watch(Op(5), ["b"])


def test_every_refusal_is_counted() -> None:
    """Those by a key are counted once more on their own."""
    room = make_purgatory(ManualClock(), max_parked=2, max_parked_per_key=1)
    park(room, "a")
    for number in (1, 2):
        with pytest.raises(PurgatoryFull):
            park(room, "a")
        check(room, refused=number, refused_by_key=number)
    park(room, "b")
    for number in (3, 4):
        with pytest.raises(PurgatoryFull):
            park(room, "c")
        check(room, refused=number, refused_by_key=2)


def test_an_operation_that_completes_at_once_is_never_refused() -> None:
    """A limit applies only to operations that must wait."""
    room = make_purgatory(ManualClock(), max_parked=1, max_parked_per_key=1)
    room.try_complete_else_watch(Op(5), ["a"])
    assert room.try_complete_else_watch(Op(5, ready=True), ["a"])


@pytest.mark.parametrize("end", ["complete", "check", "cancel", "cancel_for_key", "fail_for_key", "expire"])
def test_every_ending_frees_its_place_at_once(end: str) -> None:
    """After any ending, the next operation is accepted within the same turn."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, max_parked=1, max_parked_per_key=1)
    operation = park(room, "a", "b", timeout=1)
    with pytest.raises(PurgatoryFull):
        park(room, "c")
    if end == "complete":
        operation.force_complete()
    elif end == "check":
        operation.ready = True
        room.check_and_complete("a")
    elif end == "cancel":
        operation.cancel()
    elif end == "cancel_for_key":
        room.cancel_for_key("b")
    elif end == "fail_for_key":
        room.fail_for_key("b", Boom())
    else:
        pass_time(clock, room, 1000)
    park(room, "b")
    check(room, parked=1, watched=1, keys=1)


async def test_a_cancelled_task_frees_its_place(clock: VirtualClock) -> None:
    """When a cancelled task has ended, its place is free."""
    async with Purgatory[Op]("limits", clock=clock, max_parked=1) as purgatory:
        task = asyncio.ensure_future(purgatory.park(Op(), ["a"]))
        await asyncio.sleep(0)
        with pytest.raises(PurgatoryFull):
            await purgatory.park(Op(), ["a"])
        task.cancel()
        await asyncio.wait([task])
        park(purgatory, "a")


async def test_wait_until_counts_against_the_limit(clock: VirtualClock) -> None:
    """``wait_until`` parks an operation like any other, unless the predicate holds."""
    async with Purgatory[Any]("limits", clock=clock, max_parked=1) as purgatory:
        park(purgatory, "a")
        with pytest.raises(PurgatoryFull):
            await purgatory.wait_until(lambda: False, keys=["b"], timeout=1)
        assert await purgatory.wait_until(lambda: True, keys=["b"], timeout=1)


def test_a_refused_operation_can_be_parked_later() -> None:
    """A refused operation is PENDING, on no key and without a deadline; its next try is a first try."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, max_parked_per_key=1)
    first, second = park(room, "a"), Op(5)
    with pytest.raises(PurgatoryFull) as caught:
        room.try_complete_else_watch(second, ["b", "a", "c"])
    assert isinstance(caught.value, PurgatoryError)
    assert (second.outcome, second.keys, second.scheduled) == (Outcome.PENDING, (), False)
    check(room, submitted=1, parked=1, watched=1, keys=1, num_delayed=0)
    pass_time(clock, room, 10_000)
    first.cancel()
    assert not room.try_complete_else_watch(second, ["b", "a", "c"])
    pass_time(clock, room, 4999)
    assert second.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert second.outcome is Outcome.EXPIRED


def test_duplicate_keys_count_once() -> None:
    """An operation with a duplicate key takes one place on it."""
    room = make_purgatory(ManualClock(), max_parked_per_key=2)
    park(room, "a", "a", "a")
    park(room, "a", "a")
    with pytest.raises(PurgatoryFull):
        park(room, "a", "a")


def test_watchers_with_and_without_thresholds_share_the_limit_of_a_key() -> None:
    """Both kinds of watchers count toward ``max_parked_per_key``."""
    room = make_purgatory(ManualClock(), max_parked_per_key=2)
    park(room, "a")
    room.try_complete_else_watch(Op(), {"a": 5})
    for keys in (["a"], {"a": 7}):
        with pytest.raises(PurgatoryFull):
            room.try_complete_else_watch(Op(), keys)


def test_an_operation_parked_within_the_first_try_of_another_counts() -> None:
    """A place that is free at the outer call may be taken before its operation is parked."""
    room = make_purgatory(ManualClock(), max_parked=1)
    inner = Op()
    outer = Op(on_try=lambda _: room.try_complete_else_watch(inner, ["a"]))
    with pytest.raises(PurgatoryFull):
        room.try_complete_else_watch(outer, ["b"])
    assert inner.keys == ("a",)
    check(room, parked=1, submitted=1)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("park"), st.lists(st.sampled_from("abc"), min_size=1), st.none() | st.integers(0, 50)),
            st.tuples(st.just("end"), st.integers(0, 30)),
            st.tuples(st.just("key"), st.sampled_from("abc")),
            st.tuples(st.just("pass"), st.integers(0, 30)),
        ),
        max_size=60,
    ),
    max_parked=st.none() | st.integers(1, 5),
    max_parked_per_key=st.none() | st.integers(1, 3),
)
def test_a_limit_refuses_exactly_the_operations_beyond_it(
    steps: list[tuple[Any, ...]], max_parked: int | None, max_parked_per_key: int | None
) -> None:
    """In any schedule, an operation is refused iff no place is free, and a refusal changes nothing."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, max_parked=max_parked, max_parked_per_key=max_parked_per_key)
    operations: list[Op] = []
    for step in steps:
        waiting = [operation for operation in operations if operation.outcome is Outcome.PENDING]
        on_key = Counter(key for operation in waiting for key in operation.keys)
        match step:
            case ("park", keys, milliseconds):
                operation = Op(None if milliseconds is None else milliseconds / 1000)
                full = (max_parked is not None and len(waiting) >= max_parked) or (
                    max_parked_per_key is not None and any(on_key[key] >= max_parked_per_key for key in keys)
                )
                if full:
                    before = room.statistics()
                    with pytest.raises(PurgatoryFull) as caught:
                        room.try_complete_else_watch(operation, keys)
                    assert str(caught.value.limit) in str(caught.value)
                    by_key = caught.value.key is not None
                    assert room.statistics() == replace(
                        before, refused=before.refused + 1, refused_by_key=before.refused_by_key + by_key
                    )
                    assert operation.keys == ()
                else:
                    room.try_complete_else_watch(operation, keys)
                    operations.append(operation)
            case ("end", number) if number < len(operations):
                operations[number].force_complete()
            case ("key", key):
                assert len(room.cancel_for_key(key)) == on_key[key]
            case ("pass", milliseconds):
                pass_time(clock, room, milliseconds)
        room._check()
        assert max_parked is None or len(room) <= max_parked


@pytest.mark.parametrize("name", ["max_parked", "max_parked_per_key"])
@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (0, ValueError, "must be a positive int or None"),
        (-1, ValueError, "must be a positive int or None"),
        (1.5, TypeError, "must be a positive int or None"),
        ("2", TypeError, "must be a positive int or None"),
        (True, TypeError, "must be a positive int or None"),
    ],
)
def test_a_bad_limit_is_named_in_the_error(name: str, limit: Any, error: type[Exception], message: str) -> None:
    """A limit must be a positive int or None; the message contains the name of the parameter."""
    arguments: dict[str, Any] = {name: limit}
    with pytest.raises(error, match=rf"^{name} {message}"):
        make_purgatory(ManualClock(), **arguments)
    with pytest.raises(error, match=rf"^{name} {message}"):
        Purgatory("room", **arguments)
