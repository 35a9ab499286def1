"""The limits on one client: every request has bounded work, and every table has a bounded size."""

import asyncio
import re
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest, DescribeGroupsRequest
from kafka.protocol.consumer import (
    JoinGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

from examples.broker import Settings
from examples.broker.apis.dispatch import APIS
from examples.broker.broker import Broker
from examples.broker.protocol.array_limits import TooManyElements, check_elements
from examples.broker.protocol.codec import Malformed
from examples.broker.protocol.error_codes import Code
from examples.broker.storage.log import Log
from examples.broker.storage.record_batch import SearchBudget, placed
from examples.group import ErrorCode, GroupConfig
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import (
    PINS,
    RequestHarness,
    fetch_request,
    frame,
    make_batch,
    parsed,
    settled,
    values_in,
)
from tests.examples.broker.socket_harness import Client, serving

QUICK = GroupConfig(initial_rebalance_delay=0.0, min_session_timeout=0.1)


async def cpu_seconds_of(attack: bytes, attacker: Client, other: Client) -> float:
    """Return the CPU time of this thread until the attack and the request of another client are answered."""
    before = time.thread_time()
    attacker.writer.write(attack)
    assert await other.says_hello()
    await attacker.response()
    return time.thread_time() - before


def list_offsets(*wanted: tuple[str, int, int]) -> Any:
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    partition_type = topic_type.ListOffsetsPartition
    topics = [
        topic_type(name=name, partitions=[partition_type(partition_index=index, timestamp=timestamp)])
        for name, index, timestamp in wanted
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)


def create_topics(names: list[str], *, only_check: bool = False, partitions: int = 1) -> Any:
    topic_type = CreateTopicsRequest.CreatableTopic
    topics = [
        topic_type(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=only_check)


def offset_fetch(group: str, topic: str, indexes: list[int]) -> Any:
    topic_type = OffsetFetchRequest.OffsetFetchRequestTopic
    return OffsetFetchRequest(group_id=group, topics=[topic_type(name=topic, partition_indexes=indexes)])


def offset_commit(group: str, topic: str, metadata: str, *, partition: int = 0) -> Any:
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    sent = topic_type.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=1, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=[topic_type(name=topic, partitions=[sent])],
    )


def join(group: str, member: str = "", metadata: bytes = b"m", instance: str | None = None) -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[protocol],
    )


async def joined(harness: RequestHarness, group: str, metadata: bytes = b"m") -> Any:
    """Return the response to the second JoinGroup of a new member, which contains its id."""
    told = await harness.ask(join(group, metadata=metadata))
    if told.error_code != ErrorCode.MEMBER_ID_REQUIRED:
        return told
    return await harness.ask(join(group, told.member_id, metadata))


async def stable(harness: RequestHarness, group: str, metadata: bytes = b"m") -> tuple[Any, Any]:
    """Return the responses to JoinGroup and SyncGroup of the only member of a group."""
    one = await joined(harness, group, metadata)
    assignments = [SyncGroupRequest.SyncGroupRequestAssignment(member_id=one.member_id, assignment=b"a")]
    return one, await harness.ask(sync(group, one, assignments))


def sync(group: str, one: Any, assignments: list[Any]) -> Any:
    return SyncGroupRequest(
        group_id=group,
        generation_id=one.generation_id,
        member_id=one.member_id,
        group_instance_id=None,
        assignments=assignments,
    )


# Work of one request


async def test_a_partition_that_list_offsets_names_twice_is_refused_and_not_searched() -> None:
    """One short request would cause sixty searches of a megabyte of records; the next client is answered at once."""
    async with serving() as sockets:
        partition = sockets.server.broker.topics.partition("t", 0)
        assert partition is not None
        partition.append(parsed(*[b""] * 100_000, timestamps=[0] * 99_999 + [9000]))
        await sockets.until(lambda: partition.high_watermark == 100_000)
        attacker, other = await sockets.client(), await sockets.client()
        attack = frame(list_offsets(*[("t", 0, 8000)] * 60), 3)
        assert len(attack) < 1200
        assert await cpu_seconds_of(attack, attacker, other) < 1.0
    async with Broker(Settings(replication_delay=0.0)) as broker:
        broker.topics.create("t", 2)
        harness = RequestHarness(broker)
        answered = await harness.ask(list_offsets(("t", 0, -1), ("t", 0, 5), ("t", 1, -1)))
        codes = [partition.error_code for topic in answered.topics for partition in topic.partitions]
        assert codes == [Code.INVALID_REQUEST, Code.NONE]


async def test_one_list_offsets_reads_a_limited_number_of_records(clock: VirtualClock) -> None:
    """A batch with more records than the remaining budget returns its first offset; a smaller one is exact."""
    async with Broker(Settings(timestamp_search_records=10, replication_delay=0.0), clock=clock) as broker:
        broker.topics.create("t", 3, 1)
        harness = RequestHarness(broker)
        for index in range(3):
            values = [b"v"] * 6
            await harness.produce("t", make_batch(values, timestamp=1000), partition=index)
        answered = await harness.ask(list_offsets(("t", 0, 1003), ("t", 1, 1003), ("t", 2, 1003)))
        offsets = [partition.offset for topic in answered.topics for partition in topic.partitions]
        assert offsets == [3, 0, 0]


def test_headers_and_keys_are_stepped_over_in_a_search_by_timestamp() -> None:
    """A record with a hundred thousand headers costs a search no more than a record without headers."""
    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(2, 0, 1 << 20)
    builder.append(1000, b"key", b"value", [("", b"")] * 100_000)
    builder.append(2000, b"key", b"value", [])
    builder.close()
    from examples.broker.storage.record_batch import parse_batch

    log = Log(1 << 22)
    log.append(placed(parse_batch(bytes(builder.buffer()), 1 << 20), 0, 0))
    before = time.thread_time()
    assert log.find_timestamp(1500, 2, SearchBudget(2)) == (1, 2000)
    assert time.thread_time() - before < 0.02


def test_a_search_by_timestamp_looks_at_blocks_of_batches() -> None:
    """Of a thousand batches in one segment, the right one is found from any start of the search."""
    log = Log(1 << 30)
    stamps = [(number * 7919) % 1009 for number in range(1000)]
    for number, stamp in enumerate(stamps):
        log.append(placed(parsed(b"v", timestamp=stamp), number, 0))
    segment = log._segments[0]
    for timestamp in (0, 500, 1000, 1007, 1008, 1009):
        for begin in (0, 1, 255, 256, 257, 511, 700, 999):
            expected = next((at for at in range(begin, 1000) if stamps[at] >= timestamp), 1000)
            assert segment.not_older(timestamp, begin) == expected


async def test_a_group_that_is_named_often_is_described_once(clock: VirtualClock) -> None:
    """A short request that lists a large group a hundred times gets one description."""
    async with Broker(Settings(group=QUICK), clock=clock) as broker:
        harness = RequestHarness(broker)
        await stable(harness, "g", b"x" * 60_000)
        described = await harness.ask(DescribeGroupsRequest(groups=["g"] * 100 + ["h"]))
        assert [group.group_id for group in described.groups] == ["g", "h"]
        assert len(described.groups[0].members[0].member_metadata) == 60_000


async def test_descriptions_of_groups_have_a_limit_together(clock: VirtualClock) -> None:
    """Groups beyond the limit get an error, and a request for one of them is answered."""
    async with Broker(Settings(group=QUICK, max_fetch_bytes=100_000), clock=clock) as broker:
        harness = RequestHarness(broker)
        for group in "abc":
            await stable(harness, group, b"x" * 60_000)
        described = await harness.ask(DescribeGroupsRequest(groups=["a", "b", "c"]))
        assert [group.error_code for group in described.groups] == [0, Code.POLICY_VIOLATION, Code.POLICY_VIOLATION]
        assert [group.group_id for group in described.groups] == ["a", "b", "c"]
        (alone,) = (await harness.ask(DescribeGroupsRequest(groups=["c"]))).groups
        assert (alone.error_code, len(alone.members)) == (0, 1)


async def test_a_partition_that_offset_fetch_names_often_is_answered_once(clock: VirtualClock) -> None:
    """The metadata of four thousand characters is returned once."""
    async with Broker(Settings(group=QUICK), clock=clock) as broker:
        harness = RequestHarness(broker)
        broker.topics.create("t", 2)
        await harness.ask(offset_commit("g", "t", "m" * 4000))
        fetched = await harness.ask(offset_fetch("g", "t", [0] * 5000 + [1, 0]))
        (topic,) = fetched.topics
        assert [(p.partition_index, p.committed_offset, len(p.metadata)) for p in topic.partitions] == [
            (0, 1, 4000),
            (1, -1, 0),
        ]


async def test_a_topic_that_create_topics_names_often_is_refused_once() -> None:
    """As in Kafka; ten thousand names cost no more than the limit on elements permits."""
    async with serving() as sockets:
        attacker, other = await sockets.client(), await sockets.client()
        attack = frame(create_topics([f"n{number}" for number in range(10_000)], only_check=True), 3)
        assert await cpu_seconds_of(attack, attacker, other) < 1.5
        harness = RequestHarness(sockets.server.broker)
        created = await harness.ask(create_topics(["a", "b", "a", "a"]))
        assert [(topic.name, topic.error_code) for topic in created.topics] == [("a", Code.INVALID_REQUEST), ("b", 0)]
        assert sockets.server.broker.topics.get("a") is None


async def test_a_topic_that_delete_topics_names_often_is_refused_once(clock: VirtualClock) -> None:
    """As in Kafka, the topic is not deleted."""
    async with Broker(Settings(), clock=clock) as broker:
        broker.topics.create("a")
        broker.topics.create("b")
        deleted = await RequestHarness(broker).ask(DeleteTopicsRequest(topic_names=["a", "b", "a"], timeout_ms=1))
        assert [(one.name, one.error_code) for one in deleted.responses] == [("a", Code.INVALID_REQUEST), ("b", 0)]
        assert broker.topics.get("a") is not None


async def test_a_partition_that_fetch_names_often_is_answered_once(clock: VirtualClock) -> None:
    """As in Kafka, the last entry counts."""
    async with Broker(Settings(replication_delay=0.0), clock=clock) as broker:
        broker.topics.create("t", 1, 1)
        harness = RequestHarness(broker)
        for value in (b"a", b"b"):
            await harness.produce("t", make_batch([value]))
        await settled()
        (found,) = await harness.fetch(("t", 0, 0), ("t", 0, 7), ("t", 0, 1))
        assert values_in(found.records) == [b"b"]


ARRAYS = [key for key, api in APIS.items() if any(f.is_array() for f in api.request._struct.untagged_fields(api.pin))]


@pytest.mark.parametrize("key", ARRAYS)
async def test_a_request_of_too_many_elements_is_refused_before_it_is_decoded(key: int) -> None:
    """A request with half a megabyte of empty elements is refused within microseconds; another client is served."""
    async with serving() as sockets:
        attacker, other = await sockets.client(), await sockets.client()
        body = _filled(APIS[key].request._struct, PINS[key], 150_000)
        head = struct.pack(">hhih", key, PINS[key], 1, -1)
        before = time.thread_time()
        attacker.writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
        assert await attacker.closed()
        assert await other.says_hello()
        assert time.thread_time() - before < 0.5
        assert sockets.server.dropped == 1


def _filled(schema: Any, version: int, elements: int) -> bytes:
    """Return a structure of zeros whose first array has this number of elements of at least two zero bytes."""
    body = bytearray()
    for field in schema.untagged_fields(version):
        if field.is_array():
            size = {True: 6, False: 2}[field.is_struct_array() and len(field.array_of.untagged_fields(version)) > 1]
            body += struct.pack(">i", elements) + bytes(size * elements)
        else:
            body += bytes({"string": 2, "int8": 1, "bool": 1, "int16": 2, "int32": 4, "int64": 8}[field._type_str])
    return bytes(body)


@pytest.mark.parametrize("limit", [5, 6, 7])
def test_the_elements_of_all_arrays_together_are_counted(limit: int) -> None:
    """Two topics with one and three partitions, and a forgotten topic with none, have seven elements."""
    request = fetch_request(("a", 0, 0), ("b", 0, 0))
    request.topics[1].partitions *= 3
    body = frame(request, 11)[4:]
    elements = 6

    def check() -> None:
        check_elements(type(request), 11, body, 8 + 2 + 4, limit)

    if limit >= elements:
        check()
    else:
        with pytest.raises(TooManyElements):
            check()


async def test_no_request_within_the_limits_holds_the_loop_for_long() -> None:
    """Ten thousand elements, the maximum, do not block the loop in the requests with the most work per element."""
    async with serving(max_partitions=20_000) as sockets:
        broker = sockets.server.broker
        broker.topics.create("wide", 9000)
        names = [f"n{number}" for number in range(9000)]
        await RequestHarness(broker).ask(offset_commit("g", "wide", "m" * 100))
        requests = [
            create_topics(names, only_check=True),
            DeleteTopicsRequest(topic_names=names, timeout_ms=1),
            DescribeGroupsRequest(groups=names),
            offset_fetch("g", "wide", list(range(9000))),
            fetch_request(*[("wide", number, 0) for number in range(4900)], max_wait_ms=0),
            list_offsets(*[("wide", number, 1) for number in range(4900)]),
        ]
        attacker, other = await sockets.client(), await sockets.client()
        for request in requests:
            attack = frame(request, PINS[request.API_KEY])
            assert await cpu_seconds_of(attack, attacker, other) < 1.5, request.name


async def test_large_responses_leave_the_loop_to_others_in_between() -> None:
    """Of twelve pipelined requests with large responses, at most a few are served before another client's."""
    async with serving() as sockets:
        sockets.server.broker.topics.create("wide", 3000)
        attacker, other = await sockets.client(), await sockets.client()
        from kafka.protocol.metadata import MetadataRequest

        ask_all = frame(MetadataRequest(topics=None, allow_auto_topic_creation=False), 5)
        assert await other.says_hello()
        attacker.writer.write(ask_all * 12)
        other.writer.write(frame(APIS[18].request(), 0))
        (counting,) = [c for c in sockets.server.connections if c.peer.endswith(f":{_port(attacker)}")]
        served: list[int] = []
        counting._transport = CountingTransport(counting._transport, served)
        assert (await other.response())[0] == 7
        assert len(served) <= 3


def _port(client: Client) -> int:
    return int(client.writer.get_extra_info("sockname")[1])


class CountingTransport:
    """A transport that counts the written bytes."""

    def __init__(self, transport: Any, served: list[int]) -> None:
        self._itself = transport
        self._served = served

    def write(self, data: bytes) -> None:
        self._served.append(len(data))
        self._itself.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._itself, name)


# Requests that wait


async def test_a_parked_request_counts_with_what_it_takes(clock: VirtualClock) -> None:
    """The counted memory of parked fetches is at least the memory that they use."""
    held: list[int] = []
    async with Broker(Settings(), clock=clock) as broker:
        from examples.broker.apis.dispatch import answer_frame

        broker.topics.create("wide", 2000)
        body = frame(fetch_request(*[("wide", number, 0) for number in range(2000)]), 11)[4:]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            task = asyncio.create_task(answer_frame(broker, body, "", held.append))
            await settled()
            assert len(broker.fetch) == 1
            taken = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert 0 < taken <= sum(held) <= 4 * taken
        task.cancel()


async def test_the_connection_that_holds_the_most_is_closed_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If parked fetches of a thousand partitions exceed the limit, one of them is closed, and the small one stays."""
    async with serving(max_buffered_bytes=4 << 20) as sockets:
        broker = sockets.server.broker
        broker.topics.create("wide", 1000)
        small = await sockets.client()
        small.writer.write(frame(fetch_request(("t", 0, 0), max_wait_ms=60_000), 11))
        await sockets.until(lambda: len(broker.fetch) == 1)
        large = frame(fetch_request(*[("wide", number, 0) for number in range(1000)], max_wait_ms=60_000), 11)
        attackers = [await sockets.client() for _ in range(6)]
        for attacker in attackers:
            attacker.writer.write(large)
        await sockets.until(
            lambda: sockets.server.dropped >= 3 and len(broker.fetch) == len(sockets.server.connections)
        )
        assert sockets.server.memory.used <= 4 << 20
        partition = broker.topics.partition("t", 0)
        assert partition is not None
        partition.append(parsed(b"v"))
        assert (await small.response())[0] == 7


async def test_fetches_with_many_partitions_do_not_all_wait(clock: VirtualClock) -> None:
    """Above the limit, a fetch of many partitions is answered at once; a fetch of few partitions waits."""
    settings = Settings(max_parked_partitions=30, max_connections=10, replication_delay=0.0)
    async with Broker(settings, clock=clock) as broker:
        broker.topics.create("wide", 40)
        harness = RequestHarness(broker)
        large = asyncio.create_task(harness.fetch(*[("wide", number, 0) for number in range(25)]))
        await settled()
        assert len(await harness.fetch(*[("wide", number, 0) for number in range(10)])) == 10
        small = asyncio.create_task(harness.fetch(("wide", 39, 0)))
        await settled()
        assert (len(broker.fetch), broker.fetch_partitions) == (2, 26)
        await harness.produce("wide", make_batch([b"v"]), partition=39)
        await settled()
        assert values_in((await small)[0].records) == [b"v"]
        large.cancel()
        await settled()
        assert broker.fetch_partitions == 0


async def test_an_append_does_not_look_again_at_what_a_parked_produce_has(clock: VirtualClock) -> None:
    """A produce that waits for its last partition checks only that partition."""
    from examples.broker.apis.api_00_produce import DelayedProduce, Written

    async with Broker(Settings(replication_delay=0.0), clock=clock) as broker:
        broker.topics.create("wide", 50)
        broker.topics.create("stalled")
        looked: list[int] = []

        class Recorded(Written):
            @property
            def replicated(self) -> bool:
                looked.append(self.index)
                return super().replicated

        written = [Recorded("wide", index, broker.topics.partition("wide", index)) for index in range(50)]
        written.append(Recorded("stalled", 0, broker.topics.partition("stalled", 0)))
        written[-1].behind = 1
        operation = DelayedProduce(written, 1.0)
        assert not operation.try_complete()
        looked.clear()
        assert not operation.try_complete()
        assert len(looked) == 1


# What is kept


async def test_the_metadata_of_a_member_has_a_limit(clock: VirtualClock) -> None:
    """Two hundred and forty joins with a megabyte each store nothing; a normal member can join."""
    async with Broker(Settings(group=QUICK), clock=clock) as broker:
        harness = RequestHarness(broker)
        for number in range(240):
            answered = await joined(harness, f"g{number}", b"x" * 900_000)
            assert answered.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        one, synced = await stable(harness, "good")
        assert (one.error_code, synced.error_code, synced.assignment) == (0, 0, b"a")
        assert list(broker.groups.groups) == ["good"]


async def test_a_group_and_all_groups_have_a_limit_of_bytes(clock: VirtualClock) -> None:
    """At the limit of a group or of all groups, new members are refused; existing members continue and may rejoin."""
    config = GroupConfig(
        initial_rebalance_delay=0.0, min_session_timeout=0.1, max_group_bytes=1000, max_total_bytes=2500
    )
    async with Broker(Settings(group=config), clock=clock) as broker:
        harness = RequestHarness(broker)
        one, _ = await stable(harness, "a", b"x" * 800)
        assert (await joined(harness, "a", b"x" * 200)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await stable(harness, "b", b"x" * 800))[0].error_code == 0
        assert (await joined(harness, "c", b"x" * 800)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await harness.ask(join("a", one.member_id, b"x" * 801))).error_code == 0
        assert "c" not in broker.groups.groups


async def test_member_ids_that_are_given_out_have_a_limit(clock: VirtualClock) -> None:
    """If clients request ids and never return, the table fills until the ids expire; existing members continue."""
    config = GroupConfig(initial_rebalance_delay=0.0, min_session_timeout=0.1, max_members=5)
    async with Broker(Settings(group=config), clock=clock) as broker:
        harness = RequestHarness(broker)
        one, _ = await stable(harness, "good")
        codes = [(await harness.ask(join(f"g{number}"))).error_code for number in range(7)]
        assert codes == [ErrorCode.MEMBER_ID_REQUIRED] * 4 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 3
        assert broker.groups.heartbeat("good", one.member_id, one.generation_id) == 0
        await clock.advance(9.0)
        assert broker.groups.heartbeat("good", one.member_id, one.generation_id) == 0
        await clock.advance(2.0)
        assert (await harness.ask(join("new"))).error_code == ErrorCode.MEMBER_ID_REQUIRED


async def test_groups_have_a_limit_and_empty_ones_make_room(clock: VirtualClock) -> None:
    """A group with members or offsets stays; a group with neither is removed when another one is needed."""
    config = GroupConfig(initial_rebalance_delay=0.0, min_session_timeout=0.1, max_groups=3)
    async with Broker(Settings(group=config), clock=clock) as broker:
        harness = RequestHarness(broker)
        broker.topics.create("t")
        one, _ = await stable(harness, "alive")
        assert _commit_code(await harness.ask(offset_commit("offsets", "t", ""))) == 0
        gone, _ = await stable(harness, "gone")
        assert (await harness.ask(join("new"))).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert _commit_code(await harness.ask(offset_commit("more", "t", ""))) == ErrorCode.GROUP_MAX_SIZE_REACHED
        broker.groups.leave("gone", gone.member_id)
        await settled()
        assert (await harness.ask(join("new"))).error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert sorted(broker.groups.groups) == ["alive", "new", "offsets"]
        assert broker.groups.heartbeat("alive", one.member_id, one.generation_id) == 0


def _commit_code(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


async def test_a_commit_that_commits_nothing_makes_no_group(clock: VirtualClock) -> None:
    """A commit for a missing topic, or under a name that is too long, creates no group."""
    async with Broker(Settings(), clock=clock) as broker:
        harness = RequestHarness(broker)
        broker.topics.create("t")
        code = _commit_code(await harness.ask(offset_commit("g", "nowhere", "")))
        assert code == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert _commit_code(await harness.ask(offset_commit("g" * 250, "t", ""))) == ErrorCode.INVALID_GROUP_ID
        assert (await harness.ask(join("g" * 250))).error_code == ErrorCode.INVALID_GROUP_ID
        assert not broker.groups.groups


async def test_assignments_have_a_limit(clock: VirtualClock) -> None:
    """If the assignments are too large for the group, they are refused, and nothing is stored."""
    config = GroupConfig(initial_rebalance_delay=0.0, min_session_timeout=0.1, max_group_bytes=1000)
    async with Broker(Settings(group=config), clock=clock) as broker:
        harness = RequestHarness(broker)
        one = await joined(harness, "g")
        assignment_type = SyncGroupRequest.SyncGroupRequestAssignment
        large = [assignment_type(member_id=one.member_id, assignment=b"a" * 1000)]
        assert (await harness.ask(sync("g", one, large))).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        small = [assignment_type(member_id=one.member_id, assignment=b"a" * 100)]
        assert (await harness.ask(sync("g", one, small))).assignment == b"a" * 100


async def test_the_metadata_of_committed_offsets_has_a_limit(clock: VirtualClock) -> None:
    """The limit applies to one group and to all together; another group can commit, and deleting a topic frees
    space.
    """
    settings = Settings(group=QUICK, max_committed_group_bytes=3000, max_committed_bytes=5000)
    async with Broker(settings, clock=clock) as broker:
        harness = RequestHarness(broker)
        broker.topics.create("t", 9)

        async def commit(group: str, partition: int, size: int) -> int:
            return _commit_code(await harness.ask(offset_commit(group, "t", "m" * size, partition=partition)))

        assert [await commit("bad", partition, 900) for partition in range(4)] == [0, 0, 0, Code.POLICY_VIOLATION]
        assert await commit("bad", 0, 0) == 0
        assert await commit("good", 0, 10) == 0
        assert [await commit("other", partition, 900) for partition in range(4)] == [0, 0, 0, Code.POLICY_VIOLATION]
        assert await commit("good", 0, 9) == 0
        broker.topics.delete("t")
        broker.offsets.forget_topic("t")
        assert (len(broker.offsets), broker.offsets.metadata_bytes) == (0, 0)


async def test_all_logs_together_have_a_limit(clock: VirtualClock) -> None:
    """The largest log loses its oldest segments, and the records of the others stay."""
    settings = Settings(max_log_bytes=20_000, segment_bytes=2000, replication_delay=0.0)
    async with Broker(settings, clock=clock) as broker:
        broker.topics.create("good", 1, 1)
        broker.topics.create("bad", 1, 1)
        harness = RequestHarness(broker)
        for _ in range(5):
            await harness.produce("good", make_batch([b"v" * 900]))
        for _ in range(60):
            assert (await harness.produce("bad", make_batch([b"v" * 900]))).error_code == 0
        await harness.produce("good", make_batch([b"v" * 900]))
        good, bad = broker.topics.partition("good", 0), broker.topics.partition("bad", 0)
        assert good is not None
        assert bad is not None
        assert (good.log.start_offset, good.log.end_offset, bad.log.end_offset) == (0, 6, 60)
        assert bad.log.start_offset > 40
        assert broker.topics.storage.used == good.log.size + bad.log.size <= 20_000
        broker.topics.delete("bad")
        assert broker.topics.storage.used == good.log.size


async def test_a_log_whose_followers_do_not_copy_has_a_limit(clock: VirtualClock) -> None:
    """If no segment can be deleted, no more records are accepted; another topic is not affected."""
    settings = Settings(retention_bytes=5000, segment_bytes=1000, replication_delay=0.0)
    async with Broker(settings, clock=clock) as broker:
        broker.topics.create("stalled")
        broker.topics.create("good")
        harness = RequestHarness(broker)
        codes = [(await harness.produce("stalled", make_batch([b"v" * 900]))).error_code for _ in range(20)]
        assert codes[:10] == [0] * 10
        assert codes[-5:] == [Code.KAFKA_STORAGE_ERROR] * 5
        assert (await harness.produce("good", make_batch([b"v" * 900]))).error_code == 0


async def test_remembered_producers_have_a_limit_together(clock: VirtualClock) -> None:
    """A partition with many producers removes its own; the producer of another partition is still known."""
    async with Broker(Settings(max_all_producers=10), clock=clock) as broker:
        broker.topics.create("good", 1, 1)
        broker.topics.create("bad", 1, 1)
        harness = RequestHarness(broker)
        batch = make_batch([b"v"], producer=(7, 0, 0))
        await harness.produce("good", batch)
        for number in range(100, 150):
            await harness.produce("bad", make_batch([b"v"], producer=(number, 0, 0)))
        assert broker.topics._producer_count.used == 10
        assert (await harness.produce("good", batch)).base_offset == 0
        good = broker.topics.partition("good", 0)
        assert good is not None
        assert good.log.end_offset == 1
        broker.topics.delete("bad")
        assert broker.topics._producer_count.used == 1


async def test_a_request_that_is_refused_for_its_elements_says_so() -> None:
    """The reason contains the request and the limit."""
    async with Broker(Settings(max_request_elements=3)) as broker:
        with pytest.raises(Malformed, match="DeleteTopicsRequest v3 has more than 3 array elements"):
            await RequestHarness(broker).ask(DeleteTopicsRequest(topic_names=["a"] * 4, timeout_ms=1))


PAGE = Path(__file__).parents[3] / "docs" / "broker.md"
UNITS = {"": 1, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NO_LIMITS = {"followers", "replication_delay", "default_partitions", "shutdown_timeout", "port", "auto_create"}


def test_the_page_lists_every_limit_with_its_default() -> None:
    """The table contains each setting that is a limit, with its value."""
    table = PAGE.read_text(encoding="utf-8").partition("## Limits")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"`((?:GroupConfig\.)?[a-z_]+)=([^`]+)`", table))
    own = {name: getattr(Settings(), name) for name in Settings.__slots__}
    defaults: dict[str, Any] = {name: value for name, value in own.items() if isinstance(value, int | float)}
    defaults |= {f"GroupConfig.{name}": getattr(GroupConfig(), name) for name in GroupConfig.__slots__}
    for name in (*NO_LIMITS, "GroupConfig.initial_rebalance_delay", "GroupConfig.new_member_timeout"):
        del defaults[name]
    assert sorted(listed) == sorted(defaults)
    for name, text in listed.items():
        number, _, unit = text.partition(" ")
        assert (None if number == "None" else float(number) * UNITS[unit]) == defaults[name], name
