"""Callbacks for changes to groups."""

from __future__ import annotations

import enum

from .group import Group, GroupState, Member

__all__ = ["GroupListener", "Removal"]


class Removal(enum.Enum):
    """The reason for a member's removal."""

    LEFT = "left"
    SESSION = "session expired"
    REBALANCE = "did not rejoin in time"
    SYNC = "did not sync in time"
    GONE = "disconnected before it received its id"
    FULL = "the group is full"


class GroupListener:
    """Receive changes to groups.  Override the methods that you need.  No method may raise an exception or call the
    coordinator.
    """

    def state_changed(self, group: Group, before: GroupState) -> None:
        """Called after the group has changed its state."""

    def member_added(self, group: Group, member: Member) -> None:
        """Called after a member has been added."""

    def member_replaced(self, group: Group, member: Member, before: str) -> None:
        """Called after a static member has received a new id.  ``before``: its former member id."""

    def member_removed(self, group: Group, member: Member, why: Removal) -> None:
        """Called after a member has been removed."""
