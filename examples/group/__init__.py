"""A Kafka group coordinator (the classic protocol) whose waits are delayed operations; it knows no transport.

=================  ==========================================================================================
``coordinator``    :class:`GroupCoordinator`: one call per request; this is what a broker or a simulation uses
``messages``       requests and results, plain data; :class:`GroupConfig`
``errors``         Kafka's error codes
``group``          groups and members, the table of states
``joining``        JoinGroup: who may join, under which id, and whether anybody has to rebalance for it
``rebalance``      from one generation to the next: everything that waits
``listener``       who wants to hear of it: :class:`GroupListener`
``waits``          the delayed operations: join, sync, heartbeat
=================  ==========================================================================================

Calls of :class:`GroupCoordinator`, durations in seconds:

- ``await join(JoinRequest) -> JoinResult`` and ``await sync(SyncRequest) -> SyncResult`` wait with the group; a
  cancelled one is withdrawn.  ``start_join``, ``start_sync``: the same with a callback.
- ``heartbeat(group_id, member_id, generation, instance_id=None) -> ErrorCode``
- ``leave(group_id, member_id, instance_id=None) -> ErrorCode``
- ``check_commit(group_id, member_id, generation, instance_id=None) -> ErrorCode``: may it commit offsets now?
- ``describe(group_id) -> GroupDescription``, ``list_groups() -> list[GroupListing]``, ``delete(group_id) -> ErrorCode``

What it does as Kafka 3 does, error codes included, and what it leaves out: the new consumer protocol (KIP-848), the
storage of offsets, and moving groups between brokers.  Where it differs: a client that goes away while its request is
parked is noticed at once, where Kafka waits for a timeout.
"""

from .coordinator import GroupCoordinator
from .errors import ErrorCode
from .group import Group, GroupState, Member
from .listener import GroupListener, Removal
from .messages import (
    GroupConfig,
    GroupDescription,
    GroupListing,
    JoinedMember,
    JoinRequest,
    JoinResult,
    MemberDescription,
    SyncRequest,
    SyncResult,
)
from .waits import Parked

__all__ = [
    "ErrorCode",
    "Group",
    "GroupConfig",
    "GroupCoordinator",
    "GroupDescription",
    "GroupListener",
    "GroupListing",
    "GroupState",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "Member",
    "MemberDescription",
    "Parked",
    "Removal",
    "SyncRequest",
    "SyncResult",
]
