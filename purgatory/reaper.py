"""The timer on an event loop: a coroutine that sleeps until the earliest bucket falls due.  Floor 4."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from mypy_extensions import i64

from .clock import Alarm, Clock
from .errors import PurgatoryClosed
from .timekeeper import FAR_MS, Timekeeper
from .timeouts import Timeout, checked
from .timer.task import TimerTask
from .units import duration_ms

__all__ = ["Slices", "SystemTimer", "report"]

_LOGGER = logging.getLogger("purgatory")
_MOST_AT_ONCE = 32


def report(message: str, error: BaseException, **context: Any) -> None:
    """Tell the running loop's exception handler, or the log where no loop runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        _LOGGER.error("%s: %s", message, context, exc_info=error)
    else:
        loop.call_exception_handler({"message": message, "exception": error, **context})


class Slices:
    """How much of a long piece of work to do in one turn of the loop.

    A turn is over when the budget is spent.  Within it the work is done in portions that start at one and double while
    they are cheap, so that a slow callback is noticed after the first one and a fast one is not slowed down by looking
    at the clock.  What the work sets free runs before the next turn, and may take longer than the work itself: if it
    does, the next turn gets less.
    """

    __slots__ = ("_budget", "_clock", "_done", "_ends", "_limit", "_portion", "_started")

    def __init__(self, clock: Clock, budget_ms: float) -> None:
        self._clock = clock
        self._budget = budget_ms / 1000
        self._limit = 1024
        self._portion = 1
        self._done = 0
        self._started = clock.effort()
        self._ends = self._started + self._budget

    def portion(self) -> int:
        """How many to do before asking :attr:`over`."""
        return min(self._portion, self._limit)

    def over(self) -> bool:
        """Count a portion as done; whether the turn is over."""
        self._done += self._portion
        now = self._clock.effort()
        if now - self._started > self._budget / 8:
            self._portion = max(1, self._portion // 2)
        elif self._portion < _MOST_AT_ONCE:
            self._portion *= 2
        self._started = now
        return now >= self._ends or self._done >= self._limit

    async def next_turn(self) -> None:
        """Let the loop go round."""
        await asyncio.sleep(0)
        self.resume()

    def resume(self) -> None:
        """The loop has gone round: begin the next turn, with less to do if this one has set much free."""
        now = self._clock.effort()
        if now - self._started > self._budget * 1.5:
            self._limit = max(16, self._done // 2)
        elif self._done >= self._limit:
            self._limit += self._limit // 4
        self._done = 0
        self._started = now
        self._ends = now + self._budget


class _Deadline(TimerTask):
    """What stands behind ``fail_after``: a future that fails when its time has come."""

    __slots__ = ("future",)

    def __init__(self, delay_ms: int, future: "asyncio.Future[NoReturn]") -> None:
        super().__init__(delay_ms)
        self.future = future

    def run(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimeoutError(f"{self.delay_ms / 1000:g} s have passed"))

    def _abandon(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def withdraw(self, _: "asyncio.Future[NoReturn]") -> None:
        self.cancel()


class SystemTimer(Timekeeper):
    """A timer for one event loop: hierarchical timing wheels and a coroutine, the reaper, that waits for them.

    **Usage.**  ``async with SystemTimer() as timer: timer.call_later(0.2, print, "now")``.  Entering it starts the
    reaper, leaving it (or :meth:`aclose`) ends it.  Without the reaper, ``await timer.advance_clock()`` does one round.

    **Implementation.**  The reaper awaits the earliest bucket that is not empty; with nothing on the timer it sleeps
    without end.  What is due is run in slices of ``turn_budget_ms``, with a turn of the loop between two slices.

    **Cancellation safety.**  A task that raises is reported to the loop's exception handler and harms no other.  If
    somebody cancels the reaper, it comes back when the next bucket falls due, for as long as the timer is open.

    ``tick_ms``, ``wheel_size``: see :class:`TimingWheel`; a deadline is rounded up to the tick.  ``clock``: the
    monotonic clock unless given.  ``turn_budget_ms``: how long one slice may hold the loop, in real milliseconds.
    """

    def __init__(
        self, *, tick_ms: int = 1, wheel_size: int = 20, clock: Clock | None = None, turn_budget_ms: float = 1.0
    ) -> None:
        if clock is not None and not isinstance(clock, Clock):
            raise TypeError(f"clock is a purgatory.clock.Clock, not {clock!r}")
        if not 0.0 < turn_budget_ms < float("inf"):
            raise ValueError(f"turn_budget_ms is a number of milliseconds above 0, not {turn_budget_ms!r}")
        super().__init__(tick_ms, wheel_size, clock)
        self.turn_budget_ms = turn_budget_ms
        self._reaper: asyncio.Task[None] | None = None
        self._alarm: Alarm | None = None
        self._sleepers: list[asyncio.Future[None]] = []
        self._all_answered: asyncio.Future[None] | None = None  # once it is closing
        self._starts_itself = False  # a purgatory's own timer starts when it is first needed

    if TYPE_CHECKING:

        def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerTask: ...

    # Life

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def running(self) -> bool:
        """Whether the reaper is there."""
        return self._reaper is not None and not self._reaper.done()

    def start(self) -> None:
        """Start the reaper in the running loop, unless it is there.  PurgatoryClosed if the timer is closed."""
        if self.closed:
            raise PurgatoryClosed("the timer is closed")
        if not self.running:
            loop = asyncio.get_running_loop()
            self.loop = loop
            self._reaper = loop.create_task(self._reap(), name="purgatory-reaper")
            self._reaper.add_done_callback(self._reaper_ended)

    async def aclose(self) -> None:
        """End the reaper and take every task off.  Idempotent.

        The operations among them expire now and the futures of :meth:`fail_after` fail with PurgatoryClosed, so that
        everyone is answered; other tasks do not run any more.
        """
        reaper = self._reaper
        if self._all_answered is not None:
            await asyncio.shield(self._all_answered)
        else:
            self.closed = True
            self._all_answered = asyncio.get_running_loop().create_future()
            try:
                await self._abandon_in_slices(deque(self.heart.clear()))
            finally:
                self._silence()
                if reaper is not None:
                    reaper.cancel()
                self._all_answered.set_result(None)
        if reaper is not None and not reaper.done():
            await asyncio.wait([reaper])

    async def _abandon_in_slices(self, tasks: deque[TimerTask]) -> None:
        """Tell each task that its timer is gone; if this is cancelled or interrupted, the rest is told at once."""
        error = PurgatoryClosed("the timer was closed")
        slices = Slices(self.clock, self.turn_budget_ms)
        interrupt: BaseException | None = None
        while tasks:
            try:
                for _ in range(min(slices.portion(), len(tasks))):
                    tasks.popleft()._abandon(error)
                if slices.over() and interrupt is None:
                    await slices.next_turn()
            except BaseException as caught:
                interrupt = caught
        if interrupt is not None:
            raise interrupt

    # Time

    async def advance_clock(self, timeout: float | None = None) -> int:
        """Wait until a bucket falls due, at most ``timeout`` seconds, and run what is due; return how many ran.

        This is one round of the reaper; a bucket that only cascades ends the wait as well, so 0 is no sign of a
        timeout.
        """
        until_ms = None if timeout is None else self.clock.ceil_ms() + duration_ms(timeout, "timeout")
        await self._sleep(until_ms)
        ran = 0
        slices = Slices(self.clock, self.turn_budget_ms)
        while True:
            now_ms = self.clock.now_ms()
            ran += self.heart.expire_due(now_ms, slices.portion())
            over = slices.over()
            if not self.heart.is_due(now_ms):
                return ran
            if over:
                await slices.next_turn()

    def fail_after(self, timeout: float) -> "asyncio.Future[NoReturn]":
        """A future that fails with TimeoutError after ``timeout`` seconds, as Kafka's expiration service.

        Cancel it when it is no longer wanted: its place on the timer is then given up.
        """
        future: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        deadline = _Deadline(duration_ms(timeout, "timeout"), future)
        self.add(deadline)
        future.add_done_callback(deadline.withdraw)
        return future

    def time(self) -> float:
        """The time in seconds on the timer's clock: what ``timeout_at`` and ``Timeout.when()`` count in."""
        return self.clock.time()

    def timeout(self, delay: float | None) -> Timeout:
        """``asyncio.timeout`` on the wheel: cancel the block after ``delay`` seconds and raise TimeoutError from it.

        ::

            async with timer.timeout(5.0) as deadline:
                await answer()
                deadline.reschedule(timer.time() + 5.0)

        None (or infinity): no deadline; one that has passed cancels the block at its first await.  Entering it starts
        the timer, and raises PurgatoryClosed if it is closed.  See :class:`purgatory.timeouts.Timeout`.
        """
        return Timeout(self, None if delay is None else self.clock.time() + checked(delay, "delay"))

    def timeout_at(self, when: float | None) -> Timeout:
        """:meth:`timeout` with the deadline itself, in seconds of the timer's clock (see :meth:`time`)."""
        return Timeout(self, None if when is None else checked(when, "when"))

    # Inside

    async def _reap(self) -> None:
        while not self.closed:
            await self.advance_clock()

    async def _sleep(self, until_ms: int | None) -> None:
        """Return when a bucket has fallen due, or ``until_ms`` has come."""
        while True:
            now_ms = self.clock.now_ms()
            if self.heart.is_due(now_ms) or (until_ms is not None and now_ms >= until_ms):
                return
            sleeper = asyncio.get_running_loop().create_future()
            self._sleepers.append(sleeper)
            self._set_alarm(self.next_expiration_ms)
            limit = None if until_ms is None else self.clock.call_at(until_ms, self._ring)
            try:
                await sleeper
            finally:
                if limit is not None:
                    limit.cancel()
                if sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)

    def _set_alarm(self, when_ms: int | None) -> None:
        if when_ms is None:
            self._silence()
        elif when_ms != self.alarm_ms or self._alarm is None:
            self._silence()
            self._alarm = self.clock.call_at(when_ms, self._ring)
            self.alarm_ms = when_ms

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.alarm_ms: i64 = FAR_MS

    def _wake(self) -> None:
        self._silence()
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)
        self._sleepers.clear()

    def _ring(self) -> None:
        self._wake()
        if self._reaper is not None and self._reaper.done() and not self.closed:
            self.start()

    def earlier(self, expiration_ms: int) -> None:
        if self._sleepers or (self._reaper is not None and self._reaper.done()):
            try:
                self._set_alarm(expiration_ms)
            except RuntimeError:  # the loop stands still: who sleeps looks again when it goes on
                self._wake()
            return
        self._silence()  # it may have been set by a sleeper who has left
        self.alarm_ms = expiration_ms  # who goes to sleep next will look; until then only an earlier one is news
        if self._reaper is None and self._starts_itself:
            with contextlib.suppress(RuntimeError):  # no loop runs yet
                self.start()

    def _reaper_ended(self, reaper: "asyncio.Task[None]") -> None:
        if not reaper.cancelled():
            reaper.exception()
        if not self.closed and self.loop is not None and not self.loop.is_closed():
            # Not a new task at once: that would never end where a whole loop is being shut down.
            self._set_alarm(self.next_expiration_ms)

    def _report(self, error: BaseException, task: TimerTask) -> None:
        report("a timer task raised", error, timer_task=task)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "running" if self.running else "idle"
        return (
            f"<SystemTimer {state} tick_ms={self.wheel.tick_ms} wheel_size={self.wheel.wheel_size} size={self.size}"
            f" next_expiration_ms={self.next_expiration_ms}>"
        )
