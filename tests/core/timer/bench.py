"""A timer core driven by explicit times, with a log of the tasks that ran."""

from typing import Any

from purgatory.core.timer.timer_core import TimerCore
from tests.helpers import Task

__all__ = ["DAY_MS", "Bench", "take_everything_off"]

DAY_MS = 86_400_000


def take_everything_off(core: TimerCore, limit: int = 3) -> list[Any]:
    """Remove every task, ``limit`` at a time, as a closing timer does."""
    tasks: list[Any] = []
    while core.size:
        some = core.drain(limit)
        assert len(some) <= limit
        tasks += some
    return tasks


class Bench:
    """A timer core, its time, and a log of the tasks that ran with their times."""

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0, early_from: int = 1000) -> None:
        self.now_ms = start_ms
        self.log: list[Any] = []
        self.errors: list[tuple[BaseException, Any]] = []
        self.core = TimerCore(tick_ms, wheel_size, start_ms, self._on_error, (Exception,), early_from)

    def _on_error(self, error: BaseException, task: Any) -> None:
        self.errors.append((error, task))

    def add(self, delay_ms: int, name: Any = None) -> Task:
        task = Task(delay_ms, self.log, name)
        self.core.schedule(task, self.now_ms + delay_ms, self.now_ms)
        self.core._check()
        return task

    def move_to(self, now_ms: int, limit: int = 0) -> list[Any]:
        """Set the time, run the due tasks, and return them."""
        self.now_ms = now_ms
        before = len(self.log)
        ran = self.core.expire_due(now_ms, limit)
        self.core._check()
        assert ran == len(self.log) - before
        return self.log[before:]

    def cascade_early(self, now_ms: int, limit: int = 32) -> int:
        """Set the time, at which nothing is due, and cascade coarse buckets early; return how many tasks were moved."""
        self.now_ms = now_ms
        moved = self.core.cascade_early(now_ms, limit)
        self.core._check()
        return moved

    def jumps(self) -> list[int]:
        """Advance from one expiration to the next until no task is left, and return the times."""
        times = []
        while (next_ms := self.core.next_expiration_ms) is not None:
            times.append(next_ms)
            self.move_to(next_ms)
        return times
