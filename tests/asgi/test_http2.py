"""HTTP/2 on Hypercorn: a client that closes its connection leaves nothing behind."""

import asyncio
import socket
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI

from purgatory import Purgatory
from purgatory.asgi import Wait, install_errors, waiting

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])
pytest.importorskip("hypercorn", reason="hypercorn is not installed: pip install aiopurgatory[test]")


async def request(port: int) -> asyncio.StreamWriter:
    """Send a request over a new connection, which uses HTTP/2 from its first byte."""
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    _, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    headers = {":method": "GET", ":authority": "127.0.0.1", ":scheme": "http", ":path": "/orders/7?wait=30"}
    connection.send_headers(1, list(headers.items()), end_stream=True)
    writer.write(connection.data_to_send())
    return writer


def with_fastapi(room: Purgatory[Any]) -> Any:
    """Return an application with the middleware."""
    app = FastAPI()
    install_errors(app)

    @app.get("/orders/{name}")
    async def read(name: str, wait: Annotated[Wait, Depends(waiting(room, longest=55))]) -> bool:
        return await wait.until(lambda: False, key=name)

    return app


def with_litestar(room: Purgatory[Any]) -> Any:
    """Return an application with an exception handler."""
    pytest.importorskip("litestar", reason="litestar is not installed: pip install aiopurgatory[test]")
    from tests.frameworks.test_litestar import make_app

    return make_app(room, [])


@pytest.mark.parametrize("make", [with_fastapi, with_litestar])
async def test_a_client_that_closes_its_connection_leaves_no_task(make: Callable[[Purgatory[Any]], Any]) -> None:
    """Hypercorn never finishes a response that begins after the connection was closed, so none is sent."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    room = Purgatory[Any]("room")
    app = make(room)
    config, started, stop = Config(), asyncio.Event(), asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config.bind = [f"fd://{listening.detach()}"]

    async def until_stopped() -> None:
        started.set()
        await stop.wait()

    async with room:
        server = asyncio.create_task(serve(app, config, shutdown_trigger=until_stopped))  # type: ignore[arg-type]
        await started.wait()
        before = len(asyncio.all_tasks())
        clients = [await request(port) for _ in range(5)]
        while len(room) < 5:  # noqa: ASYNC110 - the requests take some turns of the loop to arrive
            await asyncio.sleep(0)
        for client in clients:
            client.close()
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - and to end
                await asyncio.sleep(0)
        assert len(room) == 0
        stop.set()
        await server
