"""How long the event loop's turns are."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["TurnMeter"]

_PROBE_INTERVAL = 0.001


class TurnMeter:
    """Measures the longest turn of an event loop.

    asyncio asks its selector once a turn, so what passes between two questions is the turn, exactly.  uvloop has no
    such place; there a probe asks to be woken every millisecond and sees how late it is, which misses at most that.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.turns = 0
        self._lap = 0.0
        self._began: float | None = None
        self._left_out = 0.0
        self._probe: asyncio.TimerHandle | None = None

    def new_loop(self, name: str) -> asyncio.AbstractEventLoop:
        """An event loop, "asyncio" or "uvloop", that is measured."""
        if name == "asyncio":
            return asyncio.SelectorEventLoop(_TimedSelector(self))
        import uvloop  # an extra, and not there on every platform

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._watch(loop, loop.time())
        return loop

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """What is done in here is not part of the turn: painting the screen."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._left_out += time.perf_counter() - began

    def begin(self) -> None:
        """Forget what was measured so far."""
        self.longest = 0.0
        self._lap = 0.0
        self.turns = 0

    def lap(self) -> float:
        """The longest turn since this was last asked."""
        lap, self._lap = self._lap, 0.0
        return lap

    def over(self, began: float) -> None:
        """A turn that began at ``began`` is over."""
        turn = time.perf_counter() - began - self._left_out
        self.longest = max(self.longest, turn)
        self._lap = max(self._lap, turn)
        self._left_out = 0.0
        self.turns += 1

    def _watch(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        late = loop.time() - due - self._left_out
        self._left_out = 0.0
        self.longest = max(self.longest, late)
        self._lap = max(self._lap, late)
        self.turns += 1
        self._probe = loop.call_later(_PROBE_INTERVAL, self._watch, loop, loop.time() + _PROBE_INTERVAL)


class _TimedSelector(selectors.DefaultSelector):
    """The platform's selector, which tells the meter when a turn ends and the next begins."""

    def __init__(self, meter: TurnMeter) -> None:
        super().__init__()
        self._meter = meter
        self._began: float | None = None

    def select(self, timeout: float | None = None) -> Any:
        if self._began is not None:
            self._meter.over(self._began)
        ready = super().select(timeout)
        self._began = time.perf_counter()
        return ready
