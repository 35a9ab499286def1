"""Scenarios of produces: acknowledgements, refusals, and idempotent producers."""

import time

from crc32c import crc32c
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from benchmarks.kafka_wire import Closed, make
from tests.kafka.scenarios import WAIT_MS, Side, batch, name_of, produce_request, scenario, stalling_scenario

__all__: list[str] = []


@scenario
def acks(side: Side) -> None:
    """Produces with acks 1 and all"""
    topic = side.topic()
    side.note(side.produce(topic, batch(b"a", b"b"), acks=1))
    side.note(side.produce(topic, batch(b"c"), acks=-1))
    side.note(f"end {side.offset(topic, -1)[:2]}")


@scenario
def acks_none(side: Side) -> None:
    """A produce with acks 0 has no response"""
    topic = side.topic()
    with side.wire() as wire:
        wire.send(produce_request(topic, batch(b"a"), acks=0))
        number = wire.send(make(MetadataRequest, topics=[], allow_auto_topic_creation=False))
        side.note(f"next response is the next request's {int.from_bytes(wire.receive_bytes()[:4], 'big') == number}")
    side.note(side.fetch((topic, 0, 0)))


@scenario
def acks_none_refused(side: Side) -> None:
    """A produce with acks 0 that cannot be written"""
    topic = side.topic()
    with side.wire() as wire:
        wire.send(produce_request(topic, batch(b"a"), acks=0, partition=9))
        wire.send(make(MetadataRequest, topics=[], allow_auto_topic_creation=False))
        try:
            wire.receive_bytes()
            side.note("the connection stays")
        except Closed:
            side.note("the connection is closed")


@scenario
def acks_invalid(side: Side) -> None:
    """A produce with acks 2"""
    side.note(side.produce(side.topic(), batch(b"a"), acks=2))


@scenario
def nowhere(side: Side) -> None:
    """Produces to a topic and a partition that are not there"""
    side.note(side.produce("nowhere", batch(b"a")))
    side.note(side.produce(side.topic(), batch(b"a"), partition=9))


@scenario
def corrupt(side: Side) -> None:
    """A batch whose checksum is wrong"""
    records = bytearray(batch(b"a"))
    records[-1] ^= 1
    side.note(side.produce(side.topic(), bytes(records)))


@scenario
def too_large(side: Side) -> None:
    """A batch above the limit"""
    topic = side.topic()
    side.note(side.produce(topic, batch(b"a" * 1_048_600)))
    side.note(f"end {side.offset(topic, -1)[:2]}")


@scenario
def no_records(side: Side) -> None:
    """A produce of an empty batch"""
    side.note(side.produce(side.topic(), b""))


@scenario
def null_records(side: Side) -> None:
    """A produce request with null records"""
    topic = side.topic()
    with side.wire() as wire:
        wire.send(produce_request(topic, None))
        side.note(f"answered {wire.answered_within(WAIT_MS / 1000)}")


@scenario
def two_batches(side: Side) -> None:
    """Two batches for one partition"""
    side.note(side.produce(side.topic(), batch(b"a") + batch(b"b")))


def _changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _signed(data: bytes) -> bytes:
    """Return the batch with the checksum of what it has become."""
    return _changed(data, 17, crc32c(data[21:]).to_bytes(4, "big"))


@scenario
def damaged(side: Side) -> None:
    """Batches that are damaged"""
    topic = side.topic()
    whole = batch(b"a" * 50, b"b" * 50)
    for what, records in {
        "rubbish": b"rubbish",
        "less than its length": whole[:10],
        "less than its header": whole[:30],
        "cut off": whole[:-1],
        "a negative length": _changed(whole, 8, b"\xff\xff\xff\xff"),
        "a length of 0": _changed(whole, 8, b"\0\0\0\0"),
        "a length below the header": _changed(whole, 8, (40).to_bytes(4, "big")),
        "format 0": _changed(whole, 16, b"\0"),
        "format 1": _changed(whole, 16, b"\1"),
        "format 3": _changed(whole, 16, b"\3"),
        "a message set of format 1": batch(b"a", magic=1),
        "a message set of format 0": batch(b"a", magic=0),
        "a wrong checksum": _changed(whole, len(whole) - 1, b"\xff"),
        "a count that is too high": _signed(_changed(whole, 57, (9).to_bytes(4, "big"))),
        "a count of 0": _signed(_changed(whole, 57, b"\0\0\0\0")),
        "a last offset that is too high": _signed(_changed(whole, 23, (9).to_bytes(4, "big"))),
        "a control batch": _signed(_changed(whole, 21, b"\0\x20")),
        "a transactional batch": _signed(_changed(whole, 21, b"\0\x10")),
        "a transactional batch of a producer": _signed(_changed(batch(b"a", producer=(9, 0, 0)), 21, b"\0\x10")),
        "an unknown codec": _signed(_changed(whole, 21, b"\0\7")),
        "a base offset of 40": _changed(whole, 0, (40).to_bytes(8, "big")),
        "a timestamp that is far ahead": batch(b"a", timestamps=(1 << 62,)),
        "a sequence without a producer": _signed(_changed(whole, 53, (3).to_bytes(4, "big"))),
        "a producer without a sequence": _signed(_changed(batch(b"a", producer=(9, 0, 0)), 53, b"\xff" * 4)),
    }.items():
        side.note(f"{what}: {side.produce(topic, records).split()[0]}")


@scenario
def damaged_inside(side: Side) -> None:
    """Batches with a valid header and damaged records"""
    topic = side.topic()
    whole = batch(b"a" * 50, b"b" * 50)
    for what, records in {
        "an absurd length": _changed(whole, 8, b"\x7f\xff\xff\xff"),
        "bytes behind it": whole + b"more",
        "a codec that does not fit": _signed(_changed(whole, 21, b"\0\1")),
        "records that are rubbish": _signed(_changed(whole, 61, b"\xff" * 20)),
        "a producer without an epoch": _signed(_changed(batch(b"a", producer=(9, 0, 0)), 51, b"\xff" * 2)),
    }.items():
        side.note(f"{what}: {side.produce(topic, records).split()[0]}")


@scenario
def twice(side: Side) -> None:
    """A produce that names a partition twice"""
    topic = side.topic()
    parts = [{"index": 0, "records": batch(b"a")}, {"index": 0, "records": batch(b"b")}]
    data = [{"name": topic, "partition_data": parts}]
    request = make(ProduceRequest, transactional_id=None, acks=-1, timeout_ms=5000, topic_data=data)
    with side.wire() as wire:
        wire.send(request)
        if not wire.answered_within(WAIT_MS / 1000):
            side.note("not answered")
            return
        answer = wire.receive(request)
    found = [(name_of(part.error_code), part.base_offset) for part in answer.responses[0].partition_responses]
    side.note(f"{found} {side.fetch((topic, 0, 0))}")


@scenario
def duplicates(side: Side) -> None:
    """An idempotent producer that sends again"""
    topic = side.topic()
    number, epoch = side.producer_id()
    first = batch(b"a", b"b", producer=(number, epoch, 0))
    side.note(side.produce(topic, first, acks=-1))
    side.note(f"again {side.produce(topic, first, acks=-1)}")
    side.note(side.produce(topic, batch(b"c", producer=(number, epoch, 2)), acks=-1))
    side.note(f"again, an older one {side.produce(topic, first, acks=-1)}")
    side.note(f"end {side.offset(topic, -1)[:2]}")


@scenario
def gap(side: Side) -> None:
    """An idempotent producer that leaves a gap"""
    topic = side.topic()
    number, epoch = side.producer_id()
    side.note(side.produce(topic, batch(b"a", producer=(number, epoch, 0)), acks=-1))
    side.note(side.produce(topic, batch(b"b", producer=(number, epoch, 5)), acks=-1))
    side.note(side.produce(topic, batch(b"b", producer=(number, epoch, 1)), acks=-1))


@scenario
def begins_late(side: Side) -> None:
    """An idempotent producer whose first batch is not its first"""
    number, epoch = side.producer_id()
    side.note(side.produce(side.topic(), batch(b"a", producer=(number, epoch, 7)), acks=-1))


@scenario
def old_duplicate(side: Side) -> None:
    """A duplicate of a batch that is no longer remembered"""
    topic = side.topic()
    number, epoch = side.producer_id()
    for sequence in range(7):
        side.produce(topic, batch(b"a", producer=(number, epoch, sequence)), acks=-1)
    side.note(side.produce(topic, batch(b"a", producer=(number, epoch, 0)), acks=-1))
    side.note(side.produce(topic, batch(b"a", producer=(number, epoch, 2)), acks=-1))
    side.note(f"end {side.offset(topic, -1)[:2]}")


@scenario
def producer_epochs(side: Side) -> None:
    """Epochs of a producer"""
    topic = side.topic()
    number, epoch = side.producer_id()
    side.note(side.produce(topic, batch(b"a", producer=(number, epoch, 0)), acks=-1))
    side.note(f"later, not from 0 {side.produce(topic, batch(b'b', producer=(number, epoch + 1, 1)), acks=-1)}")
    side.note(f"later {side.produce(topic, batch(b'b', producer=(number, epoch + 1, 0)), acks=-1)}")
    side.note(f"earlier {side.produce(topic, batch(b'c', producer=(number, epoch, 1)), acks=-1)}")


@scenario
def transactional(side: Side) -> None:
    """A produce with a transactional id"""
    number, epoch = side.producer_id()
    records = batch(b"a", producer=(number, epoch, 0))
    side.note(side.produce(side.topic(), records, acks=-1, transactional_id="tx"))


@scenario
def transactional_producer(side: Side) -> None:
    """A producer ID for a transactional ID"""
    with side.wire() as wire:
        request = make(InitProducerIdRequest, transactional_id="tx", transaction_timeout_ms=60_000)
        for _ in range(200):
            code = wire.ask(request).error_code
            if code not in (14, 15, 16):  # the coordinator is being made
                break
            time.sleep(0.05)
        side.note(name_of(code))


@stalling_scenario
def lagging(side: Side) -> None:
    """A follower that lags"""
    topic = side.stalled_topic()
    number, epoch = side.producer_id()
    records = batch(b"a", producer=(number, epoch, 0))
    side.note(f"acks=1 {side.produce(topic, records, acks=1)}")
    began = time.monotonic()
    side.note(f"acks=all {side.produce(topic, batch(b'b'), acks=-1, timeout_ms=WAIT_MS)}")
    side.note(side.when(time.monotonic() - began))
    began = time.monotonic()
    side.note(f"a duplicate {side.produce(topic, records, acks=-1, timeout_ms=WAIT_MS)}")
    side.note(side.when(time.monotonic() - began))
    side.note(f"no timeout {side.produce(topic, batch(b'c'), acks=-1, timeout_ms=0)}")
    side.note(f"end {side.offset(topic, -1)[:2]}")
    side.note(f"fetch {side.fetch((topic, 0, 0))}")
    side.note(f"fetch above the end {side.fetch((topic, 0, 9))}")
    side.note(f"delete {side.delete_records(topic, 1)}")


@stalling_scenario
def above(side: Side) -> None:
    """A fetch between the high watermark and the end of the log"""
    topic = side.stalled_topic()
    for value in (b"a", b"b", b"c"):
        side.produce(topic, batch(value))
    for offset in (0, 1, 2, 3):
        side.note(f"{offset}: {side.fetch((topic, 0, offset))}")
