"""The group coordinator: one call for each request that a member can make."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from purgatory import Observer, SystemTimer

from .errors import ErrorCode
from .group import Group, GroupState, Member
from .joining import Joining
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
from .waits import Parked

__all__ = ["GroupCoordinator"]

T = TypeVar("T")


class GroupCoordinator:
    """Kafka's classic group protocol, without a transport.

    **Usage.**  ``join`` and ``sync`` are coroutines that wait as long as the group does; cancel the task when the
    client goes away, and the request is withdrawn.  ``start_join`` and ``start_sync`` are the same with a callback::

        async with SystemTimer() as timer, GroupCoordinator(timer) as coordinator:
            joined = await coordinator.join(JoinRequest("g", "", "consumer", (("range", b""),), 45.0, 60.0))
            ...                                                     # MEMBER_ID_REQUIRED: again with joined.member_id
            synced = await coordinator.sync(SyncRequest("g", joined.member_id, joined.generation, {...}))
            error = coordinator.heartbeat("g", joined.member_id, joined.generation)
            error = coordinator.leave("g", joined.member_id)

    ``heartbeat``, ``leave``, ``check_commit``, ``delete``, ``describe`` and ``list_groups`` answer at once.

    **Cancellation safety.**  A cancelled ``join`` or ``sync`` leaves the member in the group with its session running,
    as if its connection had been lost; see :meth:`Parked.withdraw`.

    ``timer``: shared by all its purgatories, and with anything else; close the coordinator before it.
    ``new_id``: makes the unique part of member ids.  ``observers``: of all three purgatories.
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
        self._joining = Joining(self._rebalancer, new_id or _uuid)
        self._active = True

    # Life

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Every parked request is answered with NOT_COORDINATOR, every later one with COORDINATOR_NOT_AVAILABLE."""
        self._active = False
        for group in list(self.groups.values()):
            self._rebalancer.bury(group)
        self.groups.clear()
        for purgatory in self.purgatories:
            await purgatory.aclose()

    @property
    def groups(self) -> dict[str, Group]:
        """All groups by id.  Look, but do not touch."""
        return self._rebalancer.groups

    @property
    def purgatories(self) -> tuple[Any, Any, Any]:
        """Where requests wait: "join", "sync" and "heartbeat"."""
        return self._rebalancer.joins, self._rebalancer.syncs, self._rebalancer.heartbeats

    # JoinGroup

    async def join(self, request: JoinRequest) -> JoinResult:
        """Join, and wait until the next generation begins."""
        future: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        return await _answered(future, self.start_join(request, _answer_to(future)))

    def start_join(self, request: JoinRequest, answer: Answer[JoinResult]) -> Parked[JoinResult] | None:
        """Join; ``answer`` is called once, now or later.  What is parked can be withdrawn; None: nothing is."""
        outcome: JoinResult | Parked[JoinResult]
        if not request.group_id:
            outcome = JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id)
        elif not self._active:
            outcome = JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        else:
            outcome = self._joining.decide(request, answer)
        if isinstance(outcome, JoinResult):
            answer(outcome)
            return None
        return outcome

    # SyncGroup

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Send the assignments if it is the leader's, and wait for one's own."""
        future: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        return await _answered(future, self.start_sync(request, _answer_to(future)))

    def start_sync(self, request: SyncRequest, answer: Answer[SyncResult]) -> Parked[SyncResult] | None:
        """Sync; ``answer`` is called once, now or later.  What is parked can be withdrawn; None: nothing is."""
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
        parked = rebalancer.park_sync(group, member, answer)
        rebalancer.synced(group, member)
        if group.leader == member.member_id:
            rebalancer.assign(group, request.assignments)
        return parked

    # What is answered at once

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        """The member is alive.  REBALANCE_IN_PROGRESS tells it to join again."""
        found = self._find(group_id, member_id, instance_id, generation)
        if isinstance(found, ErrorCode):
            return found
        group, member = found
        if member.join is None and member.sync is None:
            self._rebalancer.start_session(group, member)
        preparing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE

    def leave(self, group_id: str, member_id: str, instance_id: str | None = None) -> ErrorCode:
        """The member goes.  By an instance id with member id "" an operator removes a static member."""
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
        """Whether the member may commit offsets now; a commit is also a sign of life.

        Generation -1 and no member id: somebody who uses no group management, or an operator; allowed while the group
        is empty, which is made if need be.
        """
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self.groups.get(group_id)
        if group is None:
            if generation >= 0:
                return ErrorCode.ILLEGAL_GENERATION
            group = self.groups[group_id] = Group(group_id)
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
        """Remove an empty group."""
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        del self.groups[group_id]
        self._rebalancer.bury(group)
        return ErrorCode.NONE

    def describe(self, group_id: str) -> GroupDescription:
        """The group as it is; one that does not exist is "Dead", without an error."""
        if not self._active:
            return GroupDescription(ErrorCode.COORDINATOR_NOT_AVAILABLE, group_id, "")
        group = self.groups.get(group_id)
        return GroupDescription(ErrorCode.NONE, group_id, GroupState.DEAD.value) if group is None else group.describe()

    def list_groups(self) -> list[GroupListing]:
        """All groups."""
        return [GroupListing(g.group_id, g.protocol_type, g.state.value) for g in self.groups.values()]

    # Inside

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
            parked.withdraw()  # only does something if the task was cancelled
