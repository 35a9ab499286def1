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

__all__ = [
    "FAR_MS",
    "NOT_QUEUED",
    "TimerTask",
    "set_up",
    "unlink",
    "validate_class",
    "validated_class",
]

NOT_QUEUED: Final = -1  # the expiration of a task that was never scheduled, and of a bucket outside the delay queue
FAR_MS: Final = 1 << 60  # later than every deadline
_LONGEST_MS: Final = 10**18  # 31 million years; every sum of times then fits one machine word


@mypyc_attr(allow_interpreted_subclasses=True)
class TimerTask:
    """Something that runs once, ``delay_ms`` milliseconds after it is added to a timer.

    Override :meth:`run`.  At most one bucket holds a task at a time.  A task may be added again after it has run or was
    cancelled; adding it while it is scheduled moves it.

    ``delay_ms``: whole milliseconds; zero or less means that the task is already due, and runs on the reaper's next
    turn.  Raises TypeError unless it is an int, ValueError if it is above ``10**18`` or below ``-10**18``.

    Copying or pickling a task raises TypeError, because its links belong to the one bucket that holds it.  A subclass
    that needs either defines ``__reduce__``.

    Weak references need a subclass without ``__slots__``, or with ``__weakref__`` among them.  Operations are tasks,
    and a slot for weak references in each would take more memory than the few that use one justify.  For the same
    reason, what :meth:`SystemTimer.call_later` returns cannot be weakly referenced.
    """

    __slots__ = ("_delay_ms", "_expiration_ms", "_list", "_next", "_prev")

    # The number of an operation, 0 until it is submitted.  As a default of this class, compiled code reads it before
    # __init__ has run; interpreted, the slot of Operation hides it.
    _op_id: i64 = 0
    _delay_ms: i64
    _expiration_ms: i64
    _list: TimerTaskList | None
    _prev: TimerTask | None
    _next: TimerTask | None

    def __init__(self, delay_ms: Any) -> None:
        kind: Any = type(self)
        if kind is not validated_class.kind:
            validate_class(kind)
        set_up(self, _validated_delay(delay_ms))

    @property
    def delay_ms(self) -> int:
        """The delay in milliseconds from the moment the task is added.  Assigning it has no effect on a timer."""
        return self._delay_ms

    @delay_ms.setter
    def delay_ms(self, delay_ms: Any) -> None:
        self._delay_ms = _validated_delay(delay_ms)

    def run(self) -> None:
        """Run the task.  Called once, on expiry, in the loop's thread.  An exception is reported."""

    def _fire(self) -> None:
        """The deadline has passed.  A class of the library overrides this, so that a subclass may use the name run."""
        ignored: Any = self  # the return value of an override is ignored, whatever its type
        ignored.run()

    def _expiration_from(self, now_ms: i64, passed_ms: i64) -> i64:
        """Return when the task falls due that is added now: ``passed_ms`` is now rounded down, ``now_ms`` up."""
        bucket = self._list
        if bucket is not None:
            bucket.counter.guard.validate()  # it may be on the timer of another loop
        delay_ms = self._delay_ms
        return now_ms + delay_ms if delay_ms > 0 else passed_ms + delay_ms

    def cancel(self) -> bool:
        """Take the task off its timer, in O(1).  Return False if it has run, was cancelled before, or was never added.

        Raises RuntimeError in a thread other than the event loop's, while that loop runs.
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

    def _timer_closed(self, error: BaseException) -> None:
        """Called when the timer closes while the task is on it, after it was taken off."""


class _ValidatedClass:
    """The last class of tasks that was validated.  Most tasks of a program are of a few classes."""

    __slots__ = ("kind",)

    def __init__(self) -> None:
        self.kind: Any = None


validated_class: Final = _ValidatedClass()


def validate_class(kind: Any) -> None:
    """Raise TypeError if the library could not assign the fields of the class's instances.  Compiled code could."""
    parameters: Any = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        raise TypeError(f"{kind.__name__} must not be a frozen dataclass: the timer assigns fields of its tasks")
    validated_class.kind = kind


def _validated_delay(delay_ms: Any) -> int:
    """Return the delay.  Raises TypeError unless it is an int, ValueError if it is too long."""
    if not isinstance(delay_ms, int):
        raise TypeError(f"delay_ms must be an int of milliseconds, got {safe_repr(delay_ms)}")
    if not -_LONGEST_MS <= delay_ms <= _LONGEST_MS:
        raise ValueError(f"delay_ms must be at most 10**18 and at least -10**18, got {safe_repr(delay_ms)}")
    return delay_ms


def set_up(task: TimerTask, delay_ms: i64) -> None:
    """Set every field of a new task: the one place that does.

    Classes of the library call it instead of ``super().__init__()``, which validates the delay.
    """
    task._delay_ms = delay_ms
    task._expiration_ms = NOT_QUEUED
    task._list = None
    task._prev = None
    task._next = None


def unlink(task: TimerTask) -> bool:
    """Take the task out of its bucket, in O(1).  False if no bucket holds it.

    It is separate from :meth:`TimerTask.cancel`, which subclasses override with a wider meaning.
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
