"""A group coordinator in virtual time, and its clients."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from examples.group import (
    ErrorCode,
    Group,
    GroupConfig,
    GroupCoordinator,
    GroupListener,
    JoinRequest,
    JoinResult,
    Member,
    Parked,
    Removal,
    SyncRequest,
    SyncResult,
)
from examples.group.memory_usage import size_of_protocols
from purgatory import SystemTimer
from purgatory.testing import VirtualClock

__all__ = ["CoordinatorHarness", "RecordedRequest", "coordinating", "join_request"]


def join_request(member_id: str = "", **changes: Any) -> JoinRequest:
    """Return a JoinGroup request for group "g", with a session of 10 s and a rebalance timeout of 60 s."""
    asked = JoinRequest(
        group_id="g",
        member_id=member_id,
        protocol_type="consumer",
        protocols=(("range", b"range-metadata"),),
        session_timeout=10.0,
        rebalance_timeout=60.0,
        client_id="client",
    )
    return asked._replace(**changes)


class RecordedRequest:
    """A request and its answer."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.parked: Parked[Any] | None = None

    @property
    def waits(self) -> bool:
        return not self.answers

    @property
    def result(self) -> Any:
        assert len(self.answers) == 1, f"answered {len(self.answers)} times"
        return self.answers[0]

    @property
    def error(self) -> ErrorCode:
        return self.result.error  # type: ignore[no-any-return]


class RecordingListener(GroupListener):
    """A listener that records which members were removed, and why."""

    def __init__(self) -> None:
        self.removed: list[tuple[str, Removal]] = []

    def member_removed(self, group: Group, member: Member, why: Removal) -> None:
        self.removed.append((member.member_id, why))


class CoordinatorHarness:
    """A coordinator on a virtual clock."""

    def __init__(self, clock: VirtualClock, coordinator: GroupCoordinator, listener: RecordingListener) -> None:
        self.clock = clock
        self.coordinator = coordinator
        self.listener = listener

    @property
    def group(self) -> Group:
        return self.coordinator.groups["g"]

    @property
    def state(self) -> str:
        return self.coordinator.describe("g").state

    def join(self, member_id: str = "", **changes: Any) -> RecordedRequest:
        """Send a JoinGroup request, and return it without waiting for the answer."""
        asked = RecordedRequest()
        asked.parked = self.coordinator.start_join(join_request(member_id, **changes), asked.answers.append)
        return asked

    def enter(self, **changes: Any) -> RecordedRequest:
        """Join as a new member: get an id, and join again with it."""
        first = self.join(**changes)
        if changes.get("instance_id") is not None:
            return first
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(first.result.member_id, **changes)

    def sync(self, joined: JoinResult, **changes: Any) -> RecordedRequest:
        """Sync in the joined generation; the leader assigns to each member its own id."""
        asked = RecordedRequest()
        assignments = {member.member_id: member.member_id.encode() for member in joined.members}
        request = SyncRequest("g", joined.member_id, joined.generation, assignments)._replace(**changes)
        asked.parked = self.coordinator.start_sync(request, asked.answers.append)
        return asked

    async def stable(self, number: int, **changes: Any) -> list[JoinResult]:
        """Create a stable group of this size, led by its first member.  Return the join results."""
        asked = [self.enter(**changes) for _ in range(number)]
        await self.clock.advance(6.0)
        joined = [one.result for one in asked]
        self.sync_all(joined)
        return joined

    def sync_all(self, joined: list[JoinResult]) -> list[SyncResult]:
        """Sync all members."""
        synced = [self.sync(one) for one in joined]
        assert [one.error for one in synced] == [ErrorCode.NONE] * len(joined)
        assert self.state == "Stable"
        return [one.result for one in synced]

    def heartbeat(self, joined: JoinResult, **changes: Any) -> ErrorCode:
        """Send a heartbeat of the member."""
        asked = {"group_id": "g", "member_id": joined.member_id, "generation": joined.generation, **changes}
        return self.coordinator.heartbeat(**asked)

    async def keep_alive(self, seconds: float, *joined: JoinResult) -> None:
        """Advance the time while these members send heartbeats."""
        for _ in range(int(seconds)):
            for one in joined:
                self.heartbeat(one)
            await self.clock.advance(1.0)

    def check(self) -> None:
        """Check the invariants that must hold between two calls."""
        for purgatory in self.coordinator.purgatories:
            purgatory._check()
        groups = self.coordinator.groups.values()
        usage = self.coordinator._rebalancer.usage
        assert usage.members == sum(len(group.members) + len(group.pending) for group in groups)
        assert usage.bytes == sum(group.bytes for group in groups)
        for group in groups:
            sizes = [
                size_of_protocols(member.protocol_type, member.protocols) + len(member.assignment)
                for member in group.members.values()
            ]
            assert group.bytes == sum(sizes)
        for group in self.coordinator.groups.values():
            waiting = [member for member in group.members.values() if member.join is not None]
            assert group.awaiting_join == len(waiting)
            assert not waiting or group.state.value == "PreparingRebalance"
            assert set(group.static.values()) <= group.members.keys()
            assert group.pending_sync <= group.members.keys()
            assert not group.pending.keys() & group.members.keys()
            assert (group.leader in group.members) == bool(group.members)


@contextlib.asynccontextmanager
async def coordinating(clock: VirtualClock, **config: Any) -> AsyncIterator[CoordinatorHarness]:
    """Yield a coordinator with an initial delay of 3 seconds."""
    listener = RecordingListener()
    numbers = iter(range(1, 1_000_000))
    async with (
        SystemTimer(clock=clock) as timer,
        GroupCoordinator(
            timer, GroupConfig(**config), listener=listener, new_id=lambda: str(next(numbers))
        ) as coordinator,
    ):
        harness = CoordinatorHarness(clock, coordinator, listener)
        yield harness
        harness.check()
