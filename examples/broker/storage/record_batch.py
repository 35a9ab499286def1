"""Record batches as bytes: the broker reads the 61-byte header and stores the records as they are.

The broker changes only the two fields that the checksum does not cover: the base offset (bytes 0-7) and the partition
leader epoch (bytes 12-15).  It therefore need not decode or decompress records.
"""

import contextlib
import struct
from typing import NamedTuple

from crc32c import crc32c
from kafka.record.util import decode_varint

from examples.broker.protocol.error_codes import Code

__all__ = [
    "NO_PRODUCER",
    "Batch",
    "Rejected",
    "SearchBudget",
    "parse_batch",
    "placed",
    "search_timestamp",
    "stored_batch",
]

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp, max timestamp,
# producer id, producer epoch, base sequence, number of records
_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CHECKED_FROM = 21  # the checksum covers the attributes and everything after them
_OVERHEAD = 12  # size of the base offset and the length, which the length does not include
_MAGIC_AT = 16
_ATTRIBUTES = struct.Struct(">h")
_BASE_TIMESTAMP_AT = 27
_LAST_CODEC = 4  # zstd
_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
NO_PRODUCER = -1


class Rejected(Exception):
    """The broker rejects the batch.  ``code``: the error code for the client.  The message gives the reason."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Batch(NamedTuple):
    """A record batch with the header fields that the broker uses."""

    data: bytes
    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    number: int
    codec: int


def parse_batch(data: bytes | None, max_bytes: int, max_timestamp: int = 2**63 - 1) -> Batch:
    """Parse the batch that a producer sends for a partition.  Raise :class:`Rejected` if it is invalid.

    ``max_timestamp``: the latest timestamp, in ms, that the header may state.
    """
    if not data or len(data) < _MAGIC_AT + 1:
        raise Rejected(Code.INVALID_RECORD, f"{len(data or b'')} bytes are too short for a record batch")
    if len(data) > max_bytes:
        raise Rejected(Code.MESSAGE_TOO_LARGE, f"record batch must have at most {max_bytes} bytes, got {len(data)}")
    if data[_MAGIC_AT] in (0, 1):
        raise Rejected(Code.INVALID_RECORD, f"message format must be 2, got {data[_MAGIC_AT]}")
    if data[_MAGIC_AT] != 2:
        raise Rejected(Code.CORRUPT_MESSAGE, f"message format must be 2, got {data[_MAGIC_AT]}")
    if len(data) < _HEADER.size:
        raise Rejected(Code.INVALID_RECORD, f"{len(data)} bytes are too short for the header of a record batch")
    head = _HEADER.unpack_from(data)
    base, length, _, _, checksum, attributes, last_delta, _, newest, producer, epoch, sequence, count = head
    if length + _OVERHEAD != len(data):
        too_short = length + _OVERHEAD < _HEADER.size
        what = f"expected one record batch of {length + _OVERHEAD} bytes, got {len(data)} bytes"
        raise Rejected(Code.CORRUPT_MESSAGE if too_short else Code.INVALID_RECORD, what)
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise Rejected(Code.CORRUPT_MESSAGE, "the checksum is wrong")
    if base != 0:
        raise Rejected(Code.INVALID_RECORD, f"base offset of a produced batch must be 0, got {base}")
    if count < 1 or last_delta != count - 1:
        raise Rejected(Code.INVALID_RECORD, f"{count} records cannot have offset deltas up to {last_delta}")
    if attributes & _CONTROL:
        raise Rejected(Code.INVALID_RECORD, "clients must not write control records")
    if attributes & _TRANSACTIONAL:
        raise Rejected(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this broker does not support transactions")
    if producer != NO_PRODUCER and (producer < 0 or epoch < 0 or sequence < 0):
        raise Rejected(
            Code.INVALID_RECORD,
            f"producer id, epoch, and sequence must not be negative, got {producer}, {epoch}, {sequence}",
        )
    codec = attributes & _CODEC_MASK
    if codec > _LAST_CODEC:
        raise Rejected(
            Code.UNKNOWN_SERVER_ERROR,  # Kafka returns this code too
            f"compression codec must be 0 to {_LAST_CODEC}, got {codec}",
        )
    if newest > max_timestamp:
        raise Rejected(Code.INVALID_TIMESTAMP, f"timestamps must be at most {max_timestamp}, got {newest}")
    return Batch(data, 0, last_delta, newest, producer, epoch, sequence, count, codec)


def placed(batch: Batch, base_offset: int, leader_epoch: int) -> Batch:
    """Return the batch with its base offset and leader epoch set."""
    data = bytearray(batch.data)
    _OFFSET.pack_into(data, 0, base_offset)
    _EPOCH.pack_into(data, _OVERHEAD, leader_epoch)
    return batch._replace(data=bytes(data), base_offset=base_offset, last_offset=base_offset + batch.number - 1)


def stored_batch(data: bytes) -> Batch:
    """Return the batch for bytes from a log.  The bytes were checked when they were appended."""
    base, _, _, _, _, attributes, last_delta, _, max_timestamp, producer, epoch, sequence, count = _HEADER.unpack_from(
        data
    )
    codec = attributes & _CODEC_MASK
    return Batch(data, base, base + last_delta, max_timestamp, producer, epoch, sequence, count, codec)


class SearchBudget:
    """The number of records that one request may read while it searches for timestamps."""

    __slots__ = ("left",)

    def __init__(self, records: int) -> None:
        self.left = records

    def spend(self, records: int) -> bool:
        """Take ``records`` from the budget.  Return False, and take nothing, if too few are left."""
        if records > self.left:
            return False
        self.left -= records
        return True


def search_timestamp(
    batch: Batch, timestamp: int, budget: SearchBudget, start_offset: int = 0
) -> tuple[int, int] | None:
    """Return the offset and timestamp of the first record, from ``start_offset`` on, that is not older than
    ``timestamp``.

    ``batch.max_timestamp`` must not be older than ``timestamp``.  The result is exact if the batch is uncompressed and
    ``budget`` suffices; in that case, it is None if only records before ``start_offset`` match.  Otherwise, the result
    is the first offset of the batch: a compressed batch may expand to a thousand times its size, so the broker does not
    decompress it.  The result is also the first offset if the records are unreadable or contradict the header, so that
    the search ends at this batch.
    """
    if batch.codec == 0 and budget.spend(batch.number):
        with contextlib.suppress(Exception):  # the records are arbitrary bytes from a client
            found = _first_not_older(batch, timestamp, start_offset)
            if found is not None or batch.base_offset < start_offset:
                return found
    return max(batch.base_offset, start_offset), batch.max_timestamp


def _first_not_older(batch: Batch, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """Search the records one by one, skipping their keys, values, and headers."""
    data = batch.data
    (attributes,) = _ATTRIBUTES.unpack_from(data, _CHECKED_FROM)
    (base_timestamp,) = _OFFSET.unpack_from(data, _BASE_TIMESTAMP_AT)
    at = _HEADER.size
    for _ in range(batch.number):
        length, at = decode_varint(data, at)
        delta, behind = decode_varint(data, at + 1)  # after one byte of attributes
        offset = batch.base_offset + decode_varint(data, behind)[0]
        when = batch.max_timestamp if attributes & _LOG_APPEND_TIME else base_timestamp + delta
        if length < 0 or at + length > len(data):
            raise ValueError(f"record of {length} bytes at {at} exceeds the batch of {len(data)} bytes")
        if not batch.base_offset <= offset <= batch.last_offset or when > batch.max_timestamp:
            raise ValueError(f"record at offset {offset} with timestamp {when} contradicts the header of its batch")
        if when >= timestamp and offset >= start_offset:
            return offset, when
        at += length
    return None
