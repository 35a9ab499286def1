"""The bucket: Kafka's ``TimerTaskList``.

A bucket is a circular doubly linked list around a sentinel, so that a task can leave its bucket in O(1) without a
search, and a whole bucket can change hands in O(1).
"""

from collections.abc import Iterator

from mypy_extensions import i64

from .task import NOT_QUEUED, TimerTask, unlink
from .thread_guard import ThreadGuard

__all__ = ["TaskCounter", "TimerTaskList"]


class TaskCounter:
    """The state that all buckets and wheels of a timer share: Kafka's ``taskCounter``, and the guard for the timer's
    thread.

    ``value``: the number of tasks.  ``cascades``: how many times tasks have been moved to a finer wheel.
    """

    __slots__ = ("cascades", "guard", "value")

    def __init__(self) -> None:
        self.guard: ThreadGuard = ThreadGuard()
        self.value: i64 = 0
        self.cascades: i64 = 0


class TimerTaskList:
    """Tasks in the order of arrival, with a common expiration.

    ``expiration_ms``: the start of the span of time that the bucket covers, or -1 while it is not in the delay queue.
    When a bucket becomes empty, it stays queued until its expiration: if a task is added before then, the bucket need
    not be queued again; otherwise, the delay queue drops the bucket when its turn comes.
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
        """Whether the bucket contains no tasks."""
        return self._root._next is self._root

    def add(self, task: TimerTask) -> None:
        """Append the task; if the task is in another bucket, remove it from that bucket first."""
        if task._list is not None:
            unlink(task)
        root = self._root
        tail = root._prev
        assert tail is not None
        task._list = self
        task._prev = tail
        task._next = root
        tail._next = task
        root._prev = task
        self.counter.value += 1

    def remove(self, task: TimerTask) -> bool:
        """Remove the task, in O(1).  Return True if it was in this bucket."""
        return task._list is self and unlink(task)

    def pop_first(self) -> TimerTask | None:
        """Remove and return the first task, or return None if there is none."""
        task = self._root._next
        if task is self._root:
            return None
        assert task is not None
        unlink(task)
        return task

    def _clear_links(self) -> None:
        """Break the reference cycle of an empty, unused bucket, so that the garbage collector has no work."""
        root = self._root
        root._prev = None
        root._next = None

    def __iter__(self) -> Iterator[TimerTask]:
        """Iterate over the tasks in order.  The bucket must not change during the iteration."""
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
            assert after._list is self, f"{after!r} is linked into a bucket that it does not refer to"
            number += 1
            task = after
