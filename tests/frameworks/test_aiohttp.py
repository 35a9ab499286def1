"""aiohttp's server: disconnects with ``handler_cancellation``, refusals, and the order of a shutdown."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web, web_protocol

import purgatory as package
from purgatory import Purgatory, PurgatoryError
from purgatory.asgi import error_response

_ROOM: web.AppKey[Purgatory[Any]] = web.AppKey("room", Purgatory)


def make_app(room: Purgatory[Any]) -> web.Application:
    """Return the application of the documentation page."""

    @web.middleware
    async def refuse(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            answered: web.StreamResponse = await handler(request)
        except PurgatoryError as error:
            response = error_response(error, retry_after=1)
            if response is None:
                raise
            return web.Response(status=response.status, headers=response.headers, body=response.body)
        return answered

    async def poll(request: web.Request) -> web.Response:
        held = await room.wait_until(lambda: False, keys=["orders"], timeout=3600)
        return web.Response(status=200 if held else 204)

    async def open_and_close(_: web.Application) -> AsyncIterator[None]:
        async with room:
            yield

    async def answer(_: web.Application) -> None:
        await room.aclose()

    app = web.Application(middlewares=[refuse])
    app.router.add_get("/orders", poll)
    app.router.add_post("/orders", poll)
    app.cleanup_ctx.append(open_and_close)
    app.on_shutdown.append(answer)
    return app


@contextlib.asynccontextmanager
async def serve(room: Purgatory[Any], **options: Any) -> AsyncIterator[tuple[web.AppRunner, int]]:
    """Yield the application on a free port."""
    runner = web.AppRunner(make_app(room), **options)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner, runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def parked(room: Purgatory[Any], number: int) -> None:
    """Return when this number of requests waits; only the time limit of the test ends the wait."""
    while len(room) != number:  # noqa: ASYNC110 - what is waited for comes over a socket
        await asyncio.sleep(0.001)


async def test_a_hang_up_withdraws_with_handler_cancellation() -> None:
    """With ``handler_cancellation``, aiohttp cancels the task of the handler."""
    room = Purgatory[Any]("test")
    async with serve(room, handler_cancellation=True) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n")
        await parked(room, 1)
        writer.close()
        await parked(room, 0)
        assert room.statistics().cancelled == 1


async def test_without_handler_cancellation_a_hang_up_goes_unnoticed() -> None:
    """By default, the operation waits until its deadline or until the server stops."""
    room = Purgatory[Any]("test")
    async with serve(room) as (_, port), ClientSession() as session:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n")
        await parked(room, 1)
        writer.close()
        async with session.get(f"http://127.0.0.1:{port}/none") as response:  # the server has turned meanwhile
            assert response.status == 404
        assert len(room) == 1
    assert room.statistics().expired_by_closing == 1


_GET = b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n"
_SIZE = 5_000_000
_POST = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % _SIZE


_READS_ALL = not hasattr(web_protocol, "MAX_MSG_QUEUE_SIZE")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(
            _GET * 51,
            id="51 requests",
            marks=pytest.mark.skipif(_READS_ALL, reason="an early aiohttp reads any number of requests"),
        ),
        pytest.param(_POST + bytes(_SIZE), id="a large body"),
    ],
)
async def test_a_client_that_sends_too_much_is_not_noticed(sent: bytes) -> None:
    """aiohttp stops reading, so the operation waits until its deadline, as the page says."""
    room = Purgatory[Any]("test")
    async with serve(room, handler_cancellation=True) as (_, port), ClientSession() as session:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await parked(room, 1)
        for _ in range(20):  # the server has read as much as it reads
            async with session.get(f"http://127.0.0.1:{port}/none") as response:
                assert response.status == 404
        writer.transport.abort()
        for _ in range(20):
            async with session.get(f"http://127.0.0.1:{port}/none") as response:
                assert response.status == 404
        assert len(room) == 1


async def test_a_shutdown_answers_every_waiter_first() -> None:
    """``on_shutdown`` runs before the server waits for its requests; a later request is refused."""
    room = Purgatory[Any]("test")
    async with serve(room, handler_cancellation=True) as (runner, port), ClientSession() as session:
        polls = [asyncio.create_task(session.get(f"http://127.0.0.1:{port}/orders")) for _ in range(10)]
        await parked(room, 10)
        await runner.cleanup()
        responses = await asyncio.gather(*polls)
        assert [response.status for response in responses] == [204] * 10
        for response in responses:
            response.release()
    assert room.statistics().expired_by_closing == 10


async def test_refusals_have_a_status() -> None:
    """A full key returns 429, and a full or closed purgatory 503."""
    for limits, status in (({"max_parked": 1}, 503), ({"max_parked_per_key": 1}, 429)):
        room = Purgatory[Any]("test", **limits)  # type: ignore[arg-type]
        async with serve(room, handler_cancellation=True) as (_, port), ClientSession() as session:
            url = f"http://127.0.0.1:{port}/orders"
            first = asyncio.create_task(session.get(url))
            await parked(room, 1)
            async with session.get(url) as response:
                assert (response.status, response.headers["Retry-After"]) == (status, "1")
            await room.aclose()
            (await first).release()
            async with session.get(url) as response:
                assert response.status == 503


_SERVER = """
import socket, sys
from aiohttp import web
sys.path.insert(0, {top!r})
from tests.frameworks.test_aiohttp import make_app
from purgatory import Observer, Purgatory

class Reporter(Observer):
    def parked(self, event):
        print("parked", flush=True)

room = Purgatory("served", observers=[Reporter()])
app = make_app(room)

async def ready(_):
    print("ready", flush=True)

app.on_startup.append(ready)
web.run_app(app, sock=socket.socket(fileno={fd}), handler_cancellation=True, print=None)
print("stopped", room.statistics().expired_by_closing, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM on Windows")
async def test_run_app_answers_every_waiter_at_sigterm() -> None:
    """``run_app()`` handles the signal, and ``on_shutdown`` answers the waiters."""
    top = str(Path(package.__file__).parents[1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        os.set_inheritable(fd, True)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _SERVER.format(top=top, fd=fd)),
            pass_fds=[fd],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /orders HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await process.stdout.readline() == b"parked\n"
    process.send_signal(signal.SIGTERM)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 204")
    writer.close()
    assert (await process.stdout.read()).split() == [b"stopped", b"1"]
    assert await process.wait() == 0
