"""``timer.timeout``, asyncio.timeout on the wheel: the block is cancelled at its deadline and leaves nothing behind."""

import asyncio
import gc
import re
import weakref
from typing import Any

import pytest

from purgatory import SystemTimer
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
