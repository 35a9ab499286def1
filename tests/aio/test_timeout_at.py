"""``timeout_at``: the deadline of a block as a time of the clock."""

import asyncio

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import during, ends_in_time_out


async def test_a_deadline_may_be_given_as_a_time(clock: VirtualClock, timer: SystemTimer) -> None:
    """``timeout_at`` takes seconds of the timer's clock, and ``when`` returns the given time."""
    deadline = timer.time() + 0.25
    timeout = timer.timeout_at(deadline)
    assert timeout.when() == deadline
    await during(clock, 0.25, ends_in_time_out(timeout, clock))
    assert timeout.when() == deadline


async def test_a_block_without_a_deadline_at_all(clock: VirtualClock) -> None:
    """A block with ``timeout_at(None)`` has no deadline."""
    async with SystemTimer(clock=clock) as timer, timer.timeout_at(None) as timeout:
        assert timeout.when() is None
        await asyncio.sleep(0)
    assert not timeout.expired()


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
