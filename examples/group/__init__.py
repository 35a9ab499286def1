"""A Kafka group coordinator for the classic protocol, without a transport.  Every wait is a delayed operation.

======================  =====================================================================================
``coordinator``         :class:`GroupCoordinator`: one method per request, for a broker or a simulation
``messages``            requests and results as plain data; :class:`GroupConfig`
``error_codes``         Kafka's error codes
``group``               groups and members, and the table of state transitions
``join_handler``        JoinGroup: checks of the request, member ids, and the start of a rebalance
``rebalance``           the steps from one generation to the next
``delayed_operations``  the delayed operations: join, sync, heartbeat
``memory_usage``        the limits on the memory of all groups
``listener``            :class:`GroupListener`: callbacks for changes to groups
======================  =====================================================================================

The methods of :class:`GroupCoordinator`, with durations in seconds:

- ``await join(JoinRequest) -> JoinResult`` and ``await sync(SyncRequest) -> SyncResult`` wait for the group.
  Cancelling the task withdraws the request.  ``start_join`` and ``start_sync`` do the same with a callback.
- ``heartbeat(group_id, member_id, generation, instance_id=None) -> ErrorCode``
- ``leave(group_id, member_id, instance_id=None) -> ErrorCode``
- ``check_commit(group_id, member_id, generation, instance_id=None) -> ErrorCode``: whether the member may commit
- ``describe(group_id) -> GroupDescription``, ``list_groups() -> list[GroupListing]``, ``delete(group_id) -> ErrorCode``

The coordinator behaves like the one in Kafka 4.3, including the error codes, except for the differences that
``docs/broker.md`` lists.  It does not support the new consumer protocol (KIP-848), storing offsets, or moving groups
between brokers.  If a client disconnects while its request is parked, this coordinator detects it at once, whereas
Kafka detects it only after a timeout.
"""

from .coordinator import GroupCoordinator
from .delayed_operations import Parked
from .error_codes import ErrorCode
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
