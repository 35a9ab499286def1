"""From one generation to the next: which members are awaited, removed and answered."""

import asyncio

import pytest

from examples.group import ErrorCode, JoinResult, Removal, SyncRequest
from purgatory.testing import VirtualClock
from tests.examples.group.harness import CoordinatorHarness, RecordedRequest, coordinating, join_request


async def test_a_rebalance_ends_when_the_last_member_has_joined(clock: VirtualClock) -> None:
    """The rebalance ends as soon as the last member has joined."""
    async with coordinating(clock) as harness:
        members = await harness.stable(3)
        asked = [harness.join(one.member_id) for one in members[:2]]
        await clock.advance(5.0)
        assert all(one.waits for one in asked)
        asked.append(harness.join(members[2].member_id))
        assert {one.result.generation for one in asked} == {2}


async def test_members_who_do_not_rejoin_in_time_are_removed(clock: VirtualClock) -> None:
    """After the rebalance timeout the next generation begins without these members, even if they send heartbeats."""
    async with coordinating(clock) as harness:
        leader, other = await harness.stable(2, rebalance_timeout=20.0)
        again = harness.join(leader.member_id, rebalance_timeout=20.0)
        await harness.keep_alive(20.0, other)
        assert again.result.generation == 2
        assert harness.listener.removed == [(other.member_id, Removal.REBALANCE)]
        assert harness.heartbeat(other) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_longest_rebalance_timeout_counts(clock: VirtualClock) -> None:
    """A group waits for the longest rebalance timeout of its members."""
    async with coordinating(clock) as harness:
        asked = [harness.enter(rebalance_timeout=20.0), harness.enter(rebalance_timeout=40.0)]
        await clock.advance(6.0)
        leader, other = (one.result for one in asked)
        harness.sync_all([leader, other])
        again = harness.join(leader.member_id, rebalance_timeout=20.0)
        await harness.keep_alive(39.0, other)
        assert again.waits
        await harness.keep_alive(1.0, other)
        assert again.result.generation == 2


async def test_a_silent_member_is_removed_after_its_session(clock: VirtualClock) -> None:
    """The other members are told to join again, and continue without it."""
    async with coordinating(clock) as harness:
        leader, silent = await harness.stable(2)
        await harness.keep_alive(9.0, leader)
        assert harness.heartbeat(leader) is ErrorCode.NONE
        await clock.advance(1.0)
        assert harness.listener.removed == [(silent.member_id, Removal.SESSION)]
        assert harness.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
        assert harness.join(leader.member_id).result.generation == 2


async def test_heartbeats_keep_a_member(clock: VirtualClock) -> None:
    """The session counts from the last heartbeat."""
    async with coordinating(clock) as harness:
        (member,) = await harness.stable(1)
        await harness.keep_alive(100.0, member)
        assert harness.heartbeat(member) is ErrorCode.NONE


async def test_a_parked_member_counts_as_alive(clock: VirtualClock) -> None:
    """A parked member cannot send heartbeats, so its session is paused and restarts with the answer."""
    async with coordinating(clock) as harness:
        leader, other = await harness.stable(2)
        again = harness.join(leader.member_id)
        await harness.keep_alive(55.0, other)
        assert again.waits
        assert harness.listener.removed == []
        harness.join(other.member_id)
        assert again.result.generation == 2
        assert harness.sync(again.result).error is ErrorCode.NONE
        await clock.advance(9.999)
        assert harness.listener.removed == []
        await clock.advance(0.001)
        assert {why for _, why in harness.listener.removed} == {Removal.SESSION}


async def test_a_new_member_is_not_parked_for_ever(clock: VirtualClock) -> None:
    """After five minutes the member gets UNKNOWN_MEMBER_ID; a client that still exists joins again."""
    async with coordinating(clock) as harness:
        (leader,) = await harness.stable(1, rebalance_timeout=600.0)
        new = harness.enter()
        await harness.keep_alive(299.0, leader)
        assert new.waits
        await harness.keep_alive(1.0, leader)
        assert new.error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_assignments_of_the_leader_reach_everyone(clock: VirtualClock) -> None:
    """Followers wait for the leader; a later request gets the same assignment; a missing assignment is empty."""
    async with coordinating(clock) as harness:
        asked = [harness.enter() for _ in range(3)]
        await clock.advance(6.0)
        leader, first, second = (one.result for one in asked)
        waiting = harness.sync(first)
        assert waiting.waits
        assert harness.state == "CompletingRebalance"
        assignments = {leader.member_id: b"0", first.member_id: b"1"}
        assert harness.sync(leader, assignments=assignments).result.assignment == b"0"
        assert waiting.result.assignment == b"1"
        assert harness.sync(second).result.assignment == b""
        assert harness.sync(first).result.assignment == b"1"


async def test_members_who_do_not_sync_in_time_are_removed(clock: VirtualClock) -> None:
    """After the rebalance timeout, members that have not sent SyncGroup are removed, and the others rebalance."""
    async with coordinating(clock) as harness:
        asked = [harness.enter(rebalance_timeout=20.0) for _ in range(2)]
        await clock.advance(6.0)
        leader, mute = (one.result for one in asked)
        harness.sync(leader)
        await harness.keep_alive(20.0, leader, mute)
        assert harness.listener.removed == [(mute.member_id, Removal.SYNC)]
        assert harness.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_followers_of_a_leader_that_does_not_sync_are_told_to_join_again(clock: VirtualClock) -> None:
    """The leader is removed, and the members that waited for assignments get REBALANCE_IN_PROGRESS."""
    async with coordinating(clock) as harness:
        asked = [harness.enter(rebalance_timeout=20.0) for _ in range(2)]
        await clock.advance(6.0)
        leader, other = (one.result for one in asked)
        waiting = harness.sync(other)
        await harness.keep_alive(20.0, leader)
        assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
        assert harness.listener.removed == [(leader.member_id, Removal.SYNC)]
        assert harness.join(other.member_id).result.leader == other.member_id


async def test_who_comes_while_assignments_are_awaited_begins_a_new_rebalance(clock: VirtualClock) -> None:
    """Members that wait for an assignment are told to join again."""
    async with coordinating(clock) as harness:
        asked = [harness.enter() for _ in range(2)]
        await clock.advance(6.0)
        waiting = harness.sync(asked[1].result)
        harness.enter()
        assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
        assert harness.state == "PreparingRebalance"


async def test_a_lost_join_answer_is_given_again(clock: VirtualClock) -> None:
    """The same member with the same metadata gets the current generation, and the group does not rebalance."""
    async with coordinating(clock) as harness:
        asked = [harness.enter() for _ in range(2)]
        await clock.advance(6.0)
        for one in asked:
            assert harness.join(one.result.member_id).result == one.result
        harness.sync_all([one.result for one in asked])
        assert harness.join(asked[1].result.member_id).result == asked[1].result
        assert harness.state == "Stable"


@pytest.mark.parametrize("who", ["the leader", "a follower with other metadata"])
async def test_a_join_that_changes_something_rebalances_a_stable_group(clock: VirtualClock, who: str) -> None:
    """The leader may request a new assignment, and changed metadata requires one."""
    async with coordinating(clock) as harness:
        leader, follower = await harness.stable(2)
        if who == "the leader":
            asked = harness.join(leader.member_id)
        else:
            asked = harness.join(follower.member_id, protocols=(("range", b"other"),))
        assert asked.waits
        assert harness.state == "PreparingRebalance"


async def test_absent_static_members_are_kept_until_their_session_ends(clock: VirtualClock) -> None:
    """A rebalance completes without these members, and they remain members."""
    async with coordinating(clock) as harness:
        asked = [harness.enter(), harness.enter(instance_id="s", session_timeout=100.0)]
        await clock.advance(6.0)
        harness.sync_all([one.result for one in asked])
        again = harness.join(asked[0].result.member_id)
        await clock.advance(60.0)
        assert again.result.generation == 2
        assert len(again.result.members) == 2
        assert harness.listener.removed == []


async def test_a_group_of_absent_static_members_waits_for_their_sessions(clock: VirtualClock) -> None:
    """No member rejoined, so no generation begins; when the sessions have ended, the group is empty."""
    async with coordinating(clock) as harness:
        dynamic, static = harness.enter(), harness.enter(instance_id="s", session_timeout=100.0)
        await clock.advance(6.0)
        harness.sync_all([dynamic.result, static.result])
        assert harness.coordinator.leave("g", dynamic.result.member_id) is ErrorCode.NONE
        await clock.advance(90.0)
        assert harness.state == "PreparingRebalance"
        await clock.advance(10.0)
        assert harness.state == "Empty"
        assert harness.listener.removed[-1] == (static.result.member_id, Removal.SESSION)


async def test_a_client_that_goes_away_while_parked_is_waited_for_as_long_as_its_session(clock: VirtualClock) -> None:
    """The member no longer counts as joined; if it returns in time, nothing changes, otherwise it is removed."""
    async with coordinating(clock) as harness:
        leader, other = await harness.stable(2)
        for back in (True, False):
            parked = harness.join(other.member_id, protocols=(("range", b"other"),))
            assert parked.parked is not None
            assert parked.parked.withdraw()
            assert not parked.parked.withdraw()
            again = harness.join(leader.member_id)
            await clock.advance(9.999)
            assert again.waits
            if back:
                joined = harness.join(other.member_id)
                harness.sync_all([again.result, joined.result])
        await clock.advance(0.001)
        assert again.result.generation == 3
        assert harness.listener.removed == [(other.member_id, Removal.SESSION)]
        assert parked.waits


async def test_a_client_that_goes_away_before_it_knows_its_id_is_removed_at_once(clock: VirtualClock) -> None:
    """The client could not return as the same member."""
    async with coordinating(clock) as harness:
        asked = harness.join(require_known_member_id=False)
        assert asked.parked is not None
        asked.parked.withdraw()
        assert harness.listener.removed == [("client-1", Removal.GONE)]
        await clock.advance(3.0)
        assert harness.state == "Empty"


async def test_a_cancelled_join_is_withdrawn(clock: VirtualClock) -> None:
    """Cancelling the waiting coroutine, as when a connection is lost, withdraws the request."""
    async with coordinating(clock) as harness:
        leader, other = await harness.stable(2)
        waiting = asyncio.create_task(harness.coordinator.join(join_request(leader.member_id)))
        await clock.settle()
        assert harness.group.awaiting_join == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert harness.group.awaiting_join == 0
        harness.check()
        await harness.keep_alive(10.0, other)
        assert harness.listener.removed == [(leader.member_id, Removal.SESSION)]


async def test_a_cancelled_sync_leaves_the_session_running(clock: VirtualClock) -> None:
    """A member that disconnects while it waits for its assignment is removed when its session ends."""
    async with coordinating(clock) as harness:
        asked = [harness.enter() for _ in range(2)]
        await clock.advance(6.0)
        leader, other = (one.result for one in asked)
        waiting = asyncio.create_task(harness.coordinator.sync(SyncRequest("g", other.member_id, other.generation)))
        await clock.settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await harness.keep_alive(10.0, leader)
        assert harness.listener.removed == [(other.member_id, Removal.SESSION)]


async def test_an_answer_may_lead_to_the_next_request_at_once(clock: VirtualClock) -> None:
    """A callback that syncs or joins again finds the coordinator in a consistent state."""
    async with coordinating(clock) as harness:
        synced = []

        def enter() -> None:
            member_id = harness.join().result.member_id

            def sync(joined: JoinResult) -> None:
                synced.append(harness.sync(joined))

            harness.coordinator.start_join(join_request(member_id), sync)

        for _ in range(4):
            enter()
        await clock.advance(6.0)
        assert [one.error for one in synced] == [ErrorCode.NONE] * 4
        assert harness.state == "Stable"


async def test_the_last_member_to_go_leaves_an_empty_group(clock: VirtualClock) -> None:
    """The generation increases, the group has no leader, and nothing waits."""
    async with coordinating(clock) as harness:
        (member,) = await harness.stable(1)
        assert harness.coordinator.leave("g", member.member_id) is ErrorCode.NONE
        assert (harness.state, harness.group.generation, harness.group.leader) == ("Empty", 2, None)
        assert [len(purgatory) for purgatory in harness.coordinator.purgatories] == [0, 0, 0]
        asked = harness.enter()
        await clock.advance(3.0)
        assert asked.result.generation == 3


async def test_closing_answers_everyone(clock: VirtualClock) -> None:
    """Parked requests get NOT_COORDINATOR, later ones COORDINATOR_NOT_AVAILABLE, and nothing is left."""
    async with coordinating(clock) as harness:
        members = await harness.stable(2)
        again = harness.join(members[0].member_id)
        other = RecordedRequest()
        follower = await _follower_of_a_second_group(harness)
        harness.coordinator.start_sync(SyncRequest("h", follower.member_id, 1), other.answers.append)
        await harness.coordinator.aclose()
        assert again.error is ErrorCode.NOT_COORDINATOR
        assert other.error is ErrorCode.NOT_COORDINATOR
        assert harness.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert harness.heartbeat(members[1]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert harness.coordinator.describe("g").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [len(purgatory) for purgatory in harness.coordinator.purgatories] == [0, 0, 0]


async def _follower_of_a_second_group(harness: CoordinatorHarness) -> JoinResult:
    """Return a follower in group "h" that waits for its assignment."""
    asked = [harness.enter(group_id="h") for _ in range(2)]
    await harness.clock.advance(6.0)
    return asked[1].result  # type: ignore[no-any-return]
