"""How long other work keeps the event loop busy, measured while a viewer is connected."""

import asyncio
import contextlib
import time
from contextvars import Context
from typing import Final

__all__ = ["LoopLag"]

_INTERVAL: Final = 0.02  # seconds
_LAP: Final = 2.0  # seconds after which the greatest lateness may be forgotten


class LoopLag:
    """A callback that runs every 20 ms: its lateness is the length of the turn that delayed it, minus at most 20 ms.

    Use the object in the loop that it measures; only :meth:`stop` may be called elsewhere.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._lap = self._previous = 0.0
        self._turned = 0.0

    def start(self) -> None:
        """Begin to measure the running loop, unless measuring has already begun."""
        if self._probe is None:
            self._lap = self._previous = 0.0
            self._turned = time.monotonic()
            self._loop = asyncio.get_running_loop()
            self._ask(self._loop)

    def stop(self) -> None:
        """Stop measuring; any thread may call this method."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._stop, context=Context())

    def leave_out(self, seconds: float) -> None:
        """Do not count this many seconds of the current turn, in which the inspector itself has worked."""
        self._due += seconds

    def longest(self) -> float:
        """Return the greatest lateness, in seconds, over the last two to four seconds."""
        now = time.monotonic()
        if now - self._turned >= _LAP:
            self._previous, self._lap, self._turned = self._lap, 0.0, now
        return max(self._previous, self._lap)

    def _stop(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.perf_counter() + _INTERVAL
        self._probe = loop.call_later(_INTERVAL, self._woken, loop, context=Context())

    def _woken(self, loop: asyncio.AbstractEventLoop) -> None:
        # loop.time() is not used, because uvloop updates it only once per turn.
        self._lap = max(self._lap, time.perf_counter() - self._due)
        self._ask(loop)
