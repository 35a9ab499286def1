"""A group and its members: what is known of them, without any waiting.

The life of a group
===================

=======================  ===============================================  ========================================
state                    meaning                                          it is left for
=======================  ===============================================  ========================================
``EMPTY``                no members                                       PREPARING_REBALANCE: somebody joins
``PREPARING_REBALANCE``  members are collected; JoinGroup requests are    COMPLETING_REBALANCE: all are here, or
                         parked                                           time is up; EMPTY: nobody is left
``COMPLETING_REBALANCE`` the members know each other; SyncGroup requests  STABLE: the leader sent the assignments;
                         are parked until the leader has sent the         PREPARING_REBALANCE: somebody comes or
                         assignments                                      goes
``STABLE``               everyone has an assignment                       PREPARING_REBALANCE: somebody comes or
                                                                          goes
``DEAD``                 removed                                          (final; reached from every other)
=======================  ===============================================  ========================================

The table ``FOLLOWS`` below is this one as code, and a transition that is not in it raises.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Final

from .errors import ErrorCode
from .messages import GroupDescription, JoinedMember, JoinRequest, JoinResult, MemberDescription, SyncResult

if TYPE_CHECKING:
    from .waits import DelayedHeartbeat, Parked, PendingMember

__all__ = ["FOLLOWS", "Group", "GroupState", "Member"]


class GroupState(enum.Enum):
    """The state of a group; the value is Kafka's name for it."""

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

    ``is_new`` until it has been part of a generation.  ``knows_id``: whether its client has been told the member id,
    or finds back by its instance id.  ``join`` and ``sync`` are its parked requests; ``heartbeat`` is its session.
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
        self.is_new = True
        self.knows_id = knows_id
        self.join: Parked[JoinResult] | None = None
        self.sync: Parked[SyncResult] | None = None
        self.heartbeat: DelayedHeartbeat | None = None

    def metadata(self, protocol: str) -> bytes:
        """What it said for the protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def __repr__(self) -> str:
        parked = "join" if self.join is not None else "sync" if self.sync is not None else "nothing"
        return f"<Member {self.member_id!r} parked={parked}>"


class Group:
    """One group.  Changes only itself; who waits for what is decided in ``rebalance.py``."""

    __slots__ = (
        "awaiting_join",
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
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.pending: dict[str, PendingMember] = {}  # were given an id and have not come back with it yet
        self.pending_sync: set[str] = set()  # have not sent SyncGroup in this generation yet
        self.supported: Counter[str] = Counter()  # protocol -> how many members support it
        self.awaiting_join = 0  # members whose JoinGroup is parked
        self.new_member_added = False  # since the initial delay was last extended
        self.keeps_offsets = False  # somebody has committed offsets

    def transition(self, state: GroupState) -> None:
        """Move on.  RuntimeError, and nothing changes, if the state cannot follow the present one."""
        if state not in FOLLOWS[self.state]:
            raise RuntimeError(f"group {self.group_id!r} is {self.state.value} and cannot become {state.value}")
        self.state = state

    # Members

    def add(self, member: Member) -> None:
        if not self.members:
            self.protocol_type = member.protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.supported.update({name for name, _ in member.protocols})

    def remove(self, member: Member) -> None:
        """Take the member out; its requests must have been answered."""
        del self.members[member.member_id]
        self.pending_sync.discard(member.member_id)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        self._forget_protocols(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, request: JoinRequest) -> None:
        """The member joined again, perhaps with other protocols and timeouts."""
        if member.protocols != request.protocols:
            self._forget_protocols(member)
            member.protocols = request.protocols
            self.supported.update({name for name, _ in member.protocols})
        member.session_timeout = request.session_timeout
        member.rebalance_timeout = request.rebalance_timeout
        member.client_id = request.client_id
        member.client_host = request.client_host

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back under a new id: it keeps its place, its assignment and its leadership."""
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
        """The member, or why it is not one: fenced by a newer one of its instance id, or unknown."""
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
        """The longest of its members'."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    @property
    def everyone_joined(self) -> bool:
        """Whether each member's JoinGroup is parked, and nobody is still to come back with a new id."""
        return self.awaiting_join == len(self.members) and not self.pending

    def elect_joined_leader(self) -> bool:
        """See to it that the leader is one who joined; False if nobody did."""
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
    def is_unused(self) -> bool:
        """Whether it has never had a member, nor anything else that is worth keeping it for."""
        never_lived = self.generation == 0 and self.state is GroupState.EMPTY
        return never_lived and not self.members and not self.pending and not self.keeps_offsets

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether one who offers these can be a member: it shares at least one with all the others."""
        if not self.members:
            return bool(protocol_type and protocols)
        number = len(self.members)
        return protocol_type == self.protocol_type and any(self.supported[name] == number for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes; each member votes for the first of its own that all support."""
        number = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self.supported[name] == number)] += 1
        return votes.most_common(1)[0][0]

    # What others get to see

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
