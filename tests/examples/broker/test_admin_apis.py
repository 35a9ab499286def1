"""Requests that clients send before they produce or consume: topics, offsets, producer ids, the coordinator."""

from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from examples.broker.protocol.error_codes import Code
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import RequestHarness, make_batch


async def test_metadata_creates_what_is_asked_for_where_that_is_allowed(harness: RequestHarness) -> None:
    """An invalid name returns an error for its topic; without permission, no topic is created."""
    topic_type = MetadataRequest.MetadataRequestTopic
    names = ["t", "new", "bad name"]
    asked = [topic_type(name=name) for name in names]
    response = await harness.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    assert [topic.error_code for topic in response.topics] == [0, 3, 17]
    response = await harness.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True))
    assert [topic.error_code for topic in response.topics] == [0, 0, Code.INVALID_TOPIC_EXCEPTION]
    everything = await harness.ask(MetadataRequest(topics=None, allow_auto_topic_creation=True))
    assert sorted(topic.name for topic in everything.topics) == ["new", "solo", "stalled", "t"]
    assert len(everything.topics[0].partitions) == 2
    nothing = await harness.ask(MetadataRequest(topics=[], allow_auto_topic_creation=True))
    assert (nothing.topics, nothing.brokers[0].node_id) == ([], 1)


async def test_topics_are_created_checked_and_deleted_by_request(harness: RequestHarness) -> None:
    """``validate_only`` creates nothing, a duplicate name is refused, and a deleted topic does not exist."""

    async def create(*names: str, only: bool = False) -> list[int]:
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=3, replication_factor=-1, assignments=[], configs=[]
            )
            for name in names
        ]
        response = await harness.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=only))
        return [topic.error_code for topic in response.topics]

    assert await create("n", only=True) == [0]
    assert await create("n", "m", "m") == [0, Code.INVALID_REQUEST]
    assert await create("n") == [Code.TOPIC_ALREADY_EXISTS]
    deleted = await harness.ask(DeleteTopicsRequest(topic_names=["n", "m"], timeout_ms=1000))
    assert [topic.error_code for topic in deleted.responses] == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]


async def test_replica_assignments_are_refused(harness: RequestHarness) -> None:
    """With partition numbers, the request is contradictory; without them, the broker cannot place the replicas."""
    topic = CreateTopicsRequest.CreatableTopic
    assigned = [topic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]

    async def create(number: int) -> int:
        topics = [topic(name="n", num_partitions=number, replication_factor=number, assignments=assigned, configs=[])]
        response = await harness.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=False))
        return int(response.topics[0].error_code)

    assert await create(1) == Code.INVALID_REQUEST
    assert await create(-1) == Code.INVALID_REPLICA_ASSIGNMENT
    assert harness.broker.topics.get("n") is None


async def list_offset(harness: RequestHarness, timestamp: int, version: int = 3) -> Any:
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    partition = topic_type.ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=1)
    topics = [topic_type(name="t", partitions=[partition])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
    return (await harness.ask(request, version)).topics[0].partitions[0]


async def test_offsets_are_listed_up_to_the_high_watermark(harness: RequestHarness, clock: VirtualClock) -> None:
    """-1 means the high watermark, -2 the start, and a timestamp the first record that is not older."""
    await harness.produce("t", make_batch([b"a", b"b", b"c"], timestamp=500))
    assert (await list_offset(harness, -1)).offset == 0
    await clock.advance(0.05)
    await harness.produce("t", make_batch([b"d"], timestamp=900))
    assert (await list_offset(harness, -1)).offset == 3
    assert (await list_offset(harness, -2)).offset == 0
    found = await list_offset(harness, 501)
    assert (found.offset, found.timestamp) == (1, 501)
    assert (await list_offset(harness, 900)).offset == -1
    assert (await list_offset(harness, -3)).error_code == Code.UNSUPPORTED_VERSION
    assert (await list_offset(harness, -1, version=0)).old_style_offsets == [3]


async def test_producer_ids_are_given_once_and_not_for_transactions(harness: RequestHarness) -> None:
    """A transactional id is refused with an error that clients treat as final."""
    one = await harness.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    two = await harness.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    assert (one.error_code, two.producer_id - one.producer_id) == (0, 1)
    refused = await harness.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=0))
    assert refused.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    coordinator = await harness.ask(FindCoordinatorRequest(key="x", key_type=1))
    assert coordinator.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (await harness.ask(FindCoordinatorRequest(key="x", key_type=0))).node_id == 1
    assert (await harness.ask(FindCoordinatorRequest(key="x", key_type=7))).error_code == Code.INVALID_REQUEST


async def test_metadata_of_a_name_that_no_topic_can_have_is_an_invalid_topic(harness: RequestHarness) -> None:
    """As in Kafka, the topic gets an error, even if topics are not created."""
    for name, code in (("a b", Code.INVALID_TOPIC_EXCEPTION), ("nowhere", Code.UNKNOWN_TOPIC_OR_PARTITION)):
        topics = [MetadataRequest.MetadataRequestTopic(name=name)]
        found = await harness.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        assert [topic.error_code for topic in found.topics] == [code]
