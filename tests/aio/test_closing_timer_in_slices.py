"""A timer closes in slices, in deadline order, with bounded work per turn, and runs no callback meanwhile."""

import asyncio
import itertools
import random
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed, SystemTimer, TimerTask
from purgatory.testing import VirtualClock
from tests.core.timer.bench import DAY_MS, Bench, take_everything_off
from tests.helpers import Op, turns_until


class Abandoned(TimerTask):
    """A task that records that its timer was closed."""

    def __init__(self, delay_ms: int, log: list[Any]) -> None:
        super().__init__(delay_ms)
        self.log = log

    def run(self) -> None:
        raise AssertionError("it runs although its timer is closing")

    def _timer_closed(self, error: BaseException) -> None:
        self.log.append(self)


async def test_a_turn_of_the_loop_takes_off_a_slice(clock: VirtualClock) -> None:
    """No turn of the loop removes, cascades or answers more than a fraction of a large timer."""
    timer = SystemTimer(clock=clock)
    log: list[Any] = []
    for number in range(20_000):
        timer.add(Abandoned(number * 37 % 1_000_000, log))
    closing = asyncio.create_task(timer.aclose())
    sizes, cascades = [timer.size], [timer.cascades]
    while not closing.done():
        await asyncio.sleep(0)
        sizes.append(timer.size)
        cascades.append(timer.cascades)
    assert max(before - after for before, after in itertools.pairwise(sizes)) <= 1024
    assert max(after - before for before, after in itertools.pairwise(cascades)) <= 1024
    assert [task.expiration_ms for task in log] == sorted(task.expiration_ms for task in log)
    assert len(log) == 20_000


async def test_closing_never_walks_the_whole_timer(clock: VirtualClock) -> None:
    """Before the first slice ends, most tasks are still on the timer, and its size shows this."""
    timer = SystemTimer(clock=clock)
    futures = [timer.fail_after(5 + number) for number in range(3000)]
    closing = asyncio.create_task(timer.aclose())
    await turns_until(lambda: futures[0].done())
    assert timer.size > 1000
    assert not futures[-1].done()
    await closing
    assert timer.size == 0


async def test_nothing_runs_while_the_timer_closes(clock: VirtualClock) -> None:
    """A deadline that passes between two slices does not run its callback, even if other code reads the clock."""
    timer = SystemTimer(clock=clock)
    timer.start()
    log: list[Any] = []
    ran: list[int] = []
    waiting = asyncio.create_task(timer.advance_clock())
    await asyncio.sleep(0)
    for _ in range(3000):
        timer.add(Abandoned(1000, log))
    timer.call_later(1, ran.append, 1)
    closing = asyncio.create_task(timer.aclose())
    await turns_until(lambda: bool(log))
    assert timer.size > 1000
    clock._now_ns += 2_000_000_000
    assert timer.expire_due(clock.now_ms()) == 0
    assert await timer.advance_clock() == 0
    await clock.settle()
    await closing
    assert (len(log), ran, timer.size) == (3000, [], 0)
    waiting.cancel()


async def test_a_timeout_that_is_moved_while_its_timer_closes_is_kept_once(clock: VirtualClock) -> None:
    """A timeout that is rescheduled between two slices fires at its new deadline and leaves no alarm."""
    timer = SystemTimer(clock=clock)
    log: list[Any] = []
    moved: list[bool] = []

    async def block() -> None:
        async with timer.timeout(50) as timeout:
            await turns_until(lambda: bool(log))
            moved.append(timeout.scheduled)
            timeout.reschedule(timer.time() + 10)
            moved.append(timeout.scheduled)
            await clock.sleep(3)

    for number in range(3000):
        timer.add(Abandoned(1000 + number, log))
    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    await timer.aclose()
    assert moved == [True, False]
    await clock.advance(3)
    await task
    assert clock.next_alarm_ms is None


async def test_operations_are_answered_in_the_order_of_deadlines(clock: VirtualClock) -> None:
    """Closing a shared timer expires its operations by deadline, and equal deadlines in the order of arrival."""
    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    answered: list[tuple[int | None, int]] = []
    chance = random.Random(7)
    for number in range(500):
        op = Op(
            chance.choice((0.005, 1, 5, 45, 45, 400, 500, 90_000)),
            on_complete=lambda op, number=number: answered.append((op.expiration_ms, number)),  # type: ignore[misc]
        )
        purgatory.try_complete_else_watch(op, ["a"])
        if number % 7 == 0:
            await clock.advance(0.5)
    left = len(purgatory)
    answered.clear()
    await timer.aclose()
    assert len(answered) == left
    assert answered == sorted(answered)
    await purgatory.aclose()


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_tasks_are_taken_off_by_deadline_whatever_the_limit(limit: int) -> None:
    """Tasks from every level, due, half cascaded or moved, are removed by deadline and then by arrival."""
    bench = Bench()
    chance = random.Random(limit)
    tasks = []
    for number in range(300):
        if number % 50 == 49:
            bench.move_to(bench.now_ms + chance.choice((1, 19, 390)), limit)
        tasks.append(bench.add(chance.choice((0, 1, 5, 19, 30, 45, 399, 401, 450, 8_000, DAY_MS)), number))
    for task in tasks[::3]:
        if task.scheduled:
            task._expiration_ms += 40
    left = [task for task in tasks if task.scheduled]
    moved = set(tasks[::3])
    taken = take_everything_off(bench.core, limit)
    assert set(taken) == set(left)
    assert [task._expiration_ms for task in taken] == sorted(task._expiration_ms for task in taken)
    in_order = [task for task in taken if task not in moved]
    assert in_order == sorted(in_order, key=lambda task: (task._expiration_ms, task.name))
    bench.core._check()


async def test_a_second_close_of_a_timer_answers_what_an_interrupt_left(clock: VirtualClock) -> None:
    """An interrupt raised by one task propagates after all other tasks have been dropped."""

    class Interrupts(Abandoned):
        def _timer_closed(self, error: BaseException) -> None:
            super()._timer_closed(error)
            raise KeyboardInterrupt

    timer = SystemTimer(clock=clock)
    log: list[Any] = []
    for number in range(200):
        timer.add((Interrupts if number % 50 == 0 else Abandoned)(1000, log))
    with pytest.raises(KeyboardInterrupt):
        await timer.aclose()
    assert len(log) == 200
    await timer.aclose()
    with pytest.raises(PurgatoryClosed):
        timer.call_later(1, print)
