"""From one generation to the next: who is waited for, who is removed, who is told what."""

import asyncio

import pytest

from examples.group import ErrorCode, JoinResult, Removal, SyncRequest
from purgatory.testing import VirtualClock
from tests.examples.group.harness import Asked, World, coordinating, join_request


async def test_a_rebalance_ends_when_the_last_member_has_joined(clock: VirtualClock) -> None:
    """Nobody waits longer than for the last one."""
    async with coordinating(clock) as world:
        members = await world.stable(3)
        asked = [world.join(one.member_id) for one in members[:2]]
        await clock.advance(5.0)
        assert all(one.waits for one in asked)
        asked.append(world.join(members[2].member_id))
        assert {one.result.generation for one in asked} == {2}


async def test_members_who_do_not_rejoin_in_time_are_removed(clock: VirtualClock) -> None:
    """After the rebalance timeout the next generation begins without them, however alive they are."""
    async with coordinating(clock) as world:
        leader, other = await world.stable(2, rebalance_timeout=20.0)
        again = world.join(leader.member_id, rebalance_timeout=20.0)
        await world.keep_alive(20.0, other)
        assert again.result.generation == 2
        assert world.noted.removed == [(other.member_id, Removal.REBALANCE)]
        assert world.heartbeat(other) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_longest_rebalance_timeout_counts(clock: VirtualClock) -> None:
    """A group waits as long as its most patient member asks for."""
    async with coordinating(clock) as world:
        asked = [world.enter(rebalance_timeout=20.0), world.enter(rebalance_timeout=40.0)]
        await clock.advance(6.0)
        leader, other = (one.result for one in asked)
        world.sync_all([leader, other])
        again = world.join(leader.member_id, rebalance_timeout=20.0)
        await world.keep_alive(39.0, other)
        assert again.waits
        await world.keep_alive(1.0, other)
        assert again.result.generation == 2


async def test_a_silent_member_is_removed_after_its_session(clock: VirtualClock) -> None:
    """The others are told to join again, and go on without it."""
    async with coordinating(clock) as world:
        leader, silent = await world.stable(2)
        await world.keep_alive(9.0, leader)
        assert world.heartbeat(leader) is ErrorCode.NONE
        await clock.advance(1.0)
        assert world.noted.removed == [(silent.member_id, Removal.SESSION)]
        assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
        assert world.join(leader.member_id).result.generation == 2


async def test_heartbeats_keep_a_member(clock: VirtualClock) -> None:
    """A session is counted from the last heartbeat."""
    async with coordinating(clock) as world:
        (member,) = await world.stable(1)
        await world.keep_alive(100.0, member)
        assert world.heartbeat(member) is ErrorCode.NONE


async def test_a_parked_member_counts_as_alive(clock: VirtualClock) -> None:
    """It cannot send heartbeats while it waits, so its session stands still, and starts anew with the answer."""
    async with coordinating(clock) as world:
        leader, other = await world.stable(2)
        again = world.join(leader.member_id)
        await world.keep_alive(55.0, other)
        assert again.waits
        assert world.noted.removed == []
        world.join(other.member_id)
        assert again.result.generation == 2
        assert world.sync(again.result).error is ErrorCode.NONE
        await clock.advance(9.999)
        assert world.noted.removed == []
        await clock.advance(0.001)
        assert {why for _, why in world.noted.removed} == {Removal.SESSION}


async def test_a_new_member_is_not_parked_for_ever(clock: VirtualClock) -> None:
    """After five minutes it is told UNKNOWN_MEMBER_ID; a client that is still there asks again."""
    async with coordinating(clock) as world:
        (leader,) = await world.stable(1, rebalance_timeout=600.0)
        new = world.enter()
        await world.keep_alive(299.0, leader)
        assert new.waits
        await world.keep_alive(1.0, leader)
        assert new.error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_assignments_of_the_leader_reach_everyone(clock: VirtualClock) -> None:
    """Followers wait for the leader; whoever asks later gets the same; one it forgot gets nothing."""
    async with coordinating(clock) as world:
        asked = [world.enter() for _ in range(3)]
        await clock.advance(6.0)
        leader, first, second = (one.result for one in asked)
        waiting = world.sync(first)
        assert waiting.waits
        assert world.state == "CompletingRebalance"
        assignments = {leader.member_id: b"0", first.member_id: b"1"}
        assert world.sync(leader, assignments=assignments).result.assignment == b"0"
        assert waiting.result.assignment == b"1"
        assert world.sync(second).result.assignment == b""
        assert world.sync(first).result.assignment == b"1"


async def test_members_who_do_not_sync_in_time_are_removed(clock: VirtualClock) -> None:
    """After the rebalance timeout those who have not sent SyncGroup go, and the others rebalance."""
    async with coordinating(clock) as world:
        asked = [world.enter(rebalance_timeout=20.0) for _ in range(2)]
        await clock.advance(6.0)
        leader, mute = (one.result for one in asked)
        world.sync(leader)
        await world.keep_alive(20.0, leader, mute)
        assert world.noted.removed == [(mute.member_id, Removal.SYNC)]
        assert world.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_followers_of_a_leader_that_does_not_sync_are_told_to_join_again(clock: VirtualClock) -> None:
    """The leader is removed, and those who waited for its assignments get REBALANCE_IN_PROGRESS."""
    async with coordinating(clock) as world:
        asked = [world.enter(rebalance_timeout=20.0) for _ in range(2)]
        await clock.advance(6.0)
        leader, other = (one.result for one in asked)
        waiting = world.sync(other)
        await world.keep_alive(20.0, leader)
        assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
        assert world.noted.removed == [(leader.member_id, Removal.SYNC)]
        assert world.join(other.member_id).result.leader == other.member_id


async def test_who_comes_while_assignments_are_awaited_begins_a_new_rebalance(clock: VirtualClock) -> None:
    """Those who wait for an assignment are told to join again."""
    async with coordinating(clock) as world:
        asked = [world.enter() for _ in range(2)]
        await clock.advance(6.0)
        waiting = world.sync(asked[1].result)
        world.enter()
        assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
        assert world.state == "PreparingRebalance"


async def test_a_lost_join_answer_is_given_again(clock: VirtualClock) -> None:
    """The same member with the same metadata gets the present generation, and nobody rebalances."""
    async with coordinating(clock) as world:
        asked = [world.enter() for _ in range(2)]
        await clock.advance(6.0)
        for one in asked:
            assert world.join(one.result.member_id).result == one.result
        world.sync_all([one.result for one in asked])
        assert world.join(asked[1].result.member_id).result == asked[1].result
        assert world.state == "Stable"


@pytest.mark.parametrize("who", ["the leader", "a follower with other metadata"])
async def test_a_join_that_changes_something_rebalances_a_stable_group(clock: VirtualClock, who: str) -> None:
    """The leader may ask for a new assignment, and other metadata needs one."""
    async with coordinating(clock) as world:
        leader, follower = await world.stable(2)
        if who == "the leader":
            asked = world.join(leader.member_id)
        else:
            asked = world.join(follower.member_id, protocols=(("range", b"other"),))
        assert asked.waits
        assert world.state == "PreparingRebalance"


async def test_absent_static_members_are_kept_until_their_session_ends(clock: VirtualClock) -> None:
    """A rebalance goes on without them, and they are still members."""
    async with coordinating(clock) as world:
        asked = [world.enter(), world.enter(instance_id="s", session_timeout=100.0)]
        await clock.advance(6.0)
        world.sync_all([one.result for one in asked])
        again = world.join(asked[0].result.member_id)
        await clock.advance(60.0)
        assert again.result.generation == 2
        assert len(again.result.members) == 2
        assert world.noted.removed == []


async def test_a_group_of_absent_static_members_waits_for_their_sessions(clock: VirtualClock) -> None:
    """Nobody rejoined, so there is no generation to begin; when their sessions have ended the group is empty."""
    async with coordinating(clock) as world:
        dynamic, static = world.enter(), world.enter(instance_id="s", session_timeout=100.0)
        await clock.advance(6.0)
        world.sync_all([dynamic.result, static.result])
        assert world.coordinator.leave("g", dynamic.result.member_id) is ErrorCode.NONE
        await clock.advance(90.0)
        assert world.state == "PreparingRebalance"
        await clock.advance(10.0)
        assert world.state == "Empty"
        assert world.noted.removed[-1] == (static.result.member_id, Removal.SESSION)


async def test_a_client_that_goes_away_while_parked_is_waited_for_as_long_as_its_session(clock: VirtualClock) -> None:
    """It no longer counts as one who joined; if it comes back in time nothing has happened, else it is removed."""
    async with coordinating(clock) as world:
        leader, other = await world.stable(2)
        for back in (True, False):
            parked = world.join(other.member_id, protocols=(("range", b"other"),))
            assert parked.parked is not None
            assert parked.parked.withdraw()
            assert not parked.parked.withdraw()
            again = world.join(leader.member_id)
            await clock.advance(9.999)
            assert again.waits
            if back:
                joined = world.join(other.member_id)
                world.sync_all([again.result, joined.result])
        await clock.advance(0.001)
        assert again.result.generation == 3
        assert world.noted.removed == [(other.member_id, Removal.SESSION)]
        assert parked.waits


async def test_a_client_that_goes_away_before_it_knows_its_id_is_removed_at_once(clock: VirtualClock) -> None:
    """It could not come back as the same member."""
    async with coordinating(clock) as world:
        asked = world.join(require_known_member_id=False)
        assert asked.parked is not None
        asked.parked.withdraw()
        assert world.noted.removed == [("client-1", Removal.GONE)]
        await clock.advance(3.0)
        assert world.state == "Empty"


async def test_a_cancelled_join_is_withdrawn(clock: VirtualClock) -> None:
    """The coroutine that waited is cancelled, as when a connection is lost."""
    async with coordinating(clock) as world:
        leader, other = await world.stable(2)
        waiting = asyncio.create_task(world.coordinator.join(join_request(leader.member_id)))
        await clock.settle()
        assert world.group.awaiting_join == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert world.group.awaiting_join == 0
        world.check()
        await world.keep_alive(10.0, other)
        assert world.noted.removed == [(leader.member_id, Removal.SESSION)]


async def test_a_cancelled_sync_leaves_the_session_running(clock: VirtualClock) -> None:
    """Who goes away while it waits for its assignment is removed when its session ends."""
    async with coordinating(clock) as world:
        asked = [world.enter() for _ in range(2)]
        await clock.advance(6.0)
        leader, other = (one.result for one in asked)
        waiting = asyncio.create_task(world.coordinator.sync(SyncRequest("g", other.member_id, other.generation)))
        await clock.settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await world.keep_alive(10.0, leader)
        assert world.noted.removed == [(other.member_id, Removal.SESSION)]


async def test_an_answer_may_lead_to_the_next_request_at_once(clock: VirtualClock) -> None:
    """A callback that syncs, or joins again, meets a coordinator in order."""
    async with coordinating(clock) as world:
        synced = []

        def enter() -> None:
            member_id = world.join().result.member_id

            def sync(joined: JoinResult) -> None:
                synced.append(world.sync(joined))

            world.coordinator.start_join(join_request(member_id), sync)

        for _ in range(4):
            enter()
        await clock.advance(6.0)
        assert [one.error for one in synced] == [ErrorCode.NONE] * 4
        assert world.state == "Stable"


async def test_the_last_member_to_go_leaves_an_empty_group(clock: VirtualClock) -> None:
    """The generation is counted on, nobody leads, and nothing waits."""
    async with coordinating(clock) as world:
        (member,) = await world.stable(1)
        assert world.coordinator.leave("g", member.member_id) is ErrorCode.NONE
        assert (world.state, world.group.generation, world.group.leader) == ("Empty", 2, None)
        assert [len(purgatory) for purgatory in world.coordinator.purgatories] == [0, 0, 0]
        asked = world.enter()
        await clock.advance(3.0)
        assert asked.result.generation == 3


async def test_closing_answers_everyone(clock: VirtualClock) -> None:
    """Parked requests get NOT_COORDINATOR, later ones COORDINATOR_NOT_AVAILABLE, and nothing is left."""
    async with coordinating(clock) as world:
        members = await world.stable(2)
        again = world.join(members[0].member_id)
        other = Asked()
        follower = await _follower_of_a_second_group(world)
        world.coordinator.start_sync(SyncRequest("h", follower.member_id, 1), other.answers.append)
        await world.coordinator.aclose()
        assert again.error is ErrorCode.NOT_COORDINATOR
        assert other.error is ErrorCode.NOT_COORDINATOR
        assert world.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.heartbeat(members[1]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.coordinator.describe("g").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [len(purgatory) for purgatory in world.coordinator.purgatories] == [0, 0, 0]


async def _follower_of_a_second_group(world: World) -> JoinResult:
    """A follower in group "h", which waits for its assignments."""
    asked = [world.enter(group_id="h") for _ in range(2)]
    await world.clock.advance(6.0)
    return asked[1].result  # type: ignore[no-any-return]
