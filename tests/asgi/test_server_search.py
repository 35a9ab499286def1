"""The search for the servers of a loop: what it visits, and what it finds."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from purgatory.asgi.servers import ServerSearch, begun_to_stop, serving_frame_of

Start = Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]

SERVER = """
class Server:
    lifespan = None

    async def serve(self, wait):
        self.lifespan = object()
        await wait()
        await self.shutdown(wait)

    async def shutdown(self, wait):
        await wait()

async def request(application):
    await middleware(application)

async def middleware(application):
    await application
"""


@pytest.fixture
def server() -> dict[str, Any]:
    """Return the namespace of a module of a server."""
    namespace: dict[str, Any] = {"__name__": "uvicorn.server"}
    exec(SERVER, namespace)
    return namespace


async def deep(depth: int) -> None:
    """Wait that many coroutines deep, as an application does."""
    await (deep(depth - 1) if depth else asyncio.Event().wait())


async def inside(coroutine: Coroutine[Any, Any, None]) -> None:
    """Serve as a program does that starts a server in a function of its own."""
    await coroutine


def searched() -> ServerSearch:
    """Return a complete search."""
    search = ServerSearch()
    while search.step(10):
        pass
    return search


async def test_the_application_in_a_request_is_not_visited(server: dict[str, Any]) -> None:
    """Of each task of a request, only the coroutines of the server and the first one of the application are visited."""
    tasks = [asyncio.ensure_future(server["request"](deep(50))) for _ in range(100)]
    await asyncio.sleep(0)
    assert searched().visited <= 100 * 4 + 2
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_step_visits_a_bounded_number_of_coroutines(server: dict[str, Any]) -> None:
    """A step visits at least the given number, and more only to finish the task that it has begun."""
    tasks = [asyncio.ensure_future(server["request"](deep(50))) for _ in range(100)]
    await asyncio.sleep(0)
    search, before = ServerSearch(), 0
    while search.step(10):
        assert 10 <= search.visited - before < 10 + 4
        before = search.visited
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize("start", [lambda serve: serve, inside])
async def test_a_server_is_found_until_it_ends(server: dict[str, Any], start: Start) -> None:
    """Its coroutine may be awaited by another one; whether it has begun to stop is seen at any time."""
    event, made = asyncio.Event(), server["Server"]()
    task = asyncio.ensure_future(start(made.serve(lambda: event.wait())))
    await asyncio.sleep(0)
    (found,) = searched().found
    frame = serving_frame_of(found)
    assert frame is not None
    assert frame.f_locals["self"] is made
    assert not begun_to_stop(found)
    event.set()
    event = asyncio.Event()
    for _ in range(2):
        await asyncio.sleep(0)
    assert begun_to_stop(found)
    event.set()
    del frame
    await task
    assert serving_frame_of(found) is None
    assert not begun_to_stop(found)
    assert searched().found == []
