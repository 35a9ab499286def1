"""The limits on the data of one client: heads, bodies, responses, messages, connections."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from examples.long_poll.http_protocol import limited_protocol
from examples.long_poll.server_process import ServerProcess
from tests.examples.long_poll.harness import AppHarness


@contextlib.asynccontextmanager
async def serving(*words: str) -> AsyncIterator[ServerProcess]:
    """Yield a server on a free port, on the event loop of the test."""
    on_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    async with ServerProcess("--port", "0", *words, *([] if on_uvloop else ["--no-uvloop"])) as server:
        yield server


class Client:
    """A connection that sends bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, target: str = "/stats") -> int:
        """Send a GET request and return its status."""
        self.writer.write(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        return await self.answer()

    async def answer(self) -> int:
        """Read a response and return its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """Return the bytes that arrive until the connection is closed."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def connected(server: ServerProcess, number: int = 1) -> AsyncIterator[list[Client]]:
    """Yield clients of the server."""
    host, port = server.url.removeprefix("http://").split(":")
    clients = [Client(*await asyncio.open_connection(host, int(port))) for _ in range(number)]
    try:
        yield clients
    finally:
        for client in clients:
            client.writer.close()
        for client in clients:
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent", [b"", b"G", b"GET /stats HTTP/1.1\r\nhost: localhost\r\nx-a: ", b"GET /stats HTTP/1.1\r\n\r"]
)
async def test_half_open_requests_are_closed_and_another_client_is_served(sent: bytes) -> None:
    """Two hundred connections send a partial head or nothing, and are closed; another client is served."""
    async with serving("--head-timeout", "0.3") as server, connected(server, 200) as attackers:
        for attacker in attackers:
            attacker.writer.write(sent)
        async with connected(server) as (other,):
            assert await other.ask() == 200
        assert await asyncio.gather(*[attacker.rest() for attacker in attackers]) == [b""] * 200
        async with connected(server) as (other,):
            assert await other.ask() == 200


@pytest.mark.slow
async def test_a_half_open_request_behind_an_answered_one_is_closed() -> None:
    """The limit applies to each request of a connection, not only to the first one."""
    async with serving("--head-timeout", "0.3") as server, connected(server) as (client,):
        assert await client.ask() == 200
        client.writer.write(b"GET /st")
        assert await client.rest() == b""


@pytest.mark.slow
async def test_a_reader_that_waits_longer_than_the_limits_of_a_connection_has_its_answer() -> None:
    """The limits apply to sending and reading, not to the time that a reader waits."""
    words = ("--head-timeout", "0.1", "--body-timeout", "0.1", "--write-timeout", "0.1")
    async with serving(*words) as server, connected(server) as (client,):
        assert await client.ask("/topics/a?max_wait=0.5") == 200
        assert await client.ask() == 200


@pytest.mark.parametrize("pieces", [1, 40])
async def test_a_head_that_is_too_long_is_refused_and_another_client_is_served(pieces: int) -> None:
    """Two megabytes of headers, in one piece or in many, get 431, and the server stores none of them."""
    async with serving("--max-head-bytes", "8192") as server, connected(server, 2) as (attacker, other):
        assert await other.ask() == 200
        before = server.rss()
        attacker.writer.write(b"GET /stats HTTP/1.1\r\nhost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(pieces):
                attacker.writer.write(b"x-%d: " % number + b"a" * (2_000_000 // pieces) + b"\r\n")
                await attacker.writer.drain()
        answer = await attacker.rest()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431")
        assert await other.ask() == 200
        assert server.rss() - before < 1_000_000


async def test_a_head_just_within_the_limit_is_taken_with_a_body_that_is_longer() -> None:
    """Only the head counts, even if its end arrives in two pieces."""
    async with serving("--max-head-bytes", "1024") as server, connected(server) as (client,):
        head = b"POST /topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\nx-a: "
        head += b"a" * (1024 - len(head) - 4) + b"\r\n\r\n"
        assert len(head) == 1024
        client.writer.write(head[:-2])
        await client.writer.drain()
        client.writer.write(head[-2:] + b"b" * 100_000)
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201")
    async with serving("--max-head-bytes", "1023") as server, connected(server) as (client,):
        client.writer.write(head)
        assert (await client.rest()).startswith(b"HTTP/1.1 431")


_PARKED = b"GET /topics/a?max_wait=30 HTTP/1.1\r\nhost: localhost\r\n\r\n"
_LAST_CHUNK = b"POST /topics/a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
_LINES = b"".join(b"x-%d: %s\r\n" % (number, b"a" * 100) for number in range(400))


@pytest.mark.parametrize("together", [True, False], ids=["in-one-piece", "in-two-pieces"])
@pytest.mark.parametrize(
    ("request_", "start", "rest"),
    [
        pytest.param(_PARKED, b"GET /x HTTP/1.1\r\n", _LINES, id="next-head"),
        pytest.param(_PARKED, b"GET /x HTTP/1.1\r\nx: ", b"a" * 40_000, id="next-head-of-one-value"),
        pytest.param(_PARKED, b"GET /", b"a" * 40_000, id="next-url"),
        pytest.param(_PARKED, b"\r\n", b"\r\n" * 20_000, id="empty-lines"),
        pytest.param(_LAST_CHUNK, b"", _LINES, id="trailers"),
        pytest.param(_LAST_CHUNK, b"x: ", b"a" * 40_000, id="trailers-of-one-value"),
        pytest.param(_PARKED, b"", b"GET /stats HTTP/1.1\r\n\r\n" * 2000, id="many-next-heads"),
    ],
)
async def test_what_follows_the_head_of_a_request_in_progress_has_the_limit_of_a_head(
    request_: bytes, start: bytes, rest: bytes, together: bool
) -> None:
    """Two megabytes of a next head, of trailers, or of next requests end the connection, without another response; the
    server stores none of them, and another client is served.
    """
    async with serving("--max-head-bytes", "8192") as server, connected(server, 2) as (attacker, other):
        assert await other.ask() == 200
        before = server.rss()
        attacker.writer.write(request_)
        if not together:
            await attacker.writer.drain()
            assert await other.ask() == 200  # the server has read the request
        attacker.writer.write(start)
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                attacker.writer.write(rest)
                await attacker.writer.drain()
        assert await attacker.rest() == b""
        assert await other.ask() == 200
        assert server.rss() - before < 2_000_000


async def test_requests_sent_without_waiting_for_the_responses_have_a_limit() -> None:
    """Two hundred thousand requests that are answered at once do not pile up: the connection is closed."""
    async with serving() as server, connected(server, 2) as (attacker, other):
        assert await other.ask() == 200
        before = server.rss()
        answers = asyncio.ensure_future(attacker.rest())
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                attacker.writer.write(b"GET /stats HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)
                await attacker.writer.drain()
        assert (await answers).count(b"HTTP/1.1 200") < 200_000
        assert await other.ask() == 200
        assert server.rss() - before < 4_000_000


async def test_a_few_requests_sent_without_waiting_for_the_responses_are_answered_in_order() -> None:
    """A reader that waits, messages that are longer than a head may be, with and without trailers, and a reader."""
    body = b"b" * 100_000
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(body) // 4, body[: len(body) // 4]) for _ in range(4))
    sent = (
        b"GET /topics/a?max_wait=0.1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n" + body,
        b"\r\nPOST /topics/a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + chunked,
        b"0\r\nx-a: " + b"a" * 500 + b"\r\n\r\n",
        *[b"GET /stats HTTP/1.1\r\nhost: localhost\r\nx-a: " + b"a" * 800 + b"\r\n\r\n"] * 12,
        b"GET /topics/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    async with serving("--max-head-bytes", "1024") as server, connected(server) as (client,):
        client.writer.writelines(sent)
        answers = (await client.rest()).split(b"HTTP/1.1 ")[1:]
        assert [int(answer[:3]) for answer in answers] == [200, 201, 201, *[200] * 12, 200]
        assert answers[-1].count(b"b" * 100_000) == 2


async def test_a_head_that_begins_before_the_response_to_the_previous_request_counts_as_a_whole() -> None:
    """The bytes that arrived before the response are not forgotten."""
    async with serving("--max-head-bytes", "1024") as server, connected(server) as (client,):
        head = b"GET /topics/a?max_wait=0 HTTP/1.1\r\nhost: localhost\r\nx-a: "
        for length, status in ((1024, 200), (1025, 431)):
            whole = head + b"a" * (length - len(head) - 4) + b"\r\n\r\n"
            client.writer.write(b"GET /topics/a?max_wait=0.1 HTTP/1.1\r\nhost: localhost\r\n\r\n" + whole[:900])
            assert await client.answer() == 200
            client.writer.write(whole[900:])
            assert await client.answer() == status


class StalledTransport(asyncio.Transport):
    """A transport of a client that reads nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def abort(self) -> None:
        self.aborted.set()

    close = abort

    def is_closing(self) -> bool:
        return self.aborted.is_set()


async def test_an_answer_that_is_not_read_is_given_up() -> None:
    """The connection is closed if its buffer stays full for too long, and not if the response has been read by then."""
    make = limited_protocol(head_timeout=60.0, max_head_bytes=1000, write_timeout=0.01, max_connections=2)
    protocols: list[Any] = [make(uvicorn.Config(_no_app), ServerState(), {}) for _ in range(2)]  # type: ignore[call-arg]
    transports = [StalledTransport(), StalledTransport()]
    for protocol, transport in zip(protocols, transports, strict=True):
        protocol.connection_made(transport)
        protocol.pause_writing()
    protocols[1].on_response_complete()
    protocols[1].resume_writing()
    await transports[0].aborted.wait()
    assert not transports[1].aborted.is_set()
    for protocol in protocols:
        protocol.connection_lost(None)
    assert [protocol._head_limit or protocol._write_limit for protocol in protocols] == [None, None]


async def test_an_answer_that_is_read_in_small_portions_is_given_up() -> None:
    """The time applies to the whole response: reading a portion of it now and then does not prolong the time.  After
    the last portion, no time limit is left.
    """
    make = limited_protocol(head_timeout=60.0, max_head_bytes=1000, write_timeout=0.05, max_connections=2)
    protocols: list[Any] = [make(uvicorn.Config(_no_app), ServerState(), {}) for _ in range(2)]  # type: ignore[call-arg]
    transports = [StalledTransport(), StalledTransport()]
    for protocol, transport in zip(protocols, transports, strict=True):
        protocol.connection_made(transport)
        for _ in range(3):
            protocol.pause_writing()
            protocol.resume_writing()
    protocols[1].on_response_complete()
    await transports[0].aborted.wait()
    assert not transports[1].aborted.is_set()
    for protocol in protocols:
        protocol.connection_lost(None)


async def test_answers_that_are_not_read_have_a_common_limit() -> None:
    """Twenty clients who do not read 18 MB each take hardly more memory than the limit.  Another reader gets 503, a
    reader of a short message gets it, and when the twenty have left, all are served.
    """
    message = b"\x01" * 1_000_000  # six times as long in JSON
    limit = 40_000_000
    async with serving("--max-unsent-bytes", str(limit)) as server, connected(server) as (other,):
        for topic, body in (("a", message), ("a", message), ("a", message), ("b", b"short")):
            head = f"POST /topics/{topic} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            other.writer.write(head.encode() + body)
            assert await other.answer() == 201
        assert await other.ask("/topics/a") == 200
        before = server.rss()
        async with contextlib.AsyncExitStack() as left:

            async def attack(number: int) -> None:
                for attacker in await left.enter_async_context(connected(server, number)):
                    attacker.writer.transport.pause_reading()  # type: ignore[attr-defined]
                    attacker.writer.write(b"GET /topics/a HTTP/1.1\r\nhost: localhost\r\n\r\n")

            await attack(20)
            async with asyncio.timeout(30.0):
                # Those that came while the reader was served got 503 themselves, and hold nothing.
                while await other.ask("/topics/a") != 503:
                    await attack(1)
            assert await other.ask("/topics/b") == 200
            assert server.rss() - before < limit + 40_000_000
        async with asyncio.timeout(30.0):
            while await other.ask("/topics/a") != 200:
                pass


async def _no_app(scope: object, receive: object, send: object) -> None:
    """Never called."""


async def test_connections_have_a_limit() -> None:
    """A connection above the limit is closed, and the existing ones are served."""
    async with serving("--max-connections", "2") as server, connected(server, 2) as clients:
        assert [await client.ask() for client in clients] == [200, 200]
        async with connected(server) as (more,):
            assert await more.rest() == b""
        assert [await client.ask() for client in clients] == [200, 200]


async def test_a_body_that_does_not_come_is_given_up(harness: AppHarness) -> None:
    """If the body does not arrive in time, the client gets 408, and nothing is appended."""
    call = await harness.call("POST", "/topics/a", b"half", b"")
    assert call.status is not None
    stuck = await harness.call_without_end("/topics/a", b"half")
    await harness.clock.advance(29.0)
    assert stuck.status is None
    await harness.clock.advance(1.1)
    assert (stuck.status, stuck.headers["connection"]) == (408, "close")
    assert json.loads(stuck.text)["error"] == "message must arrive within 30 seconds"
    assert harness.room.topics.get("a").end == 1


async def test_a_reader_whose_messages_are_about_to_go_is_answered(harness: AppHarness) -> None:
    """A reader that waits for more bytes than are kept gets the available messages before the first one is deleted."""
    reader, patient = (
        await harness.get("/topics/a?min_bytes=9000"),
        await harness.get("/topics/a?offset=0&min_bytes=9999"),
    )
    for _ in range(400):
        await harness.post("a", b"x")
        if reader.sent:
            break
    assert [call.status for call in (reader, patient)] == [200, 200]
    offsets = [message["offset"] for message in reader.answer["messages"]]
    assert offsets == list(range(len(offsets)))
    assert 50 < len(offsets) < 400
    assert harness.room.topics.get("a").start > 0
