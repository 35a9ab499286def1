"""Measurement of the longest turn of an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["LoopMonitor"]

_PROBE_INTERVAL = 0.001


class LoopMonitor:
    """Measure the longest turn of an event loop, in CPU seconds of its thread.

    The CPU clock of the thread stops while the system runs other programs, so the result is independent of their load.

    asyncio calls its selector once per turn, and the CPU time between two calls is the exact length of the turn.
    With uvloop, which has no such hook, a probe runs every millisecond instead.  The length of a turn is then the
    probe's delay or the CPU time since the previous probe, whichever is less.  The probe misses at most one millisecond
    of a turn.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.turns = 0
        self._lap = 0.0
        self._left_out = 0.0
        self._left_out_wall = 0.0
        self._probe: asyncio.TimerHandle | None = None

    def new_loop(self, name: str) -> asyncio.AbstractEventLoop:
        """Return a new event loop, "asyncio" or "uvloop", with this monitor."""
        if name == "asyncio":
            return asyncio.SelectorEventLoop(_TimedSelector(self))
        import uvloop  # an extra that is not available on every platform

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._watch(loop, loop.time(), time.thread_time())
        return loop

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Exclude the work in this context (for example, drawing the screen) from the turn."""
        began, began_wall = time.thread_time(), time.perf_counter()
        try:
            yield
        finally:
            self._left_out += time.thread_time() - began
            self._left_out_wall += time.perf_counter() - began_wall

    def begin(self) -> None:
        """Reset the measurements."""
        self.longest = 0.0
        self._lap = 0.0
        self.turns = 0

    def lap(self) -> float:
        """Return the longest turn since the last call."""
        lap, self._lap = self._lap, 0.0
        return lap

    def over(self, began: float) -> None:
        """Record a turn that began at ``began`` on the CPU clock of the thread."""
        self._note(time.thread_time() - began - self._left_out)

    def _note(self, turn: float) -> None:
        self.longest = max(self.longest, turn)
        self._lap = max(self._lap, turn)
        self._left_out = self._left_out_wall = 0.0
        self.turns += 1

    def _watch(self, loop: asyncio.AbstractEventLoop, due: float, began: float) -> None:
        late = loop.time() - due - self._left_out_wall
        used = time.thread_time() - began - self._left_out
        self._note(min(late, used))
        due = loop.time() + _PROBE_INTERVAL
        self._probe = loop.call_later(_PROBE_INTERVAL, self._watch, loop, due, time.thread_time())


class _TimedSelector(selectors.DefaultSelector):
    """The default selector, which reports the end of every turn to the monitor."""

    def __init__(self, meter: LoopMonitor) -> None:
        super().__init__()
        self._meter = meter
        self._began: float | None = None

    def select(self, timeout: float | None = None) -> Any:
        if self._began is not None:
            self._meter.over(self._began)
        ready = super().select(timeout)
        self._began = time.thread_time()
        return ready
