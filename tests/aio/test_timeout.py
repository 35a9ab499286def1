"""``timer.timeout``, asyncio.timeout on the wheel: the block is cancelled at its deadline and leaves nothing behind."""

# ruff: noqa: PT012, SIM105 - the shapes of the blocks are what is tested here

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from purgatory import PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from purgatory.types import Timeout
from tests.helpers import Hasty, during, ends_in_time_out

# Blocks that end before, after, or without a deadline


async def test_the_block_is_cancelled_at_its_deadline(clock: VirtualClock, timer: SystemTimer) -> None:
    """A block that exceeds its deadline raises TimeoutError at exactly that millisecond."""
    timeout = timer.timeout(0.01)
    task = asyncio.ensure_future(ends_in_time_out(timeout, clock))
    await clock.advance(0.009)
    assert not task.done()
    await clock.advance(0.001)
    assert task.done()
    assert timeout.expired()


async def test_a_block_that_ends_in_time_leaves_nothing_behind(clock: VirtualClock, timer: SystemTimer) -> None:
    """Inside the block one task is on the timer, and after it none; the timeout has not expired."""
    async with timer.timeout(10) as timeout:
        assert timer.size == 1
        await asyncio.sleep(0)
    assert timer.size == 0
    assert not timeout.expired()
    assert timeout.when() == clock.time() + 10


@pytest.mark.parametrize("delay", [None, float("inf")])
async def test_without_a_deadline_nothing_happens(clock: VirtualClock, timer: SystemTimer, delay: float | None) -> None:
    """With None or infinity, the block has no deadline."""

    async def work() -> Timeout:
        async with timer.timeout(delay) as timeout:
            await clock.sleep(1e6)
        return timeout

    timeout = await during(clock, 1e6, work())
    assert not timeout.expired()
    assert timeout.when() == (None if delay is None else float("inf"))


@pytest.mark.parametrize("delay", [0, 0.0, -11, -11.5, -1e9])
async def test_a_deadline_in_the_past_cancels_at_the_first_await(timer: SystemTimer, delay: float) -> None:
    """A deadline that is now or in the past cancels even ``sleep(0)``."""
    before = timer.time()
    with pytest.raises(TimeoutError):
        async with timer.timeout(delay) as timeout:
            await asyncio.sleep(0)
    assert timeout.expired()
    assert timeout.when() == before + delay


async def test_a_block_without_an_await_is_not_cut_off(timer: SystemTimer) -> None:
    """A deadline that has passed has no effect while the block does not await."""
    async with timer.timeout(0) as timeout:
        pass
    await asyncio.sleep(0)
    assert not timeout.expired()


@pytest.mark.slow
async def test_many_blocks_end_in_the_order_of_their_deadlines(clock: VirtualClock, timer: SystemTimer) -> None:
    """A thousand tasks with different deadlines each time out at their millisecond, in order."""
    start = clock.time()
    answered = []

    async def work(ms: int) -> None:
        try:
            async with timer.timeout(ms / 1000):
                await clock.sleep(100)
        except TimeoutError:
            answered.append((ms, clock.time()))

    delays = [1 + (number * 7919) % 10_007 for number in range(1000)]
    tasks = [asyncio.ensure_future(work(ms)) for ms in delays]
    await clock.advance(11)
    await asyncio.gather(*tasks)
    assert [ms for ms, _ in answered] == sorted(delays)
    assert all(abs(at - start - ms / 1000) < 1e-6 for ms, at in answered)


async def test_the_longest_deadlines(timer: SystemTimer) -> None:
    """Deadlines 31 million years ahead, further ahead, and at infinity are accepted."""
    for timeout in (timer.timeout_at(1e15), timer.timeout(1e15), timer.timeout(float("inf"))):
        async with timeout:
            await asyncio.sleep(0)
        assert not timeout.expired()


# To the millisecond


async def test_fractions_of_a_millisecond_are_rounded_up(timer: SystemTimer, clock: VirtualClock) -> None:
    """A deadline between two milliseconds is rounded up to the later one."""
    task = asyncio.ensure_future(ends_in_time_out(timer.timeout(0.0101), clock))
    await clock.advance(0.0104)
    assert not task.done()
    await clock.advance(0.0006)
    assert task.done()


async def test_a_coarse_tick_makes_a_timeout_late_and_never_early(clock: VirtualClock) -> None:
    """With ticks of 100 ms, a deadline of 30 ms passes at the end of its tick."""
    async with SystemTimer(tick_ms=100, clock=clock) as timer:
        task = asyncio.ensure_future(ends_in_time_out(timer.timeout(0.03), clock))
        await clock.advance(0.099)
        assert not task.done()
        await clock.advance(0.001)
        assert task.done()


# States


@pytest.mark.parametrize(
    ("bad", "error"), [("1", TypeError), (True, TypeError), (float("nan"), ValueError), (-float("inf"), ValueError)]
)
async def test_a_deadline_is_a_number_of_seconds(timer: SystemTimer, bad: Any, error: type[Exception]) -> None:
    """A value that is not a number of seconds is refused."""
    with pytest.raises(error, match=r"^delay must be a number of seconds"):
        timer.timeout(bad)
    with pytest.raises(error, match=r"^when must be a number of seconds"):
        timer.timeout_at(bad)


# ``timer.timeout`` and cancellation from outside: neither is mistaken for the other


async def test_a_cancellation_from_outside_stays_one(clock: VirtualClock, timer: SystemTimer) -> None:
    """A CancelledError before the deadline comes from outside and propagates."""
    timeouts = []

    async def work() -> None:
        async with timer.timeout(10) as timeout:
            timeouts.append(timeout)
            await clock.sleep(20)

    task = asyncio.ensure_future(work())
    await clock.advance(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not timeouts[0].expired()


@pytest.mark.parametrize("first", ["deadline", "outside"])
async def test_cancelled_from_outside_in_the_same_turn_as_the_deadline(
    clock: VirtualClock, timer: SystemTimer, first: str
) -> None:
    """If the task is cancelled in the turn of the deadline, CancelledError takes precedence, in either order."""
    entered = asyncio.Event()

    async def work() -> None:
        async with timer.timeout(1):
            entered.set()
            await clock.sleep(20)

    task = asyncio.ensure_future(work())
    await entered.wait()
    if first == "outside":
        task.cancel()
    timer.expire_due(clock.now_ms() + 1000)
    if first == "deadline":
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_task_goes_on_after_a_timeout(clock: VirtualClock, timer: SystemTimer) -> None:
    """After a timeout the task is not cancelled, and ``cancelling()`` returns 0."""

    async def work() -> int:
        await ends_in_time_out(timer.timeout(0.001), clock)
        task = asyncio.current_task()
        assert task is not None
        await clock.sleep(1)
        return task.cancelling()

    assert await during(clock, 2, work()) == 0


@pytest.mark.parametrize("delay", [0.0, 0.01])
async def test_a_timeout_in_a_task_that_has_swallowed_a_cancellation(
    clock: VirtualClock, timer: SystemTimer, delay: float
) -> None:
    """Earlier cancellation requests are ignored: the deadline still raises TimeoutError."""

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await clock.sleep(1)
        except asyncio.CancelledError:
            pass
        await ends_in_time_out(timer.timeout(delay), clock)

    await during(clock, 0.01, work())


async def test_cancelled_in_the_block_after_an_earlier_cancellation(clock: VirtualClock, timer: SystemTimer) -> None:
    """A new cancellation request inside the block raises CancelledError."""

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await clock.sleep(1)
        except asyncio.CancelledError:
            pass
        async with timer.timeout(1.0):
            task.cancel()
            await clock.sleep(2)

    with pytest.raises(asyncio.CancelledError):
        await during(clock, 0, work())


# The errors of ``timer.timeout``: the exception that leaves an expired block, and its chain


async def test_the_cancellation_is_seen_inside_and_the_timeout_outside(clock: VirtualClock, timer: SystemTimer) -> None:
    """Inside the block the error is a CancelledError, which is the cause of the TimeoutError outside."""
    seen = []

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                await clock.sleep(10)
            except asyncio.CancelledError as error:
                seen.append(error)
                raise

    with pytest.raises(TimeoutError) as raised:
        await during(clock, 0.01, work())
    assert raised.value.__cause__ is raised.value.__context__ is seen[0]


async def test_another_exception_passes(timer: SystemTimer) -> None:
    """An exception that is raised before the deadline propagates unchanged."""
    with pytest.raises(KeyError):
        async with timer.timeout(0.01) as timeout:
            raise KeyError
    assert not timeout.expired()
    assert repr(timeout) == "<Timeout [finished]>"


async def test_what_was_being_handled_stays_in_the_chain(clock: VirtualClock, timer: SystemTimer) -> None:
    """The chain is TimeoutError <- CancelledError <- the error that was being handled at the deadline."""

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                raise ZeroDivisionError
            finally:
                await clock.sleep(1)

    with pytest.raises(TimeoutError) as raised:
        await during(clock, 0.01, work())
    cancelled = raised.value.__cause__
    assert isinstance(cancelled, asyncio.CancelledError)
    assert cancelled.__cause__ is None
    assert isinstance(cancelled.__context__, ZeroDivisionError)


async def test_an_error_in_a_clean_up_has_the_timeout_in_its_chain(clock: VirtualClock, timer: SystemTimer) -> None:
    """An error during cleanup propagates; its chain contains the TimeoutError, which the CancelledError caused."""

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                await clock.sleep(1)
            finally:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        await during(clock, 0.01, work())
    assert raised.value.__cause__ is None
    timeout = raised.value.__context__
    assert isinstance(timeout, TimeoutError)
    assert isinstance(timeout.__cause__, asyncio.CancelledError)
    assert timeout.__context__ is timeout.__cause__


async def test_an_error_that_refuses_assignments_propagates(clock: VirtualClock, timer: SystemTimer) -> None:
    """A frozen dataclass may be an exception; it propagates with the TimeoutError in its chain."""

    @dataclass(frozen=True)
    class Frozen(Exception):
        order: int

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                await clock.sleep(1)
            finally:
                raise Frozen(7)

    task = asyncio.create_task(work())
    await clock.advance(0.01)
    error = task.exception()
    assert isinstance(error, Frozen)
    assert isinstance(error.__context__, TimeoutError)


async def test_the_chain_is_searched_for_the_cancellation(clock: VirtualClock, timer: SystemTimer) -> None:
    """The CancelledError is found in the chain even if another error is between it and the propagating error."""

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                try:
                    raise ValueError
                finally:
                    await clock.sleep(1)
            finally:
                try:
                    raise KeyError
                finally:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        await during(clock, 0.01, work())
    between = raised.value.__context__
    assert isinstance(between, KeyError)
    timeout = between.__context__
    assert isinstance(timeout, TimeoutError)
    cancelled = timeout.__cause__
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(cancelled.__context__, ValueError)
    assert timeout.__context__ is cancelled


async def test_a_task_group_in_the_block_has_the_timeout_in_its_chain_twice(
    clock: VirtualClock, timer: SystemTimer
) -> None:
    """The group and each error in it have the timeout in their chains, because they were raised while it was
    handled.
    """

    async def child() -> None:
        try:
            await clock.sleep(2)
        finally:
            raise ZeroDivisionError

    async def work() -> None:
        async with timer.timeout(0.01), asyncio.TaskGroup() as group:
            group.create_task(child())
            try:
                raise ValueError
            finally:
                await clock.sleep(1)

    with pytest.raises(ExceptionGroup) as raised:
        await during(clock, 0.01, work())
    group = raised.value
    assert isinstance(group.__context__, TimeoutError)
    assert isinstance(group.__context__.__cause__, asyncio.CancelledError)
    assert isinstance(group.__context__.__cause__.__context__, ValueError)
    (error,) = group.exceptions
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(error.__context__, TimeoutError)
    assert isinstance(error.__context__.__cause__, asyncio.CancelledError)
    assert error.__context__.__cause__ is not group.__context__.__cause__


async def test_errors_without_a_cancellation_in_their_chain_are_left_alone(
    clock: VirtualClock, timer: SystemTimer
) -> None:
    """A group that is raised during the cancellation has the timeout in its chain; errors raised elsewhere do not."""
    inner = ValueError("from elsewhere")

    async def work() -> None:
        async with timer.timeout(1):
            try:
                await clock.sleep(5)
            except asyncio.CancelledError:
                raise ExceptionGroup("several", [inner])  # noqa: B904 - what it is raised in view of is tested

    with pytest.raises(ExceptionGroup) as raised:
        await during(clock, 1, work())
    assert isinstance(raised.value.__context__, TimeoutError)
    assert inner.__context__ is None


async def test_a_block_may_swallow_the_cancellation(clock: VirtualClock, timer: SystemTimer) -> None:
    """If the block suppresses it, no TimeoutError is raised, the timeout is expired, and the task is not cancelled."""

    async def work() -> tuple[bool, int]:
        async with timer.timeout(0.01) as timeout:
            try:
                await clock.sleep(1)
            except asyncio.CancelledError:
                pass
        task = asyncio.current_task()
        assert task is not None
        return timeout.expired(), task.cancelling()

    assert await during(clock, 0.01, work()) == (True, 0)


# ``timer.timeout`` nested in itself or in ``asyncio.timeout``: each block has its own deadline and error


async def test_of_equal_deadlines_the_outermost_raises(clock: VirtualClock, timer: SystemTimer) -> None:
    """With equal deadlines both blocks expire; between them the error is a CancelledError."""
    seen = []

    async def work() -> tuple[bool, bool]:
        deadline = timer.time() + 0.01
        with pytest.raises(TimeoutError):
            async with timer.timeout_at(deadline) as outer:
                try:
                    async with timer.timeout_at(deadline) as inner:
                        await clock.sleep(10)
                except asyncio.CancelledError as error:
                    seen.append(error)
                    raise
        return outer.expired(), inner.expired()

    assert await during(clock, 0.01, work()) == (True, True)
    assert len(seen) == 1


async def test_the_inner_deadline_is_its_own(clock: VirtualClock, timer: SystemTimer) -> None:
    """The inner block times out; the outer one continues until it times out as well."""

    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with timer.timeout(0.1):
                await ends_in_time_out(timer.timeout(0.01), clock)
                inner = clock.time()
                await clock.sleep(10)
        return inner

    start = clock.time()
    assert await during(clock, 0.1, work()) == pytest.approx(start + 0.01)
    assert clock.time() == pytest.approx(start + 0.1)


async def test_the_outer_deadline_comes_first(clock: VirtualClock, timer: SystemTimer) -> None:
    """The outer deadline cancels the inner block, which has not expired."""

    async def work() -> Timeout:
        with pytest.raises(TimeoutError):
            async with timer.timeout(0.01), timer.timeout(1) as inner:
                await clock.sleep(10)
        return inner

    inner = await during(clock, 0.01, work())
    assert not inner.expired()


async def test_a_timeout_in_the_clean_up_of_another(clock: VirtualClock, timer: SystemTimer) -> None:
    """Each TimeoutError has the CancelledError of its own deadline as its cause."""
    inner: list[TimeoutError] = []

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                await clock.sleep(1)
            finally:
                inner.append(await ends_in_time_out(timer.timeout(0.01), clock))

    with pytest.raises(TimeoutError) as raised:
        await during(clock, 0.02, work())
    first = raised.value.__cause__
    assert isinstance(first, asyncio.CancelledError)
    assert raised.value.__context__ is first
    assert first.__context__ is None
    second = inner[0].__cause__
    assert isinstance(second, asyncio.CancelledError)
    assert second is not first
    assert inner[0].__context__ is second


async def test_it_nests_with_the_timeout_of_asyncio(clock: VirtualClock, timer: SystemTimer) -> None:
    """Both use ``uncancel`` to count cancellations, so each raises its own TimeoutError."""

    async def work() -> None:
        async with asyncio.timeout(None) as outer:
            await ends_in_time_out(timer.timeout(0.01), clock)
        assert not outer.expired()
        with pytest.raises(TimeoutError):
            async with timer.timeout(10) as around:
                async with asyncio.timeout(0):
                    await clock.sleep(1)
        assert not around.expired()

    await during(clock, 0.01, work())


# ``timer.timeout`` and the state of its timer: entering starts the timer, and a running block outlives it


async def test_entering_it_starts_the_timer(clock: VirtualClock) -> None:
    """Entering a block starts the timer, because otherwise the deadline would never be checked."""
    timer = SystemTimer(clock=clock)
    await during(clock, 1, ends_in_time_out(timer.timeout(1), clock))
    assert timer.running
    await timer.aclose()


async def test_a_block_without_a_deadline_starts_the_timer_too(clock: VirtualClock) -> None:
    """The block may receive a deadline later, and that deadline must pass."""
    timer = SystemTimer(clock=clock)

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with timer.timeout(None) as timeout:
                assert timer.running
                timeout.reschedule(timer.time() + 0.1)
                await clock.sleep(1)
        assert timeout.expired()

    await during(clock, 0.1, work())
    await timer.aclose()


async def test_a_block_cannot_be_entered_on_a_closed_timer(clock: VirtualClock) -> None:
    """Entering a block on a closed timer raises, and the timeout stays unused."""
    async with SystemTimer(clock=clock) as timer:
        timeout = timer.timeout(1)
    with pytest.raises(PurgatoryClosed):
        await timeout.__aenter__()
    assert repr(timeout) == "<Timeout [created]>"


async def test_a_block_on_a_closed_timer_says_why(clock: VirtualClock) -> None:
    """The error states that the timer is closed."""
    timer = SystemTimer(clock=clock)
    await timer.aclose()
    with pytest.raises(PurgatoryClosed, match="the timer is closed"):
        async with timer.timeout(1):
            pass


@pytest.mark.parametrize("moved", [False, True])
async def test_a_deadline_outlives_its_timer(clock: VirtualClock, moved: bool) -> None:
    """A block that runs while the timer closes keeps its deadline and can still move it."""
    timer = SystemTimer(clock=clock)
    start = clock.time()
    timeout = timer.timeout(5)
    task = asyncio.ensure_future(ends_in_time_out(timeout, clock))
    await clock.advance(1)
    await timer.aclose()
    if moved:
        timeout.reschedule(start + 7)
    await clock.advance_to(start + (6.999 if moved else 4.999))
    assert not task.done()
    await clock.advance(0.001)
    assert task.done()


async def test_a_block_that_ends_after_its_timer_leaves_no_alarm(clock: VirtualClock) -> None:
    """The end of the block cancels the alarm that was set when the timer closed."""
    timer = SystemTimer(clock=clock)
    async with timer.timeout(5):
        await timer.aclose()
        assert clock.next_alarm_ms is not None
    assert clock.next_alarm_ms is None


async def test_without_time_a_block_is_cancelled_at_its_first_await() -> None:
    """As with ``asyncio.timeout``: the deadline is the exact time at which the block is entered, or before."""
    async with SystemTimer() as timer:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                async with timer.timeout(0):
                    await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                async with timer.timeout(3600) as timeout:
                    timeout.reschedule(timer.time())
                    await asyncio.sleep(0)
            async with timer.timeout(3600):
                await asyncio.sleep(0)


async def test_a_clock_that_rings_early_ends_no_block() -> None:
    """After its timer has closed, a block reads the clock at each wake-up, so an early alarm does not end it."""
    clock = Hasty(1000.0)
    timer = SystemTimer(clock=clock)
    timeout = timer.timeout(5)
    task = asyncio.ensure_future(ends_in_time_out(timeout, clock))
    await clock.advance(1)
    clock.hasty = 3
    await timer.aclose()
    await clock.advance(3.999)
    assert clock.hasty == 0
    assert not task.done()
    await clock.advance(0.001)
    assert isinstance(await task, TimeoutError)


def test_a_deadline_whose_loop_is_closed_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The block never continues, so there is nothing to cancel."""
    clock = VirtualClock()
    timer = SystemTimer(clock=clock)
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        async with timer.timeout(5):
            await asyncio.get_running_loop().create_future()

    async def start() -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(start())
    loop.close()
    timer.expire_due(clock.now_ms() + 10_000)
    assert not caplog.records
    for left in (task, timer._reaper.task):
        left._log_destroy_pending = False  # type: ignore[union-attr]
