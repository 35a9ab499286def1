"""``timer.timeout`` and cancellation from outside: neither is mistaken for the other."""

# ruff: noqa: SIM105 - the shapes of the blocks are what is tested here

import asyncio

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import during, ends_in_time_out


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
