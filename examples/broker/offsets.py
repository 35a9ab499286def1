"""Committed offsets, by group and partition."""

from typing import NamedTuple

from .partition import Key

__all__ = ["Committed", "Offsets"]


class Committed(NamedTuple):
    """How far a group has come in a partition."""

    offset: int
    metadata: str


class Offsets:
    """All committed offsets; at most ``limit`` of them.

    They are kept until their topic is deleted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._groups: dict[str, dict[Key, Committed]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def commit(self, group_id: str, key: Key, committed: Committed) -> bool:
        """Remember it.  False: there are too many already, and this would be another."""
        known = self._groups.get(group_id, {})
        if key not in known:
            if self._size >= self._limit:
                return False
            self._size += 1
        self._groups.setdefault(group_id, known)[key] = committed
        return True

    def fetch(self, group_id: str, key: Key) -> Committed | None:
        """The committed offset, or None."""
        return self._groups.get(group_id, {}).get(key)

    def keys(self, group_id: str) -> list[Key]:
        """The partitions for which the group has committed anything."""
        return sorted(self._groups.get(group_id, {}))

    def forget_topic(self, name: str) -> None:
        """The topic is deleted."""
        for group_id, known in list(self._groups.items()):
            for key in [key for key in known if key[0] == name]:
                del known[key]
                self._size -= 1
            if not known:
                del self._groups[group_id]
