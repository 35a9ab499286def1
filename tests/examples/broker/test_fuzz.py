"""The request path with arbitrary input: no input breaks the broker; at worst, it closes its own connection."""

import asyncio
import logging
import struct
import tracemalloc
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from hypothesis import given
from hypothesis import strategies as st

from examples.broker import Server, Settings
from examples.broker.apis.api import CloseConnection
from examples.broker.apis.dispatch import APIS, answer_frame
from examples.broker.broker import Broker
from examples.broker.network.connection import Connection
from examples.broker.protocol.codec import Malformed
from examples.group import GroupConfig
from purgatory.testing import VirtualClock
from tests.examples.broker.request_harness import frame, make_batch, settled
from tests.examples.broker.socket_harness import FakeTransport

SETTINGS = Settings(
    port=0,
    max_frame_bytes=1 << 16,
    max_partitions=64,
    group=GroupConfig(initial_rebalance_delay=0.0, min_session_timeout=0.0, max_size=5),
)
VERSIONS = [(key, version) for key, api in APIS.items() for version in range(api.pin + 1)]
INTS = st.sampled_from([0, 1, -1, 2, 7, -2, 127, -128])
NAMES = st.sampled_from(["t", "stalled", "new", "", "é", "a b", "x" * 300]) | st.text(max_size=5)
BATCH = make_batch([b"a", b"b"], producer=(7, 0, 0))


def value_of(field: Any, version: int) -> st.SearchStrategy[Any]:
    """Return values for the type of the field, the interesting ones first."""
    if field.is_struct_array():
        return st.lists(struct_of(field.array_of, field, version), max_size=3)
    if field.is_array():
        return st.lists(value_of(field.array_of, version), max_size=3)
    kind = field._type_str
    plain: dict[str, st.SearchStrategy[Any]] = {
        "string": NAMES,
        "bytes": st.binary(max_size=8),
        "records": st.sampled_from([None, b"", BATCH, BATCH[:40], BATCH + BATCH]) | st.binary(max_size=90),
        "bool": st.booleans(),
        "int8": INTS,
        "int16": INTS,
        "int32": INTS | st.integers(-(1 << 31), (1 << 31) - 1),
        "int64": INTS | st.integers(-(1 << 63), (1 << 63) - 1),
    }
    values = plain[kind]
    return values | st.none() if field.nullable_for_version_q(version) else values


def struct_of(schema: Any, factory: Any, version: int) -> st.SearchStrategy[Any]:
    fields = {field.name: value_of(field, version) for field in schema.untagged_fields(version)}
    return st.fixed_dictionaries(fields).map(lambda values: factory(version=version, **values))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Return a request that can be decoded, with any values in its fields, and without the frame's length."""
    key, version = draw(st.sampled_from(VERSIONS))
    message = APIS[key].request
    request = draw(struct_of(message._struct, message, version))
    client_id = draw(st.sampled_from([b"test", b"", b"x" * 20_000]))
    return frame(request, version, client_id=client_id)[4:]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a request with some bytes changed, removed or inserted."""
    body = bytearray(draw(requests()))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        how = draw(st.sampled_from(["change", "cut", "insert", "length"]))
        if how == "cut":
            del body[at:]
        elif how == "insert":
            body[at:at] = draw(st.binary(max_size=9))
        elif how == "length":
            body[at : at + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x00\x00\xff\xff"]))
        elif at < len(body):
            body[at] = draw(st.integers(0, 255))
    return bytes(body)


def headed(body: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(VERSIONS).map(lambda pair: struct.pack(">hhih", *pair, 1, -1) + body)


ANYTHING = st.one_of(requests(), damaged(), st.binary(max_size=60), st.binary(max_size=60).flatmap(headed))


async def answer_all_of(bodies: list[bytes]) -> None:
    """Send requests, which are answered, parked or refused; then check that the broker is consistent."""
    clock = VirtualClock(1000.0)
    async with Broker(SETTINGS, clock=clock) as broker:
        broker.topics.create("t", 2)
        broker.topics.create("stalled")
        tasks = [asyncio.create_task(answer_frame(broker, body, "127.0.0.1")) for body in bodies]
        await settled()
        for task in tasks[::2]:
            task.cancel()
        await clock.advance(0.5)
        for purgatory in (broker.produce, broker.fetch, broker.delete_records):
            purgatory._check()
        await broker.answer_all()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                allowed = (Malformed, CloseConnection, asyncio.CancelledError)
                if not isinstance(outcome, allowed):
                    raise outcome
            elif outcome is not None:
                assert struct.unpack_from(">i", outcome)[0] == len(outcome) - 4
        for purgatory in (broker.produce, broker.fetch, broker.delete_records):
            assert len(purgatory) == 0
            purgatory._check()


@given(st.lists(ANYTHING, max_size=8))
def test_whatever_is_asked_the_broker_answers_or_refuses(bodies: list[bytes]) -> None:
    """A request ends with a response, without one if none is due, or as malformed; never with another error."""
    asyncio.run(answer_all_of(bodies))


async def stream(chunks: list[bytes], hello: bytes) -> bytearray:
    """Return the bytes that a connection writes for the chunks; another connection is served before and after."""
    async with Server(SETTINGS) as server:
        server.broker.topics.create("t", 2)
        good, bad = Connection(server), Connection(server)
        wires = FakeTransport(), FakeTransport()
        good.connection_made(wires[0])
        bad.connection_made(wires[1])
        for chunk in chunks:
            bad.data_received(chunk)
            await settled()
        good.data_received(hello)
        await settled()
        assert bytes(wires[0].written[4:8]) == b"\x00\x00\x00\x07"
        for connection in (good, bad):
            connection.connection_lost(None)
        await settled()
        assert server.memory.used == 0
        return wires[1].written


class ErrorRecorder(logging.Handler):
    """A handler that records the logged errors."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@given(st.lists(st.one_of(st.binary(max_size=200), ANYTHING.map(lambda b: struct.pack(">i", len(b)) + b)), max_size=6))
def test_whatever_bytes_come_the_other_connections_are_served(chunks: list[bytes]) -> None:
    """Arbitrary bytes close at most their own connection, and nothing is kept for it afterwards."""
    hello = frame(APIS[18].request(), 0)
    logger = logging.getLogger("examples.broker")
    defects: list[logging.LogRecord] = []
    handler = ErrorRecorder(defects)
    logger.addHandler(handler)
    try:
        written = asyncio.run(stream(chunks, hello))
    finally:
        logger.removeHandler(handler)
    assert defects == []
    while written:
        (size,) = struct.unpack_from(">i", written)
        assert len(written) >= size + 4
        del written[: size + 4]


BEGIN_WITH_AN_ARRAY = [
    (key, version)
    for key, version in VERSIONS
    if APIS[key].request._struct.untagged_fields(version)[:1]
    and APIS[key].request._struct.untagged_fields(version)[0].is_array()
]


@pytest.mark.parametrize("element", [b"", b"\x00\x00", b"\x00\x00\x00\x00\x00\x00"])
async def test_an_absurd_number_of_elements_costs_nothing(element: bytes) -> None:
    """No memory is allocated for the two thousand million announced elements."""
    assert len(BEGIN_WITH_AN_ARRAY) > 10
    async with Broker(SETTINGS) as broker:
        for key, version in BEGIN_WITH_AN_ARRAY:
            body = struct.pack(">hhih", key, version, 1, -1) + b"\x7f\xff\xff\xff" + element * 3
            tracemalloc.start()
            try:
                with pytest.raises(Malformed):
                    await answer_frame(broker, body, "")
                assert tracemalloc.get_traced_memory()[1] < 1 << 20
            finally:
                tracemalloc.stop()
