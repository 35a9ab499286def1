"""The timer with a clock at hand: everything of a timer that happens without waiting.  Floor 4.

The floors below take the time as an argument; this one asks the clock and hands it down.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from .clock import Clock, MonotonicClock, ceil_now
from .errors import PurgatoryClosed
from .timer.system import TimerHeart
from .timer.task import TimerTask
from .timer.wheel import TimingWheel
from .units import duration_ms

__all__ = ["FAR_MS", "Callback", "Timekeeper", "put_on"]

# Who reads a cancelled future gets a CancelledError: a task's own affair, not an order to the reaper.
_CONTAINED: Final = (Exception, asyncio.CancelledError)
FAR_MS: Final = 1 << 60  # beyond every deadline that can be given


class Callback(TimerTask):
    """A task that calls a function: what ``call_later`` makes."""

    __slots__ = ("_args", "_callback")

    def __init__(self, delay_ms: int, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        super().__init__(delay_ms)
        self._callback = callback
        self._args = args

    def run(self) -> None:
        self._callback(*self._args)

    def __repr__(self) -> str:
        return f"<Callback {self._callback!r} expiration_ms={self.expiration_ms} scheduled={self.scheduled}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class Timekeeper:
    """The synchronous half of :class:`SystemTimer`."""

    __slots__ = ("_read", "alarm_ms", "clock", "closed", "heart", "loop")

    def __init__(self, tick_ms: Any, wheel_size: Any, clock: Clock | None) -> None:
        self.clock: Clock = MonotonicClock() if clock is None else clock
        self.heart: TimerHeart = TimerHeart(tick_ms, wheel_size, self.clock.now_ms(), self._report, _CONTAINED)
        # The usual clock is read here without a call to it, which counts where nothing is compiled.
        self._read: Callable[[], float] | None = time.monotonic if isinstance(self.clock, MonotonicClock) else None
        self.loop: Any = None  # the event loop that the floor above runs on, once it does
        self.closed: bool = False
        self.alarm_ms: i64 = FAR_MS  # when the floor above means to come; FAR_MS: it does not

    def add(self, task: TimerTask) -> None:
        """Put the task on the timer, to run ``task.delay_ms`` from now, rounded up to the next tick.

        One that is due already runs on the reaper's next turn, never in here.  One that is on the timer is moved.
        Raises PurgatoryClosed when the timer is closed, TypeError if it is no task.
        """
        try:
            delay_ms = task.delay_ms
        except AttributeError:
            raise TypeError(f"task is a TimerTask, not {task!r}") from None
        if self.closed:
            raise PurgatoryClosed("the timer is closed")
        read = self._read
        now_ms: i64 = self.clock.ceil_ms() if read is None else int(read() * 1000.0) + 1
        due_ms = self.heart.schedule(task, now_ms + delay_ms, now_ms)
        if due_ms < self.alarm_ms:
            self.earlier(due_ms)

    def call_later(self, delay: Any, callback: Any, *args: Any) -> TimerTask:
        """Call ``callback(*args)`` in ``delay`` seconds; the task that is returned can be cancelled.

        Never early; late by at most one tick and what the loop was busy.  Unlike the loop's ``call_later`` it keeps no
        copy of the context: the callback runs in the reaper's.
        """
        if not callable(callback):
            raise TypeError(f"callback is something to call, not {callback!r}")
        task = Callback(duration_ms(delay, "delay"), callback, args)
        put_on(self, task)
        return task

    def expire_due(self, now_ms: int) -> int:
        """Run what is due at ``now_ms``, in the order of the deadlines; return how many ran.

        The synchronous heart: it reads no clock.  What a callback adds that is due already waits for the next call.
        """
        return self.heart.expire_due(now_ms)

    @property
    def wheel(self) -> TimingWheel:
        """The finest wheel; those above it are its ``overflow_wheel``, and so on."""
        return self.heart.wheel

    @property
    def size(self) -> int:
        """How many tasks are on the timer.  O(1)."""
        return self.heart.size

    @property
    def cascades(self) -> int:
        """How many times a task was moved to a finer wheel so far."""
        return self.heart.cascades

    @property
    def next_expiration_ms(self) -> int | None:
        """When the earliest bucket that is not empty falls due, or None.

        It is the time to come back, not yet the deadline of a task: a coarse bucket falls due to be cascaded.
        """
        return self.heart.next_expiration_ms

    def earlier(self, expiration_ms: int) -> None:
        """A bucket falls due before ``alarm_ms``: the floor above has to come earlier than it meant."""
        self.alarm_ms = expiration_ms

    def _report(self, error: BaseException, task: TimerTask) -> None:
        """A task raised: the floor above tells somebody."""
        raise error

    def _check(self) -> None:
        """Assert the invariants of the whole timer."""
        self.heart._check()


def put_on(timer: Timekeeper, task: TimerTask) -> None:
    """``Timekeeper.add`` as a function: the compiler calls it without asking whether a subclass has another."""
    if timer.closed:
        raise PurgatoryClosed("the timer is closed")
    now_ms: i64 = ceil_now(timer.clock)
    due_ms = timer.heart.schedule(task, now_ms + task.delay_ms, now_ms)
    if due_ms < timer.alarm_ms:
        timer.earlier(due_ms)
