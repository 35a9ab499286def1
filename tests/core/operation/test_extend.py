"""``extend`` moves the deadline and keeps the place on the watch lists."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory, PurgatoryClosed, PurgatoryFull, SystemTimer
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Op, check, park
from tests.sansio import QuietPurgatory, make_purgatory, pass_time

# In each state


def test_before_parking_it_replaces_the_timeout() -> None:
    """``extend`` before parking replaces the timeout."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    op = Op(1)
    assert op.extend(5)
    room.try_complete_else_watch(op, ["key"])
    pass_time(clock, room, 4999)
    assert op.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert op.outcome is Outcome.EXPIRED


def test_in_its_first_try_it_replaces_the_timeout() -> None:
    """``try_complete`` may set the timeout."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    op = Op(1, on_try=lambda op: op.extend(5))
    room.try_complete_else_watch(op, ["key"])
    check(room, num_delayed=1)
    pass_time(clock, room, 4999)
    assert op.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert op.outcome is Outcome.EXPIRED


def test_in_its_first_try_it_counts_from_that_moment() -> None:
    """The timeout counts from the call of ``extend``, so a slow condition does not make the deadline early."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)

    def slow(operation: Op) -> None:
        clock.time_ms += 40
        operation.extend(0.1)
        clock.time_ms += 5

    operation = Op(None, on_try=slow)
    room.try_complete_else_watch(operation, ["key"])
    operation._on_try = lambda _: None
    pass_time(clock, room, 94)
    assert operation.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert operation.outcome is Outcome.EXPIRED


@pytest.mark.parametrize(("words", "at_ms"), [([5, None], None), ([None, 5], 5000), ([5, 3], 3000), ([0], 0)])
def test_in_its_first_try_the_last_extension_counts(words: list[float | None], at_ms: int | None) -> None:
    """The last extension counts, even if it removes the deadline."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    operation = Op(1, on_try=lambda operation: [operation.extend(word) for word in words])
    room.try_complete_else_watch(operation, ["key"])
    assert room.num_delayed == (at_ms is not None)
    room._check()
    start_ms = clock.time_ms
    ended_ms: list[int] = []
    operation._on_complete = lambda _: ended_ms.append(clock.time_ms - start_ms)
    pass_time(clock, room, 10_000)
    room._core.timer.expire_due(clock.time_ms)
    assert ended_ms == ([] if at_ms is None else [at_ms])


@pytest.mark.parametrize("ahead_ms", [0, 5])
def test_by_nothing_in_its_first_try_it_is_due_at_once(ahead_ms: int) -> None:
    """The deadline is the moment of the call, and the timeout is zero however long the first try takes."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    seen: list[int | None] = []

    def slow(operation: Op) -> None:
        clock.time_ms += ahead_ms
        operation.extend(0)
        seen.append(operation.expiration_ms)

    operation = Op(1, on_try=slow)
    room.try_complete_else_watch(operation, ["key"])
    assert seen == [clock.time_ms]
    assert (operation.timeout, operation.expiration_ms) == (0.0, clock.time_ms)
    assert room._core.timer.expire_due(clock.time_ms) == 1


def test_by_nothing_it_is_due_at_once_even_within_a_millisecond() -> None:
    """The deadline of a parked operation is then the time rounded down, which has passed."""

    class Between(ManualClock):
        def ceil_ms(self) -> int:
            return self.time_ms + 1

    clock = Between(1_000_000)
    room = make_purgatory(clock)
    operation = park(room, "key", timeout=5)
    clock.time_ms += 100
    assert operation.extend(0)
    assert (operation.timeout, operation.expiration_ms) == (0.0, clock.time_ms)
    assert room._core.timer.expire_due(clock.time_ms) == 1
    assert room.statistics().lateness.max == 0


def test_without_a_deadline_its_text_says_so(room: QuietPurgatory) -> None:
    """The text of a parked operation that has lost its deadline is that of one that never had any."""
    operation = park(room, "key", timeout=5)
    operation.extend(None)
    assert repr(operation) == repr(park(room, "key")) == "<Op PENDING on ['key'] timeout=None>"


def test_without_a_deadline_from_the_first_try_on(room: QuietPurgatory) -> None:
    """If ``try_complete`` removes the deadline, the operation waits without a deadline."""
    op = Op(5, on_try=lambda op: op.extend(None))
    room.try_complete_else_watch(op, ["a"])
    assert (op.timeout, op.expiration_ms, room.num_delayed) == (None, None, 0)


@pytest.mark.parametrize("timeout", [0, 2])
def test_a_refused_operation_keeps_its_extended_timeout(timeout: int) -> None:
    """An operation that is refused after its first try keeps the new timeout, not the old deadline."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, max_parked=1)
    first, second = Op(None), Op(1, on_try=lambda operation: operation.extend(timeout))
    room.try_complete_else_watch(first, ["key"])
    with pytest.raises(PurgatoryFull):
        room.try_complete_else_watch(second, ["key"])
    assert second.expiration_ms is None
    first.cancel()
    second._on_try = lambda _: None
    clock.time_ms += 5000
    room.try_complete_else_watch(second, ["key"])
    assert second.expiration_ms == clock.time_ms + timeout * 1000


@pytest.mark.parametrize("first", [0.005, 0.3, 5.0, None])
@pytest.mark.parametrize("second", [0.004, 0.5, 7.0, None])
def test_the_last_extension_counts(first: float | None, second: float | None) -> None:
    """The last extension sets the deadline, earlier, later or none, counted from its call."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    op = Op(first)
    room.try_complete_else_watch(op, ["key"])
    pass_time(clock, room, 3)
    assert op.extend(second)
    check(room, parked=1, num_delayed=0 if second is None else 1)
    if second is None:
        pass_time(clock, room, 100_000)
        assert op.outcome is Outcome.PENDING
        return
    pass_time(clock, room, round(second * 1000) - 1)
    assert op.outcome is Outcome.PENDING
    room._check()
    pass_time(clock, room, 1)
    assert op.outcome is Outcome.EXPIRED
    check(room, parked=0, num_delayed=0, expired=1)
    assert room.statistics().lateness.max == 0


def test_extending_again_and_again_keeps_it_alive() -> None:
    """A heartbeat moves the deadline a thousand times; the operation expires when the heartbeats stop."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    op = Op(1)
    room.try_complete_else_watch(op, ["key"])
    for _ in range(200):
        pass_time(clock, room, 700)
        assert op.extend(1)
    room._check()
    pass_time(clock, room, 999)
    assert op.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert op.outcome is Outcome.EXPIRED


def test_extending_keeps_the_order_on_its_keys(room: QuietPurgatory) -> None:
    """Extending an operation does not change the order of the tries."""
    tried: list[str] = []
    operations = [Op(5, name=name, on_try=lambda operation: tried.append(operation.name)) for name in "abc"]
    for operation in operations:
        room.try_complete_else_watch(operation, ["key"])
    tried.clear()
    operations[0].extend(9)
    operations[2].extend(1)
    operations[1].extend(None)
    room.check_and_complete("key")
    assert tried == ["a", "b", "c"]


def test_it_is_extended_from_inside_a_check() -> None:
    """``try_complete`` of a parked operation may move the deadline in both directions."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    op = Op(1)
    room.try_complete_else_watch(op, ["key"])
    op._on_try = lambda op: op.extend(3)
    assert room.check_and_complete("key") == 0
    pass_time(clock, room, 2999)
    assert op.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert op.outcome is Outcome.EXPIRED


@pytest.mark.parametrize("tick_ms", [1, 7, 10, 100, 1000])
@pytest.mark.parametrize("ahead", [0, 0.001, 0.453, 2])
def test_at_any_tick_it_is_never_early_and_late_by_a_tick_at_most(tick_ms: int, ahead: float) -> None:
    """If the deadline is moved within a tick, the operation expires at the end of the tick of its last deadline."""
    clock = ManualClock(1_000_453)
    room = make_purgatory(clock, tick_ms=tick_ms)
    ended_ms: list[int] = []
    operation = Op(0.9, on_complete=lambda _: ended_ms.append(clock.time_ms))
    room.try_complete_else_watch(operation, ["key"])
    for timeout in (0.95, 0.9, 5, ahead):
        operation.extend(timeout)
        room._check()
    wanted_ms = clock.time_ms + round(ahead * 1000)
    pass_time(clock, room, 4000)
    room._core.timer.expire_due(clock.time_ms)
    (at_ms,) = ended_ms
    assert wanted_ms <= at_ms < wanted_ms + tick_ms or (ahead == 0 and at_ms <= clock.time_ms)
    room._check()


def test_moved_on_it_does_not_touch_the_wheel() -> None:
    """A thousand extensions within a deadline queue no bucket and cascade nothing."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    operations = [Op(30) for _ in range(100)]
    for operation in operations:
        room.try_complete_else_watch(operation, ["key"])
    core = room._core.timer._core
    before = (core._queue.operations, core.cascades, core.size)
    for _ in range(1000):
        clock.time_ms += 1
        for operation in operations:
            operation.extend(30)
    assert (core._queue.operations, core.cascades, core.size) == before
    pass_time(clock, room, 29_999)
    assert len(room) == 100
    pass_time(clock, room, 1)
    assert len(room) == 0


# Due already


@pytest.mark.parametrize("late", [False, True])
def test_taken_by_the_reaper_in_the_same_turn(late: bool) -> None:
    """If several operations are due at once, the callback of the first may extend another, or remove its deadline."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    second, third, fourth = Op(1, name="2"), Op(1, name="3"), Op(1, name="4")

    def move(_: Op) -> None:
        second.extend(1)
        third.extend(None)
        fourth.extend(0)

    first = Op(1, on_complete=move)
    for operation in (first, second, third, fourth):
        room.try_complete_else_watch(operation, ["key"])
    clock.time_ms += 1700 if late else 1000
    room._core.timer.expire_due(clock.time_ms)
    assert first.outcome is Outcome.EXPIRED
    assert [second.outcome, third.outcome] == [Outcome.PENDING, Outcome.PENDING]
    room._check()
    pass_time(clock, room, 999)
    assert [second.outcome, fourth.outcome] == [Outcome.PENDING, Outcome.EXPIRED]
    pass_time(clock, room, 1)
    assert second.outcome is Outcome.EXPIRED
    assert third.outcome is Outcome.PENDING


def test_a_passed_deadline_can_be_extended_until_the_expiry() -> None:
    """A heartbeat that arrives after the deadline but before the reaper expires the operation counts."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    operation = Op(1)
    room.try_complete_else_watch(operation, ["key"])
    clock.time_ms += 1500
    assert operation.extend(1)
    assert room._core.timer.expire_due(clock.time_ms) == 0
    pass_time(clock, room, 999)
    assert operation.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert operation.outcome is Outcome.EXPIRED


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_an_operation_that_is_due_is_extended(room: QuietPurgatory, timeout: float | None) -> None:
    """An operation that is extended while it is due is counted at most once among those with a deadline."""
    op = Op(0)
    room.try_complete_else_watch(op, ["a"])
    assert op.extend(timeout)
    assert room.num_delayed == (timeout is not None)
    room._check()
    op.cancel()
    assert room.num_delayed == 0


# Too late


def test_an_operation_that_has_ended_cannot_be_extended(room: QuietPurgatory) -> None:
    """``extend`` returns whether the operation is still pending, in every state."""
    ops = [Op(1) for _ in range(4)]
    for op in ops:
        room.try_complete_else_watch(op, ["key"])
    ops[0].force_complete()
    ops[1].cancel()
    ops[2].run()
    room.fail_for_key("key", Boom())
    assert [op.extend(5) for op in ops] == [False] * 4
    check(room, parked=0, num_delayed=0)


def test_extend_during_its_expiry_returns_false() -> None:
    """``on_complete`` of an expiry cannot extend the operation."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    said: list[bool] = []
    operation = Op(1, on_complete=lambda operation: said.append(operation.extend(5)))
    room.try_complete_else_watch(operation, ["key"])
    pass_time(clock, room, 1000)
    assert said == [False]
    assert not operation.extend(5)
    check(room, num_delayed=0, parked=0)


async def test_extend_on_a_closed_timer_is_refused(clock: VirtualClock) -> None:
    """A new deadline raises; removing the deadline, or extending an ended operation, does not."""
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
    assert forever.outcome is Outcome.EXPIRED


@pytest.mark.parametrize("timeout", [0, 0.001, 5])
async def test_on_a_closed_timer_no_deadline_is_taken(clock: VirtualClock, timeout: float) -> None:
    """A closed timer accepts no deadline, not even one that has passed, and the error states the reason."""
    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    op = Op(None)
    purgatory.try_complete_else_watch(op, ["a"])
    await timer.aclose()
    with pytest.raises(PurgatoryClosed, match="timer of purgatory 'test' is closed: no deadline would be kept"):
        op.extend(timeout)
    assert op.outcome is Outcome.PENDING
    assert op.extend(None)
    op.cancel()


async def test_during_the_grace_of_a_closing_purgatory(clock: VirtualClock) -> None:
    """A deadline within the grace period is met; otherwise the purgatory closes first."""
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


def test_a_deadline_that_was_moved_counts_against_the_slice() -> None:
    """If a thousand extended operations are in one expired bucket, each move counts as work of the slice."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    operations = [park(room, "a", timeout=0.005) for _ in range(3)]
    for operation in operations:
        assert operation.extend(0.1)
    core = room._core.timer._core
    clock.time_ms += 5
    for left in (True, True, False):
        assert core.expire_due(clock.time_ms, 1) == 0
        assert core.is_due(clock.time_ms) is left
    room._check()
    pass_time(clock, room, 95)
    assert [operation.outcome for operation in operations] == [Outcome.EXPIRED] * 3


# ``extend`` in any schedule: each operation expires at its last deadline, and not before


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
    """In any schedule of parks, extensions, time and endings, each operation expires at its last, rounded deadline.

    A jump simulates a busy loop: time passes without a check, so an operation that is due may still be extended.
    """
    clock = ManualClock(1_000_000)
    room: QuietPurgatory = make_purgatory(clock, tick_ms=tick_ms, wheel_size=wheel_size)
    operations: list[Op] = []
    deadlines: list[float] = []
    expired: dict[int, int] = {}
    for step in steps:
        match step:
            case ("park", milliseconds):
                number = len(operations)
                operation = Op(
                    None if milliseconds is None else milliseconds / 1000,
                    on_expiration=lambda _, number=number: expired.setdefault(number, clock.time_ms),  # type: ignore[misc]
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
                before_ms = clock.time_ms
                pass_time(clock, room, milliseconds)
                for number, at_ms in expired.items():
                    if at_ms > before_ms:
                        assert at_ms == max(deadlines[number], before_ms)
                    else:
                        assert at_ms >= deadlines[number]
            case ("jump", milliseconds):
                clock.time_ms += milliseconds
        room._check()
        assert room.num_delayed == sum(
            operation.outcome is Outcome.PENDING and deadline < float("inf")
            for operation, deadline in zip(operations, deadlines, strict=True)
        )
    waiting = [number for number, operation in enumerate(operations) if operation.outcome is Outcome.PENDING]
    pass_time(clock, room, 5000)
    for number in waiting:
        assert (operations[number].outcome is Outcome.PENDING) == (deadlines[number] == float("inf"))


def _deadline(clock: ManualClock, milliseconds: int | None, tick_ms: int) -> float:
    if milliseconds is None:
        return float("inf")
    wanted_ms = clock.time_ms + milliseconds
    return wanted_ms if milliseconds == 0 else wanted_ms + -wanted_ms % tick_ms
