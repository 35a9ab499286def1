"""The timer's bookkeeping: wheel, delay queue, what is due now.  Floor 2.

It is told the time and asked what to do: :meth:`TimerHeart.expire_due` runs what is due, and
:attr:`TimerHeart.next_expiration_ms` says when to come again.  The floor above owns a clock and a coroutine that does
so.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from mypy_extensions import i64

from .task import TaskCounter, TimerTask, TimerTaskList
from .wheel import DelayQueue, TimingWheel

__all__ = ["TimerHeart"]

_OnError = Callable[[BaseException, TimerTask], None]
_Errors = tuple[type[BaseException], ...]


class TimerHeart:
    """Tasks by deadline, without a clock.

    ``tick_ms``, ``wheel_size``: see :class:`TimingWheel`.  ``start_ms``: the time at which it begins.  ``on_error``:
    told of a task that raised; the tasks behind it run all the same.  ``contained``: which exceptions are a task's own
    affair in that way; all others pass through.
    """

    __slots__ = (
        "_called_up",
        "_contained",
        "_counter",
        "_due",
        "_expiring",
        "_on_error",
        "_queue",
        "_taken",
        "_taken_coarse",
        "_taken_ms",
        "cascades",
        "wheel",
    )

    def __init__(self, tick_ms: Any, wheel_size: Any, start_ms: int, on_error: _OnError, contained: _Errors) -> None:
        self._counter: TaskCounter = TaskCounter()
        self._queue: DelayQueue = DelayQueue()
        self.wheel: TimingWheel = TimingWheel(tick_ms, wheel_size, start_ms, self._queue, self._counter)
        self.cascades: i64 = 0
        self._due: TimerTaskList = TimerTaskList(self._counter)  # were due when they were added: for the next call
        self._called_up: deque[TimerTaskList] = deque()  # the same, whose call has begun
        self._taken: TimerTaskList = TimerTaskList(self._counter)  # the bucket that is being worked off
        self._taken_ms: i64 = start_ms  # its expiration
        self._taken_coarse: bool = False  # whether it is of an overflow wheel
        self._expiring: bool = False
        self._on_error = on_error
        self._contained = contained

    @property
    def size(self) -> int:
        """How many tasks are on the timer.  O(1)."""
        return self._counter.value

    @property
    def next_expiration_ms(self) -> int | None:
        """When the earliest bucket that is not empty falls due, or None.

        It is the time to come back, not yet the deadline of a task: a coarse bucket falls due to be cascaded.
        """
        if not self._taken.is_empty:
            return self._taken_ms
        if not self._due.is_empty or self._anyone_called_up():
            return self.wheel.current_time_ms
        return self._queue.peek_ms()

    def schedule(self, task: TimerTask, expiration_ms: i64, now_ms: i64) -> i64:
        """Put the task on the timer, to run at ``expiration_ms`` rounded up to a tick; ``now_ms`` is the time now.

        Return when its bucket falls due: the floor above may have to come earlier than it meant.
        A task that is on a timer already is moved.  One that is due already runs with the next :meth:`expire_due`,
        behind those whose deadline is the same; it is never run in here.
        """
        wheel = self.wheel
        tick_ms = wheel.tick_ms
        if now_ms >= wheel.current_time_ms + tick_ms:
            self._catch_up(now_ms)
        if expiration_ms > now_ms and tick_ms != 1:
            expiration_ms += -expiration_ms % tick_ms
        task._expiration_ms = expiration_ms
        if expiration_ms < wheel.current_time_ms + tick_ms:
            self._due.add(task)
            return wheel.current_time_ms
        if task._list is not None:
            TimerTask.cancel(task)
        return wheel.place(task, expiration_ms)

    def rounded_ms(self, expiration_ms: i64, now_ms: i64) -> i64:
        """A deadline, rounded up to a tick if it lies ahead."""
        if expiration_ms > now_ms:
            return expiration_ms + -expiration_ms % self.wheel.tick_ms
        return expiration_ms

    def expire_due(self, now_ms: i64, limit: i64 = 0) -> i64:
        """Run what is due at ``now_ms``, in the order of the deadlines; return how many ran.

        ``limit`` > 0 bounds the tasks that are run or cascaded; the rest is kept for the next call.  What a callback
        adds that is due already waits for the next call, too, so this ends even if every task adds another.
        A contained exception from a task goes to ``on_error``; KeyboardInterrupt and its like pass through, and the
        next call goes on behind the task that raised.  Called from inside a task it does nothing and returns 0.
        """
        if self._expiring:
            return 0
        self._expiring = True
        ran: i64 = 0
        try:
            self._call_up()
            left = limit
            tick_ms = self.wheel.tick_ms
            while True:
                if self._taken_coarse:
                    left -= self._cascade(left)
                    if limit and left == 0:
                        break
                task = self._taken.pop_first()
                if task is None:
                    if self._take(now_ms):
                        continue
                    break
                if task._expiration_ms > self._taken_ms + tick_ms - 1:
                    # Its deadline was moved back while it stood here.  One that was due when it was added may lie in
                    # the midst of its tick.
                    self.wheel.bucket_for(task._expiration_ms).add(task)
                else:
                    ran += 1
                    due: Any = task  # what an override returns is its own affair
                    try:
                        due.run()
                    except BaseException as error:
                        if not isinstance(error, self._contained):
                            raise
                        self._on_error(error, task)
                left -= 1
                if left == 0:
                    break
        finally:
            self._expiring = False
        return ran

    def is_due(self, now_ms: i64) -> bool:
        """Whether :meth:`expire_due` would find anything to do."""
        if not self._taken.is_empty or not self._due.is_empty or self._anyone_called_up():
            return True
        due_ms = self._queue.peek_ms()
        return due_ms is not None and due_ms <= now_ms

    def _cascade(self, most: i64) -> i64:
        """Put the tasks of the coarse bucket, from its end, in front of the finer ones where they belong now.

        ``most`` > 0 bounds how many.  Return how many there were.  It is ``pop_last()`` and ``add_first()`` without the
        calls and without counting twice: a coarse bucket may hold everyone there is, and what is due waits for it.
        """
        taken = self._taken
        root = taken._root
        taken_ms = self._taken_ms
        wheel = self.wheel
        moved: i64 = 0
        while (task := root._prev) is not root:
            assert task is not None
            bucket = wheel.bucket_for(task._expiration_ms)
            if task._expiration_ms > taken_ms:  # else it runs next, where Kafka's would at once: no cascade
                self.cascades += 1
            before = task._prev
            front = bucket._root
            head = front._next
            assert before is not None and head is not None
            before._next = root
            root._prev = before
            task._list = bucket
            task._prev = front
            task._next = head
            head._prev = task
            front._next = task
            moved += 1
            if moved == most:
                break
        return moved

    def _call_up(self) -> None:
        """Who was due when added has a turn in the call that begins, behind those whom earlier calls have left."""
        if not self._due.is_empty:
            self._called_up.append(self._due)
            self._due = TimerTaskList(self._counter)

    def _anyone_called_up(self) -> bool:
        """Whether any of them is still there: they may have been cancelled."""
        called_up = self._called_up
        while called_up and called_up[0].is_empty:
            called_up.popleft()
        return bool(called_up)

    def _take(self, now_ms: i64) -> bool:
        """Take what comes next, whole.  False if nothing is due; then the wheel's time is now.

        The wheel's time stands still while anyone is called up, so a bucket of that time was filled before.
        """
        if self._anyone_called_up():
            first_ms = self._queue.peek_ms()
            if first_ms is None or first_ms > self.wheel.current_time_ms or first_ms > now_ms:
                self._taken = self._called_up.popleft()
                self._taken_ms = self.wheel.current_time_ms
                self._taken_coarse = False
                return True
        found = self._queue.pop_due(now_ms)
        if found is None:
            self._catch_up(now_ms)
            return False
        expiration_ms, wheel = found
        empty = self._taken
        self._taken = wheel.take(expiration_ms, empty)
        self._taken_ms = expiration_ms
        self._taken_coarse = wheel.level > 1
        self.wheel.advance(expiration_ms)
        return True

    def _catch_up(self, now_ms: i64) -> None:
        """Move the wheel's time to now, but not past what is still to be worked off.

        After a long idle time a new task is thus placed by the distance from now, not from the last expiry.
        """
        if self._taken.is_empty and self._due.is_empty and not self._anyone_called_up():
            first_ms = self._queue.next_ms()
            self.wheel.advance(now_ms if first_ms is None or first_ms > now_ms else first_ms)

    def clear(self) -> list[TimerTask]:
        """Take every task off, in the order of their deadlines and of arrival."""
        if self._taken_coarse:
            while (moved := self._taken.pop_last()) is not None:
                self.wheel.bucket_for(moved._expiration_ms).add_first(moved)
        tasks = list(self._taken)
        # Of equal deadlines the one that stands on the coarser level came first: see the wheel.
        for wheel in reversed(self.wheel.levels()):
            tasks += [task for bucket in wheel._buckets for task in bucket]
        tasks += [task for called_up in self._called_up for task in called_up]
        tasks += self._due
        tasks.sort(key=_by_expiration)
        for task in tasks:
            bucket = task._list
            assert bucket is not None
            bucket.remove(task)
        return tasks

    def _check(self) -> None:
        """Assert the invariants of the whole timer."""
        total = self.wheel._check() + self._taken._check() + self._due._check()
        total += sum([called_up._check() for called_up in self._called_up])
        assert total == self._counter.value, f"{total} tasks are in buckets, the counter says {self._counter.value}"
        first_ms = self._queue.next_ms()
        assert first_ms is None or self.wheel.current_time_ms <= first_ms, "the wheel has passed a queued bucket"


def _by_expiration(task: TimerTask) -> int:
    return task._expiration_ms
