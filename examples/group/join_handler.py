"""JoinGroup: check the request, choose the member id, and start a rebalance if necessary."""

from __future__ import annotations

from collections.abc import Callable

from .delayed_operations import Parked
from .error_codes import ErrorCode
from .group import Group, GroupState, Member
from .listener import Removal
from .messages import Answer, JoinRequest, JoinResult
from .rebalance import Rebalancer

__all__ = ["JoinHandler"]


class JoinHandler:
    """Handle JoinGroup requests.  A parked request is answered when the next generation begins.

    ``new_id``: returns the unique part of a member id.
    """

    def __init__(self, rebalancer: Rebalancer, new_id: Callable[[], str]) -> None:
        self._rebalancer = rebalancer
        self._new_id = new_id

    def decide(self, request: JoinRequest, answer: Answer[JoinResult]) -> JoinResult | Parked[JoinResult]:
        """Return the result, or the parked request if the answer comes later."""
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
            if not self._rebalancer.usage.allows(request, 0, None):
                return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            group = self._rebalancer.new_group(request.group_id)
            if group is None:
                return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        elif not self._is_small_enough(group, request):
            return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
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

    def _is_small_enough(self, group: Group, request: JoinRequest) -> bool:
        """Return whether all groups stay within their limits if this request is accepted."""
        member_id = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = group.static.get(request.instance_id, "")
        member = group.members.get(member_id)
        size = None if member is None else member.size
        if size is None and member_id in group.pending:
            size = 0  # a pending member id already counts as a member
        return self._rebalancer.usage.allows(request, group.bytes, size)

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
        """Let a restarted static member rejoin.  In a stable group, only the member's id changes."""
        rebalancer = self._rebalancer
        leader = group.leader or ""
        rebalancer.replace_static(group, member, member_id)
        if group.state is GroupState.STABLE:
            group.update(member, request)
            rebalancer.start_session(group, member)
            if group.select_protocol() == group.protocol:
                # Return the id of the former leader: a restarted leader must not send assignments, because no member
                # waits for them.
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
            # The client may have lost the response: send it again.
            return rebalancer.join_result(group, member)
        if group.state is GroupState.STABLE and same and group.leader != member_id:
            return rebalancer.join_result(group, member)
        parked = rebalancer.update_member(group, member, request, answer)
        rebalancer.rebalance_if_possible(group)
        return parked
