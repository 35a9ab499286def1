"""The timer with a clock: the part of a timer that never waits.

The modules below this one take the time as an argument; this module reads the timer's clock and passes the time down.
"""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Final, final

from mypy_extensions import i64, mypyc_attr

from purgatory.errors import PurgatoryClosed
from purgatory.texts import safe_repr, type_name, uncopyable

from .clock import Clock
from .coroutines import COROUTINE, refusal
from .task import FAR_MS, TimerTask, set_up, unlink
from .thread_guard import ThreadGuard
from .timer_core import TimerCore
from .units import duration_ms, floor_ms, to_seconds
from .wheel import TimingWheel

__all__ = ["BaseTimer", "CallLaterTask", "add_to", "ceil_now", "has_passed", "now", "now_both_ways", "wake_for"]

_FURTHEST_MS: Final = 10**18
_FUNCTION: Final[Any] = FunctionType
_METHOD: Final[Any] = MethodType
_callable: Final = callable  # compiled code looks up a module's own name faster than a builtin


@final
@mypyc_attr(free_list_len=1)
class CallLaterTask(TimerTask):
    """A task that calls a function: the result of ``call_later``."""

    __slots__ = ("_args", "_callback")

    def __init__(self, delay_ms: i64, callback: Any, args: tuple[Any, ...]) -> None:
        set_up(self, delay_ms)
        self._callback: Any = callback
        self._args: tuple[Any, ...] = args

    def run(self) -> None:
        self._callback(*self._args)

    def _fire(self) -> None:
        returned: Any = self._callback(*self._args)
        if type(returned) is COROUTINE:
            raise refusal(returned, "the callback of call_later() must return None")

    def __repr__(self) -> str:
        return f"<CallLaterTask {self._callback!r} expiration_ms={self.expiration_ms} scheduled={self.scheduled}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseTimer:
    """The synchronous part of :class:`SystemTimer`.

    ``_core``: the timer without a clock.  ``_guard``: refuses calls from other threads.  ``_next_wake_ms``: the time of
    the subclass's next wake-up, or FAR_MS if there is none.  ``contained``: the exceptions that are reported if a task
    raises them; all others propagate.
    """

    __slots__ = ("_core", "_guard", "_loop", "_next_wake_ms", "_read", "_reaper_task", "_started_in", "clock", "closed")

    def __init__(
        self, tick_ms: Any, wheel_size: Any, clock: Clock, contained: tuple[type[BaseException], ...] = (Exception,)
    ) -> None:
        self.clock: Clock = clock
        self._core: TimerCore = TimerCore(tick_ms, wheel_size, clock.now_ms(), self._report, contained)
        self._guard: ThreadGuard = self._core.guard
        # Reading the default clock directly saves a method call.
        self._read: Callable[[], float] | None = clock.reader()
        self._loop: Any = None  # the event loop of the subclass, once it has one
        self._started_in: Any = None  # the event loop in which the subclass has started its reaper
        self._reaper_task: Any = None  # the task of this reaper; None before the first start
        self.closed: bool = False
        self._next_wake_ms: i64 = FAR_MS

    def add(self, task: Any) -> None:
        """Put the task on the timer so that it runs after ``task.delay_ms``, rounded up to the next tick.

        A task that is already due runs in the reaper's next turn, never within this call.  If the task is already on
        the timer, it is moved.  Raises PurgatoryClosed if the timer is closed, TypeError unless the argument is a task,
        and RuntimeError if called from a thread other than the event loop's while that loop runs.  Raises ValueError
        for an operation that has no deadline or is parked.
        """
        self._guard.validate()
        if not isinstance(task, TimerTask):
            raise TypeError(f"task must be a TimerTask, got {safe_repr(task)}")
        try:
            bucket = task._list
        except AttributeError:
            raise RuntimeError(f"{type_name(task)}.__init__() must call super().__init__(delay_ms)") from None
        if self.closed:
            raise PurgatoryClosed("the timer is closed")
        now_ms, passed_ms = now_both_ways(self)
        delay_ms = task._delay_ms
        if delay_ms > 0 and bucket is None:
            expiration_ms = now_ms + delay_ms
        else:
            expiration_ms = task._expiration_from(now_ms, passed_ms)
        due_ms = self._core.schedule(task, expiration_ms, passed_ms)
        if due_ms < self._next_wake_ms:
            wake_for(self, task, due_ms)

    def call_later(self, delay: Any, callback: Any, *args: Any) -> TimerTask:
        """Call ``callback(*args)`` in ``delay`` seconds; return the task, which can be cancelled.

        The call is never early and is late by at most one tick plus the time for which the loop was busy.  Unlike the
        loop's ``call_later``, this method does not copy the context: the callback runs in an empty context.  Raises
        RuntimeError as :meth:`add` does.
        """
        kind: Any = type(callback)
        if kind is not _FUNCTION and kind is not _METHOD and not _callable(callback):
            raise TypeError(f"callback must be callable, got {safe_repr(callback)}")
        task = CallLaterTask(duration_ms(delay, "delay"), callback, args)
        add_to(self, task)
        return task

    def expire_due(self, now_ms: Any) -> int:
        """Run the tasks that are due at ``now_ms``, in the order of the deadlines; return how many tasks ran.

        This method does not read a clock.  If a task is already due when a callback adds it, it waits for the next
        call.  The tasks run in the caller's context.  After the timer has closed, nothing runs.  Raises TypeError
        unless ``now_ms`` is an int, ValueError if it is above ``10**18`` or below ``-10**18``, and RuntimeError as
        :meth:`add` does.
        """
        self._guard.validate()
        if not isinstance(now_ms, int):
            raise TypeError(f"now_ms must be an int, got {safe_repr(now_ms)}")
        if not -_FURTHEST_MS <= now_ms <= _FURTHEST_MS:
            raise ValueError(f"now_ms must be at most 10**18 and at least -10**18, got {safe_repr(now_ms)}")
        if self.closed:
            return 0
        return self._core.expire_due(now_ms)

    @property
    def wheel(self) -> TimingWheel:
        """The finest wheel; ``overflow_wheel`` leads to the coarser ones."""
        return self._core.wheel

    @property
    def size(self) -> int:
        """The number of tasks on the timer.  Cost: O(1)."""
        return self._core.size

    @property
    def cascades(self) -> int:
        """How many times tasks have been moved to a finer wheel so far."""
        return self._core.cascades

    @property
    def next_expiration_ms(self) -> int | None:
        """When the earliest nonempty bucket falls due, or None if the timer is empty.

        This time need not be the deadline of a task: when a coarse bucket falls due, its tasks are only cascaded.
        """
        return self._core.earliest_ms()

    def start(self) -> None:
        """Start the reaper in the running event loop unless the reaper is already running; deadlines need the reaper.

        Subclasses override this method.
        """

    def _wake_earlier(self, expiration_ms: int) -> None:
        """Plan an earlier wake-up, which the subclass requests: a bucket falls due before ``_next_wake_ms``."""
        self._next_wake_ms = expiration_ms

    def __reduce__(self) -> Any:
        raise uncopyable(self, "its tasks have one place each")

    def _report(self, error: BaseException, task: TimerTask) -> None:
        """Report an exception that a task raised."""
        raise error

    def _check(self) -> None:
        """Assert the invariants of the whole timer."""
        self._core._check()


# These are functions because the compiler calls functions directly but looks up the methods of a class that has
# subclasses.


def now(timer: BaseTimer) -> int:
    """Return the timer's time in milliseconds, rounded down."""
    read = timer._read
    return timer.clock.now_ms() if read is None else floor_ms(read())


def ceil_now(timer: BaseTimer) -> int:
    """Return the timer's time in milliseconds, rounded up: deadlines count from this time."""
    read = timer._read
    return timer.clock.ceil_ms() if read is None else floor_ms(read()) + 1


def has_passed(timer: BaseTimer, deadline: float) -> bool:
    """Return whether a time, in seconds on the timer's clock, has passed; the result is never True too early."""
    read = timer._read
    return deadline <= (to_seconds(timer.clock.now_ms()) if read is None else read())


def now_both_ways(timer: BaseTimer) -> tuple[i64, i64]:
    """Return the timer's time rounded up, from which deadlines count, and rounded down: a deadline up to then has
    passed.
    """
    read = timer._read
    if read is None:
        return timer.clock.ceil_ms(), timer.clock.now_ms()
    passed_ms: i64 = floor_ms(read())
    return passed_ms + 1, passed_ms


def add_to(timer: BaseTimer, task: TimerTask) -> None:
    """Do the same as :meth:`BaseTimer.add`, for a new task of a library class."""
    timer._guard.validate()
    if timer.closed:
        raise PurgatoryClosed("the timer is closed")
    now_ms, passed_ms = now_both_ways(timer)
    delay_ms = task._delay_ms
    expiration_ms = now_ms + delay_ms if delay_ms > 0 else passed_ms
    due_ms = timer._core.schedule(task, expiration_ms, passed_ms)
    if due_ms < timer._next_wake_ms:
        wake_for(timer, task, due_ms)


def wake_for(timer: BaseTimer, task: TimerTask, due_ms: i64) -> None:
    """Plan an earlier wake-up for the task; if that raises, remove the task from the timer."""
    try:
        timer._wake_earlier(due_ms)
    except BaseException:
        unlink(task)
        raise
