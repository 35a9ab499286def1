"""``timer.timeout`` and the state of its timer: entering starts the timer, and a running block outlives it."""

import asyncio
from collections.abc import Callable

import pytest

from purgatory import PurgatoryClosed, SystemTimer
from purgatory.clock import Alarm
from purgatory.testing import VirtualClock
from tests.helpers import during, ends_in_time_out


async def test_entering_it_starts_the_timer(clock: VirtualClock) -> None:
    """Entering a block starts the timer, because otherwise the deadline would never be checked."""
    timer = SystemTimer(clock=clock)
    await during(clock, 1, ends_in_time_out(timer.timeout(1), clock))
    assert timer.running
    await timer.aclose()


async def test_a_block_without_a_deadline_does_not_start_the_timer(clock: VirtualClock) -> None:
    """There is nothing that the reaper would have to wait for."""
    timer = SystemTimer(clock=clock)
    async with timer.timeout(None):
        assert not timer.running
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
