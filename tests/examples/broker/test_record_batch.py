"""The broker's record batches: parsed, placed in the log, and refused."""

import struct
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from crc32c import crc32c
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.record.util import encode_varint

from examples.broker.broker import Broker
from examples.broker.protocol.error_codes import Code
from examples.broker.storage.record_batch import (
    Rejected,
    SearchBudget,
    parse_batch,
    placed,
    search_timestamp,
    stored_batch,
)
from tests.examples.broker.request_harness import (
    LIMIT,
    SETTINGS,
    RequestHarness,
    make_batch,
    parsed,
    values_in,
)


def rejection(data: bytes | None, limit: int = LIMIT) -> Code:
    with pytest.raises(Rejected) as caught:
        parse_batch(data, limit)
    return caught.value.code


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def signed(data: bytes) -> bytes:
    """Return the batch with the checksum of its current content."""
    return changed(data, 17, crc32c(data[21:]).to_bytes(4, "big"))


def test_placing_a_batch_changes_its_offsets_and_not_its_checksum() -> None:
    """A batch that is placed in the log can be read at its new offsets."""
    batch = placed(parsed(b"a", b"b"), 40, 3)
    assert (batch.base_offset, batch.last_offset) == (40, 41)
    assert values_in(batch.data) == [b"a", b"b"]
    assert stored_batch(batch.data).number == 2
    assert signed(batch.data) == batch.data
    assert struct.unpack_from(">q", batch.data)[0] == 40
    assert struct.unpack_from(">i", batch.data, 12)[0] == 3


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: None, Code.INVALID_RECORD),
        (lambda data: b"", Code.INVALID_RECORD),
        (lambda data: data[:30], Code.INVALID_RECORD),
        (lambda data: data[:-1], Code.INVALID_RECORD),
        (lambda data: data + data, Code.INVALID_RECORD),
        (lambda data: changed(data, len(data) - 1, b"\xff"), Code.CORRUPT_MESSAGE),
        (lambda data: changed(data, 8, b"\x7f\xff\xff\xff"), Code.INVALID_RECORD),
        (lambda data: changed(data, 8, b"\xff\xff\xff\xff"), Code.CORRUPT_MESSAGE),
        (lambda data: changed(data, 16, b"\x01"), Code.INVALID_RECORD),
        (lambda data: changed(data, 16, b"\x03"), Code.CORRUPT_MESSAGE),
        (lambda data: changed(data, 0, (40).to_bytes(8, "big")), Code.INVALID_RECORD),
        (lambda data: signed(changed(data, 21, b"\0\7")), Code.UNKNOWN_SERVER_ERROR),
        (lambda data: signed(changed(data, 21, b"\0\x10")), Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
def test_a_damaged_batch_is_rejected_with_the_reason(damage: Any, code: Code) -> None:
    """A batch that is damaged or not of format 2 is refused."""
    assert rejection(damage(make_batch([b"a", b"b"]))) is code


def test_a_batch_that_is_too_large_is_rejected() -> None:
    """A batch above the limit gets its own error code."""
    assert rejection(make_batch([b"x" * 100]), 100) is Code.MESSAGE_TOO_LARGE


def test_a_timestamp_above_the_limit_is_rejected() -> None:
    """The timestamp that counts is the highest one of the header."""
    data = make_batch([b"a", b"b"], timestamps=[1000, 2000])
    assert parse_batch(data, LIMIT, 2000).max_timestamp == 2000
    with pytest.raises(Rejected, match="timestamps must be at most 1999, got 2000") as caught:
        parse_batch(data, LIMIT, 1999)
    assert caught.value.code is Code.INVALID_TIMESTAMP


def test_a_timestamp_is_found_record_by_record_in_an_uncompressed_batch() -> None:
    """The search finds the first record that is not older; for a compressed batch, it returns the first offset."""
    batch = placed(parsed(b"a", b"b", b"c", timestamp=100), 10, 0)
    assert search_timestamp(batch, 101, SearchBudget(1000)) == (11, 101)
    packed = placed(parsed(b"a" * 999, b"b", b"c", timestamp=100, codec=1), 10, 0)
    assert search_timestamp(packed, 101, SearchBudget(1000)) == (10, 102)


def batch_of_deltas(base_timestamp: int, max_timestamp: int, *deltas: tuple[int, int]) -> bytes:
    """Return a batch whose records have these deltas of timestamp and offset, whatever its header says."""
    records = bytearray()
    for timestamp_delta, offset_delta in deltas:
        record = bytearray(b"\0")
        for number in (timestamp_delta, offset_delta, -1, 1):
            encode_varint(number, record.append)
        record += b"x\0"
        encode_varint(len(record), records.append)
        records += record
    number = len(deltas)
    head = struct.pack(
        ">qiibIhiqqqhii",
        0,
        49 + len(records),
        0,
        2,
        0,
        0,
        number - 1,
        base_timestamp,
        max_timestamp,
        -1,
        -1,
        -1,
        number,
    )
    return signed(head + records)


CONTRADICTIONS = pytest.mark.parametrize(
    "deltas",
    [
        (1000, 1000, (0, 1_000_000)),
        (1000, 1000, (0, 2**62)),
        (1000, 1000, (0, 1)),
        (1000, 1000, (0, -1)),
        (1000, 1000, (1, 0)),
        (2**63 - 1, 1000, (100, 0)),
    ],
)


def test_a_batch_of_deltas_is_found_record_by_record() -> None:
    """The batches of the next tests are sound but for their deltas."""
    batch = placed(parse_batch(batch_of_deltas(1000, 1005, (0, 0), (5, 1)), LIMIT), 10, 0)
    assert search_timestamp(batch, 1001, SearchBudget(1000)) == (11, 1005)
    assert values_in(batch.data) == [b"x", b"x"]


@CONTRADICTIONS
def test_records_that_contradict_their_header_are_not_believed(deltas: Any) -> None:
    """A search that finds such a record returns the first offset of the batch and its highest timestamp."""
    batch = placed(parse_batch(batch_of_deltas(*deltas), LIMIT), 10, 0)
    assert search_timestamp(batch, 1000, SearchBudget(1000)) == (10, batch.max_timestamp)


@CONTRADICTIONS
async def test_a_lookup_by_time_outlasts_records_that_contradict_their_header(deltas: Any) -> None:
    """ListOffsets is answered with an offset that a consumer can fetch."""
    topic_type = ListOffsetsRequest.ListOffsetsTopic
    asked = topic_type.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=500)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic_type(name="t", partitions=[asked])])
    async with Broker(SETTINGS) as broker:
        broker.topics.create("t", 1)
        harness = RequestHarness(broker)
        produced = await harness.produce("t", batch_of_deltas(*deltas), acks=-1)
        assert produced.error_code == Code.NONE
        (found,) = (await harness.ask(request)).topics[0].partitions
    assert (found.error_code, found.offset, found.timestamp) == (Code.NONE, 0, deltas[1])
