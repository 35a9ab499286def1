"""The budget for one turn of the event loop, for work that is done in slices."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from purgatory.core.timer.clock import Clock

__all__ = ["TurnBudget"]

_LARGEST_PORTION = 32


class TurnBudget:
    """Limits how much of a long piece of work is done in one turn of the loop.

    A turn is over when the budget is spent.  Within a turn, the work is done in portions, which start at one item and
    double in size while they are cheap: a slow callback is noticed after the first portion, and fast callbacks are not
    slowed down by reading the clock.  When the work wakes tasks, they run before the next turn and may take longer than
    the work itself; if they do, less work is done in that turn.

    ``budget_ms``: real milliseconds, unless the clock defines its own ``work_time``.
    """

    __slots__ = ("_budget", "_done", "_ends", "_limit", "_portion", "_read", "_started")

    def __init__(self, clock: Clock, budget_ms: float) -> None:
        read: Callable[[], Any] = time.perf_counter if clock.work_time() is None else clock.work_time
        self._read = read
        self._budget = budget_ms / 1000
        self._limit = 1024
        self._portion = 1
        self._done = 0
        self._started: float = read()
        self._ends = self._started + self._budget

    def portion(self) -> int:
        """Return how many items to process before the next call to :meth:`over`."""
        return min(self._portion, self._limit)

    def over(self) -> bool:
        """Count the portion as done; return whether the turn is over."""
        self._done += self._portion
        now: float = self._read()
        if now - self._started > self._budget / 8:
            self._portion = max(1, self._portion // 2)
        elif self._portion < _LARGEST_PORTION:
            self._portion *= 2
        self._started = now
        return now >= self._ends or self._done >= self._limit

    async def next_turn(self) -> None:
        """Wait for the next turn of the loop."""
        await asyncio.sleep(0)
        self.resume()

    def resume(self) -> None:
        """Begin the next turn, with a smaller limit if the tasks that the previous turn woke ran for a long time."""
        now: float = self._read()
        if now - self._started > self._budget * 1.5:
            self._limit = max(16, self._done // 2)
        elif self._done >= self._limit:
            self._limit += self._limit // 4
        self._done = 0
        self._started = now
        self._ends = now + self._budget
