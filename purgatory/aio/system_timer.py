"""The timer of an event loop: its life cycle, its tasks, and its timeouts.

The wheels are in ``core.timer``; the task that waits for them is in :mod:`.reaper`; the event loop, thread, and process
to which the timer belongs are the subject of :mod:`.loop_binding`.
"""

import asyncio
import weakref
from collections.abc import Callable
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from purgatory.core.timer.base_timeout import deadline_in
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.core.timer.clock import Clock
from purgatory.core.timer.event_loop import event_loop
from purgatory.core.timer.task import TimerTask
from purgatory.core.timer.units import duration_ms, to_seconds, validated_time
from purgatory.errors import PurgatoryClosed
from purgatory.texts import safe_repr

from .closing import Closing
from .error_reporting import report
from .loop_binding import LoopBinding
from .monotonic_clock import MonotonicClock
from .reaper import Reaper
from .timeout import Timeout
from .turn_budget import TurnBudget

__all__ = ["SystemTimer"]

_LONGEST_BUDGET_MS = 1e9

event_loop.running_loop = asyncio.get_running_loop
event_loop.current_loop = asyncio._get_running_loop
event_loop.current_task = asyncio.current_task


class _Deadline(TimerTask):
    """The timer task of ``fail_after``, which makes a future fail at its deadline."""

    __slots__ = ("future",)

    def __init__(self, delay_ms: int, future: "asyncio.Future[NoReturn]") -> None:
        super().__init__(delay_ms)
        self.future = future

    def run(self) -> None:
        self._fail(TimeoutError(f"{to_seconds(self.delay_ms):g} s have passed"))

    def _timer_closed(self) -> None:
        self._fail(PurgatoryClosed("the timer was closed"))

    def _fail(self, error: Exception) -> None:
        if not self.future.done() and not self.future.get_loop().is_closed():
            self.future.set_exception(error)

    def withdraw(self, _: "asyncio.Future[NoReturn]") -> None:
        self.cancel()


class SystemTimer(BaseTimer):
    """A timer for one event loop: hierarchical timing wheels, and a reaper task that waits for them.

    **Usage.**  ``async with SystemTimer() as timer: timer.call_later(0.2, print, "now")``.  Entering the block starts
    the reaper; leaving the block or calling :meth:`aclose` stops the reaper.  Without the reaper, ``await
    timer.advance_clock()`` performs one round of the reaper's work.

    **Implementation.**  The reaper waits for the earliest nonempty bucket; it never wakes for an empty timer.  Due
    tasks run in slices of ``turn_budget_ms``, with one turn of the loop between slices.

    **Cancellation safety.**  The loop's exception handler receives any exception that a task raises; other tasks are
    not affected.  If the reaper's task is cancelled while the timer is open, a new one starts when the next bucket is
    due.

    **Event loops.**  The timer belongs to the loop in which it is first used.  If that loop is closed, the next use in
    another loop moves the timer there, with its tasks, their deadlines, and its reaper.  If that loop has stopped but
    is not closed, the following calls move the timer: :meth:`start`, ``async with``, :meth:`timeout`,
    :meth:`fail_after`, :meth:`aclose`, and entering a purgatory on the timer or waiting in one.  :meth:`add`,
    :meth:`call_later`, and :meth:`Purgatory.try_complete_else_watch` are certain to move the timer only if the new
    deadline is the earliest on it.  Otherwise, tasks may not run until one of the calls listed above moves the timer,
    so call :meth:`start` first.  While the first loop runs in another thread, a call that would move the timer raises
    RuntimeError.

    ``tick_ms``, ``wheel_size``: see :class:`TimingWheel`; a deadline is rounded up to the tick.  ``clock``: by default,
    the monotonic clock.  ``turn_budget_ms``: how long one slice may occupy the loop, in real milliseconds.
    """

    def __init__(
        self, *, tick_ms: int = 1, wheel_size: int = 20, clock: Clock | None = None, turn_budget_ms: float = 1.0
    ) -> None:
        if clock is not None and not isinstance(clock, Clock):
            raise TypeError(f"clock must be a purgatory.types.Clock, got {safe_repr(clock)}")
        if isinstance(turn_budget_ms, bool) or not isinstance(turn_budget_ms, (int, float)):
            raise TypeError(f"turn_budget_ms must be a number of milliseconds, got {safe_repr(turn_budget_ms)}")
        if not 0.0 < turn_budget_ms <= _LONGEST_BUDGET_MS:
            raise ValueError(f"turn_budget_ms must be above 0 and at most 1e9, got {safe_repr(turn_budget_ms)}")
        # Reading a cancelled future raises CancelledError, which then counts as a failure of the timer task itself.
        contained = (Exception, asyncio.CancelledError)
        super().__init__(tick_ms, wheel_size, MonotonicClock() if clock is None else clock, contained)
        self.turn_budget_ms = turn_budget_ms
        self._purgatories: weakref.WeakSet[Any] = weakref.WeakSet()  # each is notified when the loop changes
        self._closing: Closing | None = None
        self._reaper = Reaper(self)
        self._binding = LoopBinding(self)

    if TYPE_CHECKING:

        def add(self, task: TimerTask) -> None: ...

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
        """Whether the reaper is running."""
        return self._reaper.running

    def start(self) -> None:
        """Start the reaper in the running loop unless the reaper is already running.

        Raises PurgatoryClosed if the timer is closed.
        """
        self._reaper.start()

    async def aclose(self) -> None:
        """Stop the reaper and remove every task, in slices and in the order of the deadlines.  Idempotent.

        The operations on the timer expire now, and the futures of :meth:`fail_after` fail with PurgatoryClosed, so
        every waiter is answered.  Other tasks never run.  Close the purgatories on a shared timer first: they run the
        checks that have been requested (:meth:`Purgatory.check_soon`), but this method does not.
        """
        loop = self._binding.bind()
        reaper_task = self._reaper.task
        while self._closing is not None and self._closing.answers(loop):
            if await self._closing.ended():
                break
        else:  # the first call, or the first one after a call whose loop or coroutine was closed
            self.closed = True
            closing = self._closing = Closing(loop)
            try:
                await self._end_in_slices(closing)
            finally:
                if not closing.dropped:
                    self._reaper.stop()
                closing.end()
        if reaper_task is not None and not reaper_task.done():
            await asyncio.wait([reaper_task])

    async def _end_in_slices(self, closing: Closing) -> None:
        """Inform every task that the timer has closed: in slices, or all at once after a cancellation or interrupt."""
        if self._core._counter.value == 0:
            return
        slices = TurnBudget(self.clock, self.turn_budget_ms)
        interrupt: BaseException | None = None
        while self._core._counter.value:
            try:
                Context().run(self._end_some, slices.portion())
                if slices.over() and interrupt is None:
                    await closing.wait_for(slices.next_turn())
            except BaseException as caught:
                if closing.dropped:
                    raise
                interrupt = caught
        if interrupt is not None:
            raise interrupt

    def _end_some(self, number: int) -> None:
        """Inform the next ``number`` tasks on the timer.

        Each task leaves the timer only then, because the end of one task may end or move others.
        """
        for _ in range(number):
            for task in self._core.drain(1):
                try:
                    task._timer_closed()
                except self._core._contained as raised:
                    self._report(raised, task)

    # Time

    async def advance_clock(self, timeout: float | None = None) -> int:
        """Wait at most ``timeout`` seconds for a bucket to become due, run the due tasks, and return how many ran.

        This is one round of the reaper's work.  Even if a bucket is already due, the method waits for one turn of the
        loop, so that other tasks run between two rounds.  The wait also ends when a bucket only cascades, so a result
        of 0 does not mean that ``timeout`` seconds have passed.  With 1,000 or more tasks on the timer, a coarse bucket
        is cascaded before it is due.  Raises PurgatoryClosed if the timer is closed or closes during the wait.
        """
        until_ms = None if timeout is None else self.clock.ceil_ms() + duration_ms(timeout, "timeout")
        await self._reaper.sleep(until_ms)
        ran = 0
        slices = TurnBudget(self.clock, self.turn_budget_ms)
        while True:
            if self.closed:
                return ran
            now_ms = self.clock.now_ms()
            ran += Context().run(self._core.expire_due, now_ms, slices.portion())
            over = slices.over()
            if not self._core.is_due(now_ms) and not self._core.cascade_early(now_ms, slices.portion()):
                return ran
            if over:
                await slices.next_turn()

    def fail_after(self, timeout: float) -> "asyncio.Future[NoReturn]":
        """Return a future that fails with TimeoutError after ``timeout`` seconds, as Kafka's expiration service does.

        Cancelling the future removes its deadline from the timer.
        """
        future: asyncio.Future[NoReturn] = self._binding.bind().create_future()
        deadline = _Deadline(duration_ms(timeout, "timeout"), future)
        self.add(deadline)
        future.add_done_callback(deadline.withdraw, context=Context())
        return future

    def time(self) -> float:
        """Return the time in seconds on the timer's clock.  ``timeout_at`` and ``Timeout.when()`` use this scale."""
        return self.clock.time()

    def timeout(self, delay: float | None) -> Timeout:
        """Cancel the block after ``delay`` seconds and raise TimeoutError from it, as ``asyncio.timeout`` does.

        ::

            async with timer.timeout(5.0) as deadline:
                await answer()
                deadline.reschedule(timer.time() + 5.0)

        If ``delay`` is None or infinity, there is no deadline.  A deadline that has passed cancels the block at its
        first await.  Entering the block starts the timer, or raises PurgatoryClosed if the timer is closed.  See
        :class:`purgatory.types.Timeout`.
        """
        return Timeout(self, deadline_in(self, delay))

    def timeout_at(self, when: float | None) -> Timeout:
        """Do the same as :meth:`timeout`, but with a deadline in seconds on the timer's clock (see :meth:`time`)."""
        return Timeout(self, None if when is None else validated_time(when, "when"))

    # Inside

    def _wake_earlier(self, expiration_ms: int) -> None:
        self._reaper.wake_earlier(expiration_ms)

    def _loop_changed(self, loop: asyncio.AbstractEventLoop) -> None:
        for purgatory in list(self._purgatories):
            purgatory._loop_changed(loop)

    def _report(self, error: BaseException, task: TimerTask) -> None:
        report("a timer task raised", error, timer_task=task)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "running" if self.running else "idle"
        return (
            f"<SystemTimer {state} tick_ms={self.wheel.tick_ms} wheel_size={self.wheel.wheel_size} size={self.size}"
            f" next_expiration_ms={self.next_expiration_ms}>"
        )
