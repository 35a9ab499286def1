"""The timer's decisions, with the time as an argument.

:meth:`TimerCore.expire_due` runs what is due at a given time, and :attr:`TimerCore.next_expiration_ms` says when to
call it again.  The caller owns the clock and the coroutine that waits.
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
    the exception of a task that raised; the tasks after it still run.  ``contained``: the exceptions treated in
    this way; all others propagate.  ``early_from``: with so many tasks on the timer :meth:`cascade_early` empties
    coarse buckets before they fall due (see :mod:`.wheel`); with fewer, that would only add wake-ups.

    **The order of work.**  Three kinds of tasks can be due: the rest of the bucket that an earlier call took
    (``_taken``), tasks that were due when they were added (``_due_when_added``, and ``_ready`` once the next call has
    begun), and buckets of the delay queue.  They run in this order:

    1.  The rest of ``_taken``.
    2.  Buckets that expire no later than the wheel's current time: they were filled before the tasks of ``_ready``.
    3.  ``_ready``.
    4.  Later buckets, one at a time.  Taking one moves the wheel's time to its expiration.
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
        self._taken_ms: i64 = start_ms  # the expiration of the bucket that was taken
        self._taken_coarse: bool = False  # whether it came from an overflow wheel
        self._expiring: bool = False
        self._drained: bool = False  # the timer closes, so nothing runs any more
        self._early_from: i64 = early_from
        self._on_error = on_error
        self._contained = contained

    @property
    def guard(self) -> ThreadGuard:
        """The guard of the timer's thread."""
        return self._counter.guard

    @property
    def size(self) -> int:
        """The number of tasks on the timer.  O(1)."""
        return self._counter.value

    @property
    def cascades(self) -> int:
        """How many times a task was moved to a finer wheel so far."""
        return self._counter.cascades

    @property
    def next_expiration_ms(self) -> int | None:
        """When the earliest bucket that is not empty falls due, or None.

        This is the time of the next call, and need not be the deadline of a task: a coarse bucket falls due to be
        cascaded.
        """
        if not self._taken.is_empty:
            return self._taken_ms
        if not self._due_when_added.is_empty or self._any_ready():
            return self.wheel.current_time_ms
        return self._queue.peek_ms()

    def is_due(self, now_ms: i64) -> bool:
        """Whether :meth:`expire_due` would find anything to do."""
        return self.next_work_ms(now_ms) <= now_ms

    def next_work_ms(self, now_ms: i64) -> i64:
        """When the earliest bucket falls due: ``now_ms`` if something is due already, FAR_MS if the timer is empty."""
        if not self._taken.is_empty or not self._due_when_added.is_empty or self._any_ready():
            return now_ms
        first_ms = self._queue.peek_ms()
        return FAR_MS if first_ms is None else first_ms

    # Scheduling

    def schedule(self, task: TimerTask, expiration_ms: i64, passed_ms: i64) -> i64:
        """Put the task on the timer, to run at ``expiration_ms`` rounded up to a tick.

        ``passed_ms``: the current time rounded **down**.  The wheel must not be ahead of it: a deadline in the
        millisecond that has begun and not ended would count as due, and fire early.

        Return when its bucket falls due; the caller may have to wake up earlier than planned.  A task that is on a
        timer is moved.  A task that is already due runs with the next :meth:`expire_due`, behind those with the same
        deadline; this method never runs a task.
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
        """Move the deadline of the task, in O(1); return as :meth:`schedule` does, FAR_MS if no bucket changes.

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

        ``limit`` > 0 bounds the number of tasks that run, cascade, or move; the rest is kept for the next call.  A task
        that is already due when a callback adds it waits for the next call, so this ends even if every task adds
        another.  A contained exception goes to ``on_error``; KeyboardInterrupt and the like propagate, and the next
        call continues after the task that raised.  Called from inside a task it does nothing and returns 0.
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
        """When :meth:`cascade_early` has something to do, FAR_MS if not before the next expiration."""
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
        """Cascade tasks whose coarse bucket falls due soon, at most ``limit``; return how many.  0 if a task is due."""
        if self._counter.value < self._early_from or self.is_due(now_ms):
            return 0
        first_ms = self._queue.peek_ms()
        assert first_ms is not None
        self._catch_up(now_ms)
        return self.wheel.cascade_early(first_ms, now_ms, limit)

    def drain(self, limit: i64) -> list[TimerTask]:
        """Take tasks off in the order of their deadlines, and of arrival among equal ones: for a timer that closes.

        ``limit`` bounds the tasks that are taken off, cascaded or moved, so the list may be empty while :attr:`size` is
        not yet 0.  The wheel's time advances with the deadlines: nothing may be scheduled afterwards, and nothing runs.
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
        """Tasks that were due when added become ready, behind those that earlier calls have left."""
        if not self._due_when_added.is_empty:
            self._ready.append(self._due_when_added)
            self._due_when_added = TimerTaskList(self._counter)

    def _any_ready(self) -> bool:
        """Whether any ready task is left: they may have been cancelled."""
        ready = self._ready
        while ready and ready[0].is_empty:
            ready.popleft()._clear_links()
        return bool(ready)

    def _take_next(self, now_ms: i64) -> bool:
        """Take the next bucket whole.  False if nothing is due; the wheel's time is then now.

        The wheel's time does not advance while tasks are ready, so a bucket of that time was filled before them.
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
        """Whether the deadline of the task was moved back while the task was in the bucket; if so, re-bucket it."""
        # A task that was due when added may have any deadline within the tick of the bucket.
        if task._expiration_ms < self._taken_ms + self.wheel.tick_ms:
            return False
        self.wheel.bucket_for(task._expiration_ms).add(task)
        return True

    def _catch_up(self, now_ms: i64) -> None:
        """Advance the wheel's time to now, but not past the tasks that are due.

        After a long idle time a new task is thus placed by its distance from now, not from the last expiry.
        """
        if self._taken.is_empty and self._due_when_added.is_empty and not self._any_ready():
            first_ms = self._queue.next_ms()
            self.wheel.advance(now_ms if first_ms is None or first_ms > now_ms else first_ms)

    def _check(self) -> None:
        """Assert the invariants of the whole timer."""
        total = self.wheel._check() + self._taken._check() + self._due_when_added._check()
        total += sum([ready._check() for ready in self._ready])
        assert total == self._counter.value, f"{total} tasks are in buckets, the counter has {self._counter.value}"
        first_ms = self._queue.next_ms()
        assert first_ms is None or self.wheel.current_time_ms <= first_ms, "the wheel has passed a queued bucket"
