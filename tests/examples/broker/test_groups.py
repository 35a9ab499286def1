"""Groups by requests: joining, syncing, and committing and fetching offsets."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest

from examples.broker.protocol.error_codes import Code
from examples.group import ErrorCode
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import RequestHarness, join_request


async def test_a_member_joins_in_two_steps_and_gets_its_assignment(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """The member first gets its id; then it becomes the leader, gets the members and assigns to itself."""
    told = await harness.ask(join_request("g"))
    assert (told.error_code, told.protocol_name) == (ErrorCode.MEMBER_ID_REQUIRED, "")
    waiting = asyncio.create_task(harness.ask(join_request("g", told.member_id)))
    await clock.advance(0.01)
    joined = await waiting
    assert (joined.error_code, joined.leader, len(joined.members)) == (0, told.member_id, 1)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=told.member_id, assignment=b"all")
    synced = await harness.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=told.member_id,
            group_instance_id=None,
            assignments=[assignment],
        )
    )
    assert (synced.error_code, synced.assignment) == (0, b"all")
    described = (await harness.ask(DescribeGroupsRequest(groups=["g"], include_authorized_operations=False))).groups[0]
    assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"all")
    assert [group.group_id for group in (await harness.ask(ListGroupsRequest())).groups] == ["g"]
    committed = await commit(harness, "g", told.member_id, joined.generation_id)
    assert committed.error_code == 0
    stranger = await commit(harness, "g", "stranger", joined.generation_id)
    assert stranger.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_cannot_be_is_refused(harness: RequestHarness) -> None:
    """A session timeout below the minimum and an invalid instance id are refused; the protocol name is never null."""
    refused = await harness.ask(join_request("g", session_ms=99))
    assert (refused.error_code, refused.protocol_name) == (ErrorCode.INVALID_SESSION_TIMEOUT, "")
    refused = await harness.ask(join_request("g", instance="i" * 250))
    assert (refused.error_code, refused.protocol_name) == (Code.INVALID_REQUEST, "")


async def commit(
    harness: RequestHarness, group: str, member: str = "", generation: int = -1, topic: str = "t", metadata: str = "m"
) -> Any:
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic_type.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=42, committed_metadata=metadata
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        retention_time_ms=-1,
        topics=[topic_type(name=topic, partitions=[partition])],
    )
    return (await harness.ask(request)).topics[0].partitions[0]


async def test_offsets_are_committed_and_fetched(harness: RequestHarness) -> None:
    """A client without a group can also commit; an uncommitted offset is -1, and all offsets can be listed."""
    assert (await commit(harness, "g")).error_code == 0
    topic_type = OffsetFetchRequest.OffsetFetchRequestTopic
    request = OffsetFetchRequest(group_id="g", topics=[topic_type(name="t", partition_indexes=[0, 1])])
    partitions = (await harness.ask(request)).topics[0].partitions
    assert [(found.committed_offset, found.metadata) for found in partitions] == [(-1, ""), (42, "m")]
    everything = await harness.ask(OffsetFetchRequest(group_id="g", topics=None))
    assert [found.partition_index for found in everything.topics[0].partitions] == [1]
    assert (await commit(harness, "g", topic="nowhere")).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (await commit(harness, "g", metadata="m" * 5000)).error_code == Code.OFFSET_METADATA_TOO_LARGE
