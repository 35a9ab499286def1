"""The interface of a clock.  The core reads only the clock that the layer above it provides."""

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr

from .units import to_seconds

__all__ = ["Alarm", "Clock"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Alarm:
    """A requested wake-up that can be cancelled."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def cancel(self) -> None:
        """Cancel the wake-up; do nothing if the callback has already run."""
        self._handle.cancel()


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """A source of time.  To provide your own, subclass this class and override :meth:`now_ms` and :meth:`call_at`.

    A clock counts whole milliseconds, upward from 0 or a positive number, and never goes back.
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the time, rounded **down** to a millisecond: a deadline at or before this time has passed."""
        raise NotImplementedError

    def ceil_ms(self) -> int:
        """Return the time, rounded **up** to the next millisecond: deadlines count from this time, so nothing expires
        early.

        A clock without fractions of a millisecond returns ``now_ms()``.
        """
        return self.now_ms() + 1

    def time(self) -> float:
        """Return the time in seconds, never less than the exact time, because a deadline may count from this time."""
        return to_seconds(self.ceil_ms())

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        """Have the running event loop call ``callback`` at ``when_ms`` or later.

        The call may also come early, so the callback checks the time.  A time in the past means the next turn of the
        loop.
        """
        raise NotImplementedError

    def work_time(self) -> float | None:
        """Return the time in seconds by which a budget of work is measured, or None to use real seconds.

        A virtual clock instead returns a measure of work that is the same in every run.
        """
        return None

    def reader(self) -> Callable[[], float] | None:
        """Return a function that reads the time in seconds faster than :meth:`now_ms` does, or None."""
        return None
