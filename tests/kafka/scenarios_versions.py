"""A scenario of versions: one request of each API in each version that this broker advertises."""

import itertools
import time
from collections.abc import Callable
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from benchmarks.kafka_wire import PINS, Closed, make
from tests.kafka.scenarios import Side, batch, fetch_request, name_of, produce_request, scenario

__all__: list[str] = []

_NAMES = itertools.count()
_TRANSIENT = (14, 15, 16)  # the coordinator is being made

Codes = Callable[[Any], int]


def _requests(topic: str, version: int) -> list[tuple[Any, Codes]]:
    """Return a request of each API, and the function that finds the error code in its response."""
    group = f"versions-{next(_NAMES)}"
    member = {"group_id": group, "generation_id": 1, "member_id": "x"}
    join = {"session_timeout_ms": 1, "rebalance_timeout_ms": 1, "member_id": "", "protocol_type": "consumer"}
    new = {"name": f"{group}-{version}", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    asked = {"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1, "max_num_offsets": 1}]}
    commit = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}

    def partition(answer: Any) -> int:
        return int(answer.topics[0].partitions[0].error_code)

    def top(answer: Any) -> int:
        return int(answer.error_code)

    return [
        (produce_request(topic, batch(b"a")), lambda answer: answer.responses[0].partition_responses[0].error_code),
        (
            fetch_request((topic, 0, 0), max_wait_ms=0),
            lambda answer: answer.responses[0].partitions[0].error_code,
        ),
        (make(ListOffsetsRequest, replica_id=-1, isolation_level=0, topics=[asked]), partition),
        (
            make(MetadataRequest, topics=[{"name": topic}], allow_auto_topic_creation=False),
            lambda answer: answer.topics[0].error_code,
        ),
        (
            make(
                OffsetCommitRequest,
                group_id=group,
                generation_id_or_member_epoch=-1,
                member_id="",
                retention_time_ms=-1,
                topics=[{"name": topic, "partitions": [commit]}],
            ),
            partition,
        ),
        (make(OffsetFetchRequest, group_id=group, topics=[{"name": topic, "partition_indexes": [0]}]), partition),
        (make(FindCoordinatorRequest, key=group, key_type=0), top),
        (
            make(JoinGroupRequest, group_id=group, protocols=[{"name": "range", "metadata": b"m"}], **join),
            top,
        ),
        (make(HeartbeatRequest, **member), top),
        (make(LeaveGroupRequest, group_id=group, member_id="x"), top),
        (make(SyncGroupRequest, assignments=[], **member), top),
        (
            make(DescribeGroupsRequest, groups=[group], include_authorized_operations=False),
            lambda answer: answer.groups[0].error_code,
        ),
        (make(ListGroupsRequest), top),
        (make(ApiVersionsRequest), top),
        (
            make(CreateTopicsRequest, topics=[new], timeout_ms=10_000, validate_only=False),
            lambda answer: answer.topics[0].error_code,
        ),
        (
            make(DeleteTopicsRequest, topic_names=["nowhere"], timeout_ms=10_000),
            lambda answer: answer.responses[0].error_code,
        ),
        (
            make(
                DeleteRecordsRequest,
                topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
                timeout_ms=10_000,
            ),
            partition,
        ),
        (make(InitProducerIdRequest, transactional_id=None, transaction_timeout_ms=60_000), top),
    ]


def _answer(side: Side, request: Any, code_in: Codes, version: int) -> str:
    try:
        with side.wire() as wire:
            for _ in range(200):
                code = code_in(wire.ask(request, version))
                if code not in _TRANSIENT:
                    break
                time.sleep(0.05)
            return name_of(code)
    except Closed:
        return "closed"


@scenario
def versions(side: Side) -> None:
    """Every API in every version"""
    topic = side.topic()
    seen = set()
    for number in range(len(_requests(topic, 0))):
        key = _requests(topic, 0)[number][0].API_KEY
        seen.add(key)
        for version in range(PINS[key] + 1):
            request, code_in = _requests(topic, version)[number]
            name = request.name.removesuffix("Request")
            side.note(f"{name} {version}: {_answer(side, request, code_in, version)}")
    side.note(f"APIs left out: {sorted(PINS.keys() - seen)}")
