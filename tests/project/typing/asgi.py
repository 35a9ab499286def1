"""The types of ``purgatory.asgi`` in an application."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, assert_type

from fastapi import Depends, FastAPI, Request, Response, WebSocket
from starlette.applications import Starlette
from starlette.routing import Route

from purgatory import DelayedOperation, OperationCancelled, Purgatory
from purgatory.aio.changes import Changes
from purgatory.asgi import (
    ClientDisconnected,
    EventSourceResponse,
    InvalidWait,
    OriginCheckMiddleware,
    PurgatoryErrorMiddleware,
    TooManyWaits,
    Wait,
    error_response,
    health,
    install_errors,
    purgatory_lifespan,
    waiting,
)
from purgatory.asgi.types import ASGIApp, Receive, Scope, Send
from purgatory.relay import MemoryTransport, Relay

room = Purgatory[Any]("orders")


class Fetch(DelayedOperation[list[int]]):
    def try_complete(self) -> bool:
        return True

    def on_complete(self) -> list[int]:
        return []


@asynccontextmanager
async def own(app: FastAPI) -> AsyncGenerator[dict[str, int]]:
    yield {"answer": 42}


app = FastAPI(lifespan=purgatory_lifespan(room, grace=2.0, lifespan=own))
install_errors(app, retry_after=2)
app.mount("/healthz", health(room))


@app.get("/orders")
async def orders(wait: Annotated[Wait, Depends(waiting(room))], after: int = 0) -> Any:
    held = await wait.until(lambda: after > 0, keys=["orders"], timeout=30)
    assert_type(held, bool)
    found = await wait.park(Fetch(1.0), {"orders": 3})
    assert_type(found, list[int])
    assert_type(wait.disconnected, bool)
    return found if held else Response(status_code=204)


@app.get("/jobs/{job}")
async def job(job: str, wait: Annotated[Wait, Depends(waiting(room, longest=55, per_client=20))]) -> Any:
    assert_type(await wait.until(lambda: True, key=job), bool)
    assert_type(await wait.until(lambda: True, keys={job: 3}, deadline=2.0, kind="GET /jobs"), bool)
    assert_type(await wait.value(lambda: numbers.get(job), key=job), int | None)
    assert_type(await wait.value(lambda: job or None, keys=[job], timeout=None, on_abandoned=given_back), str | None)
    assert_type(await wait.changed(lambda: numbers.get(job), key=job), int | None)
    assert_type(await wait.changed(lambda: job, keys=[job], timeout=1), str | None)
    assert_type(await wait.park(Fetch(None), key=job), list[int])
    assert_type(await wait.park(Fetch(None), [job], deadline=3.0), list[int])
    assert_type(wait.timeout, float | None)
    assert_type(wait.expired_by_closing, bool)
    wait.raise_if_closing()


numbers: dict[str, int] = {}


def given_back(name: str) -> None:
    numbers[name] = 0


async def get_room(request: Request) -> Purgatory[Any]:
    return room


routed = waiting(get_room, longest=55)


def handled(error: Exception) -> Response | None:
    response = error_response(error, retry_after=(1, 5))
    return None if response is None else Response(response.body, response.status, response.headers)


@app.websocket("/orders")
async def stream(websocket: WebSocket, wait: Annotated[Wait, Depends(waiting(room))]) -> None:
    await wait.until(lambda: True, keys=["orders"], timeout=None)


@app.get("/events")
async def events() -> EventSourceResponse:
    response = EventSourceResponse(room.changes(["orders"], heartbeat=15), retry=1.0)
    assert_type(response, EventSourceResponse)
    response.set_cookie("a", "b")
    return response


async def events_or_nothing(request: Request) -> Response:
    if room.closed:
        return Response(status_code=503)
    return EventSourceResponse(room.changes(["orders"]), headers={"x-more": request.method}, status_code=201)


async def follow() -> None:
    async for key in room.changes(["orders"]):
        assert_type(key, str)
    async with room.changes([("orders", 3)], heartbeat=15) as changes:
        assert_type(changes, Changes[tuple[str, int] | None])
        assert_type(await anext(changes), tuple[str, int] | None)
        await changes.aclose()


async def endpoint(request: Request) -> Response:
    assert_type(await waiting(room)(request), Wait)
    return Response()


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    wait = Wait(room, scope, receive)
    assert_type(await waiting(room)(scope, receive), Wait)
    again: Receive = wait.receive
    await again()


other = Starlette(routes=[Route("/", endpoint), Route("/events", events_or_nothing)], lifespan=purgatory_lifespan(room))
wrapped: ASGIApp = purgatory_lifespan(room).wrap(PurgatoryErrorMiddleware(plain, retry_after=1.5))
error: type[OperationCancelled] = ClientDisconnected
checked: ASGIApp = OriginCheckMiddleware(plain, allowed_hosts=["orders.example.com"])
refusals: tuple[type[Exception], ...] = (InvalidWait, TooManyWaits)
relayed = purgatory_lifespan(Relay(room, MemoryTransport()), grace=1.0)
ready: ASGIApp = health(Relay(room, MemoryTransport()), require_connected=True)
