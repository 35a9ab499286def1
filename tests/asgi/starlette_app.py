"""The polls and streams of :mod:`benchmarks.shutdown_app` without FastAPI, whose import is half of a server's start."""

import asyncio
import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from benchmarks.shutdown_room import events, limit, own, room
from purgatory.asgi import EventSourceResponse, health, inspector, install_errors, purgatory_lifespan, waiting
from purgatory.types import Changes

__all__ = ["app"]

app = Starlette(lifespan=purgatory_lifespan(room, grace=float(os.environ.get("GRACE", "0")), lifespan=own))
install_errors(app, retry_after=2)
app.mount("/healthz", health(room))
if "INSPECTOR" in os.environ:
    app.mount("/purgatory", inspector(room))
waits = waiting(room, per_client=limit("PER_CLIENT"))


async def poll(request: Request) -> Response:
    """Wait for an event; answer 200 with the number of events, or 204 if there is none in time."""
    key, wait = request.path_params["key"], await waits(request)
    if await wait.until(lambda: key in events, keys=[key], timeout=float(request.query_params["timeout"])):
        return Response(str(events.count(key)))
    return Response(status_code=204)


async def post(request: Request) -> Response:
    """Append an event; answer with the number of requests that this completed."""
    key = request.path_params["key"]
    events.append(key)
    return Response(str(room.check_and_complete(key)))


async def follow(request: Request) -> EventSourceResponse:
    """Send every check of the key as a server-sent event."""
    return EventSourceResponse(room.changes([request.path_params["key"]], heartbeat=3600))


async def end_at_disconnect(websocket: WebSocket, changes: Changes[Any]) -> None:
    """Read the socket, and end the subscription when the client disconnects."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    await changes.aclose()


async def socket(websocket: WebSocket) -> None:
    """Send every check of the key as a message, as the program of the page on WebSockets does."""
    await websocket.accept()
    async with room.changes([websocket.path_params["key"]], heartbeat=3600) as changes:
        reading = asyncio.create_task(end_at_disconnect(websocket, changes))
        try:
            async for key in changes:
                await websocket.send_json(key)
            if websocket.client_state is WebSocketState.CONNECTED:
                await websocket.close(1012)
        except WebSocketDisconnect:
            pass
        finally:
            reading.cancel()


async def discard(websocket: WebSocket) -> None:
    """Read the socket until the client disconnects."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def waiting_socket(websocket: WebSocket) -> None:
    """Wait for one event after another, as the other program of the page does."""
    key, wait = websocket.path_params["key"], await waits(websocket)
    await websocket.accept()
    reading = asyncio.create_task(discard(websocket))
    sent = events.count(key)

    def more() -> bool:
        return events.count(key) > sent

    try:
        while await wait.until(more, keys=[key], timeout=3600):
            sent += 1
            await websocket.send_json(sent)
        await websocket.close(1012)
    finally:
        reading.cancel()


app.router.routes.append(WebSocketRoute("/changes/{key}", socket))
app.router.routes.append(WebSocketRoute("/orders/{key}", waiting_socket))
app.add_route("/poll/{key}", poll)
app.add_route("/events/{key}", post, methods=["POST"])
app.add_route("/events/{key}", follow)
