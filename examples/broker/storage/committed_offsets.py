"""Committed offsets, by group and partition."""

import sys
from typing import NamedTuple

from .partition import Key

__all__ = ["Committed", "Offsets"]


class Committed(NamedTuple):
    """The committed offset of a group in a partition."""

    offset: int
    metadata: str


class Offsets:
    """All committed offsets.

    ``limit``: the maximum number of offsets.  ``max_bytes``, ``max_group_bytes``: the maximum total size of the
    offsets' metadata in memory, for all groups together and for each group.  The limit for each group also keeps the
    metadata in an OffsetFetch response below twice that size.  Offsets are kept until their topic is deleted.
    """

    def __init__(self, limit: int, max_bytes: int = 64 << 20, max_group_bytes: int = 8 << 20) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._max_group_bytes = max_group_bytes
        self._groups: dict[str, dict[Key, Committed]] = {}
        self._of_topic: dict[str, dict[tuple[str, Key], None]] = {}  # index by topic, for fast deletion of a topic
        self._size = 0
        self._bytes = 0
        self._group_bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def metadata_bytes(self) -> int:
        """The total size of the metadata of all groups."""
        return self._bytes

    def commit(self, group_id: str, key: Key, committed: Committed) -> bool:
        """Store an offset.  Return False, and store nothing, if the offset would exceed a limit."""
        known = self._groups.get(group_id, {})
        before = known.get(key)
        more = _bytes(committed) - _bytes(before)
        if before is None and self._size >= self._limit:
            return False
        if more > 0 and self._bytes + more > self._max_bytes:
            return False
        if more > 0 and self._group_bytes.get(group_id, 0) + more > self._max_group_bytes:
            return False
        self._size += before is None
        self._count(group_id, more)
        self._groups.setdefault(group_id, known)[key] = committed
        self._of_topic.setdefault(key[0], {})[group_id, key] = None
        return True

    def fetch(self, group_id: str, key: Key) -> Committed | None:
        """Return the committed offset, or None."""
        return self._groups.get(group_id, {}).get(key)

    def keys(self, group_id: str) -> list[Key]:
        """Return the partitions for which the group has committed offsets."""
        return sorted(self._groups.get(group_id, {}))

    def forget_topic(self, name: str) -> None:
        """Delete all offsets of a topic."""
        for group_id, key in self._of_topic.pop(name, {}):
            known = self._groups[group_id]
            self._count(group_id, -_bytes(known.pop(key)))
            self._size -= 1
            if not known:
                del self._groups[group_id], self._group_bytes[group_id]

    def _count(self, group_id: str, more: int) -> None:
        self._bytes += more
        self._group_bytes[group_id] = self._group_bytes.get(group_id, 0) + more


def _bytes(committed: Committed | None) -> int:
    """Return the size of the metadata in memory.  When encoded, the metadata is less than twice as large."""
    return 0 if committed is None else sys.getsizeof(committed.metadata)
