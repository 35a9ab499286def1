"""The keys whose state the last read has not found: each is read again after a pause.

The read found a smaller value than a notice has announced, or an exception as the value of the key.
"""

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

from purgatory import Clock

from .codec import is_value
from .timing import together_ms

__all__ = ["NotFound"]

_MISSING: Final = object()


class _Again:
    """A key that is read again.

    ``attempts``: how many reads in a row have not found its state.  ``due_ms``: when it is read again; 0 if it is due.
    """

    __slots__ = ("attempts", "due_ms")

    def __init__(self) -> None:
        self.attempts = 0
        self.due_ms = 0


class NotFound:
    """The keys of one purgatory that are read again, and the values that notices have announced.

    Keys with the same pause are due at the same times, so that they are read together.  ``phase_ms`` shifts these
    times, so that they differ between processes.  ``max_keys``: the largest number of announced values that are kept.
    """

    def __init__(self, max_keys: int, clock: Clock, is_watched: Callable[[Hashable], bool]) -> None:
        self.phase_ms: int = 0
        self._max_keys = max_keys
        self._clock = clock
        self._is_watched = is_watched
        self._announced: dict[Hashable, float] = {}  # the values of notices, until a read finds them
        self._again: dict[Hashable, _Again] = {}
        self._later: list[tuple[int, int, Hashable]] = []  # a heap of (when to read it again, number, key)
        self._numbers = itertools.count()  # the order of keys that are due at the same time

    def __bool__(self) -> bool:
        """Whether any key is to be read again."""
        return bool(self._again)

    def is_postponed(self, key: Hashable) -> bool:
        """Return whether the key is waiting for the end of its pause."""
        again = self._again.get(key)
        return again is not None and again.due_ms > 0

    @property
    def waiting(self) -> int:
        """The number of keys whose pauses have not passed, including those that have been forgotten."""
        return len(self._later)

    @property
    def next_due_ms(self) -> int | None:
        """When the next key is due, or None if there is none."""
        return self._later[0][0] if self._later else None

    def announce(self, key: Hashable, value: float) -> None:
        """Record the value that a notice has announced."""
        announced = self._announced
        if key in announced:
            announced[key] = max(announced[key], value)
        elif len(announced) < self._max_keys:
            announced[key] = value

    def lags(self, key: Hashable, found: Mapping[Any, object]) -> bool:
        """Return whether a read has found a smaller value for the watched key than the announced one."""
        announced = self._announced.get(key)
        if announced is None:
            return False
        value = found.get(key, _MISSING)
        return (value is _MISSING or (is_value(value) and value < announced)) and self._is_watched(key)

    def postpone(self, key: Hashable) -> None:
        """Read the key again after a pause, which is longer after each read that has not found its state."""
        again = self._again.setdefault(key, _Again())
        if again.due_ms == 0:
            again.attempts += 1
            again.due_ms = together_ms(again.attempts, self._clock.ceil_ms(), self.phase_ms)
            heapq.heappush(self._later, (again.due_ms, next(self._numbers), key))

    def has_due(self) -> bool:
        """Return whether :meth:`take_due` has anything to do."""
        return bool(self._later) and self._later[0][0] <= self._clock.now_ms()

    def take_due(self, most: int, steps: int) -> list[Hashable]:
        """Remove and return at most ``most`` keys whose pauses have passed.

        Each key is one step, and so is one that has been forgotten.
        """
        due: list[Hashable] = []
        while steps > 0 and len(due) < most and self.has_due():
            steps -= 1
            due_ms, _, key = heapq.heappop(self._later)
            again = self._again.get(key)
            if again is not None and again.due_ms == due_ms:
                again.due_ms = 0
                due.append(key)
        return due

    def forget(self, key: Hashable) -> None:
        """Forget the key, because its state has been found, or because nothing waits on it."""
        self._announced.pop(key, None)
        self._again.pop(key, None)

    def forget_unwatched(self, keys: Iterable[Hashable]) -> None:
        """Forget each of the keys on which nothing waits."""
        if self._announced or self._again:
            for key in keys:
                if not self._is_watched(key):
                    self.forget(key)

    def keys(self) -> list[Hashable]:
        """Return all keys about which anything is known; a key may appear twice."""
        return [*self._announced, *self._again]
