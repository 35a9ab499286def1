"""The clocks: subclass :class:`Clock` to bring your own."""

from .aio.monotonic_clock import MonotonicClock
from .core.timer.clock import Alarm, Clock

__all__ = ["Alarm", "Clock", "MonotonicClock"]
