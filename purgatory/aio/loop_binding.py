"""The binding of a timer: to which event loop, thread, and process it belongs.

**Event loops.**  A timer belongs to one event loop at a time.  If the previous loop is closed or has stopped,
:meth:`LoopBinding.bind` moves the timer to the running loop: a new task replaces the reaper's task, and every sleeper
is woken.  Adding a task moves the timer only if the task needs an earlier wake-up.

**Forks.**  In a child process, a timer with tasks cannot be used, whatever the state of its loop: its operations are
also parked in the parent and would be answered twice.  Tasks that both processes may run (``shared_tasks``, such as the
inspector's samples) do not count.  Any other timer can be used.  If its loop was running at the fork, the timer no
longer belongs to any loop, because the loop does not run in the child, although the child's copy of the loop still
claims to be running.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from purgatory.core.timer.task import FAR_MS, TimerTask
from purgatory.core.timer.thread_guard import FOREIGN_THREAD

if TYPE_CHECKING:
    from .system_timer import SystemTimer

__all__ = ["LoopBinding"]


class LoopBinding:
    """The event loop, thread, and process to which one :class:`SystemTimer` belongs.

    ``shared_tasks``: tasks of the library that answer no waiter; after a fork, both processes run them.
    """

    __slots__ = ("_inherited", "_timer", "shared_tasks")

    def __init__(self, timer: "SystemTimer") -> None:
        self._timer = timer
        self.shared_tasks: weakref.WeakSet[TimerTask] = weakref.WeakSet()
        self._inherited = False  # whether the timer had tasks when this process was forked
        _timers.add(timer)

    # The event loop

    def bind(self) -> asyncio.AbstractEventLoop:
        """Bind the timer to the running event loop and return the loop.

        If the timer belonged to another loop, it keeps its tasks with their deadlines, and its reaper if there was one.
        Raises RuntimeError if no loop is running, or if the timer's loop is running in another thread.
        """
        loop = asyncio._get_running_loop()
        if loop is None:
            self._refuse_elsewhere()
            raise RuntimeError("no running event loop: from another thread, call check_threadsafe()")
        if loop is not self._timer._loop:
            self._move_to(loop)
        return loop

    def _move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        timer = self._timer
        reaper = timer._reaper
        task = reaper.task
        self._refuse_elsewhere()
        if timer._loop is not None:
            if task is not None and not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # its loop may never run again
                if not timer._loop.is_closed():
                    task.cancel()
            reaper.task = timer._started_in = None
            reaper._wake_sleepers()
        timer._loop = loop
        self._guard_thread()
        if task is not None and not timer.closed:
            reaper.start()
        timer._loop_changed(loop)

    def _guard_thread(self) -> None:
        """Make the timer refuse calls from other threads while its loop runs."""
        owned = threading.RLock()
        owned.acquire()  # never released: it serves only to identify the owner
        is_here: Callable[[], bool] = owned._is_owned  # type: ignore[attr-defined]
        self._timer._guard.bind(is_here, self._refuse_elsewhere)

    def _refuse_elsewhere(self) -> None:
        """Raise RuntimeError if the timer's loop is running in another thread."""
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
        """In a child process, leave the tasks, the operations, and the held locks to the parent."""
        timer = self._timer
        reaper = timer._reaper
        loop = timer._loop
        purgatories = list(timer._purgatories)
        for purgatory in purgatories:
            purgatory._soon.renew_lock()  # whatever the state of the loop: a request may come at any time
            purgatory._forget_holders()
        shared = sum([task.scheduled for task in self.shared_tasks])
        self._inherited = timer.size > shared or any(len(purgatory) for purgatory in purgatories)
        if self._inherited:
            timer._guard.bind(lambda: False, self._refuse_elsewhere)
        elif loop is None or not loop.is_running():
            return  # the next loop that uses the timer takes it over
        task = reaper.task
        if task is not None:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it ends in the parent
            if not loop.is_running() and not loop.is_closed():
                task.cancel()  # the child may run its copy of the loop
        reaper.task = reaper._alarm = timer._started_in = timer._loop = None
        reaper._sleepers.clear()
        reaper._wake_up_number += 1
        timer._next_wake_ms = FAR_MS
        for purgatory in purgatories:
            purgatory._after_fork()


_timers: "weakref.WeakSet[SystemTimer]" = weakref.WeakSet()


def _after_fork() -> None:
    for timer in list(_timers):
        timer._binding._after_fork()


with contextlib.suppress(AttributeError):  # Windows has no fork()
    os.register_at_fork(after_in_child=_after_fork)
