"""A task that waits for its time, and the bucket that holds it.  Floor 1.

Both are Kafka's (``TimerTask``, ``TimerTaskList``), less one object: Kafka wraps each task in an entry that links into
the bucket, here the task is the entry.  A bucket is a circular doubly linked list round a dummy root, so that a task
leaves it in O(1) without asking where it stands, and a whole bucket changes hands in O(1).
"""

from collections.abc import Callable, Iterator
from typing import Final

from mypy_extensions import i64, mypyc_attr

__all__ = ["NOT_QUEUED", "TaskCounter", "TimerTask", "TimerTaskList"]

NOT_QUEUED: Final = -1
_LONGEST_MS: Final = 10**18  # 31 million years; it keeps every sum within one machine word


class TaskCounter:
    """How many tasks all the buckets of one timer hold: shared by them, as Kafka's ``taskCounter``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: i64 = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class TimerTask:
    """Something that runs once, ``delay_ms`` milliseconds after it is put on a timer.

    Override :meth:`run`.  A task is held by at most one bucket at a time; it may be put on a timer again after it has
    run or was cancelled, and putting it there while it is still scheduled moves it.

    ``delay_ms``: whole milliseconds; zero or less means that it is due already, and then it runs on the reaper's next
    turn.  Anything but an int raises TypeError, more than 10**18 ValueError.
    """

    __slots__ = ("_expiration_ms", "_list", "_next", "_prev", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        if not isinstance(delay_ms, int):
            raise TypeError(f"delay_ms is a whole number of milliseconds (int), not {delay_ms!r}")
        if delay_ms > _LONGEST_MS:
            raise ValueError(f"delay_ms is at most 10**18, not {delay_ms}")
        self.delay_ms: i64 = delay_ms
        self._expiration_ms: i64 = NOT_QUEUED
        self._list: TimerTaskList | None = None
        self._prev: TimerTask | None = None
        self._next: TimerTask | None = None

    def run(self) -> None:
        """Called once, on expiry, in the loop's thread.  An exception is reported and harms no other task."""

    def cancel(self) -> bool:
        """Take the task off its timer, in O(1).  True iff this call did it: False if it has run or was never there."""
        bucket = self._list
        if bucket is None:
            return False
        before = self._prev
        after = self._next
        assert before is not None and after is not None
        before._next = after
        after._prev = before
        self._list = None
        self._prev = None
        self._next = None
        bucket.counter.value -= 1
        return True

    @property
    def scheduled(self) -> bool:
        """Whether it is on a timer now."""
        return self._list is not None

    @property
    def expiration_ms(self) -> int | None:
        """When it falls due (or fell due) on the timer's clock, rounded up to the tick; None before the first time."""
        return None if self._expiration_ms == NOT_QUEUED else self._expiration_ms

    def _abandon(self, error: BaseException) -> None:
        """The timer closed while the task was on it, and took it off.  Most tasks have nobody to tell."""


class TimerTaskList:
    """A bucket: tasks in the order they came, and one expiration for all of them.

    ``expiration_ms`` is the start of the span of time that the bucket stands for, or -1 while it is not in the delay
    queue.  An emptied bucket stays queued until its time: if it is filled again before, nothing needs to be queued, and
    if not, the queue drops it when it comes up.
    """

    __slots__ = ("_root", "counter", "expiration_ms")

    def __init__(self, counter: TaskCounter | None = None) -> None:
        root = TimerTask(0)
        root._prev = root._next = root
        self._root: TimerTask = root
        self.counter: TaskCounter = TaskCounter() if counter is None else counter
        self.expiration_ms: i64 = NOT_QUEUED

    @property
    def is_empty(self) -> bool:
        return self._root._next is self._root

    def add(self, task: TimerTask) -> None:
        """Append the task; one that is in some bucket already leaves it first."""
        if task._list is not None:
            TimerTask.cancel(task)
        root = self._root
        tail = root._prev
        assert tail is not None
        task._list = self
        task._prev = tail
        task._next = root
        tail._next = task
        root._prev = task
        self.counter.value += 1

    def add_first(self, task: TimerTask) -> None:
        """Put the task, which is in no bucket, before all others."""
        root = self._root
        head = root._next
        assert head is not None and task._list is None
        task._list = self
        task._prev = root
        task._next = head
        head._prev = task
        root._next = task
        self.counter.value += 1

    def remove(self, task: TimerTask) -> bool:
        """Take the task out, in O(1).  True iff it was here."""
        return task._list is self and TimerTask.cancel(task)

    def pop_first(self) -> TimerTask | None:
        """Take out and return the first task, or None when there is none."""
        task = self._root._next
        if task is self._root:
            return None
        assert task is not None
        self.remove(task)
        return task

    def pop_last(self) -> TimerTask | None:
        """Take out and return the last task, or None when there is none."""
        task = self._root._prev
        if task is self._root:
            return None
        assert task is not None
        self.remove(task)
        return task

    def flush(self, each: Callable[[TimerTask], object]) -> None:
        """Take out every task, in order, and hand it to ``each``; the bucket is no longer queued."""
        while (task := self.pop_first()) is not None:
            each(task)
        self.expiration_ms = NOT_QUEUED

    def __iter__(self) -> Iterator[TimerTask]:
        """The tasks in order.  The bucket must not change meanwhile."""
        task = self._root._next
        while task is not self._root:
            assert task is not None
            yield task
            task = task._next

    def __repr__(self) -> str:
        return f"<TimerTaskList expiration_ms={self.expiration_ms} tasks={sum(1 for _ in self)}>"

    def _check(self) -> int:
        """Assert the invariants; return the number of tasks."""
        number = 0
        task = self._root
        while True:
            after = task._next
            assert after is not None and after._prev is task, "links disagree"
            if after is self._root:
                return number
            assert after._list is self, f"{after!r} stands in a bucket that it does not name"
            number += 1
            task = after
