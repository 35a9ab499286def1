"""The reaper: the task that waits for the earliest bucket of a timer and runs what is due.

Kafka's ``ExpiredOperationReaper`` polls every 200 ms.  This one asks the clock for one wake-up, at the expiration of
the earliest bucket; with an empty timer it asks for none.

1. The reaper's task, and every caller of ``advance_clock``, waits on a future, its *sleeper*.
2. One *wake-up* is requested from the clock.  ``timer._next_wake_ms`` is its time as the timer knows it: when a task is
   added that is due earlier, the timer calls :meth:`Reaper.wake_earlier`, which requests an earlier wake-up.
3. The wake-up completes every sleeper.  Each waiting task then looks at the timer again.

**Event loops.**  A timer belongs to one event loop at a time.  If the previous loop is closed or has stopped,
:meth:`Reaper.bind` moves the timer to the running loop: a new task replaces the reaper's task, and every sleeper is
woken.  Adding a task moves the timer only if the task needs an earlier wake-up.

**Forks.**  If a loop runs in the parent when a process forks, it does not run in the child, but its copy there still
claims to run.  In the child, a timer without tasks belongs to no loop again.  A timer with tasks is refused: their
operations are also parked in the parent, and would be answered twice.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING

from purgatory.core.timer.clock import Alarm
from purgatory.core.timer.task import FAR_MS
from purgatory.core.timer.thread_guard import FOREIGN_THREAD
from purgatory.errors import PurgatoryClosed

from .error_reporting import report

if TYPE_CHECKING:
    from .system_timer import SystemTimer

__all__ = ["Reaper"]


class _WakeUp:
    """The callback of a requested wake-up.  Only the event loop holds it; closing the loop frees it uncalled."""

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
    """Report the exception that ended the reaper: an error of a clock, or an interrupt that a hook raised.

    asyncio itself raises KeyboardInterrupt and SystemExit from the call that runs the loop.
    """
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        report("the reaper of a timer was interrupted", error, task=task)


class Reaper:
    """The task of one :class:`SystemTimer`, the wake-up it waits for, and the event loop it runs in.

    ``task``: None before the first start.  ``starts_itself``: the first task on the timer starts it.
    """

    __slots__ = (
        "_alarm",
        "_inherited",
        "_sleepers",
        "_timer",
        "_wake_up_ms",
        "_wake_up_number",
        "starts_itself",
        "task",
    )

    def __init__(self, timer: "SystemTimer") -> None:
        self._timer = timer
        self.task: asyncio.Task[None] | None = None
        self.starts_itself: bool = False
        self._sleepers: list[asyncio.Future[None]] = []
        self._inherited = False  # with tasks, from the process that forked this one
        self._alarm: Alarm | None = None  # the requested wake-up
        # Its time.  timer._next_wake_ms may be later, so that wake_earlier() is called more often.
        self._wake_up_ms = FAR_MS
        self._wake_up_number = 0

    # The task

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
        loop = self.bind()
        if not self.running:
            replaces_cancelled = self.task is not None and self.task.done() and self.task.cancelled()
            # Not create_task(context=...): a task factory need not take one, and a task copies the current context.
            self.task = Context().run(loop.create_task, self._reap(), name="purgatory-reaper")
            self.task.add_done_callback(self._task_ended, context=Context())
            self.task.add_done_callback(_report_interruption, context=Context())
            self._timer._started_in = loop
            if replaces_cancelled:
                # asyncio.run() cancels every task, and then runs the loop until the default executor has shut down.
                # Deadlines still come meanwhile, but asyncio cancels no task that starts so late: a reaper that is
                # asleep when the loop is closed ends there, and is not a task that was forgotten.
                self.task._log_destroy_pending = False  # type: ignore[attr-defined]

    def stop(self, task: "asyncio.Task[None] | None") -> None:
        """Cancel the wake-up, and ``task`` unless another one has replaced it."""
        self._cancel_wake_up()
        if task is not None and task is self.task:
            task.cancel()

    async def _reap(self) -> None:
        if self.task is not asyncio.current_task():  # an eager task factory runs this inside start()
            await asyncio.sleep(0)
        while not self._timer.closed:
            await self._timer.advance_clock()

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        timer = self._timer
        if task is not self.task or timer.closed or timer._loop.is_closed():
            return
        # Do not start a new task here: while a loop shuts down and cancels every task, that would never end.  Until the
        # wake-up, each added task calls wake_earlier(), which detects another loop.
        timer._next_wake_ms = FAR_MS
        self._set_wake_up(timer.next_expiration_ms)

    # Sleeping

    async def sleep(self, until_ms: int | None) -> None:
        """Wait until a bucket is due or has to be cascaded early, but not beyond ``until_ms``."""
        timer = self._timer
        while True:
            now_ms = timer.clock.now_ms()
            work_ms = min(timer._core.next_work_ms(now_ms), timer._core.next_early_ms())
            if work_ms <= now_ms or (until_ms is not None and now_ms >= until_ms):
                return
            sleeper = self.bind().create_future()
            self._sleepers.append(sleeper)
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
        """Request an earlier wake-up, because a bucket is due at ``expiration_ms``, before ``next_wake_ms``."""
        timer = self._timer
        loop = asyncio._get_running_loop()
        if loop is None:
            # No loop runs.  The sleepers look again when their loop continues.  Until then each added task calls this
            # method, so the first one that is added in a running loop is noticed.
            self._refuse_elsewhere()
            self._wake_sleepers()
            return
        if loop is not timer._loop and timer._loop is not None:
            self._move_to(loop)
        if self.task is None:
            if self.starts_itself and not timer.closed:
                self.start()
            elif not self._sleepers:
                timer._next_wake_ms = expiration_ms  # only an earlier bucket matters to the next sleeper
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
        self.bind()  # a clock that belongs to no loop calls this in the running one
        self._wake_sleepers()
        if self.task is not None and self.task.done() and not self._timer.closed:
            self.start()

    def _wake_up_lost(self) -> None:
        """The loop was closed before the wake-up: the next added task detects the running loop."""
        self._alarm = None
        self._timer._next_wake_ms = FAR_MS

    # The event loop

    def bind(self) -> asyncio.AbstractEventLoop:
        """Bind the timer to the running event loop, and return the loop.

        If the timer belonged to another loop, it keeps its tasks with their deadlines, and its reaper if it had one.
        Raises RuntimeError if no loop is running, or if the timer's loop is running in another thread.
        """
        loop = asyncio._get_running_loop()
        if loop is None:
            self._refuse_elsewhere()
            raise RuntimeError("no running event loop: from another thread call check_threadsafe()")
        if loop is not self._timer._loop:
            self._move_to(loop)
        return loop

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        timer = self._timer
        task = self.task
        if timer._loop is not None:
            self._refuse_elsewhere()
            if task is not None and not task.done():
                if timer._loop.is_closed():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # a new task replaces it
                else:
                    task.cancel()
            self.task = timer._started_in = None
            self._wake_sleepers()
        timer._loop = loop
        _bound.add(timer)
        self._guard_thread()
        if task is not None and not timer.closed:
            self.start()
        timer._loop_changed(loop)

    def _guard_thread(self) -> None:
        """Make the timer refuse calls from threads other than this one while its loop runs."""
        owned = threading.RLock()
        owned.acquire()  # never released: it only knows its owner
        is_here: Callable[[], bool] = owned._is_owned  # type: ignore[attr-defined]
        self._timer._guard.bind(is_here, self._refuse_elsewhere)

    def _refuse_elsewhere(self) -> None:
        """Raise RuntimeError if the loop of the timer runs in a thread other than this one."""
        loop = self._timer._loop
        if self._inherited:
            raise RuntimeError(
                "the timer had tasks when this process was forked, and they belong to the parent process:"
                " create the purgatory after the fork"
            )
        if loop is None or loop.is_closed() or not loop.is_running():
            return
        if loop is not asyncio._get_running_loop():
            raise RuntimeError(FOREIGN_THREAD)
        self._guard_thread()  # the loop was started again, in this thread

    # Forks

    def _after_fork(self) -> None:
        """In the child process, forget the parent's loop, task, and wake-up."""
        timer = self._timer
        if timer._loop is None or not timer._loop.is_running():
            return  # the next loop that uses the timer takes it over
        if self.task is not None:
            self.task._log_destroy_pending = False  # type: ignore[attr-defined]  # it ends in the parent
        self.task = self._alarm = timer._started_in = None
        self._sleepers.clear()
        self._wake_up_number += 1
        timer._next_wake_ms = FAR_MS
        purgatories = list(timer._purgatories)
        for purgatory in purgatories:
            purgatory._after_fork()
        self._inherited = timer.size > 0 or any(len(purgatory) for purgatory in purgatories)
        if self._inherited:
            timer._guard.bind(lambda: False, self._refuse_elsewhere)
        else:
            timer._loop = None


_bound: "weakref.WeakSet[SystemTimer]" = weakref.WeakSet()  # the timers that belong or have belonged to a loop


def _after_fork() -> None:
    for timer in list(_bound):
        timer._reaper._after_fork()


with contextlib.suppress(AttributeError):  # Windows has no fork()
    os.register_at_fork(after_in_child=_after_fork)
