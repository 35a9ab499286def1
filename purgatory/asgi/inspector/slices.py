"""Work in slices that take at most a fixed share of the event loop's time."""

import asyncio
import time
from typing import Final

__all__ = ["SHARE", "Slices"]

SHARE: Final = 0.05
"""The largest share of the loop's time that an inspector may use."""
_TURN: Final = 0.0005  # seconds of work in one turn of the loop


class Slices:
    """A budget: after each half millisecond of work, the task sleeps nineteen times as long as it has worked.

    ``busy``: seconds of work so far.  ``longest``: the longest slice.
    """

    __slots__ = ("_began", "busy", "longest")

    def __init__(self) -> None:
        self.busy: float = 0.0
        self.longest: float = 0.0
        self._began = time.perf_counter()

    def resume(self) -> None:
        """Begin a slice; the time since the last slice does not count as work."""
        self._began = time.perf_counter()

    async def pause_if_due(self) -> None:
        """Pause if this slice has run long enough."""
        if time.perf_counter() - self._began >= _TURN:
            await self.pause()

    async def pause(self) -> None:
        """End the slice; sleep until its share of the time is no larger than :data:`SHARE`."""
        await asyncio.sleep(self.end() * (1 / SHARE - 1))
        self.resume()

    def end(self) -> float:
        """End the slice without a pause; return how long it took."""
        worked = time.perf_counter() - self._began
        self.busy += worked
        self.longest = max(self.longest, worked)
        return worked
