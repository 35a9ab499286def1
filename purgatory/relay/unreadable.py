"""The keys whose read failed even though no other key was read with them: each is read again after a pause."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from purgatory import Clock

from .codec import Entry
from .timing import backoff_ms

__all__ = ["Errors", "UnreadableKey", "UnreadableKeys"]

_MOST: Final = 1_000  # the largest number of these keys that are read together
_LONGEST: Final = 4  # one in so many is read because it has been due for the longest time
_OFTEN: Final = 8  # keys that have failed at least this often are read in turn

Errors = set[type[BaseException]]
"""The types of errors that have been reported."""


class UnreadableKey:
    """A key whose read failed even though no other key was read with it.

    ``failures``: the number of these reads.
    """

    __slots__ = ("entry", "failures", "reported")

    def __init__(self, entry: Entry, reported: Errors) -> None:
        self.entry: Entry = entry
        self.failures: int = 1
        self.reported: Errors = reported


_Due = deque[tuple[int, UnreadableKey]]  # (since when, key), in this order


def _first_due_ms(queue: _Due) -> int:
    return queue[0][0]


class UnreadableKeys:
    """The unreadable keys of one purgatory.

    A key that has failed less often comes first, because it may have failed only because the store was down, but every
    fourth key is the one that has been due for the longest time.  Keys are read one at a time until two reads in a row
    have succeeded; then each success doubles their number, because many may be readable again.

    ``is_watched``: whether an operation waits on a key.  ``forget``: called with each key that is dropped because none
    does.  ``jitter``: shortens the pauses at random.
    """

    def __init__(
        self,
        max_keys: int,
        clock: Clock,
        jitter: random.Random,
        is_watched: Callable[[Hashable], bool],
        forget: Callable[[Hashable], object],
    ) -> None:
        self.jitter: random.Random = jitter
        self._max_keys = max_keys
        self._clock = clock
        self._is_watched = is_watched
        self._forget = forget
        self._keys: dict[Hashable, UnreadableKey] = {}
        self._numbers = itertools.count()  # the order of keys that are due at the same time
        self._later: list[tuple[int, int, UnreadableKey]] = []  # a heap of (when to read it, number, key)
        self._due: list[_Due] = [deque() for _ in range(_OFTEN + 1)]  # those that are due, by the number of failures
        self._taken = 0  # how many of these have been taken
        self._not_before_ms = 0  # when the next key may be read
        self._failures = 0  # failed reads of these keys since the last success of any read
        self._successes = 0  # successful reads of these keys since one of them has failed
        self._lately: list[UnreadableKey] = []  # the keys that have been added since the last successful read

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def add(self, entry: Entry, reported: Errors) -> None:
        """Add the only key of a failed read.  ``reported``: the types of its errors that have been reported."""
        unreadable = UnreadableKey(entry, reported)
        self._lately.append(unreadable)
        self._postpone(unreadable, backoff_ms(1, self.jitter))

    def take(self) -> list[UnreadableKey]:
        """Remove and return the keys of the next read, if any is due; drop keys that are no longer watched."""
        found: list[UnreadableKey] = []
        now_ms = self._clock.now_ms()
        while self._later and self._later[0][0] <= now_ms:
            due_ms, _, unreadable = heapq.heappop(self._later)
            self._due[min(unreadable.failures, _OFTEN)].append((due_ms, unreadable))
        most = min(1 << max(0, self._successes - 1), self._max_keys, _MOST)
        while len(found) < most:
            queues = [queue for queue in self._due if queue]
            if not queues:
                break
            queue = min(queues, key=_first_due_ms) if self._taken % _LONGEST == 0 else queues[0]
            unreadable = queue[0][1]
            key, _ = unreadable.entry
            watched = self._is_watched(key)
            if watched and now_ms < self._not_before_ms:
                break
            queue.popleft()
            if self._keys.get(key) is not unreadable:
                continue  # the key has rejoined the others
            del self._keys[key]
            if watched:
                found.append(unreadable)
                self._taken += 1
            else:
                self._forget(key)
        return found

    def failed(self, batch: list[UnreadableKey]) -> int:
        """Postpone these keys, whose read has failed, and, for a shorter time, all others; return the first's pause.

        If several keys were read together, each of them is due again.
        """
        self._successes = 0
        self._failures += 1
        pause_ms = backoff_ms(self._failures, self.jitter)
        self._not_before_ms = self._clock.ceil_ms() + pause_ms
        if len(batch) == 1:
            batch[0].failures += 1
            pause_ms = backoff_ms(batch[0].failures, self.jitter)
            self._postpone(batch[0], pause_ms)
        else:
            for unreadable in batch:
                self._postpone(unreadable, 0)
        return pause_ms

    def succeeded(self) -> None:
        """Record that a read of these keys has succeeded."""
        self._successes = min(self._successes + 1, _MOST)

    def any_read_succeeded(self) -> None:
        """Record that a read of any keys has succeeded: the keys that failed before it do not rejoin the others."""
        self._failures = 0
        self._lately.clear()

    def take_lately_added(self) -> list[Entry]:
        """Remove and return the keys that have been added since the last successful read of any keys."""
        entries: list[Entry] = []
        for unreadable in self._lately:
            key, _ = unreadable.entry
            if self._keys.get(key) is unreadable:
                del self._keys[key]
                entries.append(unreadable.entry)
        return entries

    def next_due_ms(self) -> int | None:
        """Return when the next read may begin, or None if there are no keys."""
        if any(self._due):
            return self._not_before_ms
        return max(self._later[0][0], self._not_before_ms) if self._later else None

    def clear(self) -> None:
        """Remove all keys."""
        self._keys.clear()
        self._later.clear()
        self._lately.clear()
        for queue in self._due:
            queue.clear()

    def _postpone(self, unreadable: UnreadableKey, pause_ms: int) -> None:
        self._keys[unreadable.entry[0]] = unreadable
        heapq.heappush(self._later, (self._clock.ceil_ms() + pause_ms, next(self._numbers), unreadable))
