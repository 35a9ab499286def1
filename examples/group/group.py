"""The state of a group and its members, without the waiting operations.

The states of a group
=====================

=======================  ===============================================  ========================================
state                    meaning                                          next states
=======================  ===============================================  ========================================
``EMPTY``                no members                                       PREPARING_REBALANCE: a member joins
``PREPARING_REBALANCE``  members join; JoinGroup requests are parked      COMPLETING_REBALANCE: all members joined,
                                                                          or timeout; EMPTY: no members are left
``COMPLETING_REBALANCE`` the generation has begun; SyncGroup requests     STABLE: the leader sent the assignments;
                         are parked until the leader has sent the         PREPARING_REBALANCE: a member joins or
                         assignments                                      leaves
``STABLE``               every member has an assignment                   PREPARING_REBALANCE: a member joins or
                                                                          leaves
``DEAD``                 removed                                          none; reached from every other state
=======================  ===============================================  ========================================

``FOLLOWS`` below is this table as code.  Any other transition raises RuntimeError.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Final

from .error_codes import ErrorCode
from .memory_usage import MemoryUsage, size_of_protocols
from .messages import (
    GroupConfig,
    GroupDescription,
    JoinedMember,
    JoinRequest,
    JoinResult,
    MemberDescription,
    SyncResult,
)

if TYPE_CHECKING:
    from .delayed_operations import DelayedHeartbeat, Parked, PendingMember

__all__ = ["FOLLOWS", "Group", "GroupState", "Member"]


class GroupState(enum.Enum):
    """The state of a group.  The value is Kafka's name."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


FOLLOWS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class Member:
    """One member of a group.

    ``is_new``: True until the member has been part of a generation.  ``knows_id``: whether its client has received the
    member id or has an instance id.  ``join``, ``sync``: the parked requests.  ``heartbeat``: the session.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "heartbeat",
        "instance_id",
        "is_new",
        "join",
        "knows_id",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout",
        "session_timeout",
        "size",
        "sync",
    )

    def __init__(self, member_id: str, request: JoinRequest, knows_id: bool) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.session_timeout = request.session_timeout
        self.rebalance_timeout = request.rebalance_timeout
        self.protocol_type = request.protocol_type
        self.protocols = request.protocols
        self.assignment = b""
        self.size = size_of_protocols(request.protocol_type, request.protocols)  # bytes, without the assignment
        self.is_new = True
        self.knows_id = knows_id
        self.join: Parked[JoinResult] | None = None
        self.sync: Parked[SyncResult] | None = None
        self.heartbeat: DelayedHeartbeat | None = None

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata of the member for a protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def __repr__(self) -> str:
        parked = "join" if self.join is not None else "sync" if self.sync is not None else "nothing"
        return f"<Member {self.member_id!r} parked={parked}>"


class Group:
    """The state of one group.  ``rebalance.py`` manages the waiting operations."""

    __slots__ = (
        "awaiting_join",
        "bytes",
        "generation",
        "group_id",
        "keeps_offsets",
        "leader",
        "members",
        "new_member_added",
        "pending",
        "pending_sync",
        "protocol",
        "protocol_type",
        "state",
        "static",
        "supported",
        "usage",
    )

    def __init__(self, group_id: str, usage: MemoryUsage | None = None) -> None:
        self.group_id = group_id
        self.usage = usage or MemoryUsage(GroupConfig())
        self.bytes = 0  # size of protocols, metadata, and assignments of all members
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.pending: dict[str, PendingMember] = {}  # member ids that clients have received but have not used yet
        self.pending_sync: set[str] = set()  # members that have not sent SyncGroup in this generation
        self.supported: Counter[str] = Counter()  # protocol -> number of members that support it
        self.awaiting_join = 0  # number of members whose JoinGroup is parked
        self.new_member_added = False  # whether a member has joined since the initial delay was extended
        self.keeps_offsets = False  # whether the group has committed offsets

    def transition(self, state: GroupState) -> None:
        """Change the state.  Raise RuntimeError, and change nothing, if the transition is not allowed."""
        if state not in FOLLOWS[self.state]:
            raise RuntimeError(f"group {self.group_id!r} is {self.state.value} and cannot become {state.value}")
        self.state = state

    # Members

    def add(self, member: Member) -> None:
        if not self.members:
            self.protocol_type = member.protocol_type
        self.members[member.member_id] = member
        self._use(1, member.size)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.supported.update({name for name, _ in member.protocols})

    def remove(self, member: Member) -> None:
        """Remove a member.  The caller must answer the member's requests first."""
        del self.members[member.member_id]
        self._use(-1, -member.size - len(member.assignment))
        self.pending_sync.discard(member.member_id)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        self._forget_protocols(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, request: JoinRequest) -> None:
        """Update a member that has joined again, possibly with other protocols and timeouts."""
        if member.protocols != request.protocols:
            self._forget_protocols(member)
            member.protocols = request.protocols
            before, member.size = member.size, size_of_protocols(member.protocol_type, request.protocols)
            self._use(0, member.size - before)
            self.supported.update({name for name, _ in member.protocols})
        member.session_timeout = request.session_timeout
        member.rebalance_timeout = request.rebalance_timeout
        member.client_id = request.client_id
        member.client_host = request.client_host

    def add_pending(self, member_id: str, pending: PendingMember) -> None:
        """Add a member id that a client has received."""
        self.pending[member_id] = pending
        self._use(1, 0)

    def pop_pending(self, member_id: str) -> PendingMember | None:
        """Remove a pending member id.  Return its operation, or None if the id is unknown."""
        pending = self.pending.pop(member_id, None)
        if pending is not None:
            self._use(-1, 0)
        return pending

    def assign(self, member: Member, assignment: bytes) -> None:
        """Store the assignment of a member."""
        self._use(0, len(assignment) - len(member.assignment))
        member.assignment = assignment

    def release(self) -> None:
        """Subtract a removed group from the memory usage."""
        self._use(-len(self.members), -self.bytes)

    def _use(self, members: int, size: int) -> None:
        self.bytes += size
        self.usage.bytes += size
        self.usage.members += members

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id.  The member keeps its place, its assignment, and its leadership."""
        del self.members[member.member_id]
        self.members[member_id] = member
        if self.leader == member.member_id:
            self.leader = member_id
        if member.member_id in self.pending_sync:
            self.pending_sync.discard(member.member_id)
            self.pending_sync.add(member_id)
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        member.member_id = member_id

    def _forget_protocols(self, member: Member) -> None:
        for name in {name for name, _ in member.protocols}:
            self.supported[name] -= 1
            if not self.supported[name]:
                del self.supported[name]

    def find(self, member_id: str, instance_id: str | None) -> Member | ErrorCode:
        """Return the member or an error: unknown, or fenced by a newer member with the same instance id."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else member

    # Rebalancing

    @property
    def rebalance_timeout(self) -> float:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    @property
    def everyone_joined(self) -> bool:
        """Whether the JoinGroup of every member is parked, and no member id is pending."""
        return self.awaiting_join == len(self.members) and not self.pending

    def elect_joined_leader(self) -> bool:
        """Make a joined member the leader.  Return False if no member has joined."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or leader.join is None:
            joined = next((member for member in self.members.values() if member.join is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def next_generation(self) -> None:
        self.generation += 1
        self.pending_sync.clear()
        self.new_member_added = False
        if self.members:
            self.protocol = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE)
        else:
            self.protocol = ""
            self.transition(GroupState.EMPTY)

    @property
    def is_vacant(self) -> bool:
        """Whether removing the group would lose nothing but its generation."""
        return self.state is GroupState.EMPTY and not self.members and not self.pending and not self.keeps_offsets

    @property
    def is_unused(self) -> bool:
        """Whether the group has never had a member or committed offsets."""
        return self.generation == 0 and self.is_vacant

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Return whether at least one of the protocols is supported by all members."""
        if not self.members:
            return bool(protocol_type and protocols)
        number = len(self.members)
        return protocol_type == self.protocol_type and any(self.supported[name] == number for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes.  A member votes for its first protocol that all members support."""
        number = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self.supported[name] == number)] += 1
        return votes.most_common(1)[0][0]

    # Descriptions

    def for_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    def describe(self) -> GroupDescription:
        stable = self.state is GroupState.STABLE
        members = tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self.members.values()
        )
        protocol = self.protocol if stable else ""
        return GroupDescription(ErrorCode.NONE, self.group_id, self.state.value, self.protocol_type, protocol, members)

    def __repr__(self) -> str:
        return (
            f"<Group {self.group_id!r} {self.state.value} generation={self.generation} members={len(self.members)}"
            f" awaiting_join={self.awaiting_join} pending={len(self.pending)}>"
        )
