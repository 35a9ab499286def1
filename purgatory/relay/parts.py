"""The parts of failed reads, which are read separately to find the keys that cannot be read."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from .codec import Entry

__all__ = ["Parts"]

_JOINED_AFTER: Final = 5  # successful reads of parts, after which small parts are joined


class Parts:
    """The parts of failed reads, in the order in which they are read.

    ``has_read``: whether a key has been read before.
    """

    def __init__(self, has_read: Callable[[Hashable], bool]) -> None:
        self._has_read = has_read
        self._parts: deque[list[Entry]] = deque()
        self._keys: set[Hashable] = set()
        self._successes = 0  # successful reads of parts since one of them has failed

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._keys)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def have_any(self, keys: Iterable[Hashable]) -> bool:
        """Return whether one of the keys is in a part."""
        return not self._keys.isdisjoint(keys)

    def divide(self, batch: list[Entry]) -> None:
        """Add two parts of the batch: the keys that have been read before, which are next, and those that have not, or,
        if all are alike, two halves.
        """
        self._keys.update(key for key, _ in batch)
        known = [entry for entry in batch if self._has_read(entry[0])]
        new = [entry for entry in batch if not self._has_read(entry[0])]
        middle = len(batch) // 2
        if known and new:
            self._parts.appendleft(known)
            self._parts.append(new)
        else:
            self._parts += batch[:middle], batch[middle:]

    def take(self, most_keys: list[int]) -> list[Entry]:
        """Remove and return the next part, or several that are small and alike.

        The parts that the outage of a shard has left are joined, but not those that were divided a moment ago.
        ``most_keys``: for keys that have been read before, and for new ones: how many keys a read may have.
        """
        has_read = self._has_read
        part = self._parts.popleft()
        is_new = not has_read(part[0][0])
        most = most_keys[is_new] // 2 if self._successes >= _JOINED_AFTER else 0
        while self._parts and len(part) + len(self._parts[0]) <= most and is_new != has_read(self._parts[0][0][0]):
            part += self._parts.popleft()
        self._keys.difference_update([key for key, _ in part])
        return part

    def succeeded(self) -> None:
        """Record that the read of a part has succeeded."""
        self._successes += 1

    def failed(self) -> None:
        """Record that the read of a part has failed."""
        self._successes = 0

    def take_all(self) -> list[Entry]:
        """Remove and return the keys of all parts."""
        entries = [entry for part in self._parts for entry in part]
        self._parts.clear()
        self._keys.clear()
        return entries
