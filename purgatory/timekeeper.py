"""The timer with a clock at hand: everything of a timer that happens without waiting.  Floor 4.

The floors below take the time as an argument; this one asks the clock and hands it down.
"""

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr

from .clock import Clock, MonotonicClock
from .errors import PurgatoryClosed
from .timer.system import TimerHeart
from .timer.task import TimerTask
from .units import duration_ms

__all__ = ["Callback", "Timekeeper"]


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
class Timekeeper(TimerHeart):
    """The synchronous half of :class:`SystemTimer`."""

    __slots__ = ("_closed", "clock")

    def __init__(self, tick_ms: int, wheel_size: int, clock: Clock | None) -> None:
        if clock is None:
            clock = MonotonicClock()
        super().__init__(tick_ms, wheel_size, clock.now_ms())
        self.clock: Clock = clock
        self._closed: bool = False

    def add(self, task: TimerTask) -> None:
        """Put the task on the timer, to run ``task.delay_ms`` from now, rounded up to the next tick.

        One that is due already runs on the reaper's next turn, never in here.  One that is on the timer is moved.
        Raises PurgatoryClosed when the timer is closed.
        """
        if self._closed:
            raise PurgatoryClosed("the timer is closed")
        now_ms = self.clock.ceil_ms()
        self.schedule(task, now_ms + task.delay_ms, now_ms)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerTask:
        """Call ``callback(*args)`` in ``delay`` seconds; the task that is returned can be cancelled.

        Never early; late by at most one tick and what the loop was busy.  Unlike the loop's ``call_later`` it keeps no
        copy of the context: the callback runs in the reaper's.
        """
        if not callable(callback):
            raise TypeError(f"callback is something to call, not {callback!r}")
        task = Callback(duration_ms(delay, "delay"), callback, args)
        self.add(task)
        return task
