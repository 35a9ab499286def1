"""A clock that is set by hand, for code that runs without an event loop."""

from collections.abc import Callable

from purgatory.core.timer.clock import Alarm, Clock

__all__ = ["ManualClock"]


class ManualClock(Clock):
    """A clock whose time is an attribute, ``time_ms``.

    Use it where no event loop runs: assign the time, then call ``timer.expire_due(clock.time_ms)``.  The clock does not
    wake anything, so :meth:`call_at` raises RuntimeError; with an event loop, use :class:`VirtualClock`.

    ::

        clock = ManualClock()
        timer = SystemTimer(clock=clock)
        clock.time_ms += 5000
        timer.expire_due(clock.time_ms)

    ``time_ms``: the initial time, in milliseconds.  Never set the time back.
    """

    __slots__ = ("time_ms",)

    def __init__(self, time_ms: int = 0) -> None:
        self.time_ms: int = time_ms

    def now_ms(self) -> int:
        return self.time_ms

    def ceil_ms(self) -> int:
        return self.time_ms

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        raise RuntimeError(
            "a ManualClock wakes nothing: call timer.expire_due(clock.time_ms), or use a VirtualClock in an event loop"
        )
