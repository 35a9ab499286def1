"""The reaper: when it starts, when it wakes, how it restarts, and that it never blocks the loop."""

import asyncio
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from purgatory.types import Alarm
from tests.helpers import Doing, Op, Task

# An idle timer does not wake the loop


async def test_one_operation_in_an_hour_wakes_the_reaper_once_per_level(clock: VirtualClock) -> None:
    """For an operation that is due in an hour, the reaper wakes for at most five cascades and the expiry."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(3600)
        purgatory.try_complete_else_watch(op, ["a"])
        await clock.settle()
        before = clock.rings
        await clock.advance(3600)
        assert op.expired
        assert clock.rings - before <= 6
        assert purgatory.timer.cascades <= 5


async def test_a_timer_without_tasks_sets_no_alarm(clock: VirtualClock) -> None:
    """The reaper of an empty timer sleeps without an alarm."""
    async with SystemTimer(clock=clock) as timer:
        await clock.settle()
        assert clock.next_alarm_ms is None
        task = timer.call_later(5, print)
        await clock.settle()
        assert clock.next_alarm_ms is not None
        task.cancel()
        await clock.advance(100)
        assert clock.rings <= 1
        assert clock.next_alarm_ms is None


async def test_operations_that_complete_cost_no_wake_up_each(clock: VirtualClock) -> None:
    """A thousand operations with the same deadline that complete at once need one alarm."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        for _ in range(1000):
            op = Op(30)
            purgatory.try_complete_else_watch(op, ["a"])
            op.force_complete()
            await clock.settle()
        await clock.advance(60)
        assert clock.rings <= 2


# Its start


async def test_its_task_has_a_name(timer: SystemTimer) -> None:
    """The name of the reaper's task shows which timer it belongs to."""
    assert timer._reaper.task is not None
    assert timer._reaper.task.get_name() == "purgatory-reaper"


async def test_a_purgatory_that_was_never_closed_is_freed_without_a_report(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """Its reaper is then pending for ever, but answers no waiter, so asyncio must not report the task."""

    async def use() -> weakref.ref[Purgatory[Any]]:
        purgatory = Purgatory[Any]("test", clock=clock)  # the first wait starts its reaper
        assert await purgatory.wait_until(lambda: True, key="a", timeout=1.0)
        waiting = asyncio.create_task(purgatory.wait_until(lambda: False, key="a", timeout=1.0))
        await clock.advance(1.0)
        assert await waiting is False
        assert purgatory.timer.running
        return weakref.ref(purgatory)

    purgatory = await use()
    gc.collect()
    assert purgatory() is None
    assert reported == []


# If its task is cancelled, it restarts when the next bucket expires


@pytest.mark.parametrize("when", ["asleep", "before it ran", "twice"])
async def test_a_cancelled_reaper_restarts(clock: VirtualClock, when: str) -> None:
    """Deadlines are met although the reaper's task was cancelled."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        timer = purgatory.timer
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        if when != "before it ran":
            await clock.settle()
        assert timer._reaper.task is not None
        timer._reaper.task.cancel()
        await clock.settle()
        if when == "twice":
            await clock.advance(0.3)
            timer._reaper.task.cancel()
            await clock.settle()
        await clock.advance(5)
        assert op.expired
        assert timer.running


async def test_a_cancelled_reaper_restarts_for_the_next_task(clock: VirtualClock) -> None:
    """A timer whose reaper was cancelled while it was empty serves the next task."""
    async with SystemTimer(clock=clock) as timer:
        await clock.settle()
        assert timer._reaper.task is not None
        timer._reaper.task.cancel()
        await clock.settle()
        assert not timer.running
        log: list[str] = []
        timer.call_later(1, log.append, "late")
        timer.call_later(0.5, log.append, "earlier")
        timer.add(Task(0, log, "now"))
        await clock.advance(1)
        assert log == ["now", "earlier", "late"]


async def test_a_reaper_cancelled_between_slices_restarts(clock: VirtualClock) -> None:
    """No task is lost when the reaper is cancelled between two slices."""
    async with SystemTimer(clock=clock) as timer:
        log: list[int] = []
        for number in range(5000):
            timer.call_later(1, log.append, number)
        clock._now_ns += 1_000_000_000
        timer.call_later(0, lambda: None)
        while not log:  # noqa: ASYNC110 - turn by turn, to stop in the midst of the work
            await asyncio.sleep(0)
        assert len(log) < 5000
        assert timer._reaper.task is not None
        timer._reaper.task.cancel()
        await clock.advance(0.001)
        assert log == list(range(5000))


async def test_the_reaper_of_a_closed_timer_does_not_restart(clock: VirtualClock) -> None:
    """After aclose there is no reaper and no alarm."""
    timer = SystemTimer(clock=clock)
    timer.start()
    await clock.settle()
    await timer.aclose()
    await clock.advance(10)
    assert not timer.running
    assert clock.next_alarm_ms is None


class Abort(BaseException):
    """Like the outcomes of pytest: neither an Exception nor an interrupt of the program."""


def abort(*_: object) -> None:
    raise Abort


@pytest.mark.parametrize("where", ["callback", "on_complete", "on_expiration", "observer"])
async def test_what_ends_the_reaper_is_reported(
    clock: VirtualClock, reported: list[dict[str, Any]], where: str
) -> None:
    """The loop's exception handler receives it once, with the task, and the next deadline is met."""
    hooks: dict[str, Any] = {where: abort} if where.startswith("on_") else {}
    observer = Doing(expired=lambda event: abort() if event.operation.name == where == "observer" else None)
    async with Purgatory[Op]("test", clock=clock, observers=[observer]) as purgatory:
        reaper = purgatory.timer._reaper.task
        purgatory.try_complete_else_watch(Op(1, name=where, **hooks), ["a"])
        if where == "callback":
            purgatory.timer.call_later(1, abort)
        behind, later = Op(1), Op(2)
        purgatory.try_complete_else_watch(behind, ["a"])
        purgatory.try_complete_else_watch(later, ["a"])
        await clock.advance(1)
        assert behind.expired
        (context,) = reported
        assert context["message"] == "the reaper of a timer was interrupted"
        assert type(context["exception"]) is Abort
        assert context["task"] is reaper
        await clock.advance(1)
        assert later.expired
    assert len(reported) == 1


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_task_leaves_the_loop_and_the_reaper_comes_back(interrupt: type[BaseException]) -> None:
    """An interrupt of the program in a timer task stops the loop, and is not reported as well; when the loop runs
    again, the reaper restarts.
    """
    clock = VirtualClock()
    log: list[str] = []
    reported: list[dict[str, Any]] = []

    def raise_it() -> None:
        raise interrupt

    async def begin() -> SystemTimer:
        loop.set_exception_handler(lambda _, context: reported.append(context))
        timer = SystemTimer(clock=clock)
        timer.start()
        timer.call_later(1, raise_it)
        timer.call_later(1, log.append, "behind")
        timer.call_later(2, log.append, "later")
        return timer

    loop = asyncio.new_event_loop()
    try:
        timer = loop.run_until_complete(begin())
        advancing = loop.create_task(clock.advance(3))
        with pytest.raises(interrupt):
            loop.run_until_complete(advancing)
        loop.run_until_complete(advancing)
        loop.run_until_complete(timer.aclose())
    finally:
        loop.close()
    assert log == ["behind", "later"]
    assert reported == []


# Wake-ups that fire although they are cancelled, or too late


async def test_a_clock_that_cannot_cancel_a_wake_up() -> None:
    """A cancelled wake-up that fires nevertheless is ignored; each deadline is met by its own wake-up."""

    class NoHandle:
        def cancel(self) -> None:
            """Do nothing."""

    class Uncancellable(VirtualClock):
        def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
            super().call_at(when_ms, callback)
            return Alarm(NoHandle())

    clock = Uncancellable()
    log: list[tuple[str, int]] = []
    async with SystemTimer(clock=clock) as timer:
        for name, delay in [("late", 5), ("early", 1), ("middle", 3)]:
            timer.call_later(delay, lambda name=name: log.append((name, clock.now_ms() - start_ms)))
        start_ms = clock.now_ms()
        await clock.advance(10)
    assert log == [("early", 1000), ("middle", 3000), ("late", 5000)]


async def test_an_earlier_task_wakes_a_call_that_waits_without_a_reaper(clock: VirtualClock) -> None:
    """While ``advance_clock`` waits for a bucket in 10 s, a task that is due in 10 ms wakes it."""
    timer = SystemTimer(clock=clock)
    log: list[str] = []
    timer.call_later(10, log.append, "late")
    waiting = asyncio.create_task(timer.advance_clock())
    await clock.settle()
    timer.call_later(0.01, log.append, "early")
    await clock.advance(0.01)
    assert log == ["early"]
    assert await waiting == 1


async def test_a_later_task_after_the_reaper_was_cancelled(clock: VirtualClock) -> None:
    """A requested wake-up starts a new reaper, which runs both tasks."""
    async with SystemTimer(clock=clock) as timer:
        log: list[str] = []
        timer.call_later(1, log.append, "first")
        await clock.settle()
        (reaper,) = [task for task in asyncio.all_tasks() if task.get_name() == "purgatory-reaper"]
        reaper.cancel()
        await clock.settle()
        timer.call_later(2, log.append, "second")
        await clock.advance(1)
        assert log == ["first"]
        await clock.advance(1)
        assert log == ["first", "second"]


# The reaper never blocks the loop: it processes many due or dropped tasks in slices


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


async def test_deadlines_that_pass_during_the_work_leave_turns_to_other_tasks(clock: VirtualClock) -> None:
    """If each callback takes until the next deadline, the loop still takes a turn between two callbacks."""
    turns = 0
    at_turn: list[int] = []

    def work() -> None:
        clock._now_ns += 1_000_000  # the next deadline has passed when this callback returns
        clock._effort += 0.001
        at_turn.append(turns)

    async with SystemTimer(clock=clock) as timer:
        for number in range(50):
            timer.call_later(0.015 + number / 1000, work)

        def look() -> None:
            nonlocal turns
            turns += 1
            if len(at_turn) < 50:
                asyncio.get_running_loop().call_soon(look)

        timer.call_later(0.014, look)
        await clock.settle()
        clock._now_ns += 15_000_000
        await clock.settle()
        await clock.advance(0)
    assert len(at_turn) == 50
    assert len(set(at_turn)) == 50


async def test_a_round_that_waited_takes_no_further_turn(clock: VirtualClock) -> None:
    """The tasks run in the turn in which the wait ends."""
    turns = 0
    at_turn: list[int] = []
    async with SystemTimer(clock=clock) as timer:
        await clock.settle()
        timer.call_later(0.010, lambda: at_turn.append(turns))
        due_ms = timer.next_expiration_ms
        assert due_ms is not None

        def count() -> None:
            nonlocal turns
            turns += 1
            if turns < 10:
                asyncio.get_running_loop().call_soon(count)

        clock.call_at(due_ms, count)
        await clock.advance(0.010)
        while turns < 10:  # noqa: ASYNC110 - turns of the loop, not time
            await asyncio.sleep(0)
    assert at_turn == [1]


async def test_a_timer_that_closes_in_the_turn_before_a_round(clock: VirtualClock) -> None:
    """The call that waits for the round learns it."""
    timer = SystemTimer(clock=clock)
    timer.call_later(0.010, print)
    await clock.advance(0.020)
    waiting, closing = (asyncio.ensure_future(call) for call in (timer.advance_clock(), timer.aclose()))
    await closing
    with pytest.raises(PurgatoryClosed):
        await waiting


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


class _OtherTask(asyncio.Task[Any]):
    """What a task factory may return: asyncio asks only for an object that is compatible with a future."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_log_destroy_pending":
            raise AttributeError(name)
        super().__setattr__(name, value)


async def test_a_task_factory_with_tasks_of_its_own(clock: VirtualClock) -> None:
    """The reaper's task need not have what only asyncio's tasks have."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(lambda loop, coro, **options: _OtherTask(coro, loop=loop, **options))  # type: ignore[arg-type]
    try:
        async with Purgatory[Any]("test", clock=clock) as room:
            waiting = asyncio.ensure_future(room.wait_until(lambda: False, key="a", timeout=0.5))
            await clock.settle()
            await clock.advance(0.5)
            assert await waiting is False
    finally:
        loop.set_task_factory(before)
