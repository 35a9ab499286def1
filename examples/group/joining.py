"""JoinGroup: who may join, under which id, and whether anybody has to rebalance for it."""

from __future__ import annotations

from collections.abc import Callable

from .errors import ErrorCode
from .group import Group, GroupState, Member
from .listener import Removal
from .messages import Answer, JoinRequest, JoinResult
from .rebalance import Rebalancer
from .waits import Parked

__all__ = ["Joining"]


class Joining:
    """Decides about requests to join; what it parks is answered when the next generation begins.

    ``new_id``: makes the unique part of member ids.
    """

    def __init__(self, rebalancer: Rebalancer, new_id: Callable[[], str]) -> None:
        self._rebalancer = rebalancer
        self._new_id = new_id

    def decide(self, request: JoinRequest, answer: Answer[JoinResult]) -> JoinResult | Parked[JoinResult]:
        """The answer, or the parked request if there is to be one later."""
        member_id = request.member_id
        config = self._rebalancer.config
        if not config.min_session_timeout <= request.session_timeout <= config.max_session_timeout:
            return JoinResult(ErrorCode.INVALID_SESSION_TIMEOUT, member_id)
        group = self._rebalancer.groups.get(request.group_id)
        if group is None:
            if member_id:
                return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, member_id)
            if not request.protocol_type or not request.protocols:
                return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
            group = self._rebalancer.groups[request.group_id] = Group(request.group_id)
        if not self._has_room(group, member_id):
            member = group.members.get(member_id)
            if member is not None:
                self._rebalancer.remove_member(group, member, Removal.FULL)
            return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        if not group.supports(request.protocol_type, request.protocols):
            return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        outcome = self._join_again(group, request, answer) if member_id else self._join_new(group, request, answer)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rebalancer.joins.check_and_complete(group.group_id)
        return outcome

    def _has_room(self, group: Group, member_id: str) -> bool:
        limit = self._rebalancer.config.max_size
        if limit is None or group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.join is not None) or group.awaiting_join < limit
        return member is not None or len(group.members) < limit

    def _join_new(
        self, group: Group, request: JoinRequest, answer: Answer[JoinResult]
    ) -> JoinResult | Parked[JoinResult]:
        instance_id = request.instance_id
        member_id = f"{instance_id or request.client_id}-{self._new_id()}"
        if instance_id is not None:
            known = group.static.get(instance_id)
            if known is not None:
                return self._join_returned(group, group.members[known], member_id, request, answer)
        elif request.require_known_member_id:
            self._rebalancer.add_pending(group, member_id, request.session_timeout)
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return self._rebalancer.add_member(group, member_id, request, instance_id is not None, answer)

    def _join_returned(
        self, group: Group, member: Member, member_id: str, request: JoinRequest, answer: Answer[JoinResult]
    ) -> JoinResult | Parked[JoinResult]:
        """A static member that has restarted: nothing changes for a stable group but its id."""
        rebalancer = self._rebalancer
        leader = group.leader or ""
        rebalancer.replace_static(group, member, member_id)
        if group.state is GroupState.STABLE:
            group.update(member, request)
            rebalancer.start_session(group, member)
            if group.select_protocol() == group.protocol:
                # With the former leader's id: a leader who has just come back must not think that it is to assign
                # anything, for nobody would wait for it.
                return JoinResult(
                    ErrorCode.NONE, member_id, group.generation, group.protocol_type, group.protocol, leader
                )
        parked = rebalancer.update_member(group, member, request, answer)
        rebalancer.rebalance_if_possible(group)
        return parked

    def _join_again(
        self, group: Group, request: JoinRequest, answer: Answer[JoinResult]
    ) -> JoinResult | Parked[JoinResult]:
        rebalancer, member_id = self._rebalancer, request.member_id
        if member_id in group.pending and request.instance_id is None:
            return rebalancer.add_member(group, member_id, request, True, answer)
        member = group.find(member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            return JoinResult(member, member_id)
        same = member.protocols == request.protocols
        if group.state is GroupState.COMPLETING_REBALANCE and same:
            # Its answer was lost, perhaps: here it is again.
            return rebalancer.join_result(group, member)
        if group.state is GroupState.STABLE and same and group.leader != member_id:
            return rebalancer.join_result(group, member)
        parked = rebalancer.update_member(group, member, request, answer)
        rebalancer.rebalance_if_possible(group)
        return parked
