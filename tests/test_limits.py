"""``max_parked`` and ``max_parked_per_key``: what counts, what frees, and that nothing is half done."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory, PurgatoryError, PurgatoryFull
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park
from tests.sansio import HandClock, make_room, pass_time


async def test_a_full_room_says_its_limit(clock: VirtualClock) -> None:
    """Over max_parked it is PurgatoryFull with the limit in the message, and the operation is still PENDING."""
    async with Purgatory[Op]("room", clock=clock, max_parked=2) as purgatory:
        ops = [Op(5) for _ in range(3)]
        purgatory.try_complete_else_watch(ops[0], ["a"])
        purgatory.try_complete_else_watch(ops[1], ["a"])
        with pytest.raises(PurgatoryFull, match=r"'room' is full: max_parked=2") as caught:
            purgatory.try_complete_else_watch(ops[2], ["b"])
        assert (caught.value.limit, caught.value.key) == (2, None)
        assert ops[2].outcome is Outcome.PENDING
        check(purgatory, submitted=2, parked=2, keys=1)
        ops[0].cancel()
        assert not purgatory.try_complete_else_watch(ops[2], ["b"])


async def test_a_full_key_says_which(clock: VirtualClock) -> None:
    """Over max_parked_per_key nothing is parked, not even on the keys that have room."""
    async with Purgatory[Op]("room", clock=clock, max_parked_per_key=1) as purgatory:
        purgatory.try_complete_else_watch(Op(5), ["a"])
        with pytest.raises(PurgatoryFull, match=r"key 'a' of purgatory 'room' is full: max_parked_per_key=1") as e:
            purgatory.try_complete_else_watch(Op(5), ["b", "a"])
        assert (e.value.limit, e.value.key) == (1, "a")
        check(purgatory, submitted=1, parked=1, keys=1, watched=1)
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(Op(5), {"a": 5})
        assert not purgatory.try_complete_else_watch(Op(5), ["b"])


async def test_what_completes_at_once_needs_no_room(clock: VirtualClock) -> None:
    """A limit is for those who would have to wait."""
    async with Purgatory[Op]("room", clock=clock, max_parked=1, max_parked_per_key=1) as purgatory:
        purgatory.try_complete_else_watch(Op(5), ["a"])
        assert purgatory.try_complete_else_watch(Op(5, ready=True), ["a"])


@pytest.mark.parametrize("end", ["complete", "check", "cancel", "cancel_for_key", "fail_for_key", "expire"])
async def test_every_ending_makes_room_at_once(clock: VirtualClock, end: str) -> None:
    """However an operation ends, the next one is let in within the same turn."""
    async with Purgatory[Op]("limits", clock=clock, max_parked=1, max_parked_per_key=1) as purgatory:
        operation = park(purgatory, "a", "b", timeout=1)
        with pytest.raises(PurgatoryFull):
            park(purgatory, "c")
        if end == "complete":
            operation.force_complete()
        elif end == "check":
            operation.ready = True
            purgatory.check_and_complete("a")
        elif end == "cancel":
            operation.cancel()
        elif end == "cancel_for_key":
            purgatory.cancel_for_key("b")
        elif end == "fail_for_key":
            purgatory.fail_for_key("b", Boom())
        else:
            await clock.advance(1)
        park(purgatory, "b")
        check(purgatory, parked=1, watched=1, keys=1)


async def test_a_cancelled_task_makes_room(clock: VirtualClock) -> None:
    """Its place is free when the task has gone."""
    async with Purgatory[Op]("limits", clock=clock, max_parked=1) as purgatory:
        task = asyncio.ensure_future(purgatory.park(Op(), ["a"]))
        await asyncio.sleep(0)
        with pytest.raises(PurgatoryFull):
            await purgatory.park(Op(), ["a"])
        task.cancel()
        await asyncio.wait([task])
        park(purgatory, "a")


async def test_who_waits_for_a_predicate_counts(clock: VirtualClock) -> None:
    """``wait_until`` parks an operation like any other, unless the predicate holds."""
    async with Purgatory[Any]("limits", clock=clock, max_parked=1) as purgatory:
        park(purgatory, "a")
        with pytest.raises(PurgatoryFull):
            await purgatory.wait_until(lambda: False, keys=["b"], timeout=1)
        assert await purgatory.wait_until(lambda: True, keys=["b"], timeout=1)


async def test_a_refused_operation_can_be_parked_later(clock: VirtualClock) -> None:
    """It is PENDING, on no key, without a deadline running; its next try is a first try."""
    async with Purgatory[Op]("limits", clock=clock, max_parked_per_key=1) as purgatory:
        first, second = park(purgatory, "a"), Op(5)
        with pytest.raises(PurgatoryFull) as caught:
            purgatory.try_complete_else_watch(second, ["b", "a", "c"])
        assert isinstance(caught.value, PurgatoryError)
        assert (second.outcome, second.keys, second.scheduled) == (Outcome.PENDING, (), False)
        check(purgatory, submitted=1, parked=1, watched=1, keys=1, num_delayed=0)
        await clock.advance(10)
        first.cancel()
        assert not purgatory.try_complete_else_watch(second, ["b", "a", "c"])
        await clock.advance(4.999)
        assert second.outcome is Outcome.PENDING
        await clock.advance(0.001)
        assert second.outcome is Outcome.EXPIRED


async def test_duplicate_keys_count_once(clock: VirtualClock) -> None:
    """An operation that names a key twice takes one place on it."""
    async with Purgatory[Op]("limits", clock=clock, max_parked_per_key=2) as purgatory:
        park(purgatory, "a", "a", "a")
        park(purgatory, "a", "a")
        with pytest.raises(PurgatoryFull):
            park(purgatory, "a", "a")


async def test_watchers_with_and_without_thresholds_share_the_limit_of_a_key(clock: VirtualClock) -> None:
    """They wait on the same key."""
    async with Purgatory[Op]("limits", clock=clock, max_parked_per_key=2) as purgatory:
        park(purgatory, "a")
        purgatory.try_complete_else_watch(Op(), {"a": 5})
        for keys in (["a"], {"a": 7}):
            with pytest.raises(PurgatoryFull):
                purgatory.try_complete_else_watch(Op(), keys)


async def test_one_parked_within_the_first_try_of_another_counts(clock: VirtualClock) -> None:
    """The place that was free when the outer one came may be taken when it is to be parked."""
    async with Purgatory[Op]("limits", clock=clock, max_parked=1) as purgatory:
        inner = Op()
        outer = Op(on_try=lambda _: purgatory.try_complete_else_watch(inner, ["a"]))
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(outer, ["b"])
        assert inner.keys == ("a",)
        check(purgatory, parked=1, submitted=1)


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
def test_the_limits_are_never_passed_and_never_refuse_without_need(
    steps: list[tuple[Any, ...]], max_parked: int | None, max_parked_per_key: int | None
) -> None:
    """Any schedule: one is refused if and only if the place it needs is taken, and a refusal changes nothing."""
    clock = HandClock()
    room = make_room(clock, max_parked=max_parked, max_parked_per_key=max_parked_per_key)
    everyone: list[Op] = []
    for step in steps:
        waiting = [operation for operation in everyone if operation.outcome is Outcome.PENDING]
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
                    assert room.statistics() == before
                    assert operation.keys == ()
                else:
                    room.try_complete_else_watch(operation, keys)
                    everyone.append(operation)
            case ("end", number) if number < len(everyone):
                everyone[number].force_complete()
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
        (0, ValueError, "is at least 1"),
        (-1, ValueError, "is at least 1"),
        (1.5, TypeError, "is a whole number"),
        ("2", TypeError, "is a whole number"),
        (True, TypeError, "is a whole number"),
    ],
)
def test_a_bad_limit_is_told_by_its_name(name: str, limit: Any, error: type[Exception], message: str) -> None:
    """A limit is a whole number above zero; the parameter that is wrong is the one in the message."""
    arguments: dict[str, Any] = {name: limit}
    with pytest.raises(error, match=rf"^{name} {message}"):
        make_room(HandClock(), **arguments)
    with pytest.raises(error, match=rf"^{name} {message}"):
        Purgatory("room", **arguments)
