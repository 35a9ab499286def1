"""What the broker answers, and when: requests by hand, in virtual time, without a socket."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import (
    JoinGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from examples.broker.api_01_fetch import DelayedFetch
from examples.broker.broker import Broker
from examples.broker.codec import Malformed
from examples.broker.codes import Code
from examples.broker.partition import Partition
from examples.broker.settings import Settings
from examples.broker.table import APIS, answer_frame
from examples.group import ErrorCode, GroupConfig
from purgatory.testing import VirtualClock
from tests.examples.broker_tools import Asker, fetch_request, frame, make_batch, settled, values_in

SETTINGS = Settings(
    replication_delay=0.05,
    segment_bytes=1000,
    max_message_bytes=10_000,
    group=GroupConfig(initial_rebalance_delay=0.0, min_session_timeout=0.1),
)


@pytest.fixture
async def asker(clock: VirtualClock) -> AsyncIterator[Asker]:
    """Somebody to ask, with topics t (two partitions), solo (no followers) and stalled; nothing may be left parked."""
    async with Broker(SETTINGS, clock=clock) as broker:
        broker.topics.create("t", 2)
        broker.topics.create("solo", 1, 1)
        broker.topics.create("stalled")
        yield Asker(broker)
        for purgatory in (broker.produce, broker.fetch, broker.delete_records):
            assert len(purgatory) == 0, f"{purgatory} at the end of the test"


def partition_of(asker: Asker, topic: str = "t", index: int = 0) -> Partition:
    partition = asker.broker.topics.partition(topic, index)
    assert partition is not None
    return partition


# Produce


async def test_acks_one_is_answered_at_once_and_its_record_cannot_be_read_yet(
    asker: Asker, clock: VirtualClock
) -> None:
    """The leader has it; consumers see it when the followers have it, too."""
    written = await asker.produce("t", make_batch([b"a"]))
    assert (written.error_code, written.base_offset, written.log_start_offset) == (0, 0, 0)
    (found,) = await asker.fetch(("t", 0, 0), max_wait_ms=0)
    assert (found.records, found.high_watermark) == (b"", 0)
    await clock.advance(0.05)
    (found,) = await asker.fetch(("t", 0, 0), max_wait_ms=0)
    assert (values_in(found.records), found.high_watermark) == ([b"a"], 1)


async def test_acks_all_waits_for_the_followers(asker: Asker, clock: VirtualClock) -> None:
    """It is parked for as long as the followers take, and no longer."""
    waiting = asyncio.create_task(asker.produce("t", make_batch([b"a", b"b"]), acks=-1))
    await clock.advance(0.049)
    assert not waiting.done()
    assert asker.broker.produce.watched == 1
    await clock.advance(0.001)
    written = await waiting
    assert (written.error_code, written.base_offset) == (0, 0)


async def test_acks_all_with_one_replica_is_answered_at_once(asker: Asker) -> None:
    """Where there is nobody to wait for, nothing is parked."""
    written = await asker.produce("solo", make_batch([b"a"]), acks=-1)
    assert (written.error_code, written.base_offset) == (0, 0)
    assert asker.broker.produce.statistics().submitted == 0


async def test_acks_all_on_a_stalled_topic_times_out_and_its_record_stays_unreadable(
    asker: Asker, clock: VirtualClock
) -> None:
    """REQUEST_TIMED_OUT after the timeout, and the high watermark has not moved."""
    waiting = asyncio.create_task(asker.produce("stalled", make_batch([b"a"]), acks=-1, timeout_ms=300))
    await clock.advance(0.299)
    assert not waiting.done()
    await clock.advance(0.001)
    written = await waiting
    assert (written.error_code, written.base_offset) == (Code.REQUEST_TIMED_OUT, -1)
    (found,) = await asker.fetch(("stalled", 0, 0), max_wait_ms=0)
    assert (found.records, found.high_watermark) == (b"", 0)
    assert partition_of(asker, "stalled").log.end_offset == 1


async def test_an_idempotent_batch_sent_again_waits_again_and_is_stored_once(asker: Asker, clock: VirtualClock) -> None:
    """The duplicate gets the first one's offset, once the followers have it."""
    batch = make_batch([b"a", b"b"], producer=(1000, 0, 0))
    assert (await asyncio.gather(asker.produce("t", batch), asker.produce("t", batch)))[1].base_offset == 0
    waiting = asyncio.create_task(asker.produce("t", batch, acks=-1))
    await settled()
    assert not waiting.done()
    await clock.advance(0.05)
    assert ((await waiting).error_code, (await waiting).base_offset) == (0, 0)
    assert partition_of(asker).log.end_offset == 2


async def test_an_idempotent_batch_out_of_order_is_refused(asker: Asker) -> None:
    """A gap in the sequence means that a batch is missing."""
    await asker.produce("t", make_batch([b"a"], producer=(1000, 0, 0)))
    refused = await asker.produce("t", make_batch([b"c"], producer=(1000, 0, 2)))
    assert refused.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("topic", "records", "acks", "code"),
    [
        ("nowhere", make_batch([b"a"]), -1, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", b"rubbish", -1, Code.CORRUPT_MESSAGE),
        ("t", None, 1, Code.CORRUPT_MESSAGE),
        ("t", make_batch([b"x" * 20_000]), 1, Code.MESSAGE_TOO_LARGE),
        ("t", make_batch([b"a"]), 2, Code.INVALID_REQUIRED_ACKS),
    ],
)
async def test_what_cannot_be_produced_is_refused_at_once(
    asker: Asker, topic: str, records: bytes | None, acks: int, code: Code
) -> None:
    """The reason is in the partition's error code, and nothing is parked."""
    refused = await asker.produce(topic, records, acks=acks)
    assert (refused.error_code, refused.base_offset) == (code, -1)
    assert partition_of(asker).log.end_offset == 0


async def test_a_topic_deleted_while_its_producer_waits_answers_it(asker: Asker) -> None:
    """Nobody waits for followers of what is gone."""
    waiting = asyncio.create_task(asker.produce("stalled", make_batch([b"a"]), acks=-1))
    await settled()
    asker.broker.topics.delete("stalled")
    assert (await waiting).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_acks_none_gets_no_answer(asker: Asker, clock: VirtualClock) -> None:
    """The record is in the log, and that is all."""
    assert await asker.produce("t", make_batch([b"a"]), acks=0) is None
    assert partition_of(asker).log.end_offset == 1


# Fetch


async def test_a_fetch_waits_for_data_and_wakes_on_it(asker: Asker, clock: VirtualClock) -> None:
    """It is answered the moment the high watermark passes its offset."""
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0)))
    await clock.advance(0.5)
    assert not waiting.done()
    await asker.produce("t", make_batch([b"a"]))
    await clock.advance(0.049)
    assert not waiting.done()
    await clock.advance(0.001)
    (found,) = await waiting
    assert values_in(found.records) == [b"a"]


async def test_a_fetch_for_more_bytes_waits_until_they_are_there(asker: Asker, clock: VirtualClock) -> None:
    """min_bytes counts all its partitions together."""
    size = len(make_batch([b"a"]))
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0), ("t", 1, 0), min_bytes=3 * size))
    for partition in (0, 1):
        await asker.produce("t", make_batch([b"a"]), partition=partition)
        await clock.advance(0.1)
        assert not waiting.done()
    await asker.produce("t", make_batch([b"b"]))
    await clock.advance(0.1)
    found = await waiting
    assert [values_in(partition.records) for partition in found] == [[b"a", b"b"], [b"a"]]


async def test_a_fetch_is_answered_with_what_there_is_when_its_time_is_up(asker: Asker, clock: VirtualClock) -> None:
    """After max_wait the answer comes, be it empty."""
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0), max_wait_ms=700, min_bytes=10_000))
    await asker.produce("t", make_batch([b"a"]))
    await clock.advance(0.699)
    assert not waiting.done()
    await clock.advance(0.001)
    (found,) = await waiting
    assert (found.error_code, values_in(found.records)) == (0, [b"a"])


async def test_a_fetch_is_tried_only_once_its_offset_is_reached(
    asker: Asker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The high watermark is a threshold: when it moves below the wanted offset nobody is tried."""
    tries: list[int] = []
    original = DelayedFetch.try_complete

    def counting(operation: DelayedFetch) -> bool:
        tries.append(partition_of(asker).high_watermark)
        return original(operation)

    monkeypatch.setattr(DelayedFetch, "try_complete", counting)
    await asker.produce("t", make_batch([b"a"]))
    waiting = asyncio.create_task(asker.fetch(("t", 0, 1)))
    await clock.advance(0.05)
    assert partition_of(asker).high_watermark == 1
    assert tries == [0]
    await asker.produce("t", make_batch([b"b"]))
    await clock.advance(0.05)
    assert tries == [0, 2]
    assert values_in((await waiting)[0].records) == [b"b"]


async def test_an_error_in_one_partition_ends_the_wait_for_all(asker: Asker) -> None:
    """The others are answered with what they have."""
    found = await asker.fetch(("t", 0, 0), ("t", 9, 0), ("nowhere", 0, 0))
    assert [partition.error_code for partition in found] == [
        0,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]


async def test_an_offset_out_of_range_is_an_error_and_one_above_the_high_watermark_waits(
    asker: Asker, clock: VirtualClock
) -> None:
    """What is in the log but not replicated is waited for; what is not in the log is out of range."""
    await asker.produce("t", make_batch([b"a", b"b"]))
    (found,) = await asker.fetch(("t", 0, 3))
    assert found.error_code == Code.OFFSET_OUT_OF_RANGE
    waiting = asyncio.create_task(asker.fetch(("t", 0, 2), max_wait_ms=60))
    await clock.advance(0.06)
    assert (await waiting)[0].error_code == 0


async def test_a_new_leader_epoch_fences_who_waits_with_the_old_one(asker: Asker) -> None:
    """The fetch is answered at once, and so is one that knows an epoch that has not come yet."""
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0), leader_epoch=0))
    await settled()
    partition_of(asker).elect()
    assert (await waiting)[0].error_code == Code.FENCED_LEADER_EPOCH
    assert (await asker.fetch(("t", 0, 0), leader_epoch=5))[0].error_code == Code.UNKNOWN_LEADER_EPOCH


async def test_a_topic_deleted_while_its_consumer_waits_answers_it(asker: Asker) -> None:
    """Partition gone: an error, at once."""
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0)))
    await settled()
    asker.broker.topics.delete("t")
    assert (await waiting)[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_an_offset_on_an_older_segment_does_not_wait_for_more_bytes(asker: Asker, clock: VirtualClock) -> None:
    """No append adds to a closed segment, so min_bytes would never be reached there."""
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0), min_bytes=9000, max_wait_ms=60_000))
    for _ in range(3):
        await asker.produce("t", make_batch([b"x" * 400]))
        await clock.advance(0.05)
    (found,) = await waiting
    assert len(values_in(found.records)) == 2


async def test_the_first_batch_comes_whatever_its_size_and_the_limits_hold_for_the_rest(
    asker: Asker, clock: VirtualClock
) -> None:
    """A consumer is never stuck behind a large batch, and never gets a second one that does not fit."""
    for partition in (0, 1):
        for _ in range(2):
            await asker.produce("t", make_batch([b"x" * 200]), partition=partition)
    await clock.advance(0.05)
    wanted = [("t", 0, 0), ("t", 1, 0)]
    sizes = [len(found.records) for found in await asker.fetch(*wanted, max_bytes=10)]
    assert (sizes[0] > 200, sizes[1]) == (True, 0)
    sizes = [len(found.records) for found in await asker.fetch(*wanted, partition_max_bytes=300)]
    assert sizes[0] == sizes[1] > 200


async def test_there_are_no_fetch_sessions(asker: Asker) -> None:
    """The session id is always 0, and asking for one is an error of its own."""
    response = await asker.ask(fetch_request(("t", 0, 0), max_wait_ms=0))
    assert response.session_id == 0
    response = await asker.ask(fetch_request(("t", 0, 0), session_id=5))
    assert response.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


async def test_a_client_that_goes_away_is_withdrawn(asker: Asker) -> None:
    """Cancelling the request's task takes its operation off the purgatory at once."""
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0)))
    await settled()
    assert len(asker.broker.fetch) == 1
    waiting.cancel()
    await settled()
    assert len(asker.broker.fetch) == 0
    assert asker.broker.fetch.statistics().cancelled == 1


# DeleteRecords


async def test_delete_records_waits_until_the_followers_have_deleted(asker: Asker, clock: VirtualClock) -> None:
    """The answer is the low watermark; the leader's records are gone before."""
    await asker.produce("t", make_batch([b"a", b"b", b"c"]))
    await clock.advance(0.05)
    waiting = asyncio.create_task(asker.delete("t", 2))
    await settled()
    assert partition_of(asker).log.start_offset == 2
    assert not waiting.done()
    await clock.advance(0.05)
    assert ((await waiting).error_code, (await waiting).low_watermark) == (0, 2)
    assert (await asker.fetch(("t", 0, 0)))[0].error_code == Code.OFFSET_OUT_OF_RANGE


async def test_delete_records_wakes_a_fetch_whose_offset_is_gone(asker: Asker, clock: VirtualClock) -> None:
    """It would wait for records that will never be there."""
    await asker.produce("t", make_batch([b"a", b"b"]))
    await clock.advance(0.05)
    waiting = asyncio.create_task(asker.fetch(("t", 0, 0), min_bytes=5000))
    await settled()
    deleted = asyncio.create_task(asker.delete("t", -1))
    await clock.advance(0.05)
    assert ((await deleted).low_watermark, (await waiting)[0].error_code) == (2, Code.OFFSET_OUT_OF_RANGE)


async def test_delete_records_beyond_the_high_watermark_is_an_error(asker: Asker) -> None:
    """Only what consumers could read can be deleted."""
    await asker.produce("t", make_batch([b"a"]))
    for offset in (1, -2):
        assert (await asker.delete("t", offset)).error_code == Code.OFFSET_OUT_OF_RANGE
    assert (await asker.delete("nowhere", 0)).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_delete_records_times_out_where_followers_stall(asker: Asker, clock: VirtualClock) -> None:
    """Per partition, as in Kafka."""
    partition = partition_of(asker, "t")
    await asker.produce("t", make_batch([b"a"]))
    await clock.advance(0.05)
    partition.stalled = True
    waiting = asyncio.create_task(asker.delete("t", 1, timeout_ms=400))
    await clock.advance(0.4)
    assert ((await waiting).error_code, (await waiting).low_watermark) == (Code.REQUEST_TIMED_OUT, -1)


# The rest


async def list_offset(asker: Asker, timestamp: int, version: int = 3) -> Any:
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    partition = topic_type.ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=1)
    topics = [topic_type(name="t", partitions=[partition])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
    return (await asker.ask(request, version)).topics[0].partitions[0]


async def test_offsets_are_listed_up_to_the_high_watermark(asker: Asker, clock: VirtualClock) -> None:
    """-1 is the high watermark and not the end of the log, -2 the start, a time the first record that is not older."""
    await asker.produce("t", make_batch([b"a", b"b", b"c"], timestamp=500))
    assert (await list_offset(asker, -1)).offset == 0
    await clock.advance(0.05)
    await asker.produce("t", make_batch([b"d"], timestamp=900))
    assert (await list_offset(asker, -1)).offset == 3
    assert (await list_offset(asker, -2)).offset == 0
    found = await list_offset(asker, 501)
    assert (found.offset, found.timestamp) == (1, 501)
    assert (await list_offset(asker, 900)).offset == -1
    assert (await list_offset(asker, -3)).error_code == Code.INVALID_REQUEST
    assert (await list_offset(asker, -1, version=0)).old_style_offsets == [3]


async def test_metadata_creates_what_is_asked_for_where_that_is_allowed(asker: Asker) -> None:
    """A bad name is an error of its topic; without leave nothing is created."""
    topic_type = MetadataRequest.MetadataRequestTopic
    names = ["t", "new", "bad name"]
    asked = [topic_type(name=name) for name in names]
    response = await asker.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    assert [topic.error_code for topic in response.topics] == [0, 3, 3]
    response = await asker.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True))
    assert [topic.error_code for topic in response.topics] == [0, 0, Code.INVALID_TOPIC_EXCEPTION]
    everything = await asker.ask(MetadataRequest(topics=None, allow_auto_topic_creation=True))
    assert sorted(topic.name for topic in everything.topics) == ["new", "solo", "stalled", "t"]
    assert len(everything.topics[0].partitions) == 2
    nothing = await asker.ask(MetadataRequest(topics=[], allow_auto_topic_creation=True))
    assert (nothing.topics, nothing.brokers[0].node_id) == ([], 1)


async def test_topics_are_created_checked_and_deleted_by_request(asker: Asker) -> None:
    """validate_only creates nothing, a name twice is refused, and what is deleted is gone."""

    async def create(*names: str, only: bool = False) -> list[int]:
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=3, replication_factor=-1, assignments=[], configs=[]
            )
            for name in names
        ]
        response = await asker.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=only))
        return [topic.error_code for topic in response.topics]

    assert await create("n", only=True) == [0]
    assert await create("n", "m", "m") == [0, Code.INVALID_REQUEST, Code.INVALID_REQUEST]
    assert await create("n") == [Code.TOPIC_ALREADY_EXISTS]
    deleted = await asker.ask(DeleteTopicsRequest(topic_names=["n", "m"], timeout_ms=1000))
    assert [topic.error_code for topic in deleted.responses] == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]


async def test_producer_ids_are_given_once_and_not_for_transactions(asker: Asker) -> None:
    """A transactional id is refused in a way that clients take for final."""
    one = await asker.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    two = await asker.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    assert (one.error_code, two.producer_id - one.producer_id) == (0, 1)
    refused = await asker.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=0))
    assert refused.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    coordinator = await asker.ask(FindCoordinatorRequest(key="x", key_type=1))
    assert coordinator.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (await asker.ask(FindCoordinatorRequest(key="x", key_type=0))).node_id == 1


def join(group: str, member: str = "", session_ms: int = 10_000, instance: str | None = None) -> Any:
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


async def test_a_member_joins_in_two_steps_and_gets_its_assignment(asker: Asker, clock: VirtualClock) -> None:
    """It is told its id first; then it is the leader, sees the members and assigns to itself."""
    told = await asker.ask(join("g"))
    assert (told.error_code, told.protocol_name) == (ErrorCode.MEMBER_ID_REQUIRED, "")
    waiting = asyncio.create_task(asker.ask(join("g", told.member_id)))
    await clock.advance(0.01)
    joined = await waiting
    assert (joined.error_code, joined.leader, len(joined.members)) == (0, told.member_id, 1)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=told.member_id, assignment=b"all")
    synced = await asker.ask(
        SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=told.member_id,
            group_instance_id=None,
            assignments=[assignment],
        )
    )
    assert (synced.error_code, synced.assignment) == (0, b"all")
    described = (await asker.ask(DescribeGroupsRequest(groups=["g"], include_authorized_operations=False))).groups[0]
    assert (described.group_state, described.members[0].member_assignment) == ("Stable", b"all")
    assert [group.group_id for group in (await asker.ask(ListGroupsRequest())).groups] == ["g"]
    committed = await commit(asker, "g", told.member_id, joined.generation_id)
    assert committed.error_code == 0
    stranger = await commit(asker, "g", "stranger", joined.generation_id)
    assert stranger.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_cannot_be_is_refused(asker: Asker) -> None:
    """A session shorter than the minimum, an instance id that is no name; the protocol name is never null."""
    refused = await asker.ask(join("g", session_ms=99))
    assert (refused.error_code, refused.protocol_name) == (ErrorCode.INVALID_SESSION_TIMEOUT, "")
    refused = await asker.ask(join("g", instance="i" * 250))
    assert (refused.error_code, refused.protocol_name) == (Code.INVALID_REQUEST, "")


async def commit(
    asker: Asker, group: str, member: str = "", generation: int = -1, topic: str = "t", metadata: str = "m"
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
    return (await asker.ask(request)).topics[0].partitions[0]


async def test_offsets_are_committed_and_fetched(asker: Asker) -> None:
    """By somebody without a group, too; what was not committed is -1, and all there is can be asked for."""
    assert (await commit(asker, "g")).error_code == 0
    topic_type = OffsetFetchRequest.OffsetFetchRequestTopic
    request = OffsetFetchRequest(group_id="g", topics=[topic_type(name="t", partition_indexes=[0, 1])])
    partitions = (await asker.ask(request)).topics[0].partitions
    assert [(found.committed_offset, found.metadata) for found in partitions] == [(-1, ""), (42, "m")]
    everything = await asker.ask(OffsetFetchRequest(group_id="g", topics=None))
    assert [found.partition_index for found in everything.topics[0].partitions] == [1]
    assert (await commit(asker, "g", topic="nowhere")).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (await commit(asker, "g", metadata="m" * 5000)).error_code == Code.OFFSET_METADATA_TOO_LARGE


async def test_api_versions_answers_newer_clients_in_the_oldest_format(asker: Asker) -> None:
    """Version 3 and 4 get error 35 and the list, as version 0."""
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    response = await answer_frame(asker.broker, frame(request, 3)[4:], "")
    assert response is not None
    decoded = APIS[18].request  # the response class reads version 0 whatever it is told, where there is an error
    assert decoded is ApiVersionsRequest
    assert response[8:10] == b"\x00\x23"
    listed = (await asker.ask(ApiVersionsRequest(), 0)).api_keys
    assert {entry.api_key: entry.max_version for entry in listed} == {key: api.pin for key, api in APIS.items()}
    assert {entry.min_version for entry in listed} == {0}
    assert not {68, 71, 72} & {entry.api_key for entry in listed}


@pytest.mark.parametrize(("key", "version"), [(key, v) for key, api in APIS.items() for v in range(api.pin + 1)])
async def test_every_advertised_version_is_decoded_and_answered(asker: Asker, key: int, version: int) -> None:
    """An empty request of each version gets a response that its version can carry."""
    request = APIS[key].request(version=version)
    if key == 1:
        request.max_wait_ms = request.min_bytes = request.replica_id = 0
    if key == 0:
        request.acks, request.timeout_ms = 1, 0
    for field in request._struct.untagged_fields(version):
        if getattr(request, field.name) == "" and not field.is_array():
            setattr(request, field.name, 0 if field.is_batchable() else "")
    assert await asker.ask(request, version) is not None


# No transactional id, acks, timeout; then one topic with 10 000 null partitions, or 10 001 topics with none
ACKS = b"\xff\xff\x00\x01\x00\x00\x00\x00"
MANY_PARTITIONS = ACKS + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x27\x10" + b"\x00\x00\x00\x00\xff\xff\xff\xff" * 10_000
MANY_TOPICS = ACKS + b"\x00\x00\x27\x11" + b"\x00\x01t\x00\x00\x00\x00" * 10_001


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "shorter than its header"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\x00\xff", "ends beyond the frame"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\x00\x01\xff", "UTF-8"),
        (b"\x00\x63\x00\x00\x00\x00\x00\x01\xff\xff", "there is no API 99"),
        (b"\x00\x03\x00\x06\x00\x00\x00\x01\xff\xff", "versions 0 to 5, not 6"),
        (b"\x00\x03\xff\xff\x00\x00\x00\x01\xff\xff", "versions 0 to 5, not -1"),
        (b"\x00\x12\xff\xff\x00\x00\x00\x01\xff\xff", "versions 0 to 0, not -1"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\xff\xff\x7f\xff\xff\xff\x00", "cannot be read"),
        (b"\x00\x03\x00\x05\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01\x00\x09abc\x01", "cannot be read"),
        (b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff\x00\x09abc", "the frame has"),
        (b"\x00\x00\x00\x07\x00\x00\x00\x01\xff\xff" + MANY_PARTITIONS, "more than 10000 topics and partitions"),
        (b"\x00\x00\x00\x07\x00\x00\x00\x01\xff\xff" + MANY_TOPICS, "more than 10000 topics and partitions"),
        (b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff\x00\x01abc", "the frame has"),
        (b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff", "key is null"),
        (b"\x00\x0f\x00\x00\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01\xff\xff", "an element in groups is null"),
        (b"\x00\x14\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", "topic_names is null"),
    ],
)
async def test_what_is_no_request_is_malformed_and_says_why(asker: Asker, body: bytes, why: str) -> None:
    """Absurd lengths, truncation, unknown APIs and versions, nulls where there are none."""
    with pytest.raises(Malformed, match=why):
        await answer_frame(asker.broker, body, "")


async def test_closing_the_broker_answers_everyone(clock: VirtualClock) -> None:
    """Parked requests get the answer that a timeout would give, a parked join NOT_COORDINATOR."""
    async with Broker(Settings(), clock=clock) as broker:
        asker = Asker(broker)
        broker.topics.create("stalled")
        produce = asyncio.create_task(asker.produce("stalled", make_batch([b"a"]), acks=-1))
        fetch = asyncio.create_task(asker.fetch(("stalled", 0, 0)))
        told = await asker.ask(join("g"))
        parked = asyncio.create_task(asker.ask(join("g", told.member_id)))
        await settled()
        await broker.answer_all()
        assert (await produce).error_code == Code.REQUEST_TIMED_OUT
        assert (await fetch)[0].records == b""
        assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
