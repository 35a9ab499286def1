"""The default clock."""

import asyncio
import time
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import final

from purgatory.core.timer.clock import Alarm, Clock
from purgatory.core.timer.units import floor_ms

__all__ = ["MonotonicClock"]


class _LoopAlarm(Alarm):
    """An alarm; only the event loop refers to its callback, so closing the loop frees the callback."""

    __slots__ = ()

    def cancel(self) -> None:
        handle = self._handle()
        if handle is not None:
            handle.cancel()


@final
class MonotonicClock(Clock):
    """The operating system's monotonic clock, with the same zero as ``time.monotonic()``."""

    # The loop's time() is not used: uvloop caches it at the start of a turn, and a deadline computed from a stale time
    # would be too early.

    __slots__ = ()

    # A test that freezes the time (freezegun) replaces the functions of the module time while operations wait.  Two
    # sources of time in one timer would end them at once, or never.
    _monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return floor_ms(self._monotonic())

    def ceil_ms(self) -> int:
        return floor_ms(self._monotonic()) + 1

    def time(self) -> float:
        return self._monotonic()

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        loop = asyncio.get_running_loop()
        delay_ms = when_ms - self.now_ms()
        if delay_ms <= 0:
            return _LoopAlarm(weakref.ref(loop.call_soon(callback, context=Context())))
        return _LoopAlarm(weakref.ref(loop.call_later(delay_ms / 1000, callback, context=Context())))

    def reader(self) -> Callable[[], float]:
        return self._monotonic
