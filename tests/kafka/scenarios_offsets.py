"""Scenarios of offsets, deleted records and topics."""

import itertools
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest, DescribeGroupsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest

from benchmarks.kafka_wire import make
from tests.kafka.scenarios import Side, batch, name_of, scenario

__all__ = ["commit", "committed"]

_NAMES = itertools.count()


def _offset(side: Side, topic: str, timestamp: int) -> str:
    code, offset, at = side.offset(topic, timestamp)
    return f"{name_of(code)} offset {offset} timestamp {at}"


@scenario
def ends(side: Side) -> None:
    """ListOffsets of both ends"""
    topic = side.topic()
    side.note(f"{_offset(side, topic, -2)}, {_offset(side, topic, -1)}")
    side.produce(topic, batch(b"a", b"b", b"c"))
    side.note(f"{_offset(side, topic, -2)}, {_offset(side, topic, -1)}")
    side.delete_records(topic, 2)
    side.note(f"{_offset(side, topic, -2)}, {_offset(side, topic, -1)}")


@scenario
def by_time(side: Side) -> None:
    """ListOffsets by timestamp"""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b", b"c", timestamps=(1000, 3000, 2000)))
    side.produce(topic, batch(b"d", timestamps=(5000,)))
    for timestamp in (0, 1000, 1001, 2500, 3000, 4000, 5000, 5001):
        side.note(f"{timestamp}: {_offset(side, topic, timestamp)}")


@scenario
def by_time_compressed(side: Side) -> None:
    """ListOffsets by timestamp in compressed batches"""
    topic = side.topic()
    values = [letter * 500 for letter in (b"a", b"b", b"c")]
    side.produce(topic, batch(*values, timestamps=(1000, 2000, 3000), codec=1))
    side.produce(topic, batch(*values[:2], timestamps=(4000, 5000), codec=1))
    for timestamp in (1000, 2500, 3000, 4000, 5000, 5001):
        side.note(f"{timestamp}: {_offset(side, topic, timestamp)}")


@scenario
def special_times(side: Side) -> None:
    """ListOffsets with timestamps below -2"""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b", timestamps=(1000, 500)))
    for timestamp in (-3, -4, -5, -9):
        side.note(f"{timestamp}: {_offset(side, topic, timestamp)}")


@scenario
def offsets_unknown(side: Side) -> None:
    """ListOffsets of what is not there"""
    side.note(str(side.offset("nowhere", -1)))
    side.note(str(side.offset(side.topic(), -1, 9)))


@scenario
def deletes(side: Side) -> None:
    """DeleteRecords"""
    topic = side.topic()
    side.note(f"nothing there {side.delete_records(topic, 0)}")
    side.produce(topic, batch(b"a", b"b", b"c"))
    side.produce(topic, batch(b"d"))
    for offset in (2, 1, 5, -2, 3, -1, 4):
        side.note(f"{offset}: {side.delete_records(topic, offset)}")
    side.note(side.fetch((topic, 0, 4)))
    side.note(side.produce(topic, batch(b"e")))
    side.note(f"nowhere {side.delete_records('nowhere', 0)}")
    side.note(f"no partition {side.delete_records(topic, 0, partition=9)}")


@scenario
def middle(side: Side) -> None:
    """A fetch behind records that are deleted out of the middle of a batch"""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b", b"c"))
    side.delete_records(topic, 1)
    side.note(side.fetch((topic, 0, 1)))


def commit(side: Side, group: str, topic: str, offset: int, **options: Any) -> str:
    """Commit an offset and return the name of the code."""
    partition = {
        "partition_index": options.get("partition", 0),
        "committed_offset": offset,
        "committed_metadata": options.get("metadata", ""),
    }
    request = make(
        OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=options.get("generation", -1),
        member_id=options.get("member", ""),
        retention_time_ms=-1,
        topics=[{"name": topic, "partitions": [partition]}],
    )
    with side.wire() as wire:
        return name_of(wire.ask(request).topics[0].partitions[0].error_code)


def committed(side: Side, group: str, topic: str, *partitions: int) -> str:
    """Return the committed offsets of the partitions; of all of the group without any."""
    topics = [{"name": topic, "partition_indexes": list(partitions)}] if partitions else None
    with side.wire() as wire:
        answer = wire.ask(make(OffsetFetchRequest, group_id=group, topics=topics))
    found = [
        (part.partition_index, part.committed_offset, part.metadata, name_of(part.error_code))
        for each in answer.topics
        for part in each.partitions
    ]
    return f"{name_of(answer.error_code)} {sorted(found)}"


@scenario
def commits(side: Side) -> None:
    """Commits by a consumer without a group membership"""
    topic, group = side.topic(2), f"g-{next(_NAMES)}"
    side.note(f"before {committed(side, group, topic, 0)}")
    side.note(commit(side, group, topic, 5, metadata="five"))
    side.note(commit(side, group, topic, 3, partition=1))
    side.note(f"named {committed(side, group, topic, 0, 1, 7)}")
    side.note(f"all {committed(side, group, topic)}")


@scenario
def commits_refused(side: Side) -> None:
    """Commits that are refused"""
    topic, group = side.topic(), f"g-{next(_NAMES)}"
    side.note(f"no such group {commit(side, group, topic, 5, generation=3, member='x')}")
    side.note(f"metadata {commit(side, group, topic, 5, metadata='m' * 5000)}")
    side.note(f"no topic {commit(side, group, 'nowhere', 5)}")
    side.note(f"no partition {commit(side, group, topic, 5, partition=9)}")
    side.note(f"a negative offset {commit(side, group, topic, -7)}")
    side.note(f"no member {commit(side, group, topic, 5, generation=3, member='x')}")
    side.note(f"a name of no length {commit(side, '', topic, 5)}")
    side.note(committed(side, group, topic, 0))


@scenario
def nothing_committed(side: Side) -> None:
    """A group whose only commit was rejected"""
    topic, group = side.topic(), f"g-{next(_NAMES)}"
    side.note(commit(side, group, topic, 5, metadata="m" * 5000))
    side.note(commit(side, group, topic, 5, generation=3, member="x"))


@scenario
def twice(side: Side) -> None:
    """Duplicate entries in a request"""
    topic = side.topic()
    side.produce(topic, batch(b"a", b"b", b"c"))
    asked = {"partition_index": 0, "timestamp": -1}
    commit_to = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    group = f"g-{next(_NAMES)}"
    with side.wire() as wire:
        request = make(
            ListOffsetsRequest,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": topic, "partitions": [asked, {**asked, "timestamp": -2}]}],
        )
        parts = [part for each in wire.ask(request).topics for part in each.partitions]
        side.note(f"ListOffsets {[(name_of(part.error_code), part.offset) for part in parts]}")
        deletes = [{"partition_index": 0, "offset": 1}, {"partition_index": 0, "offset": 2}]
        request = make(DeleteRecordsRequest, topics=[{"name": topic, "partitions": deletes}], timeout_ms=10_000)
        parts = [part for each in wire.ask(request).topics for part in each.partitions]
        side.note(f"DeleteRecords {[(name_of(part.error_code), part.low_watermark) for part in parts]}")
        request = make(
            OffsetCommitRequest,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time_ms=-1,
            topics=[{"name": topic, "partitions": [commit_to, {**commit_to, "committed_offset": 2}]}],
        )
        parts = [part for each in wire.ask(request).topics for part in each.partitions]
        side.note(f"OffsetCommit {[name_of(part.error_code) for part in parts]} {committed(side, group, topic, 0)}")
        side.note(f"OffsetFetch {committed(side, group, topic, 0, 0)}")
        request = make(DescribeGroupsRequest, groups=[group, group], include_authorized_operations=False)
        side.note(f"DescribeGroups {[each.group_state for each in wire.ask(request).groups]}")
        request = make(MetadataRequest, topics=[{"name": topic}, {"name": topic}], allow_auto_topic_creation=False)
        side.note(f"Metadata {[name_of(each.error_code) for each in wire.ask(request).topics]}")
        request = make(DeleteTopicsRequest, topic_names=[topic, topic], timeout_ms=10_000)
        side.note(f"DeleteTopics {[name_of(each.error_code) for each in wire.ask(request).responses]}")


def _create(side: Side, name: str, partitions: int = 1, replicas: int = 1, *, only_check: bool = False) -> str:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas, "assignments": []}
    request = make(CreateTopicsRequest, topics=[{**topic, "configs": []}], timeout_ms=10_000, validate_only=only_check)
    with side.wire() as wire:
        return name_of(wire.ask(request).topics[0].error_code)


@scenario
def topics_created(side: Side) -> None:
    """CreateTopics, and what it refuses"""
    topic = side.topic()
    side.note(f"there {_create(side, topic)}")
    side.note(f"only a check {_create(side, f'checked-{topic}', only_check=True)}")
    side.note(f"for real {_create(side, f'checked-{topic}')}")
    side.note(f"no partitions {_create(side, f'zero-{topic}', 0)}")
    side.note(f"too many replicas {_create(side, f'many-{topic}', 1, 99)}")
    side.note(f"no replicas {_create(side, f'none-{topic}', 1, 0)}")
    for name in ("a b", ".", "..", "", "x" * 250):
        side.note(f"{name[:3]!r} {_create(side, name)}")


@scenario
def topics_configured(side: Side) -> None:
    """CreateTopics with replicas and configurations in the request"""
    placed = [{"partition_index": 0, "broker_ids": [1]}]
    known, unknown = ({"name": name, "value": "60000"} for name in ("retention.ms", "no.such.thing"))
    for what, fields in {
        "placed": {"num_partitions": -1, "replication_factor": -1, "assignments": placed},
        "placed and numbered": {"assignments": placed},
        "placed nowhere": {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [99]}],
        },
        "configured": {"configs": [known]},
        "configured with an unknown name": {"configs": [unknown]},
    }.items():
        topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} | fields
        name = f"configured-{next(_NAMES)}"
        request = make(CreateTopicsRequest, topics=[{"name": name, **topic}], timeout_ms=10_000, validate_only=False)
        with side.wire() as wire:
            side.note(f"{what} {name_of(wire.ask(request).topics[0].error_code)}")


@scenario
def topics_named_twice(side: Side) -> None:
    """CreateTopics of one name twice"""
    topic = {
        "name": f"twice-{next(_NAMES)}",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    with side.wire() as wire:
        request = make(CreateTopicsRequest, topics=[topic, topic], timeout_ms=10_000, validate_only=False)
        side.note(str([name_of(each.error_code) for each in wire.ask(request).topics]))


@scenario
def topics_deleted(side: Side) -> None:
    """DeleteTopics"""
    topic = side.topic()
    with side.wire() as wire:
        for name in (topic, topic, "nowhere"):
            answer = wire.ask(make(DeleteTopicsRequest, topic_names=[name], timeout_ms=10_000))
            side.note(name_of(answer.responses[0].error_code))


@scenario
def metadata(side: Side) -> None:
    """Metadata of what is there and what is not"""
    topic = side.topic(2)
    with side.wire() as wire:
        for name in (topic, "nowhere", "a b"):
            answer = wire.ask(make(MetadataRequest, topics=[{"name": name}], allow_auto_topic_creation=False))
            found = answer.topics[0]
            parts = [(part.partition_index, name_of(part.error_code)) for part in found.partitions]
            side.note(f"{name_of(found.error_code)} {sorted(parts)} internal {found.is_internal}")
        answer = wire.ask(make(MetadataRequest, topics=[], allow_auto_topic_creation=False))
        side.note(f"none asked {len(answer.topics)}, brokers {len(answer.brokers) >= 1}")
