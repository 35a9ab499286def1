"""Closing a timer: its tasks end at once, and it refuses new ones."""

import asyncio
import sys
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer, TimerTask
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park_in_tasks


async def test_closing_a_shared_timer_answers_operations_with_a_deadline(clock: VirtualClock) -> None:
    """Operations with a deadline expire with the timer; others stay parked; new deadlines are refused."""
    async with SystemTimer(clock=clock) as timer:
        purgatory = Purgatory[Op]("test", timer=timer)
        due, forever = Op(5, name="due"), Op(None, name="forever")
        tasks = await park_in_tasks(purgatory, clock, due, forever)
    assert await tasks[0] == "due"
    assert (due.outcome, forever.outcome) == (Outcome.EXPIRED, Outcome.PENDING)
    with pytest.raises(PurgatoryClosed, match="timer of purgatory 'test' is closed"):
        purgatory.try_complete_else_watch(Op(5), ["a"])
    check(purgatory, parked=1, expired=1)
    forever.ready = True
    assert purgatory.check_and_complete("a") == 1
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(5)
    await closing
    assert await tasks[1] == "forever"


async def test_plain_tasks_of_a_closing_timer_do_not_run(clock: VirtualClock) -> None:
    """When the timer closes, a delayed callback is dropped and a future of ``fail_after`` fails."""
    log: list[int] = []
    async with SystemTimer(clock=clock) as timer:
        task = timer.call_later(5, log.append, 1)
        future = timer.fail_after(5)
    assert not task.scheduled
    with pytest.raises(PurgatoryClosed, match=r"^the timer was closed$"):
        await future
    await clock.advance(10)
    assert log == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks come with 3.12")
@pytest.mark.parametrize("closes", ["timer", "purgatory"])
async def test_no_task_runs_after_a_callback_has_closed_the_timer_with_an_eager_task(
    clock: VirtualClock, closes: str
) -> None:
    """The other tasks of its bucket and those that are due later are dropped, and operations are answered."""
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[Op]("test", clock=clock)
    timer = purgatory.timer
    log: list[str] = []
    closing: list[asyncio.Task[None]] = []

    def close() -> None:
        coroutine = timer.aclose() if closes == "timer" else purgatory.aclose()
        closing.append(asyncio.Task(coroutine, loop=loop, eager_start=True))  # type: ignore[call-arg]

    timer.call_later(5, log.append, "before")
    timer.call_later(5, close)
    (task,) = await park_in_tasks(purgatory, clock, Op(5, name="op"))
    for number in range(5000):  # more than one slice of the closing
        timer.call_later(5, log.append, f"behind {number}")
    timer.call_later(5.5, log.append, "later")
    await clock.advance(10)
    await asyncio.gather(*closing)
    assert await task == "op"
    assert log == ["before"]
    assert timer.size == 0
    assert not timer.running
    await purgatory.aclose()


async def test_a_callback_that_raises_as_its_timer_closes(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """Closing a shared timer expires its operations; the error of one is reported, and the others are answered."""

    def fail(_: Op) -> None:
        raise Boom

    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    bad, good = Op(5, on_complete=fail), Op(6, name="x")
    for op in (bad, good):
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0"):
        bad.extend(-1)
    await timer.aclose()
    assert (bad.outcome, good.outcome) == (Outcome.FAILED, Outcome.EXPIRED)
    assert [type(context["exception"]) for context in reported] == [Boom]


async def test_a_second_closer_of_a_timer_waits_for_the_first(clock: VirtualClock) -> None:
    """When any call of aclose returns, every operation is answered."""
    timer = SystemTimer(clock=clock)
    timer.start()
    futures = [timer.fail_after(100) for _ in range(3000)]
    first = asyncio.create_task(timer.aclose())
    await asyncio.sleep(0)
    await timer.aclose()
    assert all(isinstance(future.exception(), PurgatoryClosed) for future in futures)
    assert not timer.running
    await first


# Nothing new


async def test_a_closed_timer_refuses_tasks(clock: VirtualClock) -> None:
    """A closed timer refuses ``add``, ``call_later``, ``fail_after`` and ``start``; closing it again is allowed."""
    timer = SystemTimer(clock=clock)
    await timer.aclose()
    with pytest.raises(PurgatoryClosed):
        timer.call_later(1, lambda: None)
    with pytest.raises(PurgatoryClosed):
        timer.fail_after(1)
    with pytest.raises(PurgatoryClosed):
        timer.start()
    with pytest.raises(PurgatoryClosed):
        async with timer:
            pass
    await timer.aclose()
    assert timer.size == 0


async def test_a_closed_timer_says_that_it_is_closed(clock: VirtualClock) -> None:
    """Every method that adds a task reports that the timer is closed, and reports a bad delay with the parameter
    name.
    """
    timer = SystemTimer(clock=clock)
    with pytest.raises(ValueError, match="delay must be a number of seconds from 0 to 1e15"):
        timer.call_later(-1, print)
    await timer.aclose()
    for submit in (lambda: timer.add(TimerTask(5)), lambda: timer.call_later(5, print), timer.start):
        with pytest.raises(PurgatoryClosed, match="the timer is closed"):
            submit()
