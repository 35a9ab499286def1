"""The timer task.

Kafka wraps each ``TimerTask`` in an entry that links into a bucket.  Here the task is the entry, which saves one object
per task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64, mypyc_attr

from purgatory.texts import safe_repr, uncopyable

if TYPE_CHECKING:
    from .task_list import TimerTaskList

__all__ = ["FAR_MS", "NOT_QUEUED", "TimerTask", "unlink"]

NOT_QUEUED: Final = -1  # the expiration of a task that was never scheduled, and of a bucket outside the delay queue
FAR_MS: Final = 1 << 60  # later than every deadline
_LONGEST_MS: Final = 10**18  # 31 million years; every sum of times then fits one machine word


@mypyc_attr(allow_interpreted_subclasses=True)
class TimerTask:
    """Something that runs once, ``delay_ms`` milliseconds after it is added to a timer.

    Override :meth:`run`.  At most one bucket holds a task at a time.  A task may be added again after it has run or was
    cancelled; adding it while it is scheduled moves it.

    ``delay_ms``: whole milliseconds; zero or less means already due: the task then runs on the reaper's next turn.
    TypeError unless it is an int, ValueError beyond ``10**18`` either way of zero.

    A task cannot be copied or pickled, TypeError: its links belong to the one bucket that holds it.  A subclass that
    needs either defines ``__reduce__``.

    Weak references need a subclass without ``__slots__``, or with ``__weakref__`` among them.  Operations are tasks,
    and a slot for weak references in each would take more memory than the few that use one justify.
    """

    __slots__ = ("_expiration_ms", "_list", "_next", "_prev", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        if not isinstance(delay_ms, int):
            raise TypeError(f"delay_ms must be an int of milliseconds, got {safe_repr(delay_ms)}")
        if not -_LONGEST_MS <= delay_ms <= _LONGEST_MS:
            raise ValueError(f"delay_ms must be at most 10**18 and at least -10**18, got {safe_repr(delay_ms)}")
        self.delay_ms: i64 = delay_ms
        self._expiration_ms: i64 = NOT_QUEUED
        self._list: TimerTaskList | None = None
        self._prev: TimerTask | None = None
        self._next: TimerTask | None = None

    def run(self) -> None:
        """Run the task.  Called once, on expiry, in the loop's thread.  An exception is reported."""

    def cancel(self) -> bool:
        """Take the task off its timer, in O(1).  True iff this call did: False if it has run or was never added.

        RuntimeError in another thread than that of the timer's event loop, while that loop runs.
        """
        bucket = self._list
        if bucket is None:
            return False
        bucket.counter.guard.validate()
        return unlink(self)

    @property
    def scheduled(self) -> bool:
        """Whether the task is on a timer."""
        return self._list is not None

    @property
    def expiration_ms(self) -> int | None:
        """The deadline on the timer's clock, rounded up to the tick; None before the task is first added."""
        return None if self._expiration_ms == NOT_QUEUED else self._expiration_ms

    def __reduce__(self) -> Any:
        raise uncopyable(self, "it has one place on a timer")

    def _abandon(self, error: BaseException) -> None:
        """Called when the timer closes while the task is on it, after it was taken off."""


def unlink(task: TimerTask) -> bool:
    """Take the task out of its bucket, in O(1).  False if no bucket holds it.

    A function beside :meth:`TimerTask.cancel`, which subclasses override with a wider meaning.
    """
    bucket = task._list
    if bucket is None:
        return False
    before = task._prev
    after = task._next
    assert before is not None and after is not None
    before._next = after
    after._prev = before
    task._list = None
    task._prev = None
    task._next = None
    bucket.counter.value -= 1
    return True
