"""Record batches as bytes: the 61 bytes of header are read, and what is inside is left as it came.

Where a batch is changed, it is in the two fields that its checksum does not cover: the base offset (bytes 0-7) and the
partition leader epoch (bytes 12-15).  So a broker need not understand records, nor unpack them.
"""

import contextlib
import struct
from typing import Any, NamedTuple

from crc32c import crc32c
from kafka.record.memory_records import MemoryRecords

from .codes import Code

__all__ = ["NO_PRODUCER", "Batch", "Rejected", "parse_batch", "placed", "search_timestamp", "stored_batch"]

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp, max timestamp,
# producer id, producer epoch, base sequence, number of records
_HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CHECKED_FROM = 21  # the checksum covers everything from the attributes on
_OVERHEAD = 12  # base offset and length, which the length does not count
_MAGIC_AT = 16
_CODEC_MASK, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
NO_PRODUCER = -1


class Rejected(Exception):
    """The batch is not taken; ``code`` says why to the client, the text to people."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Batch(NamedTuple):
    """A record batch, and of its header what a broker must know."""

    data: bytes
    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    number: int
    codec: int


def parse_batch(data: bytes | None, max_bytes: int) -> Batch:
    """The one batch that a producer sends for a partition.  Raises :class:`Rejected`."""
    if not data or len(data) < _MAGIC_AT + 1:
        raise Rejected(Code.CORRUPT_MESSAGE, f"{len(data or b'')} bytes are no record batch")
    if len(data) > max_bytes:
        raise Rejected(Code.MESSAGE_TOO_LARGE, f"a batch of {len(data)} bytes is larger than {max_bytes}")
    if data[_MAGIC_AT] in (0, 1):
        raise Rejected(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format {data[_MAGIC_AT]} is older than batches")
    if len(data) < _HEADER.size or data[_MAGIC_AT] != 2:
        raise Rejected(Code.CORRUPT_MESSAGE, "this is no record batch of format 2")
    head = _HEADER.unpack_from(data)
    _, length, _, _, checksum, attributes, last_delta, _, max_timestamp, producer, epoch, sequence, count = head
    if length + _OVERHEAD != len(data):
        several = _HEADER.size <= length + _OVERHEAD < len(data)
        what = f"one batch per partition: it says {length + _OVERHEAD} bytes and {len(data)} came"
        raise Rejected(Code.INVALID_RECORD if several else Code.CORRUPT_MESSAGE, what)
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise Rejected(Code.CORRUPT_MESSAGE, "the checksum is wrong")
    if count < 1 or last_delta != count - 1:
        raise Rejected(Code.INVALID_RECORD, f"{count} records with offsets up to +{last_delta}")
    if attributes & _CONTROL:
        raise Rejected(Code.INVALID_RECORD, "a client may not write control records")
    if attributes & _TRANSACTIONAL:
        raise Rejected(Code.INVALID_TXN_STATE, "this broker knows no transactions")
    if producer != NO_PRODUCER and (producer < 0 or epoch < 0 or sequence < 0):
        raise Rejected(Code.INVALID_RECORD, f"producer {producer} with epoch {epoch} and sequence {sequence}")
    codec = attributes & _CODEC_MASK
    return Batch(data, 0, last_delta, max_timestamp, producer, epoch, sequence, count, codec)


def placed(batch: Batch, base_offset: int, leader_epoch: int) -> Batch:
    """The batch at its place in the log."""
    data = bytearray(batch.data)
    _OFFSET.pack_into(data, 0, base_offset)
    _EPOCH.pack_into(data, _OVERHEAD, leader_epoch)
    return batch._replace(data=bytes(data), base_offset=base_offset, last_offset=base_offset + batch.number - 1)


def stored_batch(data: bytes) -> Batch:
    """The batch of these bytes, which lie in a log and so were checked and placed already."""
    base, _, _, _, _, attributes, last_delta, _, max_timestamp, producer, epoch, sequence, count = _HEADER.unpack_from(
        data
    )
    codec = attributes & _CODEC_MASK
    return Batch(data, base, base + last_delta, max_timestamp, producer, epoch, sequence, count, codec)


def search_timestamp(batch: Batch, timestamp: int, start_offset: int = 0) -> tuple[int, int] | None:
    """Offset and timestamp of the first record from ``start_offset`` on that is not older; None: one before it is.

    ``batch.max_timestamp`` must not be older.  Exact where the batch is uncompressed.  Else, or if the records cannot
    be read, the batch's first offset: what a client has compressed may unpack to a thousand times its size, and a
    broker need not find out.  The same where the records do not keep what the header says: whoever asks would have
    the whole log unpacked.
    """
    if batch.codec == 0:
        with contextlib.suppress(Exception):  # the producer's bytes: whatever is wrong with them, the batch stands
            found = _first_not_older(batch.data, timestamp, start_offset)
            if found is not None or batch.base_offset < start_offset:
                return found
    return max(batch.base_offset, start_offset), batch.max_timestamp


def _first_not_older(data: bytes, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    records: Any = MemoryRecords(data)
    while records.has_next():
        for record in records.next_batch():
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.offset, record.timestamp
    return None
