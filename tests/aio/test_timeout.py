"""``timer.timeout``, asyncio.timeout on the wheel: the block is cancelled at its deadline and leaves nothing behind."""

# ruff: noqa: PT012, SIM105 - the shapes of the blocks are what is tested here

import asyncio
import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import PurgatoryClosed, SystemTimer
from purgatory.clock import Alarm
from purgatory.testing import VirtualClock
from purgatory.timeouts import Timeout
from tests.helpers import during, ends_in_time_out

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


async def test_a_deadline_may_be_given_as_a_time(clock: VirtualClock, timer: SystemTimer) -> None:
    """``timeout_at`` takes seconds of the timer's clock, and ``when`` returns the given time."""
    deadline = timer.time() + 0.25
    timeout = timer.timeout_at(deadline)
    assert timeout.when() == deadline
    await during(clock, 0.25, ends_in_time_out(timeout, clock))
    assert timeout.when() == deadline


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


async def test_a_block_without_a_deadline_at_all(clock: VirtualClock) -> None:
    """A block with ``timeout_at(None)`` has no deadline."""
    async with SystemTimer(clock=clock) as timer, timer.timeout_at(None) as timeout:
        assert timeout.when() is None
        await asyncio.sleep(0)
    assert not timeout.expired()


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


@pytest.mark.parametrize(("when", "strikes"), [(0.5, 0.5), (1.0, 1.0), (0.0, 0.0), (-5.0, 0.0), (-1e15, 0.0)])
async def test_deadlines_close_to_the_beginning_of_the_clock(when: float, strikes: float) -> None:
    """A time before the start of the clock counts as the start; a time shortly after it is exact."""
    clock = VirtualClock()
    async with SystemTimer(clock=clock) as timer:
        task = asyncio.ensure_future(ends_in_time_out(timer.timeout_at(when), clock))
        if strikes:
            await clock.advance(strikes - 0.001)
            assert not task.done()
            await clock.advance(0.001)
        else:
            await clock.settle()
        assert task.done()
        assert isinstance(await task, TimeoutError)


async def test_within_a_millisecond_it_is_not_early() -> None:
    """If the block is entered between two milliseconds, a deadline at the next one fires then, and not earlier."""
    clock = VirtualClock(5.0005)
    async with SystemTimer(clock=clock) as timer:
        task = asyncio.ensure_future(ends_in_time_out(timer.timeout_at(5.001), clock))
        await clock.advance(0.0004)
        assert not task.done()
        await clock.advance(0.0001)
        assert task.done()


# States


async def test_it_serves_one_block(timer: SystemTimer) -> None:
    """A timeout can be entered neither within its own block nor after it."""
    async with timer.timeout(0.01) as timeout:
        with pytest.raises(RuntimeError, match="has already been entered"):
            await timeout.__aenter__()
        assert timer.size == 1
    with pytest.raises(RuntimeError, match="has already been entered"):
        await timeout.__aenter__()


async def test_it_needs_a_task(timer: SystemTimer) -> None:
    """Entering outside a task raises RuntimeError, and the timeout stays unused."""
    timeout = timer.timeout(1)
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def without_task() -> None:
        try:
            timeout.__aenter__().send(None)
        except BaseException as error:
            answered.set_result(error)

    asyncio.get_running_loop().call_soon(without_task)
    error = await answered
    assert isinstance(error, RuntimeError)
    assert "inside a task" in str(error)
    with pytest.raises(RuntimeError, match="has not been entered"):
        timeout.reschedule(1)


@pytest.mark.parametrize(
    ("bad", "error"), [("1", TypeError), (True, TypeError), (float("nan"), ValueError), (-float("inf"), ValueError)]
)
async def test_a_deadline_is_a_number_of_seconds(timer: SystemTimer, bad: Any, error: type[Exception]) -> None:
    """A value that is not a number of seconds is refused."""
    with pytest.raises(error, match=r"^delay must be a number of seconds"):
        timer.timeout(bad)
    with pytest.raises(error, match=r"^when must be a number of seconds"):
        timer.timeout_at(bad)


async def test_run_outside_of_its_block_does_nothing(timer: SystemTimer) -> None:
    """Calling ``run`` before or after the block has no effect, because there is no task to cancel."""
    timeout = timer.timeout(5)
    timeout.run()
    async with timeout:
        await asyncio.sleep(0)
    timeout.run()
    await asyncio.sleep(0)
    assert repr(timeout) == "<Timeout [finished]>"


async def test_run_twice_is_one_cancellation(clock: VirtualClock, timer: SystemTimer) -> None:
    """If the deadline fires again during the cancellation, the block still raises TimeoutError."""

    async def work() -> None:
        async with timer.timeout(5) as timeout:
            timeout.run()
            timeout.run()
            await clock.sleep(50)

    with pytest.raises(TimeoutError):
        await during(clock, 1, work())


async def test_a_block_that_has_ended_holds_no_task(no_gc: None, timer: SystemTimer) -> None:
    """After the block, the timeout does not reference its task, so reference counting frees the task."""

    class Held:
        pass

    async def work() -> tuple[Timeout, "weakref.ref[Held]"]:
        held = Held()
        async with timer.timeout(5) as timeout:
            await asyncio.sleep(0)
        return timeout, weakref.ref(held)

    timeout, held = await asyncio.ensure_future(work())
    await asyncio.sleep(0)
    assert held() is None
    assert not timeout.expired()
    assert not gc.isenabled()


async def test_repr_tells_the_state(clock: VirtualClock, timer: SystemTimer) -> None:
    """The ``repr`` shows the states created, active with a deadline, expired, and finished."""
    timeout = timer.timeout(0.01)
    assert repr(timeout) == "<Timeout [created]>"
    await during(clock, 0.01, ends_in_time_out(timeout, clock))
    assert repr(timeout) == "<Timeout [expired]>"
    async with timer.timeout(10) as active:
        assert re.fullmatch(r"<Timeout \[active\] when=\d+\.\d+>", repr(active))
        active.reschedule(None)
        assert repr(active) == "<Timeout [active] when=None>"
    assert repr(active) == "<Timeout [finished]>"


@pytest.mark.usefixtures("no_gc")
async def test_a_timeout_that_is_kept_does_not_keep_its_task(timer: SystemTimer) -> None:
    """After the block, the task is freed even if the program still holds the timeout."""

    async def work() -> None:
        async with timeout:
            await asyncio.sleep(0)

    timeout = timer.timeout(1)
    task = asyncio.create_task(work())
    await task
    gone = weakref.ref(task)
    del task
    await asyncio.sleep(0)
    assert gone() is None
    assert not timeout.expired()


# ``reschedule`` of ``timer.timeout`` moves the deadline while the block runs, and the last deadline counts


async def test_a_deadline_can_be_moved_either_way_and_taken_away(clock: VirtualClock, timer: SystemTimer) -> None:
    """``reschedule`` accepts a later, an earlier, no, and a new deadline; the last one counts."""
    start = timer.time()

    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with timer.timeout(10) as timeout:
                for when in (start + 30, start + 2, None, start + 20, start + 20.5):
                    timeout.reschedule(when)
                    assert timeout.when() == when
                    assert timer.size == (when is not None)
                await clock.sleep(50)
        return clock.time()

    assert await during(clock, 50, work()) == start + 20.5


async def test_heartbeats_keep_a_block_alive(clock: VirtualClock, timer: SystemTimer) -> None:
    """If the deadline is moved repeatedly before it passes, it fires only after the last move."""

    async def work() -> None:
        async with timer.timeout(1) as timeout:
            for _ in range(100):
                await clock.sleep(0.9)
                timeout.reschedule(timer.time() + 1)
            await clock.sleep(1.1)

    start = clock.time()
    task = asyncio.ensure_future(work())
    await clock.advance_to(start + 90.999)
    assert not task.done()
    await clock.advance(0.001)
    with pytest.raises(TimeoutError):
        await task


async def test_moved_with_coarse_ticks(clock: VirtualClock) -> None:
    """A deadline that is moved within its tick fires once, at the end of the tick."""
    async with SystemTimer(tick_ms=100, clock=clock) as timer:
        start = timer.time()

        async def work() -> float:
            with pytest.raises(TimeoutError):
                async with timer.timeout(0.31) as timeout:
                    timeout.reschedule(start + 0.32)
                    timeout.reschedule(start + 0.39)
                    timeout.reschedule(start + 0.301)
                    await clock.sleep(5)
            return clock.time()

        assert await during(clock, 5, work()) == pytest.approx(start + 0.4)


@pytest.mark.parametrize("ago", [0.0, 0.5, 1e6])
async def test_moved_to_now_or_the_past_it_strikes_at_the_next_await(
    clock: VirtualClock, timer: SystemTimer, ago: float
) -> None:
    """A deadline that is moved to now or to the past fires at the next await."""
    with pytest.raises(TimeoutError):
        async with timer.timeout(10) as timeout:
            timeout.reschedule(clock.time() - ago)
            await asyncio.sleep(0)
    assert timeout.expired()


async def test_moved_on_at_the_last_moment(timer: SystemTimer, clock: VirtualClock) -> None:
    """A deadline that has passed but has not fired yet can still be moved."""
    async with timer.timeout(0) as timeout:
        timeout.reschedule(clock.time() + 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not timeout.expired()


@pytest.mark.parametrize("bad", ["1", float("nan"), -float("inf")])
async def test_moved_to_what_is_no_time_it_stays(timer: SystemTimer, bad: Any) -> None:
    """An invalid deadline is refused, and the block keeps its deadline."""
    async with timer.timeout(10) as timeout:
        when = timeout.when()
        with pytest.raises(
            (TypeError, ValueError), match=r"when must be a number of seconds|float or None .* expected"
        ):
            timeout.reschedule(bad)
        assert timeout.when() == when
        assert timer.size == 1


async def test_the_deadline_of_a_block_that_does_not_run_cannot_be_moved(
    clock: VirtualClock, timer: SystemTimer
) -> None:
    """The deadline cannot be moved before the block, while it expires, or after it."""
    timeout = timer.timeout(0.01)
    with pytest.raises(RuntimeError, match="has not been entered"):
        timeout.reschedule(clock.time() + 1)

    async def work() -> None:
        async with timeout:
            with pytest.raises(asyncio.CancelledError):
                await clock.sleep(1)
            with pytest.raises(RuntimeError, match="is expiring"):
                timeout.reschedule(clock.time() + 1)

    await during(clock, 0.01, work())
    with pytest.raises(RuntimeError, match="is expired"):
        timeout.reschedule(clock.time() + 1)
    async with timer.timeout(1) as finished:
        pass
    with pytest.raises(RuntimeError, match="is finished"):
        finished.reschedule(clock.time() + 1)
    assert timer.size == 0


async def test_a_block_whose_deadline_was_taken_away_is_not_cancelled(clock: VirtualClock, timer: SystemTimer) -> None:
    """After ``reschedule(None)`` the block has no deadline."""

    async def work() -> float:
        async with timer.timeout(1) as timeout:
            timeout.reschedule(None)
            await clock.sleep(100)
        return clock.time()

    start = clock.time()
    task = asyncio.create_task(work())
    await clock.advance(100)
    assert await task == start + 100


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


class Hasty(VirtualClock):
    """A clock whose alarms fire at once, a given number of times."""

    hasty = 0

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        if self.hasty:
            self.hasty -= 1
            when_ms = self.now_ms()
        return super().call_at(when_ms, callback)


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


async def test_the_deadline_of_a_block_can_be_removed_after_its_timer_has_closed(clock: VirtualClock) -> None:
    """The alarm of the clock is cancelled once, and the block ends normally."""
    timer = SystemTimer(clock=clock)
    async with timer.timeout(5) as timeout:
        await timer.aclose()
        timeout.reschedule(None)
        assert clock.next_alarm_ms is None
        await clock.advance(10)


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
