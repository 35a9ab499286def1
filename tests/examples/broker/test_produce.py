"""Produce: which requests are answered at once, wait for the followers, or are refused."""

import asyncio

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from kafka.protocol.producer import ProduceRequest

from examples.broker.protocol.error_codes import Code
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import RequestHarness, make_batch, partition_of, settled, values_in


async def test_acks_one_is_answered_at_once_and_its_record_cannot_be_read_yet(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """The leader has the record; consumers can read it when the followers have it too."""
    written = await harness.produce("t", make_batch([b"a"]))
    assert (written.error_code, written.base_offset, written.log_start_offset) == (0, 0, 0)
    (found,) = await harness.fetch(("t", 0, 0), max_wait_ms=0)
    assert (found.records, found.high_watermark) == (b"", 0)
    await clock.advance(0.05)
    (found,) = await harness.fetch(("t", 0, 0), max_wait_ms=0)
    assert (values_in(found.records), found.high_watermark) == ([b"a"], 1)


async def test_acks_all_waits_for_the_followers(harness: RequestHarness, clock: VirtualClock) -> None:
    """The request is parked exactly as long as the followers need."""
    waiting = asyncio.create_task(harness.produce("t", make_batch([b"a", b"b"]), acks=-1))
    await clock.advance(0.049)
    assert not waiting.done()
    assert harness.broker.produce.watched == 1
    await clock.advance(0.001)
    written = await waiting
    assert (written.error_code, written.base_offset) == (0, 0)


async def test_acks_all_with_one_replica_is_answered_at_once(harness: RequestHarness) -> None:
    """Without followers, nothing is parked."""
    written = await harness.produce("solo", make_batch([b"a"]), acks=-1)
    assert (written.error_code, written.base_offset) == (0, 0)
    assert harness.broker.produce.statistics().submitted == 0


async def test_acks_all_on_a_stalled_topic_times_out_and_its_record_stays_unreadable(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """After the timeout the response is REQUEST_TIMED_OUT, and the high watermark has not moved."""
    waiting = asyncio.create_task(harness.produce("stalled", make_batch([b"a"]), acks=-1, timeout_ms=300))
    await clock.advance(0.299)
    assert not waiting.done()
    await clock.advance(0.001)
    written = await waiting
    assert (written.error_code, written.base_offset) == (Code.REQUEST_TIMED_OUT, 0)
    (found,) = await harness.fetch(("stalled", 0, 0), max_wait_ms=0)
    assert (found.records, found.high_watermark) == (b"", 0)
    assert partition_of(harness, "stalled").log.end_offset == 1


async def test_acks_none_gets_no_answer(harness: RequestHarness, clock: VirtualClock) -> None:
    """The record is in the log, and no response is sent."""
    assert await harness.produce("t", make_batch([b"a"]), acks=0) is None
    assert partition_of(harness).log.end_offset == 1


async def test_an_idempotent_batch_sent_again_waits_again_and_is_stored_once(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """The duplicate gets the offset of the first batch, when the followers have it."""
    batch = make_batch([b"a", b"b"], producer=(1000, 0, 0))
    assert (await asyncio.gather(harness.produce("t", batch), harness.produce("t", batch)))[1].base_offset == 0
    waiting = asyncio.create_task(harness.produce("t", batch, acks=-1))
    await settled()
    assert not waiting.done()
    await clock.advance(0.05)
    assert ((await waiting).error_code, (await waiting).base_offset) == (0, 0)
    assert partition_of(harness).log.end_offset == 2


async def test_an_idempotent_batch_out_of_order_is_refused(harness: RequestHarness) -> None:
    """A gap in the sequence means that a batch is missing."""
    await harness.produce("t", make_batch([b"a"], producer=(1000, 0, 0)))
    refused = await harness.produce("t", make_batch([b"c"], producer=(1000, 0, 2)))
    assert refused.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_partition_that_is_named_twice_gets_the_last_batch_and_one_answer(harness: RequestHarness) -> None:
    """As in Kafka, only the last batch of the partition is written."""
    topic_type = ProduceRequest.TopicProduceData
    parts = [topic_type.PartitionProduceData(index=0, records=make_batch([value])) for value in (b"a", b"b")]
    data = [topic_type(name="t", partition_data=[part]) for part in parts]
    answer = await harness.ask(ProduceRequest(transactional_id=None, acks=1, timeout_ms=0, topic_data=data))
    answered = [part for topic in answer.responses for part in topic.partition_responses]
    assert [part.base_offset for part in answered] == [0]
    log = partition_of(harness).log
    assert values_in(log.read(0, log.end_offset, 1000, True).data) == [b"b"]


@pytest.mark.parametrize(
    ("topic", "records", "acks", "code"),
    [
        ("nowhere", make_batch([b"a"]), -1, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", b"rubbish", -1, Code.INVALID_RECORD),
        ("t", None, 1, Code.INVALID_RECORD),
        ("t", make_batch([b"x" * 20_000]), 1, Code.MESSAGE_TOO_LARGE),
        ("t", make_batch([b"a"], timestamps=[2**62]), 1, Code.INVALID_TIMESTAMP),
        ("t", make_batch([b"a"]), 2, Code.INVALID_REQUIRED_ACKS),
    ],
)
async def test_what_cannot_be_produced_is_refused_at_once(
    harness: RequestHarness, topic: str, records: bytes | None, acks: int, code: Code
) -> None:
    """The error code of the partition contains the reason, and nothing is parked."""
    refused = await harness.produce(topic, records, acks=acks)
    assert (refused.error_code, refused.base_offset) == (code, -1)
    assert partition_of(harness).log.end_offset == 0


async def test_a_topic_deleted_while_its_producer_waits_answers_it(harness: RequestHarness) -> None:
    """The request does not wait for the followers of a deleted topic."""
    waiting = asyncio.create_task(harness.produce("stalled", make_batch([b"a"]), acks=-1))
    await settled()
    harness.broker.topics.delete("stalled")
    assert (await waiting).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
