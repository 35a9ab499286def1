"""The timer on a loop: when the reaper wakes, how it comes back, how long it holds the loop."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed, SystemTimer, TimerTask
from purgatory.clock import Alarm, Clock, MonotonicClock
from purgatory.testing import VirtualClock
from purgatory.timekeeper import Timekeeper
from tests.helpers import Boom, Op, Task, check
from tests.sansio import HandClock


class TestIdle:
    """Idle costs nothing."""

    async def test_one_operation_in_an_hour_wakes_the_reaper_once_per_level(self, clock: VirtualClock) -> None:
        """An hour away: five cascades at most and the expiry, no polling."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            op = Op(3600)
            purgatory.try_complete_else_watch(op, ["a"])
            await clock.settle()
            before = clock.rings
            await clock.advance(3600)
            assert op.expired
            assert clock.rings - before <= 6
            assert purgatory.timer.cascades <= 5

    async def test_a_timer_without_tasks_asks_for_no_alarm(self, clock: VirtualClock) -> None:
        """With nothing to wait for the reaper sleeps without an alarm."""
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

    async def test_operations_that_complete_cost_no_wake_up_each(self, clock: VirtualClock) -> None:
        """A thousand operations with the same deadline that complete at once need one alarm."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            for _ in range(1000):
                op = Op(30)
                purgatory.try_complete_else_watch(op, ["a"])
                op.force_complete()
                await clock.settle()
            await clock.advance(60)
            assert clock.rings <= 2


class TestSlices:
    """The loop never stalls."""

    @pytest.mark.parametrize(
        "number", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
    )
    async def test_a_crowd_that_expires_at_once_is_worked_off_in_slices(self, clock: VirtualClock, number: int) -> None:
        """However many fall due in one millisecond, a turn of the loop runs or moves at most 1024 of them.

        How long a turn takes in real time is measured by the benchmarks.
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

    async def test_slow_callbacks_are_noticed(self) -> None:
        """Callbacks that use up the turn's budget are soon run one in a turn."""
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

    @pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
    def test_a_budget_is_above_zero(self, budget: float) -> None:
        """A turn needs some time."""
        with pytest.raises(ValueError, match="turn_budget_ms"):
            SystemTimer(turn_budget_ms=budget)


class TestTheReaperIsCancelled:
    """Somebody cancels the reaper's task: it comes back when the next bucket falls due."""

    @pytest.mark.parametrize("when", ["asleep", "before it ran", "twice"])
    async def test_it_comes_back(self, clock: VirtualClock, when: str) -> None:
        """Deadlines are kept though the reaper's task was cancelled."""
        async with Purgatory[Op]("test", clock=clock) as purgatory:
            timer = purgatory.timer
            op = Op(5)
            purgatory.try_complete_else_watch(op, ["a"])
            if when != "before it ran":
                await clock.settle()
            assert timer._reaper is not None
            timer._reaper.cancel()
            await clock.settle()
            if when == "twice":
                await clock.advance(0.3)
                timer._reaper.cancel()
                await clock.settle()
            await clock.advance(5)
            assert op.expired
            assert timer.running

    async def test_it_comes_back_for_what_is_added_later(self, clock: VirtualClock) -> None:
        """A timer whose reaper was cancelled while nothing was on it serves the next task."""
        async with SystemTimer(clock=clock) as timer:
            await clock.settle()
            assert timer._reaper is not None
            timer._reaper.cancel()
            await clock.settle()
            assert not timer.running
            log: list[str] = []
            timer.call_later(1, log.append, "late")
            timer.call_later(0.5, log.append, "earlier")
            timer.add(Task(0, log, "now"))
            await clock.advance(1)
            assert log == ["now", "earlier", "late"]

    async def test_in_the_midst_of_its_slices(self, clock: VirtualClock) -> None:
        """Nothing is lost when it is cancelled between two slices of a crowd."""
        async with SystemTimer(clock=clock) as timer:
            log: list[int] = []
            for number in range(5000):
                timer.call_later(1, log.append, number)
            clock._now_ns += 1_000_000_000
            timer.call_later(0, lambda: None)
            while not log:  # noqa: ASYNC110 - turn by turn, to stop in the midst of the work
                await asyncio.sleep(0)
            assert len(log) < 5000
            assert timer._reaper is not None
            timer._reaper.cancel()
            await clock.advance(0.001)
            assert log == list(range(5000))

    async def test_it_does_not_come_back_when_the_timer_is_closed(self, clock: VirtualClock) -> None:
        """After aclose there is no reaper and no alarm."""
        timer = SystemTimer(clock=clock)
        timer.start()
        await clock.settle()
        await timer.aclose()
        await clock.advance(10)
        assert not timer.running
        assert clock.next_alarm_ms is None

    def test_an_interrupt_in_a_task_leaves_the_loop_and_the_reaper_comes_back(self) -> None:
        """KeyboardInterrupt from a timer task stops the loop; when that runs again, so does the timer."""
        clock = VirtualClock()
        log: list[str] = []

        def interrupt() -> None:
            raise KeyboardInterrupt

        async def begin() -> SystemTimer:
            timer = SystemTimer(clock=clock)
            timer.start()
            timer.call_later(1, interrupt)
            timer.call_later(1, log.append, "behind")
            timer.call_later(2, log.append, "later")
            return timer

        loop = asyncio.new_event_loop()
        try:
            timer = loop.run_until_complete(begin())
            advancing = loop.create_task(clock.advance(3))
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(advancing)
            loop.run_until_complete(advancing)
            loop.run_until_complete(timer.aclose())
        finally:
            loop.close()
        assert log == ["behind", "later"]


class TestAdvanceClock:
    """One round by hand."""

    async def test_it_runs_what_is_due_and_says_how_many(self, clock: VirtualClock) -> None:
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

    async def test_a_timeout_ends_the_wait(self, clock: VirtualClock) -> None:
        """Nothing falls due within the timeout: 0, and the time is the timeout's."""
        timer = SystemTimer(clock=clock)
        timer.call_later(100, print)
        task = asyncio.create_task(timer.advance_clock(5))
        await clock.advance(4.999)
        assert not task.done()
        await clock.advance(0.001)
        assert await task == 0
        assert await timer.advance_clock(0) == 0

    async def test_two_may_wait(self, clock: VirtualClock) -> None:
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

    async def test_a_sleeper_who_left_does_not_hide_an_earlier_deadline(self, clock: VirtualClock) -> None:
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

    async def test_a_bad_timeout_is_refused(self, clock: VirtualClock) -> None:
        """A timeout is a duration."""
        with pytest.raises(ValueError, match="timeout"):
            await SystemTimer(clock=clock).advance_clock(-1)


class TestFailAfter:
    """Kafka's expiration service."""

    async def test_it_fails_when_the_time_has_come(self, clock: VirtualClock) -> None:
        """TimeoutError after the time, and not before."""
        async with SystemTimer(clock=clock) as timer:
            future = timer.fail_after(5)
            await clock.advance(4.999)
            assert not future.done()
            await clock.advance(0.001)
            with pytest.raises(TimeoutError, match="5 s have passed"):
                await future

    async def test_cancelling_it_gives_up_its_place(self, clock: VirtualClock) -> None:
        """A future that is no longer wanted leaves the timer."""
        async with SystemTimer(clock=clock) as timer:
            future = timer.fail_after(5)
            assert timer.size == 1
            future.cancel()
            await clock.settle()
            assert timer.size == 0

    async def test_a_future_cancelled_in_the_same_turn(self, clock: VirtualClock) -> None:
        """Cancelled just before it falls due, it stays cancelled."""
        timer = SystemTimer(clock=clock)
        future = timer.fail_after(5)
        future.cancel()
        assert timer.expire_due(clock.now_ms() + 5000) == 1
        assert future.cancelled()

    @pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
    async def test_a_bad_timeout_is_refused(self, clock: VirtualClock, timeout: float) -> None:
        """Nothing is put on the timer."""
        timer = SystemTimer(clock=clock)
        with pytest.raises(ValueError, match="timeout"):
            timer.fail_after(timeout)
        assert timer.size == 0


class TestCallLater:
    """Callbacks by deadline."""

    async def test_arguments_and_withdrawal(self, clock: VirtualClock) -> None:
        """The callback gets its arguments, in the order of deadlines, unless it was cancelled."""
        async with SystemTimer(clock=clock) as timer:
            log: list[tuple[int, ...]] = []

            def note(*numbers: int) -> None:
                log.append(numbers)

            timer.call_later(2, note, 2, 2)
            timer.call_later(1, note, 1)
            gone = timer.call_later(1.5, note)
            assert "call" in repr(gone).lower()
            assert gone.cancel()
            await clock.advance(3)
            assert log == [(1,), (2, 2)]
            assert not gone.cancel()

    async def test_bad_arguments_are_refused(self, clock: VirtualClock) -> None:
        """The delay is a duration and the callback is callable."""
        timer = SystemTimer(clock=clock)
        with pytest.raises(TypeError, match="callback is something to call"):
            timer.call_later(1, 5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="delay"):
            timer.call_later(-1, print)
        with pytest.raises(TypeError, match="delay"):
            timer.call_later("1", print)  # type: ignore[arg-type]
        assert timer.size == 0

    @pytest.mark.parametrize("error", [Boom(), asyncio.CancelledError()])
    async def test_one_that_raises_is_reported(
        self, clock: VirtualClock, reported: list[dict[str, Any]], error: BaseException
    ) -> None:
        """The others run, the reaper stays, and the loop's exception handler is told."""

        def bad() -> None:
            raise error

        async with SystemTimer(clock=clock) as timer:
            reaper = timer._reaper
            log: list[int] = []
            task = timer.call_later(1, bad)
            timer.call_later(1, log.append, 1)
            await clock.advance(1)
            assert log == [1]
            assert timer._reaper is reaper
            assert timer.running
        (context,) = reported
        assert context["exception"] is error
        assert context["timer_task"] is task


class TestStarting:
    """When the reaper begins."""

    async def test_a_purgatory_starts_its_own_timer_when_it_is_needed(self, clock: VirtualClock) -> None:
        """Without async with, the first deadline starts the reaper."""
        purgatory = Purgatory[Op]("test", clock=clock)
        assert not purgatory.timer.running
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        assert purgatory.timer.running
        await clock.advance(5)
        assert op.expired
        await purgatory.aclose()

    def test_it_can_be_filled_before_a_loop_runs(self) -> None:
        """Operations that were parked before the loop was started keep their deadlines."""
        clock = VirtualClock()
        purgatory = Purgatory[Op]("test", clock=clock)
        op = Op(5)
        assert not purgatory.try_complete_else_watch(op, ["a"])

        async def main() -> None:
            async with purgatory:
                await clock.advance(5)
                assert op.expired

        asyncio.run(main())

    def test_adding_between_two_runs_of_the_loop(self) -> None:
        """A task that is added while the loop stands still, though the reaper sleeps, is run when the loop goes on."""
        loop = asyncio.new_event_loop()
        log: list[str] = []

        async def begin() -> Purgatory[Op]:
            purgatory = Purgatory[Op]("test")
            await purgatory.__aenter__()
            purgatory.timer.call_later(1000, log.append, "late")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return purgatory

        async def finish() -> None:
            await purgatory.timer.fail_after(0.02)

        try:
            purgatory = loop.run_until_complete(begin())
            purgatory.timer.call_later(0.001, log.append, "early")
            op = Op(0.002)
            purgatory.try_complete_else_watch(op, ["a"])
            purgatory._check()
            with pytest.raises(TimeoutError):
                loop.run_until_complete(finish())
            assert log == ["early"]
            assert op.expired
            loop.run_until_complete(purgatory.aclose())
        finally:
            loop.close()

    async def test_starting_twice_is_starting_once(self, clock: VirtualClock) -> None:
        """One timer has one reaper."""
        async with SystemTimer(clock=clock) as timer:
            reaper = timer._reaper
            timer.start()
            assert timer._reaper is reaper

    async def test_parking_starts_a_shared_timer(self, clock: VirtualClock) -> None:
        """A task that parks on a timer nobody has entered is answered all the same."""
        timer = SystemTimer(clock=clock)
        purgatory = Purgatory[Op]("test", timer=timer)
        task = asyncio.create_task(purgatory.park(Op(5, name="x"), ["a"]))
        await clock.advance(5)
        assert await task == "x"
        await purgatory.aclose()
        await timer.aclose()


class _NoAlarms(VirtualClock):
    """A clock that cannot wake anybody any more."""

    broken = False

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        if self.broken:
            raise Boom
        return super().call_at(when_ms, callback)


async def test_a_clock_that_cannot_wake_leaves_the_books_right() -> None:
    """An exception from a clock reaches whoever parks, and nothing is half parked."""
    clock = _NoAlarms()
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        await clock.settle()
        clock.broken = True
        with pytest.raises(Boom):
            purgatory.try_complete_else_watch(Op(5), ["a"])
        check(purgatory, parked=0, watched=0, num_delayed=0)
        with pytest.raises(Boom):
            await purgatory.park(Op(5), ["a"])
        check(purgatory, parked=0)
        clock.broken = False
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        await clock.advance(5)
        assert op.expired


@pytest.mark.parametrize("clock", ["now", 5, object(), MonotonicClock])
def test_a_clock_is_a_clock(clock: Any) -> None:
    """Anything else is refused by name."""
    with pytest.raises(TypeError, match=r"clock is a purgatory\.clock\.Clock"):
        SystemTimer(clock=clock)


@pytest.mark.parametrize("task", [None, print, object()])
async def test_only_tasks_are_put_on_a_timer(clock: VirtualClock, task: Any) -> None:
    """What is no TimerTask is a TypeError, and nothing is on the timer."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(TypeError, match="TimerTask"):
        timer.add(task)
    assert timer.size == 0


async def test_the_text_of_a_timer_tells_its_state(clock: VirtualClock) -> None:
    """repr says whether it runs, its ticks, and what is on it."""
    timer = SystemTimer(clock=clock, tick_ms=20, wheel_size=10)
    assert repr(timer) == "<SystemTimer idle tick_ms=20 wheel_size=10 size=0 next_expiration_ms=None>"
    async with timer:
        timer.add(TimerTask(50))
        assert repr(timer) == "<SystemTimer running tick_ms=20 wheel_size=10 size=1 next_expiration_ms=1000060>"
    assert repr(timer).startswith("<SystemTimer closed")


def test_the_bare_clock_says_what_a_clock_needs() -> None:
    """A subclass of Clock must tell the time and wake; the rest has a meaning of its own."""
    clock = Clock()
    with pytest.raises(NotImplementedError):
        clock.now_ms()
    with pytest.raises(NotImplementedError):
        clock.call_at(0, print)
    assert clock.effort() <= clock.effort()

    class Whole(Clock):
        def now_ms(self) -> int:
            return 7

    assert Whole().ceil_ms() == 8


class TestOdd:
    """What comes at an odd moment."""

    def test_where_no_loop_runs_a_failure_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """Nobody waits for the operation and there is no loop to tell: the log has its error."""
        purgatory = Purgatory[Op]("test", clock=VirtualClock())

        def fail(_: Op) -> None:
            raise Boom("unseen")

        op = Op()
        purgatory.try_complete_else_watch(op, ["a"])
        op._on_try = fail
        assert purgatory.check_and_complete("a") == 0
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("purgatory", "ERROR")
        assert record.getMessage() == f"an operation of purgatory 'test' raised: {{'operation': {op!r}}}"
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], Boom)

    async def test_a_future_that_is_done_when_its_time_comes(self, clock: VirtualClock) -> None:
        """Cancelled in the turn of its deadline, ``fail_after`` has nobody to tell."""
        async with SystemTimer(clock=clock) as timer:
            future = timer.fail_after(0)
            future.cancel()
            assert timer.expire_due(clock.now_ms()) == 1
            assert future.cancelled()

    async def test_a_future_that_is_done_when_its_timer_closes(self, clock: VirtualClock) -> None:
        """Cancelled in the turn in which its timer closes, it stays cancelled."""
        timer = SystemTimer(clock=clock)
        cancelled, waiting = timer.fail_after(1), timer.fail_after(1)
        cancelled.cancel()
        await timer.aclose()
        assert cancelled.cancelled()
        assert isinstance(waiting.exception(), PurgatoryClosed)

    async def test_closed_while_the_reaper_is_in_the_midst_of_a_crowd(self, clock: VirtualClock) -> None:
        """The reaper comes to the end of its slice, finds the timer closed and ends by itself."""
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
        reaper = timer._reaper
        await clock.advance(1)
        await closing[0]
        assert reaper is not None
        assert reaper.done()
        assert not reaper.cancelled()
        assert ran == list(range(len(ran)))
        assert 10 < len(ran) < 3000
        assert timer.size == 0

    async def test_woken_in_the_turn_in_which_it_was_cancelled(self, clock: VirtualClock) -> None:
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

    def test_a_timer_without_a_floor_above_lets_a_failure_through(self) -> None:
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


def test_a_timer_on_the_usual_clock_counts_from_the_time_rounded_up() -> None:
    """Both ways of adding a task read the same clock."""
    timer = Timekeeper(1, 20, None)
    clock = timer.clock
    assert isinstance(clock, MonotonicClock)
    clock._read = timer._read = lambda: 1e9 + 0.3456
    task = TimerTask(10)
    timer.add(task)
    assert task.expiration_ms == 1_000_000_000_356
    assert timer.call_later(0.01, print).expiration_ms == 1_000_000_000_356


async def test_a_closed_timer_says_so(clock: VirtualClock) -> None:
    """Whichever way a task is handed to it, and whatever is wrong with a delay is told by its name."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(ValueError, match="delay is a finite number of seconds"):
        timer.call_later(-1, print)
    await timer.aclose()
    for hand_over in (lambda: timer.add(TimerTask(5)), lambda: timer.call_later(5, print), timer.start):
        with pytest.raises(PurgatoryClosed, match="the timer is closed"):
            hand_over()


async def test_what_the_timer_says(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """The name of its task, what a task that raised is told with, and why a future failed."""

    def fail() -> None:
        raise Boom

    timer = SystemTimer(clock=clock)
    timer.start()
    assert timer._reaper is not None
    assert timer._reaper.get_name() == "purgatory-reaper"
    task = timer.call_later(1, fail)
    await clock.advance(1)
    (context,) = reported
    assert context["message"] == "a timer task raised"
    assert context["timer_task"] is task
    with pytest.raises(ValueError, match="timeout is a finite number"):
        timer.fail_after(-1)
    with pytest.raises(ValueError, match="timeout is a finite number"):
        await timer.advance_clock(-1)
    future = timer.fail_after(5)
    await timer.aclose()
    with pytest.raises(PurgatoryClosed, match=r"^the timer was closed$"):
        await future


async def test_a_round_by_hand_starts_no_reaper(clock: VirtualClock) -> None:
    """Who drives the timer without it goes on without it."""
    timer = SystemTimer(clock=clock)
    log: list[int] = []
    timer.add(Task(5, log))
    rounds = asyncio.create_task(timer.advance_clock())
    await clock.advance(0.005)
    assert await rounds == 1
    assert not timer.running


async def test_closing_a_crowd_takes_few_turns(clock: VirtualClock) -> None:
    """Everyone is told in slices, not one by one."""
    timer = SystemTimer(clock=clock)
    futures = [timer.fail_after(5) for _ in range(2000)]
    closing = asyncio.create_task(timer.aclose())
    turns = 0
    while not closing.done():
        await asyncio.sleep(0)
        turns += 1
    assert 2 < turns < 30
    assert all(isinstance(future.exception(), PurgatoryClosed) for future in futures)


async def test_a_block_without_a_deadline_at_all(clock: VirtualClock) -> None:
    """``timeout_at(None)`` is a block that may take as long as it likes."""
    async with SystemTimer(clock=clock) as timer, timer.timeout_at(None) as timeout:
        assert timeout.when() is None
        await asyncio.sleep(0)
    assert not timeout.expired()
