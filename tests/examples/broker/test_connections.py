"""The broker's connections: order, disconnects, limits, hostile clients, shutdown."""

import asyncio
import logging
import resource
import struct
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")

from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from examples.broker.apis.dispatch import answer_frame
from examples.broker.network.connection import Connection
from tests.examples.broker.request_harness import fetch_request, frame, make_batch
from tests.examples.broker.socket_harness import HELLO, FakeTransport, SocketHarness, serving

ALL_TOPICS = MetadataRequest(topics=None, allow_auto_topic_creation=False)


def produce(
    acks: int, topic: str = "t", value: bytes = b"v", correlation_id: int = 7, timeout_ms: int = 60_000
) -> bytes:
    topic_type = ProduceRequest.TopicProduceData
    data = topic_type.PartitionProduceData(index=0, records=make_batch([value]))
    request = ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[topic_type(name=topic, partition_data=[data])],
    )
    return frame(request, 7, correlation_id)


def fetch(correlation_id: int = 7, topic: str = "t", **options: Any) -> bytes:
    return frame(fetch_request((topic, 0, 0), **{"max_wait_ms": 60_000, **options}), 11, correlation_id)


async def test_requests_of_one_connection_are_answered_in_order() -> None:
    """A parked request delays the next ones on the same connection, and no other connection."""
    async with serving() as sockets:
        one, other = await sockets.client(), await sockets.client()
        one.writer.write(fetch(1) + frame(ALL_TOPICS, 5, 2) + frame(ALL_TOPICS, 5, 3))
        await sockets.until(lambda: len(sockets.server.broker.fetch) == 1)
        assert await other.says_hello()
        other.writer.write(produce(1))
        await other.response()
        assert [(await one.response())[0] for _ in range(3)] == [1, 2, 3]


async def test_bytes_may_come_one_by_one() -> None:
    """A frame is complete however its bytes are split."""
    async with serving() as sockets:
        client = await sockets.client()
        for byte in HELLO + HELLO:
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert [(await client.response())[0] for _ in range(2)] == [7, 7]


@pytest.mark.parametrize("rude", [False, True])
async def test_a_client_that_goes_away_while_it_waits_is_withdrawn_at_once(rude: bool) -> None:
    """A disconnect, orderly or a reset, is detected while a request is parked."""
    async with serving() as sockets:
        client = await sockets.client()
        client.writer.write(fetch())
        fetches = sockets.server.broker.fetch
        await sockets.until(lambda: len(fetches) == 1)
        if rude:
            client.writer.transport.abort()
        else:
            client.writer.close()
        await sockets.until(lambda: not sockets.server.connections)
        assert (len(fetches), fetches.statistics().cancelled) == (0, 1)


async def test_what_was_sent_before_the_end_is_carried_out() -> None:
    """If none is in progress, requests before a disconnect are executed: a producer with acks=0 may send and leave."""
    async with serving() as sockets:
        client = await sockets.client()
        for _ in range(40):
            client.writer.write(produce(0))
        client.writer.close()
        partition = sockets.server.broker.topics.partition("t", 0)
        assert partition is not None
        await sockets.until(lambda: partition.log.end_offset == 40)


def left_behind(sockets: SocketHarness, data: bytes) -> Connection:
    """Return a connection whose client has left before the broker could take any of its requests."""
    connection = Connection(sockets.server)
    connection.connection_made(FakeTransport())
    connection.data_received(data)
    connection.eof_received()
    connection.connection_lost(None)
    return connection


async def test_what_a_client_leaves_behind_delays_no_other_client() -> None:
    """Its requests are executed in slices; their bytes count, and the connection is known, until they are done."""
    requests = 500
    async with serving() as sockets:
        other, server = await sockets.client(), sockets.server
        assert await other.says_hello()
        partition = server.broker.topics.partition("t", 0)
        assert partition is not None
        connection = left_behind(sockets, produce(0) * requests)
        assert await other.says_hello()
        assert partition.log.end_offset < requests / 2
        assert connection in server.connections
        assert len(produce(0)) * requests / 2 < connection.counted <= server.memory.used
        await sockets.until(lambda: connection not in server.connections)
        assert (partition.log.end_offset, connection.counted, server.memory.used) == (requests, 0, 0)


async def test_of_what_a_client_leaves_behind_only_requests_with_a_lasting_effect_are_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No client reads the other responses.  What is no request, or waits, is handled as it is for other clients."""
    executed: list[int] = []

    def answer(broker: Any, frame: bytes, host: str) -> Any:
        executed.append(struct.unpack_from(">h", frame)[0])
        return answer_frame(broker, frame, host)

    monkeypatch.setattr("examples.broker.network.connection.answer_frame", answer)
    async with serving() as sockets:
        partition = sockets.server.broker.topics.partition("t", 0)
        assert partition is not None
        sent = (
            HELLO * 50
            + fetch()
            + frame(ALL_TOPICS, 5, 2)
            + produce(0)
            + produce(-1)
            + struct.pack(">ihhih", 10, 999, 0, 7, 0)
            + produce(0)
        )
        connection = left_behind(sockets, sent)
        await sockets.until(lambda: connection not in sockets.server.connections)
        assert executed == [0, 0, 999]
        assert (partition.log.end_offset, len(sockets.server.broker.produce)) == (2, 0)
        assert (sockets.server.dropped, sockets.server.memory.used) == (1, 0)


@pytest.mark.parametrize("how", ["shutdown", "limit", "bug"])
async def test_what_a_client_leaves_behind_can_be_given_up(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the broker stops, if all connections together hold too many bytes, or if a request meets a bug."""
    requests = 500
    async with serving() as sockets:
        server = sockets.server
        partition = server.broker.topics.partition("t", 0)
        assert partition is not None
        connection = left_behind(sockets, produce(0) * requests)
        await asyncio.sleep(0)
        if how == "limit":
            server.memory.limit = 1000
            assert not server.memory.fits(0)
            server.relieve(connection)
            assert connection.counted == 0
        elif how == "bug":
            monkeypatch.setattr("examples.broker.network.connection.is_lasting", lambda _: 1 / 0)
        if how != "shutdown":
            await sockets.until(lambda: connection not in server.connections)
    assert not server.connections
    assert 0 < partition.log.end_offset < requests / 2
    assert (server.memory.used, server.dropped) == (0, how != "shutdown")
    assert ("ZeroDivisionError" in caplog.text) == (how == "bug")


async def test_what_was_sent_behind_a_request_that_waits_is_discarded_at_the_end() -> None:
    """Requests behind one that is in progress at the disconnect are not executed; the one that waits is withdrawn."""
    async with serving() as sockets:
        client = await sockets.client()
        client.writer.write(fetch() + produce(0))
        fetches = sockets.server.broker.fetch
        await sockets.until(lambda: len(fetches) == 1)
        client.writer.close()
        await sockets.until(lambda: not sockets.server.connections)
        partition = sockets.server.broker.topics.partition("t", 0)
        assert partition is not None
        assert (partition.log.end_offset, len(fetches), fetches.statistics().cancelled) == (0, 0, 1)


async def test_acks_none_with_an_error_closes_the_connection() -> None:
    """The protocol has no other way to report the error."""
    async with serving() as sockets:
        client = await sockets.client()
        client.writer.write(produce(0, topic="nowhere"))
        assert await client.closed()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\x7f\xff\xff\xff" + bytes(100), "bytes, got 2147483647"),
        (b"\xff\xff\xff\xff" + bytes(100), "bytes, got -1"),
        (b"\x00\x00\x00\x00", "bytes, got 0"),
        (b"\x00\x20\x00\x00\x00\x03", "must be 8 to 1048576 bytes, got 2097152"),
        (b"\x00\x00\x00\x0a\x00\x63\x00\x00\x00\x00\x00\x01\xff\xff", "API key 99 is not supported"),
        (b"\x00\x00\x00\x0a\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff", "must be 0 to 5, got 99"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "bytes, got 1195725856"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "bytes, got 369295618"),
        (frame(ALL_TOPICS, 5)[:4] + bytes(len(frame(ALL_TOPICS, 5)) - 4), "ProduceRequest v0"),
    ],
)
async def test_what_is_no_request_closes_its_connection_with_a_reason_and_no_other(
    sent: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Invalid lengths, other protocols, unknown APIs and versions close only their own connection."""
    caplog.set_level(logging.INFO, "examples.broker")
    async with serving() as sockets:
        good, bad = await sockets.client(), await sockets.client()
        assert await good.says_hello()
        bad.writer.write(sent)
        assert await bad.closed()
        assert await good.says_hello()
        assert sockets.server.dropped == 1
    reasons = [record.getMessage() for record in caplog.records if "closed" in record.getMessage()]
    assert len(reasons) == 1
    assert why in reasons[0]


async def test_a_request_that_does_not_arrive_in_full_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """A half-open connection is closed after its timeout, even if single bytes arrive."""
    caplog.set_level(logging.INFO, "examples.broker")
    async with serving(frame_timeout=0.05) as sockets:
        client = await sockets.client()
        client.writer.write(HELLO[:3])
        assert await client.closed()
    assert "the request did not arrive in time" in caplog.text


async def test_a_connection_that_asks_nothing_is_closed_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """An idle connection is closed after its timeout; a connection with a parked request is not idle."""
    caplog.set_level(logging.INFO, "examples.broker")
    async with serving(idle_timeout=0.05) as sockets:
        waiting, idle = await sockets.client(), await sockets.client()
        waiting.writer.write(fetch(max_wait_ms=150))
        assert await idle.closed()
        assert (await waiting.response())[0] == 7
    assert "no request within the idle timeout" in caplog.text


async def test_a_reader_that_is_too_slow_is_given_up_and_holds_no_more_than_one_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If a client does not read a large response, its next request is not read, and the connection is closed."""
    caplog.set_level(logging.INFO, "examples.broker")
    async with serving(write_timeout=0.1, write_buffer_bytes=1024) as sockets:
        client = await sockets.client(limit=1024)
        for _ in range(8):
            client.writer.write(produce(1, value=b"x" * 900_000))
            await client.response()
        client.stop_reading()
        for _ in range(4):
            client.writer.write(fetch(max_bytes=1 << 23, partition_max_bytes=1 << 23))
        await sockets.until(lambda: sockets.server.memory.used > 0)
        assert sockets.server.memory.used < 1 << 23
        await sockets.until(lambda: not sockets.server.connections)
        assert sockets.server.memory.used == 0
        client.writer.transport.abort()
    assert "the response was not read in time" in caplog.text


async def test_all_connections_together_hold_a_limited_number_of_bytes(caplog: pytest.LogCaptureFixture) -> None:
    """The connection that would exceed the limit is closed and its memory is released; the others continue."""
    caplog.set_level(logging.INFO, "examples.broker")
    async with serving(max_buffered_bytes=100_000) as sockets:
        half = struct.pack(">ihh", 80_000, 0, 7) + bytes(59_996)
        first, second = await sockets.client(), await sockets.client()
        first.writer.write(half)
        await sockets.until(lambda: sockets.server.memory.used >= 60_000)
        second.writer.write(half)
        assert await second.closed()
        assert await (await sockets.client()).says_hello()
        first.writer.close()
        await sockets.until(lambda: sockets.server.memory.used == 0)
    assert "hold too many bytes" in caplog.text


async def test_what_a_client_sends_ahead_is_limited() -> None:
    """While its request is parked, a client may send one more frame; then reading pauses until the response."""
    async with serving(max_frame_bytes=20_000) as sockets:
        client = await sockets.client()
        client.writer.write(fetch(1, max_wait_ms=60_000))
        await sockets.until(lambda: len(sockets.server.broker.fetch) == 1)
        requests = 8000
        client.writer.write(HELLO * requests)
        await sockets.until(lambda: sockets.server.memory.used >= 20_000)
        assert sockets.server.memory.used < 20_000 + (1 << 19)
        other = await sockets.client()
        other.writer.write(produce(1))
        await other.response()
        assert (await client.response())[0] == 1
        for _ in range(requests):
            assert (await client.response())[0] == 7


async def test_too_many_connections_are_refused_and_a_free_place_is_taken() -> None:
    """The limit counts open connections."""
    async with serving(max_connections=2) as sockets:
        first, second = await sockets.client(), await sockets.client()
        assert await first.says_hello()
        assert await second.says_hello()
        assert await (await sockets.client()).closed()
        first.writer.close()
        await sockets.until(lambda: len(sockets.server.connections) == 1)
        assert await (await sockets.client()).says_hello()


async def test_shutdown_answers_every_parked_request_and_closes_the_connections() -> None:
    """A waiting fetch gets an empty response and a waiting produce a timeout; then the connections close."""
    async with serving() as sockets:
        consumer, producer, idle = await sockets.client(), await sockets.client(), await sockets.client()
        consumer.writer.write(fetch(1, topic="stalled") + fetch(2, topic="stalled"))
        producer.writer.write(produce(-1, "stalled"))
        assert await idle.says_hello()
        broker = sockets.server.broker
        await sockets.until(lambda: len(broker.fetch) == len(broker.produce) == 1)
        stopping = asyncio.create_task(sockets.server.__aexit__(None, None, None))
        assert (await consumer.response())[0] == 1
        assert (await producer.response())[0] == 7
        assert all([await client.closed() for client in (consumer, producer, idle)])
        await stopping
        assert not sockets.server.connections


async def test_shutdown_does_not_wait_for_ever_for_a_client_that_does_not_read() -> None:
    """Responses that are not read in time are dropped."""
    async with serving(shutdown_timeout=0.05, write_buffer_bytes=1024) as sockets:
        client = await sockets.client(limit=1024)
        for _ in range(8):
            client.writer.write(produce(1, value=b"x" * 900_000))
            await client.response()
        client.stop_reading()
        client.writer.write(fetch(max_bytes=1 << 23, partition_max_bytes=1 << 23))
        await sockets.until(lambda: sockets.server.memory.used > 0)
        await sockets.server.__aexit__(None, None, None)
        assert not sockets.server.connections


@pytest.mark.slow
async def test_five_thousand_connections_wait_at_once() -> None:
    """All requests are parked, the broker serves another connection, and one record completes all of them."""
    needed = 2 * 5000 + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{needed} files are needed, and {hard} allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    loop = asyncio.get_running_loop()
    async with serving() as sockets:
        crowd = [Member() for _ in range(5000)]
        for some in batched(crowd, 250):
            connects = [loop.create_connection(member.itself, "127.0.0.1", sockets.server.port) for member in some]
            await asyncio.gather(*connects)
        await sockets.until(lambda: len(sockets.server.broker.fetch) == 5000)
        other = await sockets.client()
        assert await other.says_hello()
        other.writer.write(produce(-1))
        await other.response()
        for member in crowd:
            assert (await member.answered)[4:8] == b"\x00\x00\x00\x07"
        for member in crowd:
            member.transport.abort()
        await sockets.until(lambda: len(sockets.server.connections) == 1)
        assert await other.says_hello()


def batched(members: list["Member"], size: int) -> list[list["Member"]]:
    return [members[start : start + size] for start in range(0, len(members), size)]


class Member(asyncio.Protocol):
    """A client that sends one request and keeps the first bytes of the response."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def itself(self) -> "Member":
        return self

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(fetch())

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            self.answered.set_result(data)
