"""The reaper: the task that waits for the earliest bucket of a timer and runs the due tasks.

Kafka's ``ExpiredOperationReaper`` polls every 200 ms.  This reaper requests one wake-up from the clock, at the
expiration of the earliest bucket; if the timer is empty, it requests none.

1. The reaper's task, and every caller of ``advance_clock``, waits on a future, its *sleeper*.
2. One *wake-up* is requested from the clock.  The timer keeps the time of the wake-up in ``timer._next_wake_ms``.  When
   a task with an earlier deadline is added, the timer calls :meth:`Reaper.wake_earlier`, which requests an earlier
   wake-up.
3. The wake-up completes every sleeper.  Each waiting task then examines the timer again.

The event loop, thread, and process to which the timer belongs are the subject of :mod:`.loop_binding`.
"""

import asyncio
import contextlib
from contextvars import Context
from typing import TYPE_CHECKING

from purgatory.core.timer.clock import Alarm
from purgatory.core.timer.task import FAR_MS
from purgatory.errors import PurgatoryClosed

from .error_reporting import report

if TYPE_CHECKING:
    from .system_timer import SystemTimer

__all__ = ["Reaper"]


class _WakeUp:
    """The callback of a requested wake-up.  Only the event loop refers to it; closing the loop frees it without calling
    it.
    """

    __slots__ = ("_number", "_reaper")

    def __init__(self, reaper: "Reaper", number: int) -> None:
        self._reaper = reaper
        self._number = number

    def __call__(self) -> None:
        if self._reaper._wake_up_number == self._number:
            self._reaper._wake_up()

    def __del__(self) -> None:
        if self._reaper._wake_up_number == self._number:
            self._reaper._wake_up_lost()


def _report_interruption(task: "asyncio.Task[None]") -> None:
    """Report the exception that ended the reaper: an error raised by a clock, or an interrupt raised by a hook.

    KeyboardInterrupt and SystemExit are not reported, because asyncio raises them from the call that runs the loop.
    """
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        report("the reaper of a timer was interrupted", error, task=task)


class Reaper:
    """The task of one :class:`SystemTimer`, and the wake-up that it waits for.

    Only this class changes ``timer._reaper_task``, ``timer._started_in``, and ``timer._next_wake_ms``.
    ``starts_itself``: whether adding the first task to the timer starts the reaper.
    """

    __slots__ = ("_alarm", "_sleepers", "_timer", "_wake_up_ms", "_wake_up_number", "starts_itself")

    def __init__(self, timer: "SystemTimer") -> None:
        self._timer = timer
        self.starts_itself: bool = False
        self._sleepers: list[asyncio.Future[None]] = []
        self._alarm: Alarm | None = None  # the requested wake-up
        # The time of the wake-up.  timer._next_wake_ms may be later, so that wake_earlier() is called more often.
        self._wake_up_ms = FAR_MS
        self._wake_up_number = 0

    # The task

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """The task; None before the first start."""
        return self._timer._reaper_task  # type: ignore[no-any-return]

    @property
    def running(self) -> bool:
        """Whether the task has been started and has not ended."""
        return self.task is not None and not self.task.done() and not self._timer._loop.is_closed()

    def start(self) -> None:
        """Start the task in the running loop unless the task is already running.

        Raises PurgatoryClosed if the timer is closed.
        """
        if self._timer.closed:
            raise PurgatoryClosed("the timer is closed")
        loop = self._timer._binding.bind()
        if not self.running:
            # create_task(context=...) is not used: a task factory need not accept a context, and a task copies the
            # current context.
            task = Context().run(loop.create_task, self._reap(), name="purgatory-reaper")
            self._timer._reaper_task = task
            task.add_done_callback(self._task_ended, context=Context())
            task.add_done_callback(_report_interruption, context=Context())
            self._timer._started_in = loop
            # A reaper that is asleep may simply end, without asyncio's warning that a pending task was destroyed:
            # - The purgatory or timer was never closed, and no other object refers to it.
            # - asyncio.run() cancels every task and then runs the loop until the default executor has shut down.
            #   Deadlines still pass in the meantime, but asyncio does not cancel a reaper that starts so late.
            # - The timer moves to another loop, or to a child process, and this loop never runs again.
            with contextlib.suppress(AttributeError):  # the tasks of a task factory may give no warning
                task._log_destroy_pending = False  # type: ignore[attr-defined]

    def stop(self) -> None:
        """Wake every sleeper, because the timer is closed.  The task then ends by itself."""
        self._wake_sleepers()

    def leave_loop(self) -> None:
        """End the task and wake every sleeper, because the timer is about to move from its loop to another one."""
        timer = self._timer
        task = self.task
        if task is not None and not task.done() and not timer._loop.is_closed():
            task.cancel()
        timer._reaper_task = timer._started_in = None
        self._wake_sleepers()

    def leave_to_parent(self) -> None:
        """In a child process, leave the task, the sleepers, and the wake-up to the parent."""
        timer = self._timer
        loop = timer._loop
        task = self.task
        if task is not None and not loop.is_running() and not loop.is_closed():
            task.cancel()  # the child may run its copy of the loop; the task itself ends in the parent
        self._alarm = timer._reaper_task = timer._started_in = None
        self._sleepers.clear()
        self._wake_up_number += 1
        timer._next_wake_ms = FAR_MS

    async def _reap(self) -> None:
        if self.task is not asyncio.current_task():  # an eager task factory runs this inside start()
            await asyncio.sleep(0)
        with contextlib.suppress(PurgatoryClosed):  # the timer has closed in the meantime
            while not self._timer.closed:
                await self._timer.advance_clock()

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        timer = self._timer
        if task is not self.task or timer.closed or timer._loop.is_closed():
            return
        # Do not start a new task here: while a loop shuts down and cancels every task, restarting would never end.
        # Until the wake-up, adding a task calls wake_earlier(), which detects a different loop.
        timer._next_wake_ms = FAR_MS
        self._set_wake_up(timer.next_expiration_ms)

    # Sleeping

    async def sleep(self, until_ms: int | None) -> None:
        """Wait until a bucket is due or must be cascaded early, but not beyond ``until_ms``.

        The wait takes at least one turn of the loop, so that other tasks run between two rounds of work.

        Raises PurgatoryClosed if the timer is closed or closes during the wait.
        """
        timer = self._timer
        timer._guard.validate()
        waited = False
        while True:
            if timer.closed:
                raise PurgatoryClosed("the timer is closed")
            now_ms = timer.clock.now_ms()
            work_ms = min(timer._core.next_work_ms(now_ms), timer._core.next_early_ms())
            if work_ms <= now_ms or (until_ms is not None and now_ms >= until_ms):
                if waited:
                    return
                # A bucket may have fallen due during the previous round of work.  If one always does, the rounds would
                # otherwise follow each other without a turn of the loop, each with a new budget.
                waited = True
                await asyncio.sleep(0)
                continue
            waited = True
            sleeper = timer._binding.bind().create_future()
            self._sleepers.append(sleeper)
            # The garbage collector may have run a finalizer that has started a timer.  Finalizers should not do this,
            # and it can also happen later, but to look again costs little.
            work_ms = min(timer._core.next_work_ms(now_ms), timer._core.next_early_ms())
            self._set_wake_up(None if work_ms == FAR_MS else work_ms)
            limit = None if until_ms is None else timer.clock.call_at(until_ms, self._wake_up)
            try:
                await sleeper
            finally:
                if limit is not None:
                    limit.cancel()
                if sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)

    def _wake_sleepers(self) -> None:
        self._cancel_wake_up()
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            if not sleeper.done():
                with contextlib.suppress(RuntimeError):  # its loop is closed
                    sleeper.set_result(None)

    # The wake-up

    def wake_earlier(self, expiration_ms: int) -> None:
        """Request an earlier wake-up, because a bucket is due at ``expiration_ms``, before ``_next_wake_ms``."""
        timer = self._timer
        loop = asyncio._get_running_loop()
        if loop is None:
            # No loop is running.  The sleepers examine the timer again when their loop continues.  Until then, adding a
            # task calls this method, so the first task that is added in a running loop is noticed.
            timer._binding.refuse_elsewhere()
            self._wake_sleepers()
            return
        if loop is not timer._loop and timer._loop is not None:
            timer._binding.move_to(loop)
        if self.task is None:
            if self.starts_itself and not timer.closed:
                self.start()
            elif not self._sleepers:
                timer._next_wake_ms = expiration_ms  # until the next sleep, only an earlier bucket matters
                return
        if self._alarm is None or expiration_ms < self._wake_up_ms:
            self._set_wake_up(expiration_ms)
        else:
            self._set_wake_up(self._wake_up_ms)

    def _set_wake_up(self, when_ms: int | None) -> None:
        if when_ms is None:
            self._cancel_wake_up()
            return
        if self._alarm is None or when_ms != self._wake_up_ms:
            self._cancel_wake_up()
            self._alarm = self._timer.clock.call_at(when_ms, _WakeUp(self, self._wake_up_number))
            self._wake_up_ms = when_ms
        if self._sleepers or (self.task is not None and not self.task.done()):
            self._timer._next_wake_ms = when_ms

    def _cancel_wake_up(self) -> None:
        self._wake_up_number += 1
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._timer._next_wake_ms = FAR_MS

    def _wake_up(self) -> None:
        self._timer._binding.bind()  # a clock that belongs to no loop calls this in the running loop
        self._wake_sleepers()
        if self.task is not None and self.task.done() and not self._timer.closed:
            self.start()

    def _wake_up_lost(self) -> None:
        """Record that the loop was closed before the wake-up.

        The running loop is detected when the next task is added.
        """
        self._alarm = None
        self._timer._next_wake_ms = FAR_MS
