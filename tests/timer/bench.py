"""A timer's heart on a bench: told the time, and a log of what ran."""

from typing import Any

from purgatory.timer.system import TimerHeart
from tests.helpers import Task

__all__ = ["DAY_MS", "Bench"]

DAY_MS = 86_400_000


class Bench:
    """A heart, the time, and a log of what ran when."""

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> None:
        self.now_ms = start_ms
        self.log: list[Any] = []
        self.errors: list[tuple[BaseException, Any]] = []
        self.heart = TimerHeart(tick_ms, wheel_size, start_ms, self._on_error, (Exception,))

    def _on_error(self, error: BaseException, task: Any) -> None:
        self.errors.append((error, task))

    def add(self, delay_ms: int, name: Any = None) -> Task:
        task = Task(delay_ms, self.log, name)
        self.heart.schedule(task, self.now_ms + delay_ms, self.now_ms)
        self.heart._check()
        return task

    def move_to(self, now_ms: int, limit: int = 0) -> list[Any]:
        """Set the time, run what is due, and return what ran."""
        self.now_ms = now_ms
        before = len(self.log)
        ran = self.heart.expire_due(now_ms, limit)
        self.heart._check()
        assert ran == len(self.log) - before
        return self.log[before:]

    def jumps(self) -> list[int]:
        """Go from one expiration to the next until nothing is left, and return the times."""
        times = []
        while (next_ms := self.heart.next_expiration_ms) is not None:
            times.append(next_ms)
            self.move_to(next_ms)
        return times
