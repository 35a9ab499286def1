"""The binding of a timer: to which event loop, thread, and process it belongs.

**Event loops.**  A timer belongs to one event loop at a time.  If the previous loop is closed or has stopped,
:meth:`LoopBinding.bind` moves the timer to the running loop: a new task replaces the reaper's task, and every sleeper
is woken (see :mod:`.reaper`).  Adding a task moves the timer only if the task needs an earlier wake-up.

**Threads.**  While its loop runs, the timer refuses calls from other threads (see ``core.timer.thread_guard``).  A loop
that has stopped may run again in another thread.

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

from purgatory.core.timer.task import TimerTask
from purgatory.core.timer.thread_guard import FOREIGN_THREAD

if TYPE_CHECKING:
    from .system_timer import SystemTimer

__all__ = ["LoopBinding"]


class LoopBinding:
    """The event loop, thread, and process to which one :class:`SystemTimer` belongs.

    Only this class changes ``timer._loop`` and binds ``timer._guard``.  ``shared_tasks``: tasks of the library that
    answer no waiter; after a fork, both processes run them.
    """

    __slots__ = ("__weakref__", "_inherited", "_timer", "shared_tasks")

    def __init__(self, timer: "SystemTimer") -> None:
        self._timer = timer
        self.shared_tasks: weakref.WeakSet[TimerTask] = weakref.WeakSet()
        self._inherited = False  # whether the timer had tasks when this process was forked
        _bindings.add(self)

    # The event loop

    def bind(self) -> asyncio.AbstractEventLoop:
        """Bind the timer to the running event loop and return the loop.

        If the timer belonged to another loop, it keeps its tasks with their deadlines, and its reaper if there was one.
        Raises RuntimeError if no loop is running, or if the timer's loop is running in another thread.
        """
        loop = asyncio._get_running_loop()
        if loop is None:
            self.refuse_elsewhere()
            raise RuntimeError("no running event loop: from another thread, call check_threadsafe()")
        if loop is not self._timer._loop:
            self.move_to(loop)
        return loop

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do the same as :meth:`bind`, for the running loop, if the timer does not yet belong to this loop."""
        timer = self._timer
        reaper = timer._reaper
        task = reaper.task
        self.refuse_elsewhere()
        if timer._loop is not None:
            reaper.leave_loop()
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
        self._timer._guard.bind(is_here, self.refuse_elsewhere)

    def refuse_elsewhere(self) -> None:
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

    def after_fork(self) -> None:
        """In a child process, leave the tasks, the operations, and the held locks to the parent."""
        timer = self._timer
        loop = timer._loop
        purgatories = list(timer._purgatories)
        for purgatory in purgatories:
            purgatory._soon.renew_lock()  # whatever the state of the loop: a request may come at any time
            purgatory._forget_holders()
        shared = sum([task.scheduled for task in self.shared_tasks])
        self._inherited = timer.size > shared or any(len(purgatory) for purgatory in purgatories)
        if self._inherited:
            timer._guard.bind(lambda: False, self.refuse_elsewhere)
        elif loop is None or not loop.is_running():
            return  # the next loop that uses the timer takes it over
        timer._reaper.leave_to_parent()
        timer._loop = None
        for purgatory in purgatories:
            purgatory._after_fork()


_bindings: "weakref.WeakSet[LoopBinding]" = weakref.WeakSet()


def _after_fork() -> None:
    for binding in list(_bindings):
        binding.after_fork()


with contextlib.suppress(AttributeError):  # Windows has no fork()
    os.register_at_fork(after_in_child=_after_fork)
