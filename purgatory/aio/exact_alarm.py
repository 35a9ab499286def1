"""An alarm that is never early, on a clock that may call back early."""

from collections.abc import Callable

from purgatory.core.timer.clock import Alarm, Clock

__all__ = ["ExactAlarm"]


class ExactAlarm:
    """Have the running event loop call ``callback`` at ``when_ms`` or later, but not earlier.

    :meth:`Clock.call_at` may call back early; the alarm is then requested again.
    """

    __slots__ = ("_alarm", "_callback", "_clock", "_when_ms")

    def __init__(self, clock: Clock, when_ms: int, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._when_ms = when_ms
        self._callback = callback
        self._alarm: Alarm = clock.call_at(when_ms, self._wake_up)

    def cancel(self) -> None:
        """Cancel the alarm; do nothing if the callback has already run."""
        self._alarm.cancel()

    def _wake_up(self) -> None:
        if self._clock.now_ms() < self._when_ms:
            self._alarm = self._clock.call_at(self._when_ms, self._wake_up)
        else:
            self._callback()
