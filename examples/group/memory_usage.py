"""The memory usage of all groups of a coordinator, and the limits on that usage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .messages import GroupConfig, JoinRequest

__all__ = ["MemoryUsage", "size_of_protocols"]

_PROTOCOL_BYTES = 128  # overhead of a protocol, without its name and metadata


def size_of_protocols(protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> int:
    """Return the size in bytes of a member's protocols."""
    return len(protocol_type) + sum(_PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


class MemoryUsage:
    """The total number of members and of bytes in all groups.

    ``members`` includes pending member ids.  ``bytes`` counts protocols, their metadata, and assignments.
    """

    __slots__ = ("bytes", "config", "members")

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.members = 0
        self.bytes = 0

    def allows(self, request: JoinRequest, group_bytes: int, member_bytes: int | None) -> bool:
        """Return whether a group of ``group_bytes`` can accept the request.

        ``member_bytes``: the current size of a member that joins again, or None for a new member.
        """
        config = self.config
        size = size_of_protocols(request.protocol_type, request.protocols)
        if size > config.max_member_bytes or (member_bytes is None and self.members >= config.max_members):
            return False
        return self.allows_bytes(group_bytes, size - (member_bytes or 0))

    def allows_bytes(self, group_bytes: int, more: int) -> bool:
        """Return whether a group of ``group_bytes`` may grow by ``more`` bytes.  It may always shrink."""
        config = self.config
        fits = group_bytes + more <= config.max_group_bytes and self.bytes + more <= config.max_total_bytes
        return more <= 0 or fits
