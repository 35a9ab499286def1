"""Joining a group: ids, errors, the initial delay, static members, limits."""

from typing import Any

import pytest

from examples.group import ErrorCode, GroupConfig, GroupState, Removal
from examples.group.group import FOLLOWS, Group
from purgatory.testing import VirtualClock
from tests.examples.group.harness import RecordedRequest, coordinating, join_request


@pytest.mark.parametrize("before", GroupState)
@pytest.mark.parametrize("after", GroupState)
def test_a_state_follows_another_only_as_the_table_says(before: GroupState, after: GroupState) -> None:
    """A transition that is not in the table raises and changes nothing."""
    group = Group("g")
    group.state = before
    if after in FOLLOWS[before]:
        group.transition(after)
        assert group.state is after
    else:
        with pytest.raises(RuntimeError, match="cannot become"):
            group.transition(after)
        assert group.state is before


async def test_a_dynamic_member_is_given_an_id_first(clock: VirtualClock) -> None:
    """Without a member id, the client gets MEMBER_ID_REQUIRED and an id; with that id it waits for the others."""
    async with coordinating(clock) as harness:
        first = harness.join()
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        assert first.result.member_id == "client-1"
        assert first.result.protocol == ""
        second = harness.join("client-1")
        assert second.waits
        await clock.advance(3.0)
        assert second.result.error is ErrorCode.NONE
        assert second.result.member_id == second.result.leader == "client-1"


async def test_an_old_client_is_not_asked_to_come_twice(clock: VirtualClock) -> None:
    """A client of a version below 4 becomes a member at once."""
    async with coordinating(clock) as harness:
        asked = harness.join(require_known_member_id=False)
        await clock.advance(3.0)
        assert asked.error is ErrorCode.NONE
        assert asked.result.generation == 1


async def test_the_first_generation_waits_the_initial_delay(clock: VirtualClock) -> None:
    """A lone member waits exactly the initial delay."""
    async with coordinating(clock) as harness:
        asked = harness.enter()
        await clock.advance(2.999)
        assert asked.waits
        await clock.advance(0.001)
        assert asked.error is ErrorCode.NONE


async def test_the_initial_delay_is_extended_while_members_arrive(clock: VirtualClock) -> None:
    """Each delay in which a member joined is followed by another one, up to the rebalance timeout."""
    async with coordinating(clock) as harness:
        began = clock.time()
        asked = [harness.enter(rebalance_timeout=10.0)]
        answered_at = None
        for _ in range(12):
            await clock.advance(1.0)
            if answered_at is None and not asked[0].waits:
                answered_at = clock.time() - began
            if answered_at is None:
                asked.append(harness.enter(rebalance_timeout=10.0))
        assert answered_at == 10.0
        assert {one.result.generation for one in asked} == {1}
        assert len(asked[0].result.members) == len(asked) == 10


async def test_without_an_initial_delay_the_first_generation_begins_at_once(clock: VirtualClock) -> None:
    """With a delay of 0, the first member continues in the next turn of the loop."""
    async with coordinating(clock, initial_rebalance_delay=0.0) as harness:
        asked = harness.enter()
        await clock.settle()
        assert asked.error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout": 5.999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout": 1800.001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": "other", "member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_id": "other", "protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": "other", "protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("roundrobin", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "client-1", "instance_id": "unheard-of"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "client-1", "instance_id": "static"}, ErrorCode.FENCED_INSTANCE_ID),
    ],
)
async def test_a_join_that_cannot_be_is_refused_and_changes_nothing(
    clock: VirtualClock, changes: dict[str, Any], error: ErrorCode
) -> None:
    """Each reason has its error code, and the group is unchanged."""
    async with coordinating(clock) as harness:
        harness.enter()
        harness.enter(instance_id="static")
        before = dict(harness.group.members), harness.group.state, len(harness.coordinator.groups)
        asked = harness.join(**changes)
        assert asked.error is error
        assert asked.result.protocol == ""
        assert (dict(harness.group.members), harness.group.state, len(harness.coordinator.groups)) == before


async def test_an_id_that_nobody_comes_back_with_is_forgotten(clock: VirtualClock) -> None:
    """After the session timeout the id is unknown; a group that never had a member is removed."""
    async with coordinating(clock) as harness:
        first = harness.join()
        assert harness.group.pending
        await clock.advance(10.0)
        assert "g" not in harness.coordinator.groups
        assert harness.join(first.result.member_id).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_rebalance_waits_for_those_who_were_given_an_id(clock: VirtualClock) -> None:
    """If a client has an id but has not joined yet, the rebalance waits for it until its id expires."""
    async with coordinating(clock) as harness:
        (leader,) = await harness.stable(1)
        harness.join()
        again = harness.join(leader.member_id)
        await clock.advance(9.999)
        assert again.waits
        await clock.advance(0.001)
        assert again.result.generation == 2


async def test_a_full_group_takes_nobody_else(clock: VirtualClock) -> None:
    """Above the limit, a join gets GROUP_MAX_SIZE_REACHED, in a stable and in a rebalancing group."""
    async with coordinating(clock, max_size=2) as harness:
        await harness.stable(2)
        assert harness.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
        harness.join(next(iter(harness.group.members)))
        assert harness.state == "PreparingRebalance"
        third = harness.enter()
        assert third.waits
        late = harness.join(list(harness.group.members)[1])
        assert late.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert harness.listener.removed[-1][1] is Removal.FULL
        assert third.result.generation == 2


async def test_a_static_member_returns_without_a_rebalance(clock: VirtualClock) -> None:
    """The member gets a new id, its old assignment and the same generation; the old id is fenced."""
    async with coordinating(clock) as harness:
        leader, static = (await harness.stable(1))[0], harness.enter(instance_id="s")
        again = harness.join(leader.member_id)
        joined = [again.result, static.result]
        harness.sync_all(joined)
        back = harness.join(instance_id="s")
        assert back.error is ErrorCode.NONE
        assert (back.result.generation, back.result.leader) == (2, leader.member_id)
        assert back.result.member_id != static.result.member_id
        assert harness.state == "Stable"
        assert harness.sync(back.result).result.assignment == static.result.member_id.encode()
        old = static.result
        assert harness.heartbeat(old, instance_id="s") is ErrorCode.FENCED_INSTANCE_ID
        assert harness.heartbeat(old) is ErrorCode.UNKNOWN_MEMBER_ID
        assert harness.sync(old, instance_id="s").error is ErrorCode.FENCED_INSTANCE_ID
        assert harness.coordinator.check_commit("g", old.member_id, 2, "s") is ErrorCode.FENCED_INSTANCE_ID
        assert harness.coordinator.leave("g", old.member_id, "s") is ErrorCode.FENCED_INSTANCE_ID
        assert harness.heartbeat(back.result, instance_id="s") is ErrorCode.NONE


async def test_a_static_leader_returns_and_does_not_take_itself_for_the_leader(clock: VirtualClock) -> None:
    """The member gets the leader's former id, so it does not compute an assignment that no member would use."""
    async with coordinating(clock) as harness:
        static = harness.enter(instance_id="s")
        await clock.advance(3.0)
        harness.sync_all([static.result])
        back = harness.join(instance_id="s")
        assert back.result.leader == static.result.member_id != back.result.member_id
        assert back.result.members == ()
        assert harness.group.leader == back.result.member_id
        assert harness.join(back.result.member_id, instance_id="s").result.generation == 2


async def test_a_static_member_that_changes_the_protocol_causes_a_rebalance(clock: VirtualClock) -> None:
    """If the return changes the chosen protocol, the group rebalances."""
    both = (("range", b""), ("sticky", b""))
    async with coordinating(clock) as harness:
        static = harness.enter(instance_id="s", protocols=both)
        await clock.advance(3.0)
        assert static.result.protocol == "range"
        harness.sync_all([static.result])
        back = harness.join(instance_id="s", protocols=both[::-1])
        assert back.result.generation == 2
        assert back.result.protocol == "sticky"


async def test_the_parked_request_of_a_replaced_static_member_is_fenced(clock: VirtualClock) -> None:
    """If two processes have one instance id, the second one joins, and the first one is fenced."""
    async with coordinating(clock) as harness:
        first = harness.enter(instance_id="s")
        second = harness.enter(instance_id="s")
        assert first.error is ErrorCode.FENCED_INSTANCE_ID
        await clock.advance(3.0)
        assert second.error is ErrorCode.NONE
        assert len(harness.group.members) == 1


async def test_a_static_member_that_returns_before_the_assignment_causes_a_rebalance(clock: VirtualClock) -> None:
    """The leader assigns to known ids, and the new id is not one of them."""
    async with coordinating(clock) as harness:
        first, static = harness.enter(), harness.enter(instance_id="s")
        await clock.advance(6.0)
        synced = harness.sync(static.result)
        assert synced.waits
        back = harness.join(instance_id="s")
        assert synced.error is ErrorCode.FENCED_INSTANCE_ID
        assert harness.state == "PreparingRebalance"
        assert back.waits
        again = harness.join(first.result.member_id)
        assert back.result.generation == again.result.generation == 2


async def test_one_request_of_a_member_waits_at_a_time(clock: VirtualClock) -> None:
    """A second join of a member replaces the first, which must join again."""
    async with coordinating(clock) as harness:
        first = harness.enter()
        second = harness.join(next(iter(harness.group.members)))
        assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
        await clock.advance(3.0)
        assert second.error is ErrorCode.NONE


async def test_the_leader_alone_gets_the_members(clock: VirtualClock) -> None:
    """All members get the generation, the protocol with the most votes and the leader; only the leader gets the
    list.
    """
    preferring_b = (("b", b"b-data"), ("a", b"a-data"))
    async with coordinating(clock) as harness:
        asked: list[RecordedRequest] = [
            harness.enter(protocols=preferring_b[::-1]),
            *(harness.enter(protocols=preferring_b) for _ in "12"),
        ]
        await clock.advance(6.0)
        results = [one.result for one in asked]
        assert {(one.generation, one.protocol, one.leader) for one in results} == {(1, "b", results[0].member_id)}
        assert [len(one.members) for one in results] == [3, 0, 0]
        assert {member.metadata for member in results[0].members} == {b"b-data"}


def test_settings_that_cannot_be_are_refused() -> None:
    """A negative delay, inconsistent limits and an empty group raise an error."""
    for settings in ({"initial_rebalance_delay": -1.0}, {"min_session_timeout": 2000.0}, {"max_size": 0}):
        with pytest.raises(ValueError, match="|".join(settings)):
            GroupConfig(**settings)


def test_a_request_says_what_it_is() -> None:
    """The ``repr`` of a request contains its fields."""
    assert "session_timeout=10.0" in repr(join_request())
