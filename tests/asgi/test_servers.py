"""Real servers, started from their command lines: hang-ups, refusals, SIGTERM, and limits of requests.

The application uses FastAPI, or Starlette where a test is about the server or starts a server of its own.
The polls of these tests have an hour's deadline: a server that exits at all has answered them before.
"""

import asyncio
import importlib.util
import json
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

import aiohttp
import pytest
import pytest_asyncio
from fastapi import Depends, FastAPI

from benchmarks.shutdown import SERVERS, Client, ServerProcess, shut_down
from purgatory import Event, Observer, Purgatory
from purgatory.asgi import Wait, install_errors, purgatory_lifespan, waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the server chooses its own loop
_NEEDS = {
    "gunicorn, uvicorn worker": "uvicorn_worker",
    "uvicorn": "uvicorn",
    "gunicorn": "gunicorn",
    "hypercorn": "hypercorn",
    "granian": "granian",
}
Start = Callable[..., Awaitable[ServerProcess]]
sharing = pytest.mark.asyncio(loop_scope="module", loop_factories=["asyncio"])
_STARLETTE = "tests.asgi.starlette_app:app"
_ONE_EACH = ["uvicorn", "gunicorn, its asgi worker", "hypercorn", "granian"]


def skip_without(name: str) -> None:
    """Skip the test if a module that the server needs is not installed."""
    for prefix, module in _NEEDS.items():
        if name.startswith(prefix) and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install aiopurgatory[test]")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Start]:
    """Return a function that starts a server, or returns it if it runs.  Each test that shares it has keys of its own.

    A key has two places, and with ``GET /poll/KEY`` a client has two, which each test leaves free.  At the end, each
    server gets SIGTERM, exits, and has written no traceback.
    """
    running: dict[tuple[str, ...], ServerProcess] = {}

    async def start(name: str, **environment: str) -> ServerProcess:
        skip_without(name)
        if (name, *environment) not in running:
            limits = {"MAX_PARKED_PER_KEY": "2", "PER_CLIENT": "2"}
            running[name, *environment] = await stack.enter_async_context(ServerProcess(name, **limits, **environment))
        return running[name, *environment]

    async with AsyncExitStack() as stack:
        yield start
        for server in running.values():
            server.signal()
        for server in running.values():
            await server.exited()
            assert not any("Traceback" in line for line in server.output), "".join(server.output)


@pytest.mark.parametrize("name", SERVERS)
async def test_sigterm_answers_every_client_and_the_server_exits(name: str) -> None:
    """Half of the clients disconnect; the others are answered long before the deadline, and no traceback is printed."""
    skip_without(name)
    run = await shut_down(name, connections=12, hang_up=0.5, timeout=3600.0)
    assert run.wrong == []
    assert run.statuses == {204: 6}


@pytest.mark.parametrize(
    "name", [name if name == "hypercorn" else pytest.param(name, marks=pytest.mark.slow) for name in SERVERS]
)
async def test_sigterm_to_all_processes_of_a_server_answers_every_client(name: str) -> None:
    """systemd sends the signal to the workers, too, and Hypercorn itself leaves it to its default action there."""
    skip_without(name)
    async with ServerProcess(name, _STARLETTE) as server:
        clients = [await server.connect() for _ in range(4)]
        for client in clients:
            client.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 4)
        server.signal(to_all=True)
        assert [(await client.response())[0] for client in clients] == [204] * 4
        await server.exited()
        assert not any("Traceback" in line for line in server.output)


@pytest.mark.parametrize("to_all", [False, True])
async def test_a_worker_of_hypercorn_keeps_its_grace_when_another_has_ended(to_all: bool) -> None:
    """Hypercorn terminates all workers as soon as the first one has ended: here, the one without requests."""
    skip_without("hypercorn")
    async with ServerProcess("hypercorn", _STARLETTE, ["--workers", "2"], GRACE="1") as server:
        await server.until(lambda: server.count("ready") == 2)
        client = await server.connect()
        client.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 1)
        server.signal(to_all=to_all)
        assert (await client.response())[0] == 204
        assert await server.exited() == 0
        assert not any("Traceback" in line for line in server.output)


@pytest.mark.parametrize("name", ["gunicorn, uvicorn worker", "gunicorn, its asgi worker"])
async def test_a_preloaded_application_with_an_inspector_serves(name: str) -> None:
    """The master imports the application, inspector included, and forks; each worker uses its copy of the purgatory."""
    skip_without(name)
    async with ServerProcess(name, _STARLETTE, ["--preload"], INSPECTOR="1") as server:
        client = await server.connect()
        client.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 1)
        server.signal()
        assert (await client.response())[0] == 204
        await server.exited()
        assert not any("Traceback" in line for line in server.output)


@pytest.mark.slow
async def test_a_thousand_connections_are_answered_or_withdrawn() -> None:
    """Half of the clients disconnect; each of the others is answered at the signal."""
    skip_without("uvicorn")
    run = await shut_down("uvicorn", connections=1000, hang_up=0.5, timeout=3600.0)
    assert run.wrong == []
    assert run.statuses == {204: 500}


@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_hang_up_withdraws_the_operation(name: str) -> None:
    """With a limit of one, the next client can wait as soon as the last one has closed or reset its connection."""
    skip_without(name)
    async with ServerProcess(name, _STARLETTE, MAX_PARKED="1") as server:
        waiting = await server.connect()
        waiting.send("GET", "/poll/a?timeout=3600")
        for number, reset in ((1, False), (2, True)):
            await server.until(lambda parked=number: server.count("parked") == parked)
            refused = await server.connect()
            refused.send("GET", "/poll/a?timeout=3600")
            status, headers, _ = await refused.response()
            assert (status, headers["retry-after"]) == (503, "2")
            waiting.hang_up(reset=reset)
            await server.until(lambda withdrawn=number: server.count("withdrawn") == withdrawn)
            waiting = await server.connect()
            waiting.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 3)
        server.signal()
        assert (await waiting.response())[0] == 204
        await server.exited()
        assert not any("Traceback" in line for line in server.output)


@pytest.mark.parametrize("places", [2, 3])
async def test_parked_requests_take_the_places_of_granian(places: int) -> None:
    """A request that finds no place is answered when a parked one has ended; with one more place, at once."""
    skip_without("granian")
    async with ServerProcess("granian", _STARLETTE, ["--backpressure", str(places)]) as server:
        waiting = [await server.connect() for _ in range(2)]
        for client in waiting:
            client.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 2)
        probe = await server.connect()
        probe.send("GET", "/healthz/")
        if places == 2:
            waiting[0].hang_up()
        assert (await probe.response())[0] == 200
        await server.until(lambda: server.count("withdrawn") == 3 - places)
        server.signal()
        assert (await waiting[1].response())[0] == 204
        await server.exited()


@sharing
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_body_that_arrives_while_waiting_is_read_afterwards(name: str, shared: Start) -> None:
    """The second half of the body is sent while the request waits, and both halves are returned."""
    server = await shared(name)
    client = await server.connect()
    client.send("POST", "/echo/body", "Content-Length: 8", body=b"half")
    await server.until(lambda: server.count("parked", "body") == 1)
    client.write(b"more")
    writer = await server.connect()
    writer.send("POST", "/events/body")
    assert (await writer.response())[2] == b"1"
    status, _, body = await client.response()
    assert (status, body) == (200, b"halfmore")


@sharing
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_after_a_wait_the_request_goes_on(name: str, shared: Start) -> None:
    """It can wait again, and read a body that arrived during a wait that ended at once, also below a middleware."""
    server = await shared(name, BASE_HTTP_MIDDLEWARE="1")
    client = await server.connect()
    client.send("GET", "/twice/again?timeout=0.01")
    status, _, body = await client.response()
    assert (status, json.loads(body)) == (200, [False, False])
    for _ in range(3):
        client.send("POST", "/echo/again?timeout=0.001", "Content-Length: 8", body=b"the body")
        status, _, body = await client.response()
        assert (status, body) == (200, b"the body")


@sharing
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_full_key_is_refused_with_429(name: str, shared: Start) -> None:
    """The response has Retry-After; other requests on the connection continue."""
    server = await shared(name)
    waiting = [await server.connect() for _ in range(2)]
    for client in waiting:
        client.send("POST", "/poll/full", "Content-Length: 0")
    await server.until(lambda: server.count("parked", "full") == 2)
    probe = await server.connect()
    probe.send("POST", "/poll/full", "Content-Length: 0")
    status, headers, body = await probe.response()
    assert (status, headers["retry-after"]) == (429, "2")
    assert b"too many requests are waiting for this resource" in body
    probe.send("GET", "/healthz/")
    assert (await probe.response())[0] == 200


@sharing
@pytest.mark.parametrize(
    "name", ["uvicorn", "gunicorn, uvicorn worker", "gunicorn, its asgi worker", "hypercorn", "granian"]
)
async def test_a_pipelined_request_hides_a_hang_up_but_takes_few_places(name: str, shared: Start) -> None:
    """Servers stop reading when the next request has arrived, so they do not notice the reset.  ``per_client`` limits
    the places that such a client holds, the deadline ends them, and no traceback is printed.
    """
    server = await shared(name)
    notices = name == "gunicorn, its asgi worker"
    for number in (1, 2):
        client = await server.connect()
        client.send("GET", "/poll/hidden?timeout=1")
        client.send("GET", "/poll/hidden?timeout=1")
        await server.until(lambda parked=number: server.count("parked", "hidden") >= parked)
        client.hang_up(reset=True)
        if notices:
            await server.until(lambda withdrawn=number: server.count("withdrawn", "hidden") >= withdrawn)
    if not notices:
        assert server.count("withdrawn", "hidden") == 0
        assert await get(server, "/poll/other?timeout=1") == 429
    other = Client(*await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0)))
    other.send("GET", "/poll/other?timeout=0.01")
    assert (await other.response())[0] == 204
    other.hang_up()
    if not notices:
        await server.until(lambda: server.count("expired", "hidden") + server.count("withdrawn", "hidden") >= 2)


class UnixServerProcess(ServerProcess):
    """uvicorn on a Unix socket."""

    def __init__(self, path: str, options: list[str], **environment: str) -> None:
        super().__init__("uvicorn", options=["--uds", path, *options], **environment)
        self._path = path

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_unix_connection(self._path))
        self._clients.append(client)
        return client

    async def _accepts(self) -> bool:
        assert not self._ended, "".join(self.output)
        try:
            await self.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


@pytest.mark.parametrize("trusting", [False, True])
async def test_per_client_counts_the_connections_of_a_unix_socket(trusting: bool) -> None:
    """Without the proxy's addresses, all connections are one client, and the log names uvicorn's option; with the
    option, each address has places of its own.
    """
    skip_without("uvicorn")
    with tempfile.TemporaryDirectory() as directory:  # its path is short enough for a socket
        path = f"{directory}/socket"
        async with UnixServerProcess(
            path, ["--forwarded-allow-ips", "*"] if trusting else [], PER_CLIENT="1"
        ) as server:
            first, second = await server.connect(), await server.connect()
            first.send("GET", "/poll/a?timeout=3600", "X-Forwarded-For: 10.0.0.1")
            await server.until(lambda: server.count("parked") == 1)
            second.send("GET", "/poll/a?timeout=0.01", "X-Forwarded-For: 10.0.0.2")
            assert (await second.response())[0] == (204 if trusting else 429)
            second.send("GET", "/poll/a?timeout=0.01", "X-Forwarded-For: 10.0.0.1")
            assert (await second.response())[0] == 429
            server.signal()
            assert (await first.response())[0] == 204
            await server.exited()
        warnings = [line for line in server.output if "--forwarded-allow-ips '*'" in line]
        assert len(warnings) == (0 if trusting else 1), "".join(server.output)


@pytest.mark.slow
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_stream_whose_client_sent_another_request_ends_when_it_sends(name: str) -> None:
    """The server does not notice the reset, but the next events or heartbeats cannot be sent, and the place is free."""
    skip_without(name)
    async with ServerProcess(name) as server, aiohttp.ClientSession() as session:
        client = await server.connect()
        client.send("GET", "/events/a")
        client.send("GET", "/events/a")
        await server.until(lambda: server.count("parked") == 1)
        client.hang_up(reset=True)
        while server.count("withdrawn") == 0:
            async with session.post(f"http://127.0.0.1:{server.port}/events/a"):
                pass
        server.signal()
        await server.exited()
        assert "purgatory/asgi" not in "".join(server.output), "a traceback of Hypercorn's own is possible"


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [
        ("uvicorn", ["--timeout-graceful-shutdown", "2"], "uvicorn's timeout_graceful_shutdown=2"),
        ("uvicorn --workers 2", ["--timeout-graceful-shutdown", "2"], "uvicorn's timeout_graceful_shutdown=2"),
        ("gunicorn, uvicorn worker", ["--graceful-timeout", "2"], "gunicorn's graceful_timeout=2"),
        ("gunicorn, its asgi worker", ["--graceful-timeout", "2"], "gunicorn's graceful_timeout=2"),
        ("hypercorn", ["--graceful-timeout", "2"], "hypercorn's graceful_timeout=2"),
        ("hypercorn --workers 0", ["--graceful-timeout", "2"], "hypercorn's graceful_timeout=2"),
    ],
)
async def test_a_grace_that_the_server_would_cut_short_is_shortened(name: str, options: list[str], limit: str) -> None:
    """The log has a warning at the start, and the parked request is answered before the server drops it."""
    skip_without(name)
    async with ServerProcess(name, _STARLETTE, options, GRACE="5") as server:
        expected = f"grace=5 is not below {limit}"
        await server.until(lambda: any(expected in line for line in server.output))
        client = await server.connect()
        client.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 1)
        server.signal()
        assert (await client.response())[0] == 204
        await server.exited()


@pytest.mark.slow
async def test_what_is_in_progress_at_the_signal_is_finished_within_the_grace() -> None:
    """A request that completes a waiting request is still served; a request that would have to wait gets 503."""
    skip_without("uvicorn")
    async with ServerProcess("uvicorn", GRACE="3600") as server:
        waiting = await server.connect()
        waiting.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 1)
        poll, post = await server.connect(), await server.connect()
        for client, target in ((poll, "/poll/b"), (post, "/events/a")):
            client.send("POST", target, "Content-Length: 1", "Expect: 100-continue")
            assert (await client.response())[0] == 100  # the handler reads the body
        server.signal()
        await server.until(lambda: any("Waiting for connections to close" in line for line in server.output))
        poll.write(b"x")
        status, headers, _ = await poll.response()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "2", "close")
        post.write(b"x")
        assert (await post.response())[2] == b"1"
        assert (await waiting.response())[0] == 200
        assert await server.exited() in (0, -signal.SIGTERM)


@pytest.mark.slow
async def test_sigint_is_chained_too() -> None:
    """SIGINT, as from Ctrl-C, is also handled."""
    skip_without("uvicorn")
    async with ServerProcess("uvicorn") as server:
        client = await server.connect()
        client.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 1)
        server.signal(signal.SIGINT)
        assert (await client.response())[0] == 204
        await server.exited()


@sharing
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_websocket_that_hangs_up_is_withdrawn(name: str, shared: Start) -> None:
    """A message reaches the WebSocket that stays; the place of the one that closes is free."""
    server = await shared(name)
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/events/websocket"
        leaving, staying = await session.ws_connect(url), await session.ws_connect(url)
        await server.until(lambda: server.count("parked", "websocket") == 2)
        await leaving.close()
        await server.until(lambda: server.count("withdrawn", "websocket") == 1)
        async with session.post(url) as response:
            assert await response.text() == "1"
        assert (await staying.receive_str()) == "websocket"
        await staying.close()


@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_websocket_that_follows_a_key(name: str) -> None:
    """Its subscription ends when the client closes the socket or vanishes, and the socket closes with the purgatory."""
    skip_without(name)
    async with ServerProcess(name, _STARLETTE) as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/changes/a"
        closing, vanishing, staying = [await session.ws_connect(url) for _ in range(3)]
        await server.until(lambda: server.count("parked", "a") == 3)
        async with session.post(f"http://127.0.0.1:{server.port}/events/a"):
            assert [await each.receive_json() for each in (closing, vanishing, staying)] == ["a", "a", "a"]
        await closing.close()
        await server.until(lambda: server.count("withdrawn", "a") == 1)
        vanishing._response.connection.transport.abort()
        await server.until(lambda: server.count("withdrawn", "a") == 2)
        async with session.post(f"http://127.0.0.1:{server.port}/events/a"):
            assert await staying.receive_json() == "a"
        server.signal()
        assert (await staying.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        await server.exited()
        assert not any("Traceback" in line for line in server.output), "".join(server.output)


@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_websocket_that_waits_again_and_again_detects_a_disconnect(name: str) -> None:
    """Its client sends more messages than the library buffers; a task of the endpoint reads them."""
    skip_without(name)
    async with ServerProcess(name, _STARLETTE) as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/orders/a"
        leaving, staying = await session.ws_connect(url), await session.ws_connect(url)
        await server.until(lambda: server.count("parked", "a") == 2)
        for _ in range(3_000):
            await leaving.send_str("ping")
        async with session.post(f"http://127.0.0.1:{server.port}/events/a"):
            assert [await each.receive_json() for each in (leaving, staying)] == [1, 1]
        await server.until(lambda: server.count("parked", "a") == 4)
        await leaving.close()
        await server.until(lambda: server.count("withdrawn", "a") == 1)
        async with session.post(f"http://127.0.0.1:{server.port}/events/a"):
            assert await staying.receive_json() == 2
        await staying.close()


@sharing
@pytest.mark.slow
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_websocket_that_waits_before_it_is_accepted(name: str, shared: Start) -> None:
    """Its disconnect is noticed, except by granian, where the operation waits until its deadline."""
    server = await shared(name)
    client = await server.connect()
    handshake = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    client.send("GET", "/early/early", *handshake, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
    await server.until(lambda: server.count("parked", "early") == 1)
    client.hang_up(reset=True)
    await server.until(lambda: server.count("withdrawn", "early") + server.count("expired", "early") == 1)
    assert server.count("expired", "early") == (name == "granian")


@sharing
@pytest.mark.slow
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_hang_up_passes_base_http_middleware(name: str, shared: Start) -> None:
    """A disconnect is detected with Starlette's BaseHTTPMiddleware between the server and the endpoint."""
    server = await shared(name, BASE_HTTP_MIDDLEWARE="1")
    client = await server.connect()
    client.send("GET", "/poll/hang-up?timeout=3600")
    await server.until(lambda: server.count("parked", "hang-up") == 1)
    client.hang_up()
    await server.until(lambda: server.count("withdrawn", "hang-up") == 1)


@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_stream_of_events_ends_with_its_client_or_with_the_server(name: str) -> None:
    """A disconnect ends the subscription; at SIGTERM the response is completed, also during a grace period."""
    skip_without(name)
    async with ServerProcess(name, _STARLETTE, GRACE="3600") as server, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/events/a"
        leaving, staying = await session.get(url), await session.get(url)
        await server.until(lambda: server.count("parked") == 2)
        leaving.close()
        await server.until(lambda: server.count("withdrawn") == 1)
        async with session.post(url):
            assert await staying.content.readuntil(b"data: a\n\n") == b":\n\ndata: a\n\n"
        server.signal()
        assert await staying.read() == b""
        await server.until(lambda: server.count("statistics") == 1)
        assert await server.exited() in (0, -signal.SIGTERM)
        assert not any("Traceback" in line for line in server.output)


@sharing
@pytest.mark.slow
@pytest.mark.parametrize("middleware", [{}, {"BASE_HTTP_MIDDLEWARE": "1"}], ids=["no middleware", "a middleware"])
@pytest.mark.parametrize("name", _ONE_EACH)
async def test_a_stream_after_a_wait_ends_with_a_client_whose_body_is_missing(
    name: str, middleware: dict[str, str], shared: Start
) -> None:
    """The wait may have left a ``receive()`` pending for the rest of the body, and the disconnect comes instead."""
    server = await shared(name, **middleware)
    client = await server.connect()
    client.send("GET", "/late-events/late", "Content-Length: 10")
    await server.until(lambda: server.count("parked", "late") == 2)
    client.hang_up()
    await server.until(lambda: server.count("withdrawn", "late") == 1)


async def get(server: ServerProcess, target: str) -> int:
    """Send a request on a connection of its own, and return the status."""
    client = await server.connect()
    client.send("GET", target)
    status = (await client.response())[0]
    client.hang_up()
    return status


@pytest.mark.parametrize(
    "name",
    [
        name if name == "uvicorn" else pytest.param(name, marks=pytest.mark.slow)
        for name in SERVERS
        if not name.startswith("granian")  # it has no limit of requests
    ],
)
async def test_a_worker_that_reaches_its_limit_of_requests_answers_every_client(name: str) -> None:
    """No signal reaches such a worker; its parked requests are answered as at SIGTERM, and a new worker serves."""
    skip_without(name)
    limit = "--limit-max-requests" if name.startswith("uvicorn") else "--max-requests"
    async with ServerProcess(name, _STARLETTE, [limit, "2"]) as server:
        client = await server.connect()
        client.send("GET", "/poll/a?timeout=3600")
        await server.until(lambda: server.count("parked") == 1)
        workers = server.count("ready")
        answer = asyncio.create_task(client.response())
        for _ in range(2):
            assert await get(server, "/healthz/") == 200
        while workers == 2 and not answer.done():  # the other worker serves some, and stops as well
            await get(server, "/healthz/")
        status, headers, _ = await answer
        assert (status, headers["connection"].lower()) == (204, "close")
        if name not in ("uvicorn", "hypercorn --workers 0"):  # these are a single process, and end
            await server.until(lambda: server.count("ready") > workers)
            assert workers == 2 or await get(server, "/healthz/") == 200
            server.signal()
        assert await server.exited() in (0, -signal.SIGTERM)
        assert not any("Traceback" in line or "Exception" in line for line in server.output)


# Servers that a program starts and stops itself


class Embedded(Observer):
    """A uvicorn that serves ``GET /inner`` and ``GET /outer``, which wait in the purgatories of two nested lifespans.

    ``server``: a ``uvicorn.Server``.  ``arrivals``: the names of the purgatories, once for each operation that parks.
    """

    def __init__(self, nested: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.arrivals: asyncio.Queue[str] = asyncio.Queue()
        self.inner, self.outer = (Purgatory[Any](name, observers=[self]) for name in ("inner", "outer"))
        inner = purgatory_lifespan(self.inner)
        app = FastAPI(lifespan=purgatory_lifespan(self.outer, lifespan=inner) if nested == "lifespan" else None)
        install_errors(app)
        application: Any = app if nested == "lifespan" else purgatory_lifespan(self.outer).wrap(inner.wrap(app))
        for room in (self.inner, self.outer):

            @app.get(f"/{room.name}")
            async def poll(wait: Annotated[Wait, Depends(waiting(room))]) -> bool:
                return await wait.until(lambda: False, keys=["a"], timeout=3600)

        uvicorn = pytest.importorskip("uvicorn")
        self.server = uvicorn.Server(uvicorn.Config(application, log_config=None))

    def parked(self, event: Event) -> None:
        """Called in the thread of the server."""
        self._loop.call_soon_threadsafe(self.arrivals.put_nowait, event.purgatory)

    async def serve(self) -> None:
        """Serve until the server is stopped."""
        await self.server.serve(sockets=[self._socket])

    async def park(self, name: str) -> Client:
        """Send a request, and return when it is parked."""
        client = Client(*await asyncio.open_connection(*self._socket.getsockname()))
        client.send("GET", f"/{name}")
        assert await self.arrivals.get() == name
        return client


@asynccontextmanager
async def in_a_thread(*servers: Embedded) -> AsyncIterator[None]:
    """Serve with all of them on one event loop in another thread, and stop them at the end."""
    factory = type(asyncio.get_running_loop())

    async def serve() -> None:
        await asyncio.gather(*(each.serve() for each in servers))

    def run() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    except BaseException:
        for each in servers:
            each.server.force_exit = True  # without waiting for the clients
        raise
    finally:
        for each in servers:
            each.server.should_exit = True
        await asyncio.to_thread(thread.join)


@pytest.mark.asyncio
@pytest.mark.parametrize("nested", ["lifespan", "wrapped"])
async def test_a_server_that_its_program_stops_answers_its_clients(nested: str) -> None:
    """In a thread, where there are no signals: both purgatories close, and those of the other server stay open."""
    stopping, staying = Embedded(nested), Embedded(nested)
    async with in_a_thread(stopping, staying):
        answered = [await stopping.park("inner"), await stopping.park("outer")]
        unanswered = await staying.park("inner")
        stopping.server.should_exit = True
        for client in answered:
            status, headers, body = await client.response()
            assert (status, headers["connection"], body) == (200, "close", b"false")
            client.hang_up()
        assert (staying.inner.closed, staying.outer.closed, len(staying.inner)) == (False, False, 1)
        staying.server.should_exit = True
        assert (await unanswered.response())[0] == 200
        unanswered.hang_up()
    for each in (stopping, staying):
        assert "shutdown" not in vars(each.server), "the method of the server is restored"
