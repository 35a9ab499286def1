"""The timer task.

Kafka wraps each ``TimerTask`` in an entry that is linked into a bucket.  Here, the task itself is the entry, which
saves one object per task.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i16, i64, mypyc_attr

from purgatory.texts import safe_repr, type_name, uncopyable

from .coroutines import COROUTINE, refusal

if TYPE_CHECKING:
    from .task_list import TimerTaskList

__all__ = [
    "COMPILED",
    "FAR_MS",
    "NOT_QUEUED",
    "TimerTask",
    "set_up",
    "unlink",
    "validate_class",
    "validated_class",
]

NOT_QUEUED: Final = -1  # for a task that was never scheduled, and for a bucket outside the delay queue
# Later than every deadline, which is at most the latest time of a clock plus the longest timeout.  This number is only
# compared, never added to anything, and is the largest int that compiled code does not box.
FAR_MS: Final = (1 << 62) - 1
_LONGEST_MS: Final = 10**18  # 31 million years; every sum of times then fits one machine word


@mypyc_attr(allow_interpreted_subclasses=True)
class TimerTask:
    """A task that runs once, ``delay_ms`` milliseconds after it has been added to a timer.

    Override :meth:`run`.  A task is in at most one bucket at a time.  A task may be added again after it has run or
    been cancelled; adding a scheduled task moves it.

    ``delay_ms``: whole milliseconds; zero or less means that the task is already due and runs in the reaper's next
    turn.  Raises TypeError unless the delay is an int, and ValueError if it is above ``10**18`` or below ``-10**18``,
    or if ``__init__`` is called again while the task is on a timer.

    Copying or pickling a task raises TypeError, because the task's links belong to the bucket that holds it.  A
    subclass that must be copied or pickled defines ``__reduce__``.

    Attributes that begin with an underscore, such as ``_next``, belong to this class; choose other names in a subclass.

    A task can be weakly referenced.  The class has the slot for that, so ``__weakref__`` must not be among the slots of
    a subclass, and a data class must not be given ``weakref_slot=True``.
    """

    __slots__ = ("__weakref__", "_delay_ms", "_expiration_ms", "_list", "_next", "_prev")

    # These two fields share a word with the flags of a compiled object; _op_state belongs to operations.  _is_set_up is
    # 1 once __init__ has run.  Compiled code can read the default before that.  In interpreted code, operations have a
    # slot that hides it, and other tasks do not use it.  It must remain the first field, because setup.py recognizes
    # the compiled tasks by it and puts their slot for weak references before it.
    _is_set_up: i16 = 0
    _op_state: i16
    _delay_ms: i64
    _expiration_ms: i64
    _list: TimerTaskList | None
    _prev: TimerTask | None
    _next: TimerTask | None

    def __init__(self, delay_ms: Any) -> None:
        kind: Any = type(self)
        if COMPILED and kind is not validated_class.kind:
            validate_class(kind)
        again = self._is_set_up != 0 if _HAS_FLAG else hasattr(self, "_list")
        if again and self._list is not None:
            raise ValueError(f"task must be new, got {safe_repr(self)}, which is on a timer")
        set_up(self, _validated_delay(delay_ms))
        if _HAS_FLAG:
            self._is_set_up = 1  # type: ignore[misc]  # compiled code has no slots

    @property
    def delay_ms(self) -> int:
        """The delay in milliseconds from the moment the task is added.  Assigning a new delay does not move a scheduled
        task.
        """
        return self._delay_ms

    @delay_ms.setter
    def delay_ms(self, delay_ms: Any) -> None:
        self._delay_ms = _validated_delay(delay_ms)

    def run(self) -> None:
        """Run the task.  Called once, when the task is due, in the loop's thread.  If the task raises, the exception is
        reported.
        """

    def _fire(self) -> None:
        """Called when the deadline has passed.  Library classes override this method, so that their subclasses may
        define ``run``.
        """
        overridden: Any = self  # an override may return anything, and only a coroutine is not ignored
        returned: Any = overridden.run()
        if type(returned) is COROUTINE:
            raise refusal(returned, f"{type_name(self)}.run() must return None")

    def _expiration_from(self, now_ms: i64, passed_ms: i64) -> i64:
        """Return the time at which the task would be due if it were added now.

        ``passed_ms``: the current time, rounded down; ``now_ms``: the current time, rounded up.
        """
        bucket = self._list
        if bucket is not None:
            bucket.counter.guard.validate()  # the task may be on another loop's timer
        delay_ms = self._delay_ms
        return now_ms + delay_ms if delay_ms > 0 else passed_ms + delay_ms

    def cancel(self) -> bool:
        """Remove the task from its timer, in O(1).  Return False if it has run, has already been cancelled, or was
        never added.

        Raises RuntimeError if called from a thread other than the event loop's while that loop runs.
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

    def _timer_closed(self) -> None:
        """Called after the closing timer has removed the task."""


class _ValidatedClass:
    """The task class that was validated last, in compiled code.  Most tasks in a program belong to a few classes.

    The reference keeps the class, so that no other class can have its address.

    Interpreted code validates a class only if assigning a field fails.  It must not read an object that all threads
    share: without the GIL, threads that count references to the same object wait for each other.
    """

    __slots__ = ("kind",)

    def __init__(self) -> None:
        self.kind: Any = None


validated_class: Final = _ValidatedClass()


def validate_class(kind: Any) -> None:
    """Raise TypeError if the class forbids assigning its instances' fields, which compiled code would do anyway."""
    parameters: Any = kind.__dict__.get("__dataclass_params__")
    if parameters is not None and parameters.frozen:
        raise TypeError(f"{kind.__name__} must not be a frozen dataclass: the timer assigns fields of its tasks")
    validated_class.kind = kind


COMPILED: Final = not isinstance(validate_class, FunctionType)
_HAS_FLAG: Final = COMPILED  # interpreted, only operations have room for _is_set_up


def _validated_delay(delay_ms: Any) -> int:
    """Return the delay.  Raises TypeError unless it is an int, and ValueError if it is out of range."""
    if not isinstance(delay_ms, int):
        raise TypeError(f"delay_ms must be an int of milliseconds, got {safe_repr(delay_ms)}")
    if not -_LONGEST_MS <= delay_ms <= _LONGEST_MS:
        raise ValueError(f"delay_ms must be at most 10**18 and at least -10**18, got {safe_repr(delay_ms)}")
    return delay_ms


def set_up(task: TimerTask, delay_ms: i64) -> None:
    """Set every field of a new task.  No other code does so.

    Library classes call this function instead of ``super().__init__()``, which validates the delay.
    """
    try:
        task._delay_ms = delay_ms
    except AttributeError:  # only in interpreted code
        validate_class(type(task))
        raise
    task._expiration_ms = NOT_QUEUED
    task._list = None
    task._prev = None
    task._next = None


def unlink(task: TimerTask) -> bool:
    """Remove the task from its bucket, in O(1).  Return False if it is not in a bucket.

    This function is separate from :meth:`TimerTask.cancel`, which subclasses override with a broader meaning.
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
