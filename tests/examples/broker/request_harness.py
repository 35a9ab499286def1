"""Handwritten requests to a broker, without a client library or a socket."""

import asyncio
import itertools
import struct
from collections.abc import Iterable
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import FetchRequest, JoinGroupRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from examples.broker.apis.dispatch import APIS, answer_frame
from examples.broker.broker import Broker
from examples.broker.settings import Settings
from examples.broker.storage.partition import Partition
from examples.broker.storage.record_batch import Batch, parse_batch
from examples.group import GroupConfig

__all__ = [
    "LIMIT",
    "PINS",
    "SETTINGS",
    "RequestHarness",
    "fetch_request",
    "frame",
    "join_request",
    "make_batch",
    "parsed",
    "partition_of",
    "settled",
    "values_in",
]

SETTINGS = Settings(
    replication_delay=0.05,
    segment_bytes=1000,
    max_message_bytes=10_000,
    group=GroupConfig(initial_rebalance_delay=0.0, min_session_timeout=0.1),
)
PINS = {key: api.pin for key, api in APIS.items()}

LIMIT = 1 << 20  # bytes of a batch


def make_batch(
    values: Iterable[bytes],
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp: int = 1000,
    timestamps: Iterable[int] | None = None,
    codec: int = 0,
) -> bytes:
    """Return a record batch as a producer sends it; by default the timestamps count up from ``timestamp``."""
    builder = MemoryRecordsBuilder(
        2, codec, 1 << 20, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
    )
    for at, value in zip(itertools.count(timestamp) if timestamps is None else timestamps, values, strict=False):
        builder.append(at, None, value)
    builder.close()
    return bytes(builder.buffer())


def parsed(*values: bytes, **options: Any) -> Batch:
    """Return a batch of these values as the broker parses it."""
    return parse_batch(make_batch(values, **options), LIMIT)


def values_in(records: bytes | None) -> list[bytes]:
    """Return the values of the records in a fetch response."""
    found: list[bytes] = []
    batches: Any = MemoryRecords(records or b"")
    while batches.has_next():
        found += [record.value for record in batches.next_batch()]
    return found


def frame(request: Any, version: int, correlation_id: int = 7, client_id: bytes = b"test") -> bytes:
    """Return a request as a frame."""
    head = struct.pack(">hhih", request.API_KEY, version, correlation_id, len(client_id)) + client_id
    body = head + bytes(request.encode(version=version))
    return struct.pack(">i", len(body)) + body


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


class RequestHarness:
    """A client that calls the broker directly."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def ask(self, request: Any, version: int | None = None) -> Any:
        """Send a request.  Return the decoded response, or None if there is none."""
        version = PINS[request.API_KEY] if version is None else version
        answered = await answer_frame(self.broker, frame(request, version)[4:], "127.0.0.1")
        if answered is None:
            return None
        size, correlation_id = struct.unpack_from(">ii", answered)
        assert (size, correlation_id) == (len(answered) - 4, 7)
        return _response_class(request).decode(answered[8:], version=version)

    async def produce(
        self, topic: str, records: bytes | None, *, acks: int = 1, timeout_ms: int = 1000, partition: int = 0
    ) -> Any:
        """Produce to one partition.  Return its part of the response."""
        topic_type = ProduceRequest.TopicProduceData
        data = topic_type(
            name=topic, partition_data=[topic_type.PartitionProduceData(index=partition, records=records)]
        )
        request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=[data])
        response = await self.ask(request)
        return None if response is None else response.responses[0].partition_responses[0]

    async def fetch(self, *wanted: tuple[str, int, int], **options: Any) -> list[Any]:
        """Fetch a list of (topic, partition, offset).  Return the partitions of the response."""
        response = await self.ask(fetch_request(*wanted, **options))
        assert response.error_code == 0
        return [partition for topic in response.responses for partition in topic.partitions]

    async def delete(self, topic: str, offset: int, *, timeout_ms: int = 1000) -> Any:
        """Delete records of partition 0.  Return its part of the response."""
        topic_type = DeleteRecordsRequest.DeleteRecordsTopic
        partitions = [topic_type.DeleteRecordsPartition(partition_index=0, offset=offset)]
        request = DeleteRecordsRequest(topics=[topic_type(name=topic, partitions=partitions)], timeout_ms=timeout_ms)
        return (await self.ask(request)).topics[0].partitions[0]


def partition_of(harness: RequestHarness, topic: str = "t", index: int = 0) -> Partition:
    """Return the partition object of the broker."""
    partition = harness.broker.topics.partition(topic, index)
    assert partition is not None
    return partition


def fetch_request(
    *wanted: tuple[str, int, int],
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 1000,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    session_id: int = 0,
) -> Any:
    """Return a fetch request for a list of (topic, partition, offset)."""
    topic_type = FetchRequest.FetchTopic
    topics = [
        topic_type(
            topic=topic,
            partitions=[
                topic_type.FetchPartition(
                    partition=partition,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=offset,
                    log_start_offset=-1,
                    partition_max_bytes=partition_max_bytes,
                )
            ],
        )
        for topic, partition, offset in wanted
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session_id,
        session_epoch=-1,
        topics=topics,
        forgotten_topics_data=[],
        rack_id="",
    )


def join_request(group: str, member: str = "", session_ms: int = 10_000, instance: str | None = None) -> Any:
    """Return a JoinGroup request of a consumer."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=10_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[protocol],
    )


def _response_class(request: Any) -> Any:
    module = __import__(type(request).__module__, fromlist=["x"])
    return getattr(module, request.name.replace("Request", "Response"))
