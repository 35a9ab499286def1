"""``reschedule`` moves the deadline of a block while it runs, and the last deadline counts."""

# ruff: noqa: PT012 - the shapes of the blocks are what is tested here

import asyncio
from typing import Any

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import during


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


async def test_the_deadline_of_a_block_can_be_removed_after_its_timer_has_closed(clock: VirtualClock) -> None:
    """The alarm of the clock is cancelled once, and the block ends normally."""
    timer = SystemTimer(clock=clock)
    async with timer.timeout(5) as timeout:
        await timer.aclose()
        timeout.reschedule(None)
        assert clock.next_alarm_ms is None
        await clock.advance(10)
