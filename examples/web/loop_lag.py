"""Measurement of the longest turn of a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

__all__ = ["LoopLagMonitor"]

_PROBE_INTERVAL = 0.005


class LoopLagMonitor:
    """Measure the longest turn of a running event loop, in seconds.

    A timer runs every 5 ms.  Its lateness is the length of the turn that delayed it, minus at most 5 ms.  Use the
    monitor as a context manager in the event loop.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._lap = 0.0
        self._left_out = 0.0
        self._probe: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._ask(asyncio.get_running_loop())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._probe is not None:
            self._probe.cancel()

    def lap(self) -> float:
        """Return the longest turn since the last call."""
        lap, self._lap = self._lap, 0.0
        return lap

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Exclude the work in this context from the measured turn."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._left_out += time.perf_counter() - began

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._probe = loop.call_later(_PROBE_INTERVAL, self._woken, loop, time.perf_counter() + _PROBE_INTERVAL)

    def _woken(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        # Do not use loop.time(), which uvloop updates once per turn.
        late = max(0.0, time.perf_counter() - due - self._left_out)
        self._left_out = 0.0
        self.longest = max(self.longest, late)
        self._lap = max(self._lap, late)
        self._ask(loop)
