"""The reaper never blocks the loop: it processes many due or dropped tasks in slices."""

import asyncio
import itertools

import pytest

from purgatory import PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock


@pytest.mark.parametrize(
    "number", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_a_crowd_that_expires_at_once_is_worked_off_in_slices(clock: VirtualClock, number: int) -> None:
    """If any number of tasks become due in one millisecond, a turn of the loop runs or moves at most 1024 of them.

    The benchmarks measure the duration of a turn in real time.
    """
    async with SystemTimer(clock=clock) as timer:
        ran = 0

        def count() -> None:
            nonlocal ran
            ran += 1

        for _ in range(number):
            timer.call_later(0.45, count)
        work: list[int] = []

        def look() -> None:
            work.append(ran + timer.cascades)
            if ran < number:
                asyncio.get_running_loop().call_soon(look)

        timer.call_later(0.399, look)
        await clock.settle()
        clock._now_ns += 450_000_000
        await clock.advance(0)
        assert ran == number
        steps = [later - earlier for earlier, later in itertools.pairwise(work)]
        assert 0 < max(steps) <= 1024
        assert len(steps) >= number // 1024


async def test_slow_callbacks_get_smaller_slices() -> None:
    """If callbacks use up the budget of a turn, the reaper soon runs one callback per turn."""
    clock = VirtualClock()
    turns: list[int] = []
    ran: list[int] = []

    def slow(number: int) -> None:
        clock._effort += 0.002  # two milliseconds of work, twice the budget
        ran.append(number)

    async with SystemTimer(clock=clock) as timer:
        for number in range(20):
            timer.call_later(0.015, slow, number)

        def look() -> None:
            turns.append(len(ran))
            if len(ran) < 20:
                asyncio.get_running_loop().call_soon(look)

        timer.call_later(0.014, look)
        await clock.settle()
        clock._now_ns += 15_000_000
        await clock.advance(0)
    assert ran == list(range(20))
    steps = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert steps[0] <= 2  # it looked cheap so far
    assert set(steps[1:]) == {1}


async def test_a_timer_closed_between_slices_ends_its_reaper(clock: VirtualClock) -> None:
    """At the end of a slice, the reaper detects that the timer is closed, and ends."""
    timer = SystemTimer(clock=clock)
    timer.start()
    closing: list[asyncio.Task[None]] = []
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        if number == 10:
            closing.append(asyncio.create_task(timer.aclose()))

    for number in range(3000):
        timer.call_later(1, run, number)
    reaper = timer._reaper.task
    await clock.advance(1)
    await closing[0]
    assert reaper is not None
    assert reaper.done()
    assert not reaper.cancelled()
    assert ran == list(range(len(ran)))
    assert 10 < len(ran) < 3000
    assert timer.size == 0


async def test_closing_a_large_timer_takes_few_turns(clock: VirtualClock) -> None:
    """Tasks are dropped in slices, not one per turn."""
    timer = SystemTimer(clock=clock)
    futures = [timer.fail_after(5) for _ in range(2000)]
    closing = asyncio.create_task(timer.aclose())
    turns = 0
    while not closing.done():
        await asyncio.sleep(0)
        turns += 1
    assert 2 < turns < 30
    assert all(isinstance(future.exception(), PurgatoryClosed) for future in futures)
