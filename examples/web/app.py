"""The ASGI application.

===============  ====================================================================================
``GET /``        the page, with ``/page.css`` and ``/page.js``
``GET /events``  frames as server-sent events; 503 where too many watch already
``GET /state``   the next frame as JSON; 503 if there is none within some seconds
===============  ====================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from .feed import Feed

__all__ = ["make_app"]

_FOLDER = Path(__file__).parent / "page"
_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_RETRY_MS = 1000  # after which a browser tries again
_PATIENCE = 5.0


def make_app(feed: Feed) -> Starlette:
    """Its lifespan opens the feed's purgatory and closes it."""

    async def file(request: Request) -> Response:
        return FileResponse(_FOLDER / _FILES[request.url.path], headers=_HEADERS)

    async def events(_: Request) -> Response:
        if feed.closed or feed.watchers >= feed.max_watchers:
            return PlainTextResponse("too many watch already, or the page is being closed", 503, _HEADERS)
        return StreamingResponse(_lines(feed), media_type="text/event-stream", headers=_HEADERS)

    async def state(_: Request) -> Response:
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_PATIENCE), contextlib.aclosing(feed.frames()) as frames:
                return Response(await anext(frames), media_type="application/json", headers=_HEADERS)
        return PlainTextResponse("nothing was seen for some seconds: the loop is busy, or has ended", 503, _HEADERS)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with feed.purgatory:
            yield

    return Starlette(
        routes=[
            *(Route(path, file) for path in _FILES),
            Route("/events", events),
            Route("/state", state),
        ],
        # A page elsewhere must not read this one under a name of its own that it lets point here.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
        lifespan=lifespan,
    )


async def _lines(feed: Feed) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % _RETRY_MS
    async with contextlib.aclosing(feed.frames()) as frames:
        async for frame in frames:
            yield b": still here\n\n" if frame is None else b"data: " + frame + b"\n\n"
