"""Who wants to hear what happens to groups."""

from __future__ import annotations

import enum

from .group import Group, GroupState, Member

__all__ = ["GroupListener", "Removal"]


class Removal(enum.Enum):
    """Why a member is no longer one."""

    LEFT = "left"
    SESSION = "session expired"
    REBALANCE = "did not rejoin in time"
    SYNC = "did not sync in time"
    GONE = "went away before it knew its id"
    FULL = "the group is full"


class GroupListener:
    """Told of what happens to groups; override what is wanted.  It must not raise, nor call the coordinator."""

    def state_changed(self, group: Group, before: GroupState) -> None:
        """The group is in another state."""

    def member_added(self, group: Group, member: Member) -> None:
        """Somebody has become a member."""

    def member_replaced(self, group: Group, member: Member, before: str) -> None:
        """A static member, ``before`` its former member id, has come back under a new one."""

    def member_removed(self, group: Group, member: Member, why: Removal) -> None:
        """Somebody is no longer a member."""
