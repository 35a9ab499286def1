"""DeleteRecords waits until the followers have deleted, and completes the fetches of deleted records."""

import asyncio

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from examples.broker.protocol.error_codes import Code
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import RequestHarness, make_batch, partition_of, settled


async def test_delete_records_waits_until_the_followers_have_deleted(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """The response contains the low watermark; the records of the leader are deleted earlier."""
    await harness.produce("t", make_batch([b"a", b"b", b"c"]))
    await clock.advance(0.05)
    waiting = asyncio.create_task(harness.delete("t", 2))
    await settled()
    assert partition_of(harness).log.start_offset == 2
    assert not waiting.done()
    await clock.advance(0.05)
    assert ((await waiting).error_code, (await waiting).low_watermark) == (0, 2)
    assert (await harness.fetch(("t", 0, 0)))[0].error_code == Code.OFFSET_OUT_OF_RANGE


async def test_delete_records_wakes_a_fetch_whose_offset_is_gone(harness: RequestHarness, clock: VirtualClock) -> None:
    """Otherwise the fetch would wait for records that no longer exist."""
    await harness.produce("t", make_batch([b"a", b"b"]))
    await clock.advance(0.05)
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0), min_bytes=5000))
    await settled()
    deleted = asyncio.create_task(harness.delete("t", -1))
    await clock.advance(0.05)
    assert ((await deleted).low_watermark, (await waiting)[0].error_code) == (2, Code.OFFSET_OUT_OF_RANGE)


async def test_delete_records_beyond_the_high_watermark_is_an_error(harness: RequestHarness) -> None:
    """Only records that consumers could read can be deleted."""
    await harness.produce("t", make_batch([b"a"]))
    for offset in (1, -2):
        assert (await harness.delete("t", offset)).error_code == Code.OFFSET_OUT_OF_RANGE
    assert (await harness.delete("nowhere", 0)).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_delete_records_times_out_where_followers_stall(harness: RequestHarness, clock: VirtualClock) -> None:
    """The timeout is reported for each partition, as in Kafka."""
    partition = partition_of(harness, "t")
    await harness.produce("t", make_batch([b"a"]))
    await clock.advance(0.05)
    partition.stalled = True
    waiting = asyncio.create_task(harness.delete("t", 1, timeout_ms=400))
    await clock.advance(0.4)
    assert ((await waiting).error_code, (await waiting).low_watermark) == (Code.REQUEST_TIMED_OUT, -1)
