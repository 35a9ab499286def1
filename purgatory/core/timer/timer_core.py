"""The timer's decisions, with the time as an argument.

:meth:`TimerCore.expire_due` runs the tasks that are due at a given time, and :attr:`TimerCore.next_expiration_ms` is
the time of the next call.  The caller owns the clock and the coroutine that waits.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i64

from .delay_queue import DelayQueue
from .task import FAR_MS, TimerTask, unlink
from .task_list import TaskCounter, TimerTaskList
from .thread_guard import ThreadGuard
from .wheel import TimingWheel

__all__ = ["TimerCore"]

_NO_LIMIT: Final = 1 << 60
_MANY_TASKS: Final = 1000

_OnError = Callable[[BaseException, TimerTask], None]
_Errors = tuple[type[BaseException], ...]


class TimerCore:
    """Tasks by deadline, without a clock.

    ``tick_ms``, ``wheel_size``: see :class:`TimingWheel`.  ``start_ms``: the initial time.  ``on_error``: called with
    any exception that a task raises; the following tasks still run.  ``contained``: the exceptions treated in this way;
    all others propagate.  ``early_from``: with at least this many tasks on the timer, :meth:`cascade_early` empties
    coarse buckets before they fall due (see :mod:`.wheel`); with fewer tasks, early cascades would only add wake-ups.

    **The order of work.**  Three kinds of tasks can be due: the rest of the bucket that an earlier call took
    (``_taken``), tasks that were due when they were added (in ``_due_when_added``, and in ``_ready`` once the next call
    has begun), and tasks in the buckets of the delay queue.  They run in this order:

    1.  The rest of ``_taken``.
    2.  Buckets that expire no later than the wheel's current time, because they were filled before the tasks in
        ``_ready`` were added.
    3.  ``_ready``.
    4.  Later buckets, one at a time.  Taking a bucket moves the wheel's time to the bucket's expiration.
    """

    __slots__ = (
        "_contained",
        "_counter",
        "_drained",
        "_due_when_added",
        "_early_from",
        "_expiring",
        "_on_error",
        "_queue",
        "_ready",
        "_taken",
        "_taken_coarse",
        "_taken_ms",
        "wheel",
    )

    def __init__(
        self,
        tick_ms: Any,
        wheel_size: Any,
        start_ms: int,
        on_error: _OnError,
        contained: _Errors,
        early_from: int = _MANY_TASKS,
    ) -> None:
        self._counter: TaskCounter = TaskCounter()
        self._queue: DelayQueue = DelayQueue()
        self.wheel: TimingWheel = TimingWheel(tick_ms, wheel_size, start_ms, self._queue, self._counter)
        self._due_when_added: TimerTaskList = TimerTaskList(self._counter)
        self._ready: deque[TimerTaskList] = deque()
        self._taken: TimerTaskList = TimerTaskList(self._counter)
        self._taken_ms: i64 = start_ms  # the expiration of the taken bucket
        self._taken_coarse: bool = False  # whether that bucket came from an overflow wheel
        self._expiring: bool = False
        self._drained: bool = False  # whether the timer is closing, in which case nothing runs
        self._early_from: i64 = early_from
        self._on_error = on_error
        self._contained = contained

    @property
    def guard(self) -> ThreadGuard:
        """The guard for the timer's thread."""
        return self._counter.guard

    @property
    def size(self) -> int:
        """The number of tasks on the timer.  Cost: O(1)."""
        return self._counter.value

    @property
    def cascades(self) -> int:
        """How many times tasks have been moved to a finer wheel so far."""
        return self._counter.cascades

    @property
    def next_expiration_ms(self) -> int | None:
        """When the earliest nonempty bucket falls due, or None if the timer is empty.

        This is the time of the next call.  It need not be the deadline of a task: when a coarse bucket falls due, its
        tasks are only cascaded.  Reading the time drops empty buckets, so only the timer's own thread may do so.
        """
        if not self._taken.is_empty:
            return self._taken_ms
        if self._any_left():
            return self.wheel.current_time_ms
        return self._queue.peek_ms()

    def earliest_ms(self) -> int | None:
        """Return :attr:`next_expiration_ms` without changing anything, so that any thread may call this method."""
        if not self._taken.is_empty:
            return self._taken_ms
        for ready in (self._due_when_added, *self._ready):
            if not ready.is_empty:
                return self.wheel.current_time_ms
        return self._queue.earliest_ms()

    def is_due(self, now_ms: i64) -> bool:
        """Return whether :meth:`expire_due` would find anything to do."""
        return self.next_work_ms(now_ms) <= now_ms

    def next_work_ms(self, now_ms: i64) -> i64:
        """Return when the earliest bucket falls due: ``now_ms`` if a task is due, FAR_MS if the timer is empty."""
        if self._any_left():
            return now_ms
        first_ms = self._queue.peek_ms()
        return FAR_MS if first_ms is None else first_ms

    # Scheduling

    def schedule(self, task: TimerTask, expiration_ms: i64, passed_ms: i64) -> i64:
        """Put the task on the timer, to run at ``expiration_ms`` rounded up to a tick.

        ``passed_ms``: the current time rounded **down**.  The wheel must not be ahead of this time; otherwise, a
        deadline within the current millisecond would count as due and fire early.

        Return when the task's bucket falls due; the caller may have to wake up earlier than planned.  If the task is
        already on a timer, it is moved.  A task that is already due runs in the next :meth:`expire_due`, after the
        tasks with the same deadline; this method never runs a task.
        """
        wheel = self.wheel
        tick_ms = wheel.tick_ms
        if passed_ms >= wheel.current_time_ms + tick_ms:
            self._catch_up(passed_ms)
        if expiration_ms > passed_ms and tick_ms != 1:
            expiration_ms += -expiration_ms % tick_ms
        task._expiration_ms = expiration_ms
        if expiration_ms < wheel.current_time_ms + tick_ms:
            self._due_when_added.add(task)
            return wheel.current_time_ms
        if task._list is not None:
            unlink(task)
        return wheel.place(task, expiration_ms)

    def reschedule(self, task: TimerTask, expiration_ms: i64, passed_ms: i64) -> i64:
        """Move the task's deadline, in O(1).  Return what :meth:`schedule` returns, or FAR_MS if no bucket changes.

        A later deadline only changes a number: the task moves to its new bucket when the old one falls due.
        """
        if expiration_ms > passed_ms:
            expiration_ms += -expiration_ms % self.wheel.tick_ms
        if task._list is not None and expiration_ms >= task._expiration_ms:
            task._expiration_ms = expiration_ms
            return FAR_MS
        return self.schedule(task, expiration_ms, passed_ms)

    # Expiring

    def expire_due(self, now_ms: i64, limit: i64 = 0) -> i64:
        """Run the tasks due at ``now_ms``, in the order of their deadlines; return how many ran.

        A ``limit`` above 0 bounds the number of tasks that run, cascade, or move; the rest are kept for the next call.
        If a task is already due when a callback adds it, it waits for the next call, so this call ends even if every
        task adds another.  A contained exception is passed to ``on_error``; KeyboardInterrupt and the like propagate,
        and the next call continues after the task that raised.  If the method is called from inside a task, it does
        nothing and returns 0.
        """
        if self._expiring:
            return 0
        self._expiring = True
        try:
            return self._expire(now_ms, limit if limit > 0 else _NO_LIMIT)
        finally:
            self._expiring = False

    def _expire(self, now_ms: i64, left: i64) -> i64:
        self._begin_call()
        ran: i64 = 0
        while left > 0 and not self._drained:  # a task may have closed the timer
            if self._taken_coarse:
                left -= self.wheel.cascade(self._taken, self._taken_ms, left)
                if left == 0:
                    break
            task = self._taken.pop_first()
            if task is None:
                if not self._take_next(now_ms):
                    break
            else:
                left -= 1
                if not self._moved_back(task):
                    ran += 1
                    self._run(task)
        return ran

    def _run(self, task: TimerTask) -> None:
        try:
            task._fire()
        except BaseException as error:
            if not isinstance(error, self._contained):
                raise
            self._on_error(error, task)

    # Early cascades

    def next_early_ms(self) -> i64:
        """Return when :meth:`cascade_early` will have something to do, or FAR_MS if it has nothing to do before the
        next expiration.
        """
        early_ms: i64 = FAR_MS
        if self._counter.value >= self._early_from:
            first_ms = self._queue.peek_ms()
            if first_ms is not None:
                level = self.wheel.overflow_wheel
                while level is not None:
                    early_ms = min(early_ms, level.early_ms(first_ms))
                    level = level.overflow_wheel
        return early_ms

    def cascade_early(self, now_ms: i64, limit: i64) -> i64:
        """Cascade at most ``limit`` tasks whose coarse buckets fall due soon, or none if a task is due; return how many
        tasks were cascaded.
        """
        if self._counter.value < self._early_from or self.is_due(now_ms):
            return 0
        first_ms = self._queue.peek_ms()
        assert first_ms is not None
        self._catch_up(now_ms)
        return self.wheel.cascade_early(first_ms, now_ms, limit)

    def drain(self, limit: i64) -> list[TimerTask]:
        """Remove and return tasks in the order of their deadlines, to close the timer.  Tasks with equal deadlines are
        returned in the order of arrival.

        ``limit`` bounds the number of tasks that are removed, cascaded, or moved, so the list may be empty while
        :attr:`size` is not yet 0.  The wheel's time advances with the deadlines, so nothing may be scheduled afterward.
        From the first call on, :meth:`expire_due` runs no task.
        """
        self._drained = True
        self._begin_call()
        tasks: list[TimerTask] = []
        left = limit
        while left > 0:
            if self._taken_coarse:
                left -= self.wheel.cascade(self._taken, self._taken_ms, left)
                if left == 0:
                    break
            task = self._taken.pop_first()
            if task is None:
                first_ms = self._queue.peek_ms()
                current_ms = self.wheel.current_time_ms
                if not self._take_next(current_ms if first_ms is None or first_ms < current_ms else first_ms):
                    break
            else:
                left -= 1
                if not self._moved_back(task):
                    tasks.append(task)
        return tasks

    def _begin_call(self) -> None:
        """Move ``_due_when_added`` to the ready tasks, after those that earlier calls have left."""
        added = self._due_when_added._root
        if added._next is not added:
            self._ready.append(self._due_when_added)
            self._due_when_added = TimerTaskList(self._counter)

    def _any_left(self) -> bool:
        """Return whether a task outside the delay queue is due: in the taken bucket, or due when it was added."""
        taken = self._taken._root
        added = self._due_when_added._root
        return taken._next is not taken or added._next is not added or self._any_ready()

    def _any_ready(self) -> bool:
        """Return whether any ready task is left; ready tasks may have been cancelled."""
        ready = self._ready
        while ready and ready[0].is_empty:
            ready.popleft()._clear_links()
        return bool(ready)

    def _take_next(self, now_ms: i64) -> bool:
        """Take the whole next bucket.  Return False if nothing is due; the wheel's time is then ``now_ms``.

        The wheel's time does not advance while tasks are ready, so a bucket for that time was filled before these tasks
        were added.
        """
        if self._any_ready():
            first_ms = self._queue.peek_ms()
            if first_ms is None or first_ms > self.wheel.current_time_ms or first_ms > now_ms:
                self._taken._clear_links()
                self._taken = self._ready.popleft()
                self._taken_ms = self.wheel.current_time_ms
                self._taken_coarse = False
                return True
        found = self._queue.pop_due(now_ms)
        if found is None:
            self._catch_up(now_ms)
            return False
        expiration_ms, wheel = found
        self._taken = wheel.take(expiration_ms, self._taken)
        self._taken_ms = expiration_ms
        self._taken_coarse = wheel.level > 1
        self.wheel.advance(expiration_ms)
        return True

    def _moved_back(self, task: TimerTask) -> bool:
        """Return whether the task's deadline was postponed while it was in the bucket; if so, move the task to its new
        bucket.
        """
        # A task that was due when added may have any deadline within the bucket's tick.
        if task._expiration_ms < self._taken_ms + self.wheel.tick_ms:
            return False
        self.wheel.bucket_for(task._expiration_ms).add(task)
        return True

    def _catch_up(self, now_ms: i64) -> None:
        """Advance the wheel's time to ``now_ms``, but not past the tasks that are due.

        After a long idle time, a new task is therefore placed by its distance from now, not from the last expiration.
        """
        if not self._any_left():
            first_ms = self._queue.next_ms()
            self.wheel.advance(now_ms if first_ms is None or first_ms > now_ms else first_ms)

    def _check(self) -> None:
        """Assert the invariants of the whole timer."""
        total = self.wheel._check() + self._taken._check() + self._due_when_added._check()
        total += sum([ready._check() for ready in self._ready])
        assert total == self._counter.value, f"{total} tasks are in buckets, the counter has {self._counter.value}"
        first_ms = self._queue.next_ms()
        assert first_ms is None or self.wheel.current_time_ms <= first_ms, "the wheel has passed a queued bucket"
