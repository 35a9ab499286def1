"""The ASGI application.

===============  ====================================================================================
``GET /``        the page, with ``/page.css`` and ``/page.js``
``GET /events``  frames as server-sent events; 503 with too many viewers
``GET /state``   the next frame as JSON; 503 if none arrives in time
===============  ====================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from purgatory.asgi import EventSourceResponse, OriginCheckMiddleware, purgatory_lifespan

from .broadcast import Broadcast

__all__ = ["make_app"]

_FOLDER = Path(__file__).parent / "page"
_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_RETRY = 1.0  # seconds after which a browser reconnects
_PATIENCE = 5.0


def make_app(broadcast: Broadcast, started: Callable[[], object]) -> Starlette:
    """Return the application.  Its lifespan opens the purgatory, calls ``started()``, and closes the purgatory."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        started()
        yield

    async def file(request: Request) -> Response:
        return FileResponse(_FOLDER / _FILES[request.url.path], headers=_HEADERS)

    async def events(_: Request) -> Any:
        if broadcast.closed or broadcast.watchers >= broadcast.max_watchers:
            return PlainTextResponse("too many viewers, or the page is closing", 503, _HEADERS)
        return EventSourceResponse(broadcast.frames(), headers=_HEADERS, retry=_RETRY)

    async def state(_: Request) -> Response:
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_PATIENCE), contextlib.aclosing(broadcast.frames()) as frames:
                return Response(await anext(frames), media_type="application/json", headers=_HEADERS)
        return PlainTextResponse("no frame for some seconds: the event loop is busy or has ended", 503, _HEADERS)

    return Starlette(
        routes=[
            *(Route(path, file) for path in _FILES),
            Route("/events", events),
            Route("/state", state),
        ],
        middleware=[Middleware(OriginCheckMiddleware)],
        lifespan=purgatory_lifespan(broadcast.purgatory, lifespan=lifespan),
    )
