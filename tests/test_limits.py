"""``max_parked`` and ``max_parked_per_key``: what counts, what frees, and that nothing is half done."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory, PurgatoryError, PurgatoryFull
from purgatory.testing import VirtualClock

from .helpers import Boom, Op, check
from .sansio import HandClock, make_room, pass_time


def park(purgatory: Any, *keys: Any, **arguments: Any) -> Op:
    operation = Op(**arguments)
    purgatory.try_complete_else_watch(operation, keys)
    return operation


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
def test_a_bad_limit_is_told_by_its_name(name: str) -> None:
    """The parameter that is wrong is the one in the message."""
    arguments: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=rf"^{name} is at least 1"):
        make_room(HandClock(), **arguments)
    arguments = {name: 1.5}
    with pytest.raises(TypeError, match=rf"^{name} is a whole number"):
        make_room(HandClock(), **arguments)


def test_what_never_waits_is_counted_each_time() -> None:
    """Those that complete at once are counted among the completed, and by themselves."""
    room = make_room(HandClock())
    for _ in range(3):
        assert room.try_complete_else_watch(Op(ready=True), ["a"])
    check(room, immediate=3, completed=3, submitted=3)  # type: ignore[arg-type]


def test_one_that_raises_in_its_first_try_keeps_its_error() -> None:
    """Whoever asks for its result gets what reached the caller."""

    def fail(_: Op) -> None:
        raise Boom

    room = make_room(HandClock())
    operation = Op(on_try=fail)
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, ["a"])
    assert operation.outcome is Outcome.FAILED
    with pytest.raises(Boom):
        operation.result()


def test_expiring_some_tells_how_many_have_left() -> None:
    """Closing goes on for as long as somebody leaves."""
    room = make_room(HandClock())
    for number in range(5):
        room.try_complete_else_watch(Op(), [number])
    assert [room._desk.expire_some(2) for _ in range(4)] == [2, 2, 1, 0]
    check(room, parked=0, expired=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_a_key_that_raises_while_it_is_parked_leaves_nothing_behind(bad: int) -> None:
    """At whichever of four keys: the operation is on none of them, and still PENDING."""

    class Once:
        left = 1  # its hash is asked for once before anything has changed

        def __hash__(self) -> int:
            if not self.left:
                raise Boom
            self.left -= 1
            return 1

    room = make_room(HandClock())
    operation = Op(5)
    keys: list[Any] = ["a", "b", "c"]
    keys.insert(bad, Once())
    with pytest.raises(Boom):
        room.try_complete_else_watch(operation, keys)
    assert operation.outcome is Outcome.PENDING
    assert operation.expiration_ms is None
    check(room, parked=0, watched=0, keys=0, submitted=0)  # type: ignore[arg-type]
