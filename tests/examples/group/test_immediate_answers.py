"""Requests that are answered at once: heartbeats, syncs, leaves, commits, descriptions."""

from typing import Any

import pytest

from examples.group import ErrorCode, GroupListing, JoinResult
from purgatory.testing import VirtualClock
from tests.examples.group.harness import CoordinatorHarness, coordinating

_NOBODY = JoinResult(ErrorCode.NONE, "nobody", 1)


async def _in_state(harness: CoordinatorHarness, state: str) -> JoinResult:
    """Return a member of a group in the state; for an empty group, its last member."""
    (member,) = await harness.stable(1)
    if state == "Stable":
        return member
    if state == "Empty":
        harness.coordinator.leave("g", member.member_id)
        return member
    harness.enter()
    if state == "CompletingRebalance":
        joined = harness.join(member.member_id)
        return joined.result  # type: ignore[no-any-return]
    return member


@pytest.mark.parametrize(
    ("state", "heartbeat", "sync", "commit"),
    [
        ("Stable", ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE),
        ("PreparingRebalance", ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE),
        ("CompletingRebalance", ErrorCode.NONE, ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS),
        ("Empty", ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
async def test_each_state_has_its_answers(
    clock: VirtualClock, state: str, heartbeat: ErrorCode, sync: ErrorCode, commit: ErrorCode
) -> None:
    """The answers to a heartbeat, a sync and a commit depend on the state of the group."""
    async with coordinating(clock) as harness:
        member = await _in_state(harness, state)
        assert harness.state == state
        assert harness.heartbeat(member) is heartbeat
        assert harness.coordinator.check_commit("g", member.member_id, member.generation) is commit
        assert harness.sync(member).error is sync


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"instance_id": "unheard-of"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
async def test_heartbeat_and_sync_of_somebody_else_are_refused(
    clock: VirtualClock, changes: dict[str, Any], error: ErrorCode
) -> None:
    """A client that is not a member of the current generation gets the reason."""
    async with coordinating(clock) as harness:
        (member,) = await harness.stable(1)
        assert harness.heartbeat(member, **changes) is error
        assert harness.sync(member, **changes).error is error


@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocol": "sticky"}])
async def test_a_sync_for_another_protocol_is_refused(clock: VirtualClock, changes: dict[str, Any]) -> None:
    """A client that sends a protocol must send the chosen one."""
    async with coordinating(clock) as harness:
        (member,) = await harness.stable(1)
        assert harness.sync(member, **changes).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert harness.sync(member, protocol_type="consumer", protocol="range").error is ErrorCode.NONE


async def test_leaving(clock: VirtualClock) -> None:
    """A member, a pending id and a static member can leave; unknown ones get an error."""
    async with coordinating(clock) as harness:
        leave = harness.coordinator.leave
        assert leave("", "x") is ErrorCode.INVALID_GROUP_ID
        assert leave("g", "x") is ErrorCode.UNKNOWN_MEMBER_ID
        first, _ = await harness.stable(2)
        static = harness.enter(instance_id="s")
        pending = harness.join().result.member_id
        assert leave("g", "x") is ErrorCode.UNKNOWN_MEMBER_ID
        assert leave("g", "", "unheard-of") is ErrorCode.UNKNOWN_MEMBER_ID
        assert leave("g", pending) is ErrorCode.NONE
        assert leave("g", pending) is ErrorCode.UNKNOWN_MEMBER_ID
        assert leave("g", first.member_id, "s") is ErrorCode.FENCED_INSTANCE_ID
        assert leave("g", "", "s") is ErrorCode.NONE
        assert static.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert leave("g", first.member_id) is ErrorCode.NONE
        assert len(harness.group.members) == 1


async def test_a_member_that_leaves_lets_the_others_go_on(clock: VirtualClock) -> None:
    """A rebalance that waited only for this member completes."""
    async with coordinating(clock) as harness:
        first, second = await harness.stable(2)
        again = harness.join(first.member_id)
        harness.coordinator.leave("g", second.member_id)
        assert again.result.generation == 2


@pytest.mark.parametrize(
    ("group_id", "member_id", "generation", "error"),
    [
        ("new", "", -1, ErrorCode.NONE),
        ("new", "", 1, ErrorCode.ILLEGAL_GENERATION),
        ("g", "", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("g", "nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("g", "client-1", 0, ErrorCode.ILLEGAL_GENERATION),
        ("g", "client-1", 1, ErrorCode.NONE),
    ],
)
async def test_commits(clock: VirtualClock, group_id: str, member_id: str, generation: int, error: ErrorCode) -> None:
    """Members of the generation may commit; while a group has no members, any client may commit."""
    async with coordinating(clock) as harness:
        await harness.stable(1)
        assert harness.coordinator.check_commit(group_id, member_id, generation) is error
        assert ("new" in harness.coordinator.groups) == (group_id == "new" and error is ErrorCode.NONE)


async def test_a_commit_is_a_sign_of_life(clock: VirtualClock) -> None:
    """A commit extends the session as a heartbeat does."""
    async with coordinating(clock) as harness:
        (member,) = await harness.stable(1)
        for _ in range(5):
            await clock.advance(9.0)
            assert harness.coordinator.check_commit("g", member.member_id, 1) is ErrorCode.NONE


async def test_only_an_empty_group_can_be_deleted(clock: VirtualClock) -> None:
    """A group with members is refused, and a missing group gets an error."""
    async with coordinating(clock) as harness:
        (member,) = await harness.stable(1)
        assert harness.coordinator.delete("g") is ErrorCode.NON_EMPTY_GROUP
        assert harness.coordinator.delete("x") is ErrorCode.GROUP_ID_NOT_FOUND
        harness.coordinator.leave("g", member.member_id)
        assert harness.coordinator.delete("g") is ErrorCode.NONE
        assert harness.coordinator.describe("g").state == "Dead"


async def test_a_group_that_never_had_a_member_is_kept_for_its_offsets(clock: VirtualClock) -> None:
    """If a client commits without group management while an id is pending, the group outlives the id."""
    async with coordinating(clock) as harness:
        harness.join()
        assert harness.coordinator.check_commit("g", "", -1) is ErrorCode.NONE
        await clock.advance(10.0)
        assert harness.coordinator.list_groups() == [GroupListing("g", "", "Empty")]


async def test_descriptions(clock: VirtualClock) -> None:
    """Metadata and assignments are visible in a stable group, and hidden during a rebalance."""
    async with coordinating(clock) as harness:
        (member,) = await harness.stable(1)
        shown = harness.coordinator.describe("g")
        assert (shown.state, shown.protocol_type, shown.protocol) == ("Stable", "consumer", "range")
        assert shown.members[0].metadata == b"range-metadata"
        assert shown.members[0].assignment == member.member_id.encode()
        assert harness.coordinator.list_groups() == [GroupListing("g", "consumer", "Stable")]
        harness.enter()
        hidden = harness.coordinator.describe("g")
        assert (hidden.state, hidden.protocol) == ("PreparingRebalance", "")
        assert {(one.metadata, one.assignment) for one in hidden.members} == {(b"", b"")}
        assert harness.coordinator.describe("x").state == "Dead"


async def test_reprs_tell_the_state(clock: VirtualClock) -> None:
    """The ``repr`` of groups and members shows their state."""
    async with coordinating(clock) as harness:
        await harness.stable(1)
        assert repr(harness.group) == "<Group 'g' Stable generation=1 members=1 awaiting_join=0 pending=0>"
        assert repr(harness.group.members["client-1"]) == "<Member 'client-1' parked=nothing>"
