"""The steps of a group from one generation to the next, and the waiting operations.

One :class:`Rebalancer` serves all groups of a coordinator.  Its purgatories share a timer.  The module contains no
await, so every call leaves the group in a consistent state.  Answers are sent last, so it is safe for an answer to
trigger the next request immediately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purgatory import Observer, Purgatory, SystemTimer

from .delayed_operations import (
    DelayedHeartbeat,
    DelayedJoin,
    DelayedSync,
    InitialDelayedJoin,
    Parked,
    PendingMember,
)
from .error_codes import ErrorCode
from .group import FOLLOWS, Group, GroupState, Member
from .listener import GroupListener, Removal
from .memory_usage import MemoryUsage
from .messages import Answer, GroupConfig, JoinRequest, JoinResult, SyncResult

__all__ = ["Rebalancer"]


class Rebalancer:
    """The rebalancing part of a coordinator."""

    def __init__(
        self, timer: SystemTimer, config: GroupConfig, listener: GroupListener, observers: Sequence[Observer]
    ) -> None:
        self.groups: dict[str, Group] = {}
        self.usage = MemoryUsage(config)
        self.config = config
        self.listener = listener
        self.joins: Purgatory[DelayedJoin] = Purgatory("join", timer=timer, observers=observers)
        self.syncs: Purgatory[DelayedSync] = Purgatory("sync", timer=timer, observers=observers)
        self.heartbeats: Purgatory[DelayedHeartbeat | PendingMember] = Purgatory(
            "heartbeat", timer=timer, observers=observers
        )

    # New groups

    def new_group(self, group_id: str) -> Group | None:
        """Create a group.  At the limit, first remove vacant groups; return None if that does not make room."""
        if len(self.groups) >= self.config.max_groups:
            for vacant in [group for group in self.groups.values() if group.is_vacant]:
                del self.groups[vacant.group_id]
                self.remove_group(vacant)
        if len(self.groups) >= self.config.max_groups:
            return None
        group = self.groups[group_id] = Group(group_id, self.usage)
        return group

    # New and returning members

    def add_member(
        self, group: Group, member_id: str, request: JoinRequest, knows_id: bool, answer: Answer[JoinResult]
    ) -> Parked[JoinResult]:
        member = Member(member_id, request, knows_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
            group.new_member_added = True
        group.add(member)
        parked = self._park_join(group, member, answer)
        pending = group.pop_pending(member_id)
        if pending is not None:
            pending.force_complete()
        self.listener.member_added(group, member)
        self.rebalance_if_possible(group)
        return parked

    def update_member(
        self, group: Group, member: Member, request: JoinRequest, answer: Answer[JoinResult]
    ) -> Parked[JoinResult]:
        group.update(member, request)
        return self._park_join(group, member, answer)

    def add_pending(self, group: Group, member_id: str, timeout: float) -> None:
        pending = PendingMember(self, group, member_id, timeout)
        group.add_pending(member_id, pending)
        self.heartbeats.try_complete_else_watch(pending, [(group.group_id, member_id)])

    def _park_join(self, group: Group, member: Member, answer: Answer[JoinResult]) -> Parked[JoinResult]:
        earlier = member.join
        parked = member.join = Parked(self, group, member, answer)
        if earlier is None:
            group.awaiting_join += 1
        else:
            earlier.reply(JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self._pause_session(group, member)
        return parked

    def park_sync(self, group: Group, member: Member, answer: Answer[SyncResult]) -> Parked[SyncResult]:
        earlier = member.sync
        parked = member.sync = Parked(self, group, member, answer)
        if earlier is not None:
            earlier.reply(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        self._pause_session(group, member)
        return parked

    def replace_static(self, group: Group, member: Member, member_id: str) -> None:
        """Give a new id to a static member that has returned without its id.  The old id is fenced."""
        before, join, sync = member.member_id, member.join, member.sync
        member.sync = None
        if join is not None:
            member.join = None
            group.awaiting_join -= 1
        self._end_session(member)
        group.rename(member, member_id)
        self.start_session(group, member)
        self.listener.member_replaced(group, member, before)
        if join is not None:
            join.reply(JoinResult(ErrorCode.FENCED_INSTANCE_ID, before))
        if sync is not None:
            sync.reply(SyncResult(ErrorCode.FENCED_INSTANCE_ID))

    # Members that leave

    def remove_member(self, group: Group, member: Member, why: Removal) -> None:
        """Remove a member.  Then continue or start a rebalance."""
        self._take_out(group, member, why)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.joins.check_and_complete(group.group_id)
        else:
            self.rebalance_if_possible(group)

    def remove_pending(self, group: Group, member_id: str) -> None:
        pending = group.pop_pending(member_id)
        if pending is not None:
            pending.force_complete()
        if group.state is GroupState.PREPARING_REBALANCE:
            self.joins.check_and_complete(group.group_id)
        elif group.is_unused:
            del self.groups[group.group_id]
            self.remove_group(group)

    def _take_out(self, group: Group, member: Member, why: Removal) -> None:
        code = ErrorCode.GROUP_MAX_SIZE_REACHED if why is Removal.FULL else ErrorCode.UNKNOWN_MEMBER_ID
        join, sync = member.join, member.sync
        member.sync = None
        if join is not None:
            member.join = None
            group.awaiting_join -= 1
        self._end_session(member)
        group.remove(member)
        self.listener.member_removed(group, member, why)
        if join is not None:
            join.reply(JoinResult(code, ""))
        if sync is not None:
            sync.reply(SyncResult(code))

    def withdrawn(self, parked: Parked[Any]) -> None:
        """Handle a parked request whose client has disconnected."""
        group, member = parked.group, parked.member
        if member.join is parked:
            member.join = None
            group.awaiting_join -= 1
            if not member.knows_id:
                self.remove_member(group, member, Removal.GONE)
                return
        elif member.sync is parked:
            member.sync = None
        else:
            return
        self.start_session(group, member)

    # Sessions

    def start_session(self, group: Group, member: Member, timeout: float | None = None) -> None:
        """Restart the session of a member."""
        if timeout is None:
            timeout = member.session_timeout
        if member.heartbeat is None or not member.heartbeat.extend(timeout):
            member.heartbeat = DelayedHeartbeat(self, group, member, timeout)
            self.heartbeats.try_complete_else_watch(member.heartbeat, [(group.group_id, member.member_id)])

    def _pause_session(self, group: Group, member: Member) -> None:
        """Pause the session of a parked member; the member counts as alive.

        The wait of a member that has never been part of a generation is limited.  Its client may have given up on the
        request, and no other event would end the wait.
        """
        if member.is_new:
            self.start_session(group, member, self.config.new_member_timeout)
        elif member.heartbeat is not None:
            member.heartbeat.extend(None)

    def _end_session(self, member: Member) -> None:
        heartbeat, member.heartbeat = member.heartbeat, None
        if heartbeat is not None:
            heartbeat.force_complete()

    def session_expired(self, group: Group, member: Member) -> None:
        if group.state is not GroupState.DEAD and group.members.get(member.member_id) is member:
            self.remove_member(group, member, Removal.SESSION)

    def pending_expired(self, group: Group, member_id: str) -> None:
        if group.state is not GroupState.DEAD and member_id in group.pending:
            self.remove_pending(group, member_id)

    # Rebalancing

    def rebalance_if_possible(self, group: Group) -> None:
        if GroupState.PREPARING_REBALANCE in FOLLOWS[group.state]:
            self.prepare_rebalance(group)

    def prepare_rebalance(self, group: Group) -> None:
        """Begin a rebalance, and wait for the members to join."""
        before = group.state
        synced = self._reset_syncs(group) if before is GroupState.COMPLETING_REBALANCE else []
        self.change_state(group, GroupState.PREPARING_REBALANCE)
        group.pending_sync.clear()
        self.syncs.check_and_complete(group.group_id)
        if before is GroupState.EMPTY:
            delay = self.config.initial_rebalance_delay
            remaining = max(group.rebalance_timeout - delay, 0.0)
            self.wait_for_joins(InitialDelayedJoin(self, group, delay, delay, remaining))
        else:
            self.wait_for_joins(DelayedJoin(self, group, group.rebalance_timeout))
        for parked in synced:
            parked.reply(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))

    def wait_for_joins(self, operation: DelayedJoin) -> None:
        self.joins.try_complete_else_watch(operation, [operation.group.group_id])

    def complete_join(self, group: Group) -> None:
        """Begin the next generation with the members that have joined."""
        if group.state is GroupState.DEAD:
            return
        for member in [m for m in group.members.values() if m.join is None and m.instance_id is None]:
            self._take_out(group, member, Removal.REBALANCE)
        if not group.elect_joined_leader() and group.members:
            # Only static members remain, and none has joined: wait for them until their sessions end.
            self.wait_for_joins(DelayedJoin(self, group, group.rebalance_timeout))
            return
        before = group.state
        group.next_generation()
        self.listener.state_changed(group, before)
        if group.state is GroupState.EMPTY:
            return
        answers = []
        for member in group.members.values():
            parked, member.join = member.join, None
            group.pending_sync.add(member.member_id)
            self.start_session(group, member)
            member.is_new = False
            member.knows_id = True
            if parked is not None:
                answers.append((parked, self.join_result(group, member)))
        group.awaiting_join = 0
        self.syncs.try_complete_else_watch(DelayedSync(self, group, group.rebalance_timeout), [group.group_id])
        for parked, result in answers:
            parked.reply(result)

    def join_result(self, group: Group, member: Member) -> JoinResult:
        """Return the current generation as a result for the member."""
        leads = group.leader == member.member_id
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader or "",
            group.for_leader() if leads else (),
        )

    def synced(self, group: Group, member: Member) -> None:
        """Record that the member has sent SyncGroup in this generation."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self.syncs.check_and_complete(group.group_id)

    def may_assign(self, group: Group, assignments: Mapping[str, bytes]) -> bool:
        """Return whether the assignments are within the limits of the group and of all groups."""
        more = sum(
            len(assignments.get(member.member_id, b"")) - len(member.assignment) for member in group.members.values()
        )
        return self.usage.allows_bytes(group.bytes, more)

    def assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """Store the leader's assignments, and answer the waiting members.  A missing assignment counts as empty."""
        synced = []
        for member in group.members.values():
            group.assign(member, assignments.get(member.member_id, b""))
            if member.sync is not None:
                synced.append((member.sync, self.sync_result(group, member)))
                member.sync = None
                self.start_session(group, member)
        self.change_state(group, GroupState.STABLE)
        for parked, result in synced:
            parked.reply(result)

    def sync_result(self, group: Group, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol)

    def sync_expired(self, group: Group, generation: int) -> None:
        if group.generation != generation or not group.pending_sync:
            return
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        for member_id in sorted(group.pending_sync):
            self._take_out(group, group.members[member_id], Removal.SYNC)
        self.prepare_rebalance(group)

    def _reset_syncs(self, group: Group) -> list[Parked[SyncResult]]:
        synced = []
        for member in group.members.values():
            group.assign(member, b"")
            if member.sync is not None:
                synced.append(member.sync)
                member.sync = None
                self.start_session(group, member)
        return synced

    def change_state(self, group: Group, state: GroupState) -> None:
        before = group.state
        group.transition(state)
        self.listener.state_changed(group, before)

    # Removed groups

    def remove_group(self, group: Group) -> None:
        """Mark the group as dead, and answer its parked requests with NOT_COORDINATOR."""
        answers: list[tuple[Parked[Any], JoinResult | SyncResult]] = []
        for member in group.members.values():
            if member.join is not None:
                answers.append((member.join, JoinResult(ErrorCode.NOT_COORDINATOR, member.member_id)))
            if member.sync is not None:
                answers.append((member.sync, SyncResult(ErrorCode.NOT_COORDINATOR)))
            member.join = member.sync = None
            self._end_session(member)
        group.awaiting_join = 0
        self.change_state(group, GroupState.DEAD)
        for member_id in list(group.pending):
            pending = group.pop_pending(member_id)
            if pending is not None:
                pending.force_complete()
        group.release()
        self.joins.check_and_complete(group.group_id)
        self.syncs.check_and_complete(group.group_id)
        for parked, result in answers:
            parked.reply(result)
