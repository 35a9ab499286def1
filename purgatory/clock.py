"""Clocks: what time it is, and a way to be woken at a time.  Floor 4."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, final

from mypy_extensions import mypyc_attr

__all__ = ["Alarm", "Clock", "MonotonicClock", "ceil_now", "now"]


class Alarm:
    """A wake-up that was asked for, and can be called off."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def cancel(self) -> None:
        """Call it off; harmless when it has rung."""
        self._handle.cancel()


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """What the house knows of time.  Subclass it to bring another one.

    A clock counts whole milliseconds from a beginning of its own, and never goes back.
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """The time, rounded **down** to a millisecond: what lies at or before it has come."""
        raise NotImplementedError

    def ceil_ms(self) -> int:
        """The time, rounded **up** to a millisecond: deadlines are counted from here, so they are never early.

        A clock that knows no fractions of a millisecond returns ``now_ms()``.
        """
        return self.now_ms() + 1

    def time(self) -> float:
        """The time in seconds, not earlier than it is: a deadline may be counted from here."""
        return self.ceil_ms() / 1000

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        """Have ``callback`` called in the running event loop at ``when_ms`` or somewhat later.

        It may also come early: whoever is woken looks at the time.  A time that has come already means the next turn
        of the loop.
        """
        raise NotImplementedError

    def effort(self) -> float:
        """Real seconds, for budgets of work; on a virtual clock a count of work instead, the same in every run."""
        return time.perf_counter()


@final
class MonotonicClock(Clock):
    """The operating system's monotonic clock, counted from where ``time.monotonic()`` counts."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        # Not the loop's time(): uvloop caches that at the start of a turn, and a deadline counted from a time that
        # has passed comes early.
        self._read: Callable[[], float] = time.monotonic

    def now_ms(self) -> int:
        return int(self._read() * 1000.0)

    def ceil_ms(self) -> int:
        return int(self._read() * 1000.0) + 1

    def time(self) -> float:
        return self._read()

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        loop = asyncio.get_running_loop()
        delay_ms = when_ms - self.now_ms()
        if delay_ms <= 0:
            return Alarm(loop.call_soon(callback))
        return Alarm(loop.call_later(delay_ms / 1000, callback))


def now(clock: Clock) -> int:
    """``clock.now_ms()``; for the usual clock the compiler knows what it calls."""
    if isinstance(clock, MonotonicClock):
        return clock.now_ms()
    return clock.now_ms()


def ceil_now(clock: Clock) -> int:
    """``clock.ceil_ms()``; for the usual clock the compiler knows what it calls."""
    if isinstance(clock, MonotonicClock):
        return clock.ceil_ms()
    return clock.ceil_ms()
