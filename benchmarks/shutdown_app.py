"""The application that :mod:`benchmarks.shutdown` serves: a long poll that uses all of :mod:`purgatory.asgi`.

It writes a line to its standard output whenever an operation is parked, is withdrawn, or expires, and its statistics at
the end.
"""

import os
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response, WebSocket
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request

from purgatory.asgi import EventSourceResponse, Wait, health, inspector, install_errors, purgatory_lifespan, waiting

from .shutdown_room import events, limit, own, room

__all__ = ["app"]


app = FastAPI(lifespan=purgatory_lifespan(room, grace=float(os.environ.get("GRACE", "0")), lifespan=own))
install_errors(app, retry_after=2)
app.mount("/healthz", health(room))
if "INSPECTOR" in os.environ:
    app.mount("/purgatory", inspector(room))


@app.get("/poll/{key}")
async def poll(
    key: str, wait: Annotated[Wait, Depends(waiting(room, per_client=limit("PER_CLIENT")))], timeout: float = 30.0
) -> Response:
    """Wait for an event; answer 200 with the number of events, or 204 if there is none in time."""
    if await wait.until(lambda: key in events, keys=[key], timeout=timeout):
        return Response(content=str(events.count(key)))
    return Response(status_code=204)


@app.post("/poll/{key}")
async def poll_with_body(key: str, request: Request, wait: Annotated[Wait, Depends(waiting(room))]) -> Response:
    """Read the body, and then wait as :func:`poll` does."""
    await request.body()
    return await poll(key, wait)


@app.post("/events/{key}")
async def post(key: str, request: Request) -> int:
    """Read the body and append an event; answer with the number of requests that this completed."""
    await request.body()
    events.append(key)
    return room.check_and_complete(key)


@app.get("/twice/{key}")
async def twice(key: str, wait: Annotated[Wait, Depends(waiting(room))], timeout: float) -> list[bool]:
    """Wait for an event twice; answer with whether there was one each time."""
    return [await wait.until(lambda: key in events, keys=[key], timeout=timeout) for _ in range(2)]


@app.post("/echo/{key}")
async def echo(
    key: str, request: Request, wait: Annotated[Wait, Depends(waiting(room))], timeout: float = 30.0
) -> Response:
    """Wait for an event before reading the body."""
    await wait.until(lambda: key in events, keys=[key], timeout=timeout)
    return Response(content=await request.body())


@app.get("/events/{key}")
async def follow(key: str) -> Any:
    """Send every check of the key as a server-sent event."""
    return EventSourceResponse(room.changes([key], heartbeat=3600))


@app.get("/late-events/{key}")
async def follow_later(key: str, wait: Annotated[Wait, Depends(waiting(room))]) -> Any:
    """Wait once, and then do as :func:`follow` does."""
    await wait.until(lambda: False, key=key, timeout=0.001)
    return await follow(key)


@app.websocket("/events/{key}")
async def stream(websocket: WebSocket, key: str, wait: Annotated[Wait, Depends(waiting(room))]) -> None:
    """Send a message for the first event."""
    await websocket.accept()
    await wait.until(lambda: key in events, keys=[key], timeout=30.0)
    await websocket.send_text(key)
    await websocket.close()


@app.websocket("/early/{key}")
async def early(websocket: WebSocket, key: str, wait: Annotated[Wait, Depends(waiting(room))]) -> None:
    """Wait before accepting."""
    await wait.until(lambda: key in events, key=key, timeout=2.0)
    await websocket.close()


if "BASE_HTTP_MIDDLEWARE" in os.environ:

    async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Any:
        """Pass the request on, as middleware with ``@app.middleware("http")`` does."""
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
