"""A readiness probe: whether this process still accepts requests that wait."""

from typing import Any, Final

from purgatory import Purgatory

from .types import ASGIApp, Receive, Scope, Send

__all__ = ["health"]

_OPEN: Final = b'{"status":"open"}'
_CLOSING: Final = b'{"status":"closing"}'


def health(room: Purgatory[Any], *others: Purgatory[Any]) -> ASGIApp:
    """Make an ASGI application that answers 200 while all the purgatories are open, and 503 once one is closing.

    ::

        app.mount("/healthz", health(room))        # answers at /healthz/, and redirects /healthz there
        app.add_route("/healthz", health(room))    # Starlette and FastAPI: answers at /healthz

    It answers GET and HEAD.  TypeError if one of them is not a purgatory.
    """
    rooms = (room, *others)
    for given in rooms:
        if not isinstance(given, Purgatory):
            raise TypeError(f"room must be a Purgatory, got {given!r}")
    return _Health(rooms)


class _Health:
    """A class, not a function: Starlette calls an endpoint that is a function with a request."""

    def __init__(self, rooms: tuple[Purgatory[Any], ...]) -> None:
        self._rooms = rooms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"health() answers HTTP requests, got a scope of type {scope['type']!r}")
        headers = [(b"cache-control", b"no-store")]
        if scope["method"] not in ("GET", "HEAD"):
            status, body = 405, b""
            headers.append((b"allow", b"GET, HEAD"))
        else:
            closing = any([room.closed for room in self._rooms])
            status, body = (503, _CLOSING) if closing else (200, _OPEN)
            headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
