"""The group coordinator: one method for each kind of member request."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from purgatory import Observer, SystemTimer

from .delayed_operations import Parked
from .error_codes import ErrorCode
from .group import Group, GroupState, Member
from .join_handler import JoinHandler
from .listener import GroupListener, Removal
from .messages import (
    Answer,
    GroupConfig,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from .rebalance import Rebalancer

__all__ = ["GroupCoordinator"]

T = TypeVar("T")

_MEMBER_BYTES = 1024  # the size of a member's ids and address in a description


class GroupCoordinator:
    """Kafka's classic group protocol, without a transport.

    **Usage.**  ``join`` and ``sync`` are coroutines that wait for the group.  Cancel the task when the client
    disconnects; this withdraws the request.  ``start_join`` and ``start_sync`` do the same with a callback::

        async with SystemTimer() as timer, GroupCoordinator(timer) as coordinator:
            joined = await coordinator.join(JoinRequest("g", "", "consumer", (("range", b""),), 45.0, 60.0))
            ...                                                     # MEMBER_ID_REQUIRED: join with joined.member_id
            synced = await coordinator.sync(SyncRequest("g", joined.member_id, joined.generation, {...}))
            error = coordinator.heartbeat("g", joined.member_id, joined.generation)
            error = coordinator.leave("g", joined.member_id)

    ``heartbeat``, ``leave``, ``check_commit``, ``delete``, ``describe``, and ``list_groups`` return at once.

    **Cancellation safety.**  A cancelled ``join`` or ``sync`` leaves the member in the group with a running session, as
    if its connection had been lost; see :meth:`Parked.withdraw`.

    ``timer``: the timer of all purgatories.  Other components may also use it.  Close the coordinator before the timer.
    ``new_id``: returns the unique part of a member id.  ``observers``: the observers of all three purgatories.
    """

    def __init__(
        self,
        timer: SystemTimer,
        config: GroupConfig | None = None,
        *,
        listener: GroupListener | None = None,
        new_id: Callable[[], str] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.config = GroupConfig() if config is None else config
        self._rebalancer = Rebalancer(timer, self.config, listener or GroupListener(), observers)
        self._join_handler = JoinHandler(self._rebalancer, new_id or _uuid)
        self._active = True

    # Lifecycle

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Answer every parked request with NOT_COORDINATOR, and every later one with COORDINATOR_NOT_AVAILABLE."""
        self._active = False
        for group in list(self.groups.values()):
            self._rebalancer.remove_group(group)
        self.groups.clear()
        for purgatory in self.purgatories:
            await purgatory.aclose()

    @property
    def groups(self) -> dict[str, Group]:
        """All groups by id.  Do not modify the dict."""
        return self._rebalancer.groups

    @property
    def purgatories(self) -> tuple[Any, Any, Any]:
        """The purgatories "join", "sync", and "heartbeat"."""
        return self._rebalancer.joins, self._rebalancer.syncs, self._rebalancer.heartbeats

    # JoinGroup

    async def join(self, request: JoinRequest) -> JoinResult:
        """Join the group, and wait until the next generation begins."""
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        return await _answered(future, self.start_join(request, _answer_to(future)))

    def start_join(self, request: JoinRequest, answer: Answer[JoinResult]) -> Parked[JoinResult] | None:
        """Join the group; call ``answer`` once, now or later.  Return the parked request, or None if it has already
        been answered.
        """
        outcome: JoinResult | Parked[JoinResult]
        if not 0 < len(request.group_id) <= self.config.max_id_length:
            outcome = JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id)
        elif not self._active:
            outcome = JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        else:
            outcome = self._join_handler.decide(request, answer)
        if isinstance(outcome, JoinResult):
            answer(outcome)
            return None
        return outcome

    # SyncGroup

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Wait for the assignment of the member.  The leader also sends all assignments."""
        future: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        return await _answered(future, self.start_sync(request, _answer_to(future)))

    def start_sync(self, request: SyncRequest, answer: Answer[SyncResult]) -> Parked[SyncResult] | None:
        """Sync a member; call ``answer`` once, now or later.  Return the parked request, or None if it has already been
        answered.
        """
        found = self._find(request.group_id, request.member_id, request.instance_id, request.generation)
        if isinstance(found, ErrorCode):
            answer(SyncResult(found))
            return None
        group, member = found
        rebalancer = self._rebalancer
        if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
            answer(SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return None
        if group.state is GroupState.PREPARING_REBALANCE:
            answer(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
            return None
        if group.state is GroupState.STABLE:
            rebalancer.start_session(group, member)
            rebalancer.synced(group, member)
            answer(rebalancer.sync_result(group, member))
            return None
        leads = group.leader == member.member_id
        if leads and not rebalancer.may_assign(group, request.assignments):
            answer(SyncResult(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return None
        parked = rebalancer.park_sync(group, member, answer)
        rebalancer.synced(group, member)
        if leads:
            rebalancer.assign(group, request.assignments)
        return parked

    # Requests that are answered at once

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        """Extend the session of the member.  REBALANCE_IN_PROGRESS means that the member must join again."""
        found = self._find(group_id, member_id, instance_id, generation)
        if isinstance(found, ErrorCode):
            return found
        group, member = found
        if member.join is None and member.sync is None:
            self._rebalancer.start_session(group, member)
        preparing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def leave(self, group_id: str, member_id: str, instance_id: str | None = None) -> ErrorCode:
        """Remove the member.  Member id "" with an instance id is an operator's request to remove a static member."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_id in group.pending:
            self._rebalancer.remove_pending(group, member_id)
            return ErrorCode.NONE
        if not member_id and instance_id is not None:
            member_id = group.static.get(instance_id, "")
        member = group.find(member_id, instance_id)
        if isinstance(member, ErrorCode):
            return member
        self._rebalancer.remove_member(group, member, Removal.LEFT)
        return ErrorCode.NONE

    def check_commit(self, group_id: str, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        """Return NONE if the member may commit offsets now; otherwise, return an error.

        A commit also extends the member's session.

        A request with generation -1 and no member id comes from a client without group management, or from an operator.
        Such a request is allowed while the group is empty; a missing group is created.
        """
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self.groups.get(group_id)
        if group is None:
            if generation >= 0:
                return ErrorCode.ILLEGAL_GENERATION
            if len(group_id) > self.config.max_id_length:
                return ErrorCode.INVALID_GROUP_ID
            group = self._rebalancer.new_group(group_id)
            if group is None:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
            group.keeps_offsets = True
        if generation < 0 and group.state is GroupState.EMPTY:
            group.keeps_offsets = True
            return ErrorCode.NONE
        member = group.find(member_id, instance_id)
        if isinstance(member, ErrorCode):
            return member
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if member.join is None and member.sync is None:
            self._rebalancer.start_session(group, member)
        group.keeps_offsets = True
        return ErrorCode.NONE

    def delete(self, group_id: str) -> ErrorCode:
        """Delete an empty group."""
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        del self.groups[group_id]
        self._rebalancer.remove_group(group)
        return ErrorCode.NONE

    def describe(self, group_id: str) -> GroupDescription:
        """Describe a group.  A missing group has the state "Dead" and no error."""
        if not self._active:
            return GroupDescription(ErrorCode.COORDINATOR_NOT_AVAILABLE, group_id, "")
        group = self.groups.get(group_id)
        return GroupDescription(ErrorCode.NONE, group_id, GroupState.DEAD.value) if group is None else group.describe()

    def size_of(self, group_id: str) -> int:
        """Return the size of the metadata and assignments of a group, or 0 if the group does not exist."""
        group = self.groups.get(group_id)
        return 0 if group is None else group.bytes + _MEMBER_BYTES * len(group.members)

    def list_groups(self) -> list[GroupListing]:
        """List all groups."""
        return [GroupListing(g.group_id, g.protocol_type, g.state.value) for g in self.groups.values()]

    # Internals

    def _find(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Group, Member] | ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member = group.find(member_id, instance_id)
        if isinstance(member, ErrorCode):
            return member
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return group, member


def _uuid() -> str:
    return str(uuid.uuid4())


def _answer_to(future: asyncio.Future[T]) -> Answer[T]:
    def answer(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return answer


async def _answered(future: asyncio.Future[T], parked: Parked[T] | None) -> T:
    try:
        return await future
    finally:
        if parked is not None:
            parked.withdraw()  # has an effect only if the task was cancelled
