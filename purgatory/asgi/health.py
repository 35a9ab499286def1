"""A readiness probe, which reports whether this process still accepts requests that wait."""

from typing import Any, Final

from .rooms import Room, purgatory_of
from .types import ASGIApp, Receive, Scope, Send

__all__ = ["health"]

_BODIES: Final = {status: b'{"status":"%b"}' % status.encode() for status in ("open", "degraded", "closing")}


def health(room: Room, *others: Room, require_connected: bool = False) -> ASGIApp:
    """Create an ASGI application that responds with 200 while all purgatories are open, and with 503 once one of them
    is closing.

    ``room``, ``others``: the purgatories or relays to report.

    ::

        app.mount("/healthz", health(room))        # answers at /healthz/, and redirects /healthz there
        app.add_route("/healthz", health(room))    # Starlette and FastAPI: answers at /healthz

    It responds to GET and HEAD with ``{"status": "open"}`` or ``{"status": "closing"}``.  A
    :class:`purgatory.relay.Relay` may take the place of its purgatory; while a relay is not connected to its engine,
    the status is ``"degraded"``.  ``require_connected``: whether the response for that status is also 503.  By default,
    the response is 200, because the loss of an engine affects all workers at once: with 503, none of them would receive
    requests, although each can still answer from its own state, and waits end at their deadlines.

    Raises TypeError if an argument is neither a purgatory nor a relay.
    """
    return _Health((room, *others), require_connected)


class _Health:
    """The application is a class, not a function, because Starlette would call a function endpoint with a request."""

    def __init__(self, rooms: tuple[Room, ...], require_connected: bool) -> None:
        self._purgatories = [purgatory_of(room) for room in rooms]
        self._relays: list[Any] = [room for room in rooms if room not in self._purgatories]
        self._require_connected = require_connected

    def _status(self) -> tuple[int, str]:
        if any([purgatory.closed for purgatory in self._purgatories]):
            return 503, "closing"
        if not all([relay.connected for relay in self._relays]):
            return 503 if self._require_connected else 200, "degraded"
        return 200, "open"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"health() answers HTTP requests, got a scope of type {scope['type']!r}")
        headers = [(b"cache-control", b"no-store")]
        if scope["method"] not in ("GET", "HEAD"):
            status, body = 405, b""
            headers.append((b"allow", b"GET, HEAD"))
        else:
            status, name = self._status()
            body = _BODIES[name]
            headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
