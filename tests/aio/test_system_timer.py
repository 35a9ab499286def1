"""The timer on an event loop: its arguments, and that closing it ends its tasks in slices."""

import asyncio
import itertools
import random
import sys
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer, TimerTask
from purgatory.testing import VirtualClock
from purgatory.types import MonotonicClock
from tests.core.timer.bench import DAY_MS, Bench, take_everything_off
from tests.helpers import Boom, Op, check, park_in_tasks, turns_until


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_budget_is_above_zero(budget: float) -> None:
    """A budget of zero or less is refused."""
    with pytest.raises(ValueError, match="turn_budget_ms"):
        SystemTimer(turn_budget_ms=budget)
    assert SystemTimer(turn_budget_ms=1e9).turn_budget_ms == 1e9


@pytest.mark.parametrize("budget", ["1", None, True])
def test_a_budget_is_a_number(budget: Any) -> None:
    """Any value that is not a number raises an error with the parameter name."""
    with pytest.raises(TypeError, match="turn_budget_ms must be a number of milliseconds, got"):
        SystemTimer(turn_budget_ms=budget)


@pytest.mark.parametrize("clock", ["now", 5, object(), MonotonicClock])
def test_a_clock_is_a_clock(clock: Any) -> None:
    """Any object that is not a Clock raises an error with the parameter name."""
    with pytest.raises(TypeError, match=r"clock must be a purgatory\.types\.Clock"):
        SystemTimer(clock=clock)


@pytest.mark.parametrize("task", [None, print, object()])
async def test_only_tasks_are_put_on_a_timer(clock: VirtualClock, task: Any) -> None:
    """Adding an object that is not a TimerTask raises TypeError, and nothing is on the timer."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(TypeError, match="TimerTask"):
        timer.add(task)
    assert timer.size == 0


async def test_bad_arguments_of_call_later_are_refused(clock: VirtualClock) -> None:
    """A delay that is not a duration and a callback that is not callable raise an error."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(TypeError, match="callback must be callable"):
        timer.call_later(1, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^delay must be a number of seconds from 0 to 1e15"):
        timer.call_later(-1, print)
    with pytest.raises(TypeError, match=r"^delay must be a number of seconds, got"):
        timer.call_later("1", print)  # type: ignore[arg-type]
    assert timer.size == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
async def test_a_bad_timeout_of_fail_after_is_refused(clock: VirtualClock, timeout: float) -> None:
    """A bad timeout raises an error, and nothing is on the timer."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0"):
        timer.fail_after(timeout)
    assert timer.size == 0


async def test_a_bad_timeout_of_advance_clock_is_refused(clock: VirtualClock) -> None:
    """A timeout that is not a duration raises an error."""
    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0"):
        await SystemTimer(clock=clock).advance_clock(-1)


# Closing a timer: its tasks end at once, and it refuses new ones


async def test_closing_a_shared_timer_answers_operations_with_a_deadline(clock: VirtualClock) -> None:
    """Operations with a deadline expire with the timer, by closing; others stay parked; new deadlines are refused."""
    async with SystemTimer(clock=clock) as timer:
        purgatory = Purgatory[Op]("test", timer=timer)
        due, forever = Op(5, name="due"), Op(None, name="forever")
        tasks = await park_in_tasks(purgatory, clock, due, forever)
        by_hand = Op(5)
        timer.add(by_hand)
    assert await tasks[0] == "due"
    assert (due.outcome, forever.outcome) == (Outcome.EXPIRED, Outcome.PENDING)
    assert [op.expired_by_closing for op in (due, forever, by_hand)] == [True, False, True]
    with pytest.raises(PurgatoryClosed, match="timer of purgatory 'test' is closed"):
        purgatory.try_complete_else_watch(Op(5), ["a"])
    check(purgatory, parked=1, expired=0, expired_by_closing=1)
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


# A timer closes in slices, in deadline order, with bounded work per turn, and runs no callback meanwhile


class Abandoned(TimerTask):
    """A task that records that its timer was closed."""

    def __init__(self, delay_ms: int, log: list[Any]) -> None:
        super().__init__(delay_ms)
        self.log = log

    def run(self) -> None:
        raise AssertionError("it runs although its timer is closing")

    def _timer_closed(self) -> None:
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


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("started", [False, True])
async def test_closing_ends_the_calls_that_wait_for_a_bucket(
    clock: VirtualClock, reported: list[dict[str, Any]], started: bool, timeout: float | None
) -> None:
    """A task that calls ``advance_clock`` in a loop of its own receives PurgatoryClosed, now and later."""
    timer = SystemTimer(clock=clock)
    if started:
        timer.start()
    timer.call_later(30, lambda: None)
    waiting = [asyncio.create_task(timer.advance_clock(timeout)) for _ in range(2)]
    await clock.settle()
    await timer.aclose()
    await clock.settle()
    assert [type(task.exception()) for task in waiting if task.done()] == [PurgatoryClosed] * 2
    with pytest.raises(PurgatoryClosed, match="the timer is closed"):
        await timer.advance_clock(timeout)
    assert clock.next_alarm_ms is None
    assert not reported


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
    with pytest.raises(PurgatoryClosed):
        await timer.advance_clock()
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


async def test_what_one_task_does_as_the_timer_closes_counts_for_the_others(
    clock: VirtualClock, reported: list[Any]
) -> None:
    """An operation that fails is not expired any more, and a deadline that is removed does not come back."""
    timer = SystemTimer(clock=clock)
    room = Purgatory[Any]("test", timer=timer)
    entered: list[Any] = []

    class First(Op):
        def on_complete(self) -> Any:
            assert room.fail_for_key("others", Boom()) == 1
            entered[0].reschedule(None)

    async def block() -> str:
        async with timer.timeout(6.0) as deadline:
            entered.append(deadline)
            await clock.sleep(20.0)
        return "slept"

    async with room:
        filling = [asyncio.create_task(room.park(Op(1), [number])) for number in range(200)]
        first = asyncio.create_task(room.park(First(5), ["first"]))
        other = asyncio.create_task(room.park(Op(6), ["others"]))
        blocked = asyncio.create_task(block())
        await clock.settle()
        await timer.aclose()
        with pytest.raises(Boom):
            await other
        await clock.advance(20.0)
        assert await blocked == "slept"
        await asyncio.gather(first, *filling)
    assert reported == []


async def test_a_second_close_of_a_timer_answers_what_an_interrupt_left(clock: VirtualClock) -> None:
    """An interrupt raised by one task propagates after all other tasks have been dropped."""

    class Interrupts(Abandoned):
        def _timer_closed(self) -> None:
            super()._timer_closed()
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


async def test_the_repr_of_a_timer_shows_its_state(clock: VirtualClock) -> None:
    """The ``repr`` shows whether the timer runs, its ticks, and its number of tasks."""
    timer = SystemTimer(clock=clock, tick_ms=20, wheel_size=10)
    assert repr(timer) == "<SystemTimer idle tick_ms=20 wheel_size=10 size=0 next_expiration_ms=None>"
    async with timer:
        timer.add(TimerTask(50))
        assert repr(timer) == "<SystemTimer running tick_ms=20 wheel_size=10 size=1 next_expiration_ms=1000060>"
    assert repr(timer).startswith("<SystemTimer closed")


# An operation that was added to the timer as a task, outside a purgatory


def raises(_: Op) -> None:
    """Raise an error."""
    raise Boom


@pytest.mark.parametrize("how", ["at its deadline", "when the timer closes"])
@pytest.mark.parametrize("callback", ["on_complete", "on_expiration"])
async def test_an_error_in_a_callback_at_its_end_is_reported_by_the_timer(
    clock: VirtualClock, callback: str, how: str
) -> None:
    """No task awaits it, and no purgatory could report the error.  The operation behind it expires too."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    failing, behind = Op(1.0, **{callback: raises}), Op(1.0)
    async with SystemTimer(clock=clock) as timer:
        timer.add(failing)
        timer.add(behind)
        if how == "at its deadline":
            await clock.advance(1.0)
    assert [type(context["exception"]) for context in reported] == [Boom]
    assert reported[0]["timer_task"] is failing
    assert failing.outcome is (Outcome.FAILED if callback == "on_complete" else Outcome.EXPIRED)
    assert behind.expired


async def test_an_error_for_a_task_that_awaits_it_is_not_reported(clock: VirtualClock) -> None:
    """The task receives it."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    op = Op(1.0, on_complete=raises)

    async def wait() -> Any:
        return await op

    async with SystemTimer(clock=clock) as timer:
        timer.add(op)
        waiting = asyncio.create_task(wait())
        await clock.advance(1.0)
        with pytest.raises(Boom):
            await waiting
    assert reported == []


async def test_it_is_ended_in_the_thread_of_its_timer_only(clock: VirtualClock) -> None:
    """Another thread would change the timer's buckets while the loop uses them."""
    async with SystemTimer(clock=clock) as timer:
        op = Op(1.0)
        timer.add(op)
        for end in (op.cancel, op.force_complete, op.run):
            with pytest.raises(RuntimeError, match="another thread"):
                await asyncio.to_thread(end)
        other = Purgatory[Op]("other", clock=clock)

        async def park() -> None:
            other.try_complete_else_watch(op, ["a"])

        with pytest.raises(RuntimeError, match="another thread"):
            await asyncio.to_thread(asyncio.run, park())
        assert (op.outcome, timer.size, len(other)) == (Outcome.PENDING, 1, 0)
        other._check()
