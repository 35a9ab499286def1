"""How long other work keeps the event loop busy, measured while somebody looks."""

import asyncio
import time
from typing import Final

__all__ = ["LoopLag"]

_INTERVAL: Final = 0.02  # seconds


class LoopLag:
    """A callback every 20 ms: its lateness is the length of the turn that delayed it, less at most 20 ms."""

    def __init__(self) -> None:
        self._lap: float | None = None
        self._due = 0.0
        self._probe: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure the running loop."""
        if self._probe is None:
            self._lap = None
            self._ask(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop measuring."""
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def lap(self) -> float | None:
        """Return the longest lateness since the last call, in seconds; None if nothing was measured."""
        lap, self._lap = self._lap, None
        return lap

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.perf_counter() + _INTERVAL
        self._probe = loop.call_later(_INTERVAL, self._woken, loop)

    def _woken(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not loop.time(), which uvloop updates once per turn.
        late = max(0.0, time.perf_counter() - self._due)
        self._lap = late if self._lap is None else max(self._lap, late)
        self._ask(loop)
