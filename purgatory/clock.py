"""The clocks, under an earlier name: see :mod:`purgatory.types`."""

from .types import Alarm, Clock, MonotonicClock

__all__ = ["Alarm", "Clock", "MonotonicClock"]
