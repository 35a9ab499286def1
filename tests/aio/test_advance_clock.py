"""``advance_clock`` waits for the next bucket and runs it, with or without a reaper."""

import asyncio

import pytest

from purgatory import PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Task


async def test_it_runs_due_tasks_and_returns_their_number(clock: VirtualClock) -> None:
    """The call waits for the earliest bucket; a bucket that only cascades also ends the wait."""
    timer = SystemTimer(clock=clock)
    log: list[int] = []
    for number in range(3):
        timer.call_later(0.01, log.append, number)
    timer.call_later(0.45, log.append, 3)
    calls = []

    async def work() -> None:
        while timer.size:
            calls.append(await timer.advance_clock())

    task = asyncio.create_task(work())
    await clock.advance(0.45)
    await task
    assert log == [0, 1, 2, 3]
    assert calls[0] == 3
    assert calls[-1] == 1
    assert set(calls[1:-1]) <= {0}
    assert len(calls) <= 4


async def test_a_timeout_ends_the_wait(clock: VirtualClock) -> None:
    """If nothing falls due within the timeout, the call returns 0 after exactly the timeout."""
    timer = SystemTimer(clock=clock)
    timer.call_later(100, print)
    task = asyncio.create_task(timer.advance_clock(5))
    await clock.advance(4.999)
    assert not task.done()
    await clock.advance(0.001)
    assert await task == 0
    assert await timer.advance_clock(0) == 0


async def test_two_tasks_may_advance_the_same_timer(clock: VirtualClock) -> None:
    """Two calls of ``advance_clock`` and the reaper do not consume each other's wake-ups."""
    async with SystemTimer(clock=clock) as timer:
        log: list[int] = []
        calls = [asyncio.create_task(timer.advance_clock(timeout)) for timeout in (1, 30)]
        timer.call_later(10, log.append, 1)
        timer.call_later(20, log.append, 2)
        await clock.advance(15)
        assert log == [1]
        await clock.advance(15)
        assert log == [1, 2]
        await asyncio.gather(*calls)


async def test_a_cancelled_call_does_not_hide_an_earlier_deadline(clock: VirtualClock) -> None:
    """The alarm set for a cancelled call is not mistaken for a later one."""
    timer = SystemTimer(clock=clock)
    log: list[str] = []
    timer.call_later(10, log.append, "late")
    sleeper = asyncio.create_task(timer.advance_clock())
    await clock.settle()
    sleeper.cancel()
    await clock.settle()
    timer.call_later(1, log.append, "early")

    async def work() -> None:
        while timer.size:
            await timer.advance_clock()

    task = asyncio.create_task(work())
    await clock.advance(1)
    assert log == ["early"]
    await clock.advance(10)
    assert log == ["early", "late"]
    await task


async def test_a_call_cancelled_in_its_wake_up_turn_leaves_the_work_to_the_other(clock: VirtualClock) -> None:
    """If two calls wait for the same bucket and one is cancelled when the bucket expires, the other runs the bucket."""
    timer = SystemTimer(clock=clock)
    calls: list[asyncio.Task[int]] = []
    clock.call_at(clock.now_ms() + 5, lambda: calls[0].cancel())
    calls += [asyncio.create_task(timer.advance_clock()) for _ in range(2)]
    ran: list[str] = []
    timer.call_later(0.005, ran.append, "x")
    await clock.advance(0.005)
    assert calls[0].cancelled()
    assert ran == ["x"]


async def test_advance_clock_starts_no_reaper(clock: VirtualClock) -> None:
    """A timer driven by ``advance_clock`` never starts its reaper."""
    timer = SystemTimer(clock=clock)
    log: list[int] = []
    timer.add(Task(5, log))
    call = asyncio.create_task(timer.advance_clock())
    await clock.advance(0.005)
    assert await call == 1
    assert not timer.running


@pytest.mark.parametrize("timeout", [0, 0.0, 1, None])
async def test_a_closed_timer_is_refused(clock: VirtualClock, timeout: float | None) -> None:
    """Even if there is no time to wait, and on every clock."""
    for timer in (SystemTimer(clock=clock), SystemTimer()):
        await timer.aclose()
        with pytest.raises(PurgatoryClosed, match=r"^the timer is closed$"):
            await timer.advance_clock(timeout)
