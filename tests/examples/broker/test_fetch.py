"""Fetch: how long it waits for data, what completes it, and the size of the response."""

import asyncio

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from examples.broker.apis.api_01_fetch import DelayedFetch
from examples.broker.protocol.error_codes import Code
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import (
    RequestHarness,
    fetch_request,
    make_batch,
    partition_of,
    settled,
    values_in,
)

# How long it waits


async def test_a_fetch_waits_for_data_and_wakes_on_it(harness: RequestHarness, clock: VirtualClock) -> None:
    """A fetch is completed as soon as the high watermark passes its offset."""
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0)))
    await clock.advance(0.5)
    assert not waiting.done()
    await harness.produce("t", make_batch([b"a"]))
    await clock.advance(0.049)
    assert not waiting.done()
    await clock.advance(0.001)
    (found,) = await waiting
    assert values_in(found.records) == [b"a"]


async def test_a_fetch_for_more_bytes_waits_until_they_are_there(harness: RequestHarness, clock: VirtualClock) -> None:
    """``min_bytes`` applies to all partitions of the request together."""
    size = len(make_batch([b"a"]))
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0), ("t", 1, 0), min_bytes=3 * size))
    for partition in (0, 1):
        await harness.produce("t", make_batch([b"a"]), partition=partition)
        await clock.advance(0.1)
        assert not waiting.done()
    await harness.produce("t", make_batch([b"b"]))
    await clock.advance(0.1)
    found = await waiting
    assert [values_in(partition.records) for partition in found] == [[b"a", b"b"], [b"a"]]


async def test_a_fetch_is_answered_with_what_there_is_when_its_time_is_up(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """After ``max_wait`` the response is sent, even if it is empty."""
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0), max_wait_ms=700, min_bytes=10_000))
    await harness.produce("t", make_batch([b"a"]))
    await clock.advance(0.699)
    assert not waiting.done()
    await clock.advance(0.001)
    (found,) = await waiting
    assert (found.error_code, values_in(found.records)) == (0, [b"a"])


@pytest.mark.parametrize("checked", ["at once", "in slices"])
async def test_a_fetch_is_tried_only_once_its_offset_is_reached(
    harness: RequestHarness, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, checked: str
) -> None:
    """The high watermark is a threshold: below the requested offset, no operation is tried."""
    if checked == "in slices":
        monkeypatch.setattr("examples.broker.broker._MAX_IMMEDIATE_CHECKS", 0)
    tries: list[int] = []
    original = DelayedFetch.try_complete

    def counting(operation: DelayedFetch) -> bool:
        tries.append(partition_of(harness).high_watermark)
        return original(operation)

    monkeypatch.setattr(DelayedFetch, "try_complete", counting)
    await harness.produce("t", make_batch([b"a"]))
    waiting = asyncio.create_task(harness.fetch(("t", 0, 1)))
    await clock.advance(0.05)
    assert partition_of(harness).high_watermark == 1
    assert tries == [0]
    await harness.produce("t", make_batch([b"b"]))
    await clock.advance(0.05)
    assert tries == [0, 2]
    assert values_in((await waiting)[0].records) == [b"b"]


async def test_an_offset_on_an_older_segment_does_not_wait_for_more_bytes(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """No append adds to a closed segment, so ``min_bytes`` would never be reached there."""
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0), min_bytes=9000, max_wait_ms=60_000))
    for _ in range(3):
        await harness.produce("t", make_batch([b"x" * 400]))
        await clock.advance(0.05)
    (found,) = await waiting
    assert len(values_in(found.records)) == 2


async def test_a_client_that_goes_away_is_withdrawn(harness: RequestHarness) -> None:
    """Cancelling the task of the request withdraws its operation at once."""
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0)))
    await settled()
    assert len(harness.broker.fetch) == 1
    waiting.cancel()
    await settled()
    assert len(harness.broker.fetch) == 0
    assert harness.broker.fetch.statistics().cancelled == 1


# Errors


async def test_an_error_in_one_partition_ends_the_wait_for_all(harness: RequestHarness) -> None:
    """The other partitions return their available records."""
    found = await harness.fetch(("t", 0, 0), ("t", 1, 9))
    assert [partition.error_code for partition in found] == [0, Code.OFFSET_OUT_OF_RANGE]


async def test_a_partition_that_is_not_there_does_not_end_the_wait_for_the_others(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """As in Kafka, the response contains the error; if no partition exists, the response is sent at once."""
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    found = await harness.fetch(("t", 9, 0), ("nowhere", 0, 0))
    assert [partition.error_code for partition in found] == [unknown, unknown]
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0), ("t", 9, 0), ("nowhere", 0, 0), max_wait_ms=60))
    await clock.advance(0.05)
    assert not waiting.done()
    await clock.advance(0.01)
    assert [partition.error_code for partition in await waiting] == [0, unknown, unknown]


async def test_an_offset_out_of_range_is_an_error_and_one_above_the_high_watermark_waits(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """A fetch waits for records that are not replicated yet; an offset beyond the log is out of range."""
    await harness.produce("t", make_batch([b"a", b"b"]))
    (found,) = await harness.fetch(("t", 0, 3))
    assert found.error_code == Code.OFFSET_OUT_OF_RANGE
    waiting = asyncio.create_task(harness.fetch(("t", 0, 2), max_wait_ms=60))
    await clock.advance(0.06)
    assert (await waiting)[0].error_code == 0


async def test_a_new_leader_epoch_fences_who_waits_with_the_old_one(harness: RequestHarness) -> None:
    """The fetch is completed at once, as is a fetch with an epoch that is too new."""
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0), leader_epoch=0))
    await settled()
    partition_of(harness).elect()
    assert (await waiting)[0].error_code == Code.FENCED_LEADER_EPOCH
    assert (await harness.fetch(("t", 0, 0), leader_epoch=5))[0].error_code == Code.UNKNOWN_LEADER_EPOCH


async def test_a_topic_deleted_while_its_consumer_waits_answers_it(harness: RequestHarness) -> None:
    """A fetch from a deleted topic gets an error at once."""
    waiting = asyncio.create_task(harness.fetch(("t", 0, 0)))
    await settled()
    harness.broker.topics.delete("t")
    assert (await waiting)[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


# What it is answered with


async def test_the_first_batch_comes_whatever_its_size_and_the_limits_hold_for_the_rest(
    harness: RequestHarness, clock: VirtualClock
) -> None:
    """A consumer always gets one batch, even if it is large, and never a second one that exceeds the limit."""
    for partition in (0, 1):
        for _ in range(2):
            await harness.produce("t", make_batch([b"x" * 200]), partition=partition)
    await clock.advance(0.05)
    wanted = [("t", 0, 0), ("t", 1, 0)]
    sizes = [len(found.records) for found in await harness.fetch(*wanted, max_bytes=10)]
    assert (sizes[0] > 200, sizes[1]) == (True, 0)
    sizes = [len(found.records) for found in await harness.fetch(*wanted, partition_max_bytes=300)]
    assert sizes[0] == sizes[1] > 200


async def test_there_are_no_fetch_sessions(harness: RequestHarness) -> None:
    """The session id is always 0, and a request for a session gets an error."""
    response = await harness.ask(fetch_request(("t", 0, 0), max_wait_ms=0))
    assert response.session_id == 0
    response = await harness.ask(fetch_request(("t", 0, 0), session_id=5))
    assert response.error_code == Code.FETCH_SESSION_ID_NOT_FOUND
