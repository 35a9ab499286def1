"""The ASGI application.

====================  ============================================================================
``GET /``             the groups page, with ``/page.css`` and ``/page.js``
``GET /groups.json``  the groups; 503 if the observed event loop does not answer in time
``/purgatory/``       the inspector
====================  ============================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from purgatory.asgi import OriginCheckMiddleware
from purgatory.asgi.types import ASGIApp

from .groups import Groups

__all__ = ["make_app"]

_FOLDER = Path(__file__).parent / "page"
_FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PATIENCE = 5.0


def make_app(
    title: str,
    inspector: ASGIApp,
    groups: Groups | None,
    observed: asyncio.AbstractEventLoop,
    started: Callable[[], object],
) -> Starlette:
    """Return the application; its lifespan calls ``started()``.

    ``observed``: the event loop of the groups, in another thread.  If there are no groups, ``/`` leads to the
    inspector.
    """

    async def file(request: Request) -> Response:
        if groups is None and request.url.path == "/":
            return RedirectResponse("/purgatory/", headers=_HEADERS)
        return FileResponse(_FOLDER / _FILES[request.url.path], headers=_HEADERS)

    async def state(_: Request) -> Response:
        assert groups is not None

        async def look() -> dict[str, Any]:
            return groups.look()

        try:
            async with asyncio.timeout(_PATIENCE):
                seen = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(look(), observed))
        except TimeoutError:
            return JSONResponse({"detail": "the event loop is busy or has ended"}, 503, _HEADERS)
        return JSONResponse({"title": title, **seen}, headers=_HEADERS)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        started()
        yield

    return Starlette(
        routes=[
            *(Route(path, file) for path in _FILES),
            *([] if groups is None else [Route("/groups.json", state)]),
            Mount("/purgatory", inspector),
        ],
        middleware=[Middleware(OriginCheckMiddleware)],
        lifespan=lifespan,
    )
