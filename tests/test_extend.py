"""``extend``: the deadline moves, the place on the watch lists stays."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory, PurgatoryClosed, PurgatoryFull, SystemTimer
from purgatory.testing import VirtualClock

from .helpers import Op, check
from .sansio import HandClock, QuietRoom, make_room, pass_time

# In each state


def test_in_its_first_try_it_counts_from_that_moment() -> None:
    """Not from when it was handed over: a slow condition must not make the deadline early."""
    clock = HandClock()
    room = make_room(clock)

    def slow(operation: Op) -> None:
        clock.ms += 40
        operation.extend(0.1)
        clock.ms += 5

    operation = Op(None, on_try=slow)
    room.try_complete_else_watch(operation, ["key"])
    operation._on_try = lambda _: None
    pass_time(clock, room, 94)
    assert operation.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert operation.outcome is Outcome.EXPIRED


@pytest.mark.parametrize(("words", "at_ms"), [([5, None], None), ([None, 5], 5000), ([5, 3], 3000), ([0], 0)])
def test_in_its_first_try_the_last_word_counts(words: list[float | None], at_ms: int | None) -> None:
    """Also if it says that there is no deadline."""
    clock = HandClock()
    room = make_room(clock)
    operation = Op(1, on_try=lambda operation: [operation.extend(word) for word in words])
    room.try_complete_else_watch(operation, ["key"])
    assert room.num_delayed == (at_ms is not None)
    room._check()
    start_ms = clock.ms
    ended_ms: list[int] = []
    operation._on_complete = lambda _: ended_ms.append(clock.ms - start_ms)
    pass_time(clock, room, 10_000)
    room._desk.timer.expire_due(clock.ms)
    assert ended_ms == ([] if at_ms is None else [at_ms])


def test_one_that_was_refused_counts_anew() -> None:
    """Extended in a first try after which there was no room, it takes its timeout along, not its old deadline."""
    clock = HandClock()
    room = make_room(clock, max_parked=1)
    first, second = Op(None), Op(1, on_try=lambda operation: operation.extend(2))
    room.try_complete_else_watch(first, ["key"])
    with pytest.raises(PurgatoryFull):
        room.try_complete_else_watch(second, ["key"])
    assert second.expiration_ms is None
    first.cancel()
    second._on_try = lambda _: None
    clock.ms += 5000
    room.try_complete_else_watch(second, ["key"])
    assert second.expiration_ms == clock.ms + 2000


async def test_it_stays_where_it_is_on_its_keys(clock: VirtualClock) -> None:
    """Extending is no new arrival: the order of the tries is the old one."""
    async with Purgatory[Op]("extend", clock=clock) as purgatory:
        tried: list[str] = []
        operations = [Op(5, name=name, on_try=lambda operation: tried.append(operation.name)) for name in "abc"]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["key"])
        tried.clear()
        operations[0].extend(9)
        operations[2].extend(1)
        operations[1].extend(None)
        purgatory.check_and_complete("key")
        assert tried == ["a", "b", "c"]


@pytest.mark.parametrize("late", [False, True])
def test_taken_by_the_reaper_in_the_same_turn(late: bool) -> None:
    """One that fell due together with others may be moved on by the callback of the first, or taken back."""
    clock = HandClock()
    room = make_room(clock)
    second, third, fourth = Op(1, name="2"), Op(1, name="3"), Op(1, name="4")

    def move(_: Op) -> None:
        second.extend(1)
        third.extend(None)
        fourth.extend(0)

    first = Op(1, on_complete=move)
    for operation in (first, second, third, fourth):
        room.try_complete_else_watch(operation, ["key"])
    clock.ms += 1700 if late else 1000
    room._desk.timer.expire_due(clock.ms)
    assert first.outcome is Outcome.EXPIRED
    assert [second.outcome, third.outcome] == [Outcome.PENDING, Outcome.PENDING]
    room._check()
    pass_time(clock, room, 999)
    assert [second.outcome, fourth.outcome] == [Outcome.PENDING, Outcome.EXPIRED]
    pass_time(clock, room, 1)
    assert second.outcome is Outcome.EXPIRED
    assert third.outcome is Outcome.PENDING


def test_due_and_not_yet_taken_it_is_moved_on() -> None:
    """A heartbeat that arrives when the deadline has passed, but before anyone noticed, counts."""
    clock = HandClock()
    room = make_room(clock)
    operation = Op(1)
    room.try_complete_else_watch(operation, ["key"])
    clock.ms += 1500
    assert operation.extend(1)
    assert room._desk.timer.expire_due(clock.ms) == 0
    pass_time(clock, room, 999)
    assert operation.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert operation.outcome is Outcome.EXPIRED


@pytest.mark.parametrize("tick_ms", [1, 7, 10, 100, 1000])
@pytest.mark.parametrize("ahead", [0, 0.001, 0.453, 2])
def test_at_any_tick_it_is_never_early_and_late_by_a_tick_at_most(tick_ms: int, ahead: float) -> None:
    """Moved in the midst of a tick, to and fro, it expires at the end of the tick of its last deadline."""
    clock = HandClock(1_000_453)
    room = make_room(clock, tick_ms=tick_ms)
    ended_ms: list[int] = []
    operation = Op(0.9, on_complete=lambda _: ended_ms.append(clock.ms))
    room.try_complete_else_watch(operation, ["key"])
    for timeout in (0.95, 0.9, 5, ahead):
        operation.extend(timeout)
        room._check()
    wanted_ms = clock.ms + round(ahead * 1000)
    pass_time(clock, room, 4000)
    room._desk.timer.expire_due(clock.ms)
    (at_ms,) = ended_ms
    assert wanted_ms <= at_ms < wanted_ms + tick_ms or (ahead == 0 and at_ms <= clock.ms)
    room._check()


async def test_after_its_end_it_is_told_so(clock: VirtualClock) -> None:
    """Within ``on_complete`` of its expiry it is too late, too."""
    async with Purgatory[Op]("extend", clock=clock) as purgatory:
        said: list[bool] = []
        operation = Op(1, on_complete=lambda operation: said.append(operation.extend(5)))
        purgatory.try_complete_else_watch(operation, ["key"])
        await clock.advance(1)
        assert said == [False]
        assert not operation.extend(5)
        check(purgatory, num_delayed=0, parked=0)


async def test_where_the_timer_is_closed(clock: VirtualClock) -> None:
    """A deadline that nobody would keep is refused; taking it away, and what has ended, is not."""
    timer = SystemTimer(clock=clock)
    async with Purgatory[Op]("extend", timer=timer) as purgatory:
        forever, timed = Op(None), Op(5)
        for operation in (forever, timed):
            purgatory.try_complete_else_watch(operation, ["key"])
        await timer.aclose()
        assert timed.outcome is Outcome.EXPIRED
        with pytest.raises(PurgatoryClosed):
            forever.extend(1)
        assert forever.extend(None)
        assert not timed.extend(1)
        check(purgatory, parked=1, num_delayed=0)


async def test_during_the_grace_of_a_closing_purgatory(clock: VirtualClock) -> None:
    """A deadline within the grace holds; beyond it the purgatory's end comes first."""
    purgatory = Purgatory[Op]("extend", clock=clock)
    short, long = Op(10), Op(10)
    for operation in (short, long):
        purgatory.try_complete_else_watch(operation, ["key"])
    closing = asyncio.ensure_future(purgatory.aclose(grace=2))
    await clock.settle()
    short.extend(1)
    long.extend(60)
    await clock.advance(1)
    assert (short.outcome, long.outcome) == (Outcome.EXPIRED, Outcome.PENDING)
    await clock.advance(1)
    assert long.outcome is Outcome.EXPIRED
    await closing


# What it costs


def test_moved_on_it_does_not_touch_the_wheel() -> None:
    """A thousand heartbeats within a deadline queue no bucket and cascade nothing."""
    clock = HandClock()
    room = make_room(clock)
    operations = [Op(30) for _ in range(100)]
    for operation in operations:
        room.try_complete_else_watch(operation, ["key"])
    heart = room._desk.timer.heart
    before = (heart._queue.operations, heart.cascades, heart.size)
    for _ in range(1000):
        clock.ms += 1
        for operation in operations:
            operation.extend(30)
    assert (heart._queue.operations, heart.cascades, heart.size) == before
    pass_time(clock, room, 29_999)
    assert len(room) == 100
    pass_time(clock, room, 1)
    assert len(room) == 0


# Any order of events

STEP = st.one_of(
    st.tuples(st.just("park"), st.none() | st.integers(0, 3000)),
    st.tuples(st.just("extend"), st.integers(0, 12), st.none() | st.integers(0, 3000)),
    st.tuples(st.just("pass"), st.integers(0, 1500)),
    st.tuples(st.just("jump"), st.integers(0, 1500)),
    st.tuples(st.just("check"), st.integers(0, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 12)),
)


@given(
    steps=st.lists(STEP, max_size=50),
    tick_ms=st.sampled_from([1, 1, 3, 20, 250]),
    wheel_size=st.sampled_from([2, 3, 20]),
)
def test_the_last_deadline_given_is_the_one_that_holds(
    steps: list[tuple[Any, ...]], tick_ms: int, wheel_size: int
) -> None:
    """Any schedule of parking, extending, time and ends: each expires at its last deadline, rounded up to the tick.

    A jump is a busy loop: time passes and nothing is looked at, so what fell due meanwhile may still be moved on.
    """
    clock = HandClock()
    room: QuietRoom = make_room(clock, tick_ms=tick_ms, wheel_size=wheel_size)
    operations: list[Op] = []
    deadlines: list[float] = []
    expired: dict[int, int] = {}
    for step in steps:
        match step:
            case ("park", milliseconds):
                number = len(operations)
                operation = Op(
                    None if milliseconds is None else milliseconds / 1000,
                    on_expiration=lambda _, number=number: expired.setdefault(number, clock.ms),  # type: ignore[misc]
                )
                operations.append(operation)
                deadlines.append(_deadline(clock, milliseconds, tick_ms))
                room.try_complete_else_watch(operation, ["key", number])
            case ("extend", number, milliseconds) if number < len(operations):
                waits = operations[number].outcome is Outcome.PENDING
                assert operations[number].extend(None if milliseconds is None else milliseconds / 1000) == waits
                if waits:
                    deadlines[number] = _deadline(clock, milliseconds, tick_ms)
            case ("check", number) if number < len(operations):
                operations[number].ready = True
                room.check_and_complete(number)
            case ("cancel", number) if number < len(operations):
                operations[number].cancel()
            case ("pass", milliseconds):
                before_ms = clock.ms
                pass_time(clock, room, milliseconds)
                for number, at_ms in expired.items():
                    if at_ms > before_ms:
                        assert at_ms == max(deadlines[number], before_ms)
                    else:
                        assert at_ms >= deadlines[number]
            case ("jump", milliseconds):
                clock.ms += milliseconds
        room._check()
        assert room.num_delayed == sum(
            operation.outcome is Outcome.PENDING and deadline < float("inf")
            for operation, deadline in zip(operations, deadlines, strict=True)
        )
    waiting = [number for number, operation in enumerate(operations) if operation.outcome is Outcome.PENDING]
    pass_time(clock, room, 5000)
    for number in waiting:
        assert (operations[number].outcome is Outcome.PENDING) == (deadlines[number] == float("inf"))


def _deadline(clock: HandClock, milliseconds: int | None, tick_ms: int) -> float:
    if milliseconds is None:
        return float("inf")
    wanted_ms = clock.ms + milliseconds
    return wanted_ms if milliseconds == 0 else wanted_ms + -wanted_ms % tick_ms


@pytest.mark.parametrize("timeout", [0, 0.001, 5])
async def test_on_a_closed_timer_no_deadline_is_taken(clock: VirtualClock, timeout: float) -> None:
    """Not even one that has come: the error says why."""
    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    op = Op(None)
    purgatory.try_complete_else_watch(op, ["a"])
    await timer.aclose()
    with pytest.raises(PurgatoryClosed, match="timer of purgatory 'test' is closed: nobody would keep the"):
        op.extend(timeout)
    assert op.outcome is Outcome.PENDING
    assert op.extend(None)
    op.cancel()


async def test_without_a_deadline_from_the_first_try_on(clock: VirtualClock) -> None:
    """Taken away while it is tried: it waits for ever, and has no time at which it would fall due."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5, on_try=lambda op: op.extend(None))
        purgatory.try_complete_else_watch(op, ["a"])
        assert (op.timeout, op.expiration_ms, purgatory.num_delayed) == (None, None, 0)


@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_one_that_is_due_already_is_moved(clock: VirtualClock, timeout: float | None) -> None:
    """Before the timer came to it: it is counted once among those with a deadline, or not at all."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(0)
        purgatory.try_complete_else_watch(op, ["a"])
        assert op.extend(timeout)
        assert purgatory.num_delayed == (timeout is not None)
        purgatory._check()
        op.cancel()
        assert purgatory.num_delayed == 0
