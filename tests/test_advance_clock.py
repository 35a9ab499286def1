"""A timer that is driven by hand: ``advance_clock`` does one round, beside a reaper or without one."""

import asyncio

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from purgatory.timekeeper import Timekeeper
from tests.helpers import Boom, Task
from tests.sansio import HandClock


async def test_it_runs_what_is_due_and_says_how_many(clock: VirtualClock) -> None:
    """It waits for the earliest bucket; a bucket that only cascades ends the wait, too."""
    timer = SystemTimer(clock=clock)
    log: list[int] = []
    for number in range(3):
        timer.call_later(0.01, log.append, number)
    timer.call_later(0.45, log.append, 3)
    rounds = []

    async def work() -> None:
        while timer.size:
            rounds.append(await timer.advance_clock())

    task = asyncio.create_task(work())
    await clock.advance(0.45)
    await task
    assert log == [0, 1, 2, 3]
    assert rounds[0] == 3
    assert rounds[-1] == 1
    assert set(rounds[1:-1]) <= {0}
    assert len(rounds) <= 4


async def test_a_timeout_ends_the_wait(clock: VirtualClock) -> None:
    """Nothing falls due within the timeout: 0, and the time is the timeout's."""
    timer = SystemTimer(clock=clock)
    timer.call_later(100, print)
    task = asyncio.create_task(timer.advance_clock(5))
    await clock.advance(4.999)
    assert not task.done()
    await clock.advance(0.001)
    assert await task == 0
    assert await timer.advance_clock(0) == 0


async def test_two_may_wait(clock: VirtualClock) -> None:
    """The reaper and a round by hand do not take the wake-up from one another."""
    async with SystemTimer(clock=clock) as timer:
        log: list[int] = []
        rounds = [asyncio.create_task(timer.advance_clock(timeout)) for timeout in (1, 30)]
        timer.call_later(10, log.append, 1)
        timer.call_later(20, log.append, 2)
        await clock.advance(15)
        assert log == [1]
        await clock.advance(15)
        assert log == [1, 2]
        await asyncio.gather(*rounds)


async def test_a_sleeper_who_left_does_not_hide_an_earlier_deadline(clock: VirtualClock) -> None:
    """The alarm that a cancelled round had asked for is not taken for a later one."""
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


async def test_woken_in_the_turn_in_which_it_was_cancelled(clock: VirtualClock) -> None:
    """Of two who sleep until the same bucket one is cancelled as it falls due: the other does the round."""
    timer = SystemTimer(clock=clock)
    rounds: list[asyncio.Task[int]] = []
    clock.call_at(clock.now_ms() + 5, lambda: rounds[0].cancel())
    rounds += [asyncio.create_task(timer.advance_clock()) for _ in range(2)]
    ran: list[str] = []
    timer.call_later(0.005, ran.append, "x")
    await clock.advance(0.005)
    assert rounds[0].cancelled()
    assert ran == ["x"]


async def test_a_round_by_hand_starts_no_reaper(clock: VirtualClock) -> None:
    """Who drives the timer without it goes on without it."""
    timer = SystemTimer(clock=clock)
    log: list[int] = []
    timer.add(Task(5, log))
    rounds = asyncio.create_task(timer.advance_clock())
    await clock.advance(0.005)
    assert await rounds == 1
    assert not timer.running


def test_a_timer_without_a_floor_above_lets_a_failure_through() -> None:
    """Driven by hand, without anybody to report to, what a task raises reaches who drives it."""
    clock = HandClock()
    timer = Timekeeper(1, 20, clock)

    def fail() -> None:
        raise Boom

    timer.call_later(0, fail)
    timer.add(task := Task(0, []))
    with pytest.raises(Boom):
        timer.expire_due(clock.ms)
    assert timer.expire_due(clock.ms) == 1
    assert task.log == [0]
