"""Checks that are done later: which keys are to be checked, and how far each has got.  Floor 4.

The keys stand in a queue and take turns: the first is checked for as many of its watchers as the portion allows, and
goes to the end if it has more.  So a key with one watcher does not wait for one with a hundred thousand, and a key
that is named over and over does not keep the others from their turn.

A key is in the queue once, however often it is named.  One that is named while its watchers are being tried has to
try them again, those before the mark as well as those behind it; so it begins anew, once, when it has come to its end.
"""

from collections import deque
from collections.abc import Hashable

from .desk import Desk
from .watchers import Walk

__all__ = ["Rounds"]


class Rounds:
    """Keys that are to be checked at the desk, portion by portion."""

    __slots__ = ("_again", "_desk", "_queue", "_walks")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._queue: deque[Hashable] = deque()
        self._walks: dict[Hashable, Walk | None] = {}  # of every key in the queue; None: it has not begun
        self._again: set[Hashable] = set()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, key: Hashable) -> None:
        """Have the key checked, once, for all that has happened until now."""
        if key not in self._walks:
            self._walks[key] = None
            self._queue.append(key)
        elif self._walks[key] is not None:
            self._again.add(key)

    def work(self, number: int) -> None:
        """Try the next ``number`` watchers, or as many as there are."""
        while number > 0 and self._queue:
            key = self._queue.popleft()
            walk = self._walks[key]
            if walk is None:
                try:
                    walk = self._walks[key] = self._desk.walk(key)
                except BaseException:
                    del self._walks[key]  # it could not be compared; when it is named again it is checked again
                    raise
                if walk is None:
                    del self._walks[key]
                    number -= 1
                    continue
            tried = number
            try:
                tried = self._desk.check_some(walk, number)
            finally:
                # An interrupt passes through: then the walk goes on behind the one that was interrupted.
                self._put_back(key, ended=tried < number)
            number -= max(tried, 1)

    def _put_back(self, key: Hashable, *, ended: bool) -> None:
        if ended and key in self._again:
            self._again.remove(key)
            self._walks[key] = None
            ended = False
        if ended:
            del self._walks[key]
        else:
            self._queue.append(key)
