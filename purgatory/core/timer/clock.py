"""The interface of a clock.  The core reads only the clock that the layer above passes to it."""

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr

__all__ = ["Alarm", "Clock"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Alarm:
    """A requested wake-up that can be cancelled."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def cancel(self) -> None:
        """Cancel the wake-up; does nothing once the callback has run."""
        self._handle.cancel()


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """A source of time.  Subclass it to bring your own, and override :meth:`now_ms` and :meth:`call_at`.

    A clock counts whole milliseconds from an arbitrary start, and never goes back.
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the time, rounded **down** to a millisecond: a deadline at or before it has passed."""
        raise NotImplementedError

    def ceil_ms(self) -> int:
        """Return the time, rounded **up** to a millisecond: deadlines count from here, so they are never early.

        A clock without fractions of a millisecond returns ``now_ms()``.
        """
        return self.now_ms() + 1

    def time(self) -> float:
        """Return the time in seconds, never less than the exact time, because a deadline may be measured from it."""
        return self.ceil_ms() / 1000

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        """Have the running event loop call ``callback`` at ``when_ms`` or later.

        The call may also come early, so the callback checks the time.  A time in the past means the next turn of the
        loop.
        """
        raise NotImplementedError

    def work_time(self) -> float | None:
        """Return the seconds that count against a budget of work; None: real seconds.

        A virtual clock returns a measure of work instead, which is the same in every run.
        """
        return None

    def reader(self) -> Callable[[], float] | None:
        """Return a function that reads the time in seconds faster than :meth:`now_ms` does, or None."""
        return None
