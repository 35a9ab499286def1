"""The limit on the total size of all logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .partition import Partition

__all__ = ["StorageLimit"]


class StorageLimit:
    """Keep the total size of all logs below ``limit`` bytes.  ``partitions()``: returns all partitions.

    When an append would exceed the limit, the largest log loses its oldest segment.  A log never loses a segment to a
    larger log, so a client that fills partitions loses its own records first.
    """

    def __init__(self, limit: int, partitions: Callable[[], Iterable[Partition]]) -> None:
        self.limit = limit
        self.used = 0
        self._partitions = partitions

    def make_room(self, partition: Partition, size: int) -> bool:
        """Make room for ``size`` more bytes in the log of ``partition``.  Return False if that is not possible."""
        while self.used + size > self.limit:
            candidates = [
                other for other in self._partitions() if other.log.size >= partition.log.size and other.log.size
            ]
            for other in sorted(candidates, key=lambda other: other.log.size, reverse=True):
                if other.delete_oldest_segment():
                    break
            else:
                return False
        return True
