"""Responses to requests that could not wait: 429 or 503, and nothing to a client that has hung up."""

import math
from collections.abc import Iterator
from typing import Any, Final

from purgatory import PurgatoryClosed, PurgatoryFull
from purgatory.errors import RelayLost

from .connection import ClientDisconnected
from .responses import respond, send_if_connected
from .types import CLOSING, ASGIApp, Message, Receive, Scope, Send

__all__ = ["PurgatoryErrorMiddleware", "install_errors"]

_CLIENT_CLOSED_REQUEST: Final = 499  # as in nginx; only other middleware and logs see it
_SERVICE_RESTART: Final = 1012  # WebSocket close codes, as registered with IANA
_TRY_AGAIN_LATER: Final = 1013
_CLOSE: Final = (b"connection", b"close")


class PurgatoryErrorMiddleware:
    """ASGI middleware that turns the exceptions of a purgatory into responses.

    ==============================  ==========================  ============================================
    raised                          HTTP                        WebSocket
    ==============================  ==========================  ============================================
    PurgatoryFull, whole purgatory  503 and Retry-After         the same before it is accepted, then close 1013
    PurgatoryFull, of one key       429 and Retry-After         the same before it is accepted, then close 1013
    PurgatoryClosed                 503 and Retry-After         the same before it is accepted, then close 1012
    RelayLost                       503 and Retry-After         the same before it is accepted, then close 1013
    ClientDisconnected              499, which no client gets   nothing
    ==============================  ==========================  ============================================

    A response to a request that waited in a purgatory that is closing gets ``Connection: close`` (HTTP/1 only): the
    server is about to close its connections, and the client's next request would be lost on this one.

    The same exceptions out of a task group (an ExceptionGroup of nothing else) count as well.  If the response has
    started, nothing more is sent: the error of a client that hung up ends there, and any other is raised, so that the
    server closes the connection.  Where the server cannot refuse a WebSocket with a status, it is closed before it is
    accepted, which clients see as 403.

    ``retry_after``: seconds after which a refused client may try again; rounded up to whole seconds.
    """

    def __init__(self, app: ASGIApp, *, retry_after: float = 1.0) -> None:
        self.app = app
        self._retry_after = b"%d" % _whole_seconds(retry_after)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and respond if it raises one of these exceptions."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            if not started:
                started = True
                if CLOSING in scope and message["type"] == "http.response.start":
                    message = _with_connection_close(scope, message)
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            cause = _cause(error)
            if cause is None:
                raise
            disconnected = isinstance(cause, ClientDisconnected)
            if not started:
                await self._respond(scope, send, cause)
            elif not disconnected:
                raise

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = ""

        async def watched_send(message: Message) -> None:
            nonlocal sent
            if message["type"] != "websocket.send":
                sent = message["type"]
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            cause = _cause(error)
            if cause is None:
                raise
            if isinstance(cause, ClientDisconnected):
                return
            if sent == "" and "websocket.http.response" in scope.get("extensions", {}):
                await self._respond(scope, send, cause)
            elif sent in ("", "websocket.accept"):
                code = _SERVICE_RESTART if isinstance(cause, PurgatoryClosed) else _TRY_AGAIN_LATER
                await send_if_connected(send, {"type": "websocket.close", "code": code, "reason": _response(cause)[1]})
            else:
                raise

    async def _respond(self, scope: Scope, send: Send, error: Exception) -> None:
        status, detail = _response(error)
        headers = [] if status == _CLIENT_CLOSED_REQUEST else [(b"retry-after", self._retry_after)]
        if isinstance(error, PurgatoryClosed) and _may_close_connection(scope):
            headers.append(_CLOSE)
        await respond(scope, send, status, detail, headers)


def install_errors(app: Any, *, retry_after: float = 1.0) -> None:
    """Add :class:`PurgatoryErrorMiddleware` to a FastAPI or Starlette application, before it starts.

    It does not cover a FastAPI or Starlette application that is mounted in this one, which answers its own errors with
    500: call this for each of them.  Wrap an application of another kind: ``app = PurgatoryErrorMiddleware(app)``.
    TypeError if the application has no
    ``add_middleware``, ValueError if ``retry_after`` is not a number of seconds.
    """
    add_middleware = getattr(app, "add_middleware", None)
    if not callable(add_middleware):
        raise TypeError(f"app must have add_middleware(), as Starlette and FastAPI applications do, got {app!r}")
    _whole_seconds(retry_after)
    add_middleware(PurgatoryErrorMiddleware, retry_after=retry_after)


def _whole_seconds(retry_after: float) -> int:
    if isinstance(retry_after, bool) or not isinstance(retry_after, (int, float)):
        raise TypeError(f"retry_after must be a number of seconds, got {retry_after!r}")
    if not 0 <= retry_after < math.inf:
        raise ValueError(f"retry_after must be a finite number of seconds, at least 0, got {retry_after!r}")
    return math.ceil(retry_after)


def _response(error: Exception) -> tuple[int, str]:
    """Return the status and the detail of the response.  The detail names no keys and no engine: they are internal."""
    if isinstance(error, ClientDisconnected):
        return _CLIENT_CLOSED_REQUEST, "the client closed the request"
    if isinstance(error, PurgatoryClosed):
        return 503, "the server is shutting down"
    if isinstance(error, RelayLost):
        return 503, "the server is temporarily unavailable"
    if isinstance(error, PurgatoryFull) and error.key is not None:
        return 429, "too many requests are waiting for this resource"
    return 503, "too many requests are waiting"


def _cause(error: BaseException) -> Exception | None:
    """Return the exception to respond to: this one, or one of a group of nothing else; None for any other."""
    leaves = list(_leaves(error))
    for kind in _ANSWERED:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf if all(isinstance(other, _ANSWERED) for other in leaves) else None
    return None


_ANSWERED: Final = (ClientDisconnected, PurgatoryClosed, RelayLost, PurgatoryFull)  # the first of several counts


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _with_connection_close(scope: Scope, start: Message) -> Message:
    """Return the start of a response with ``Connection: close``, if HTTP/1 and if it has no such header."""
    headers = list(start.get("headers", ()))
    if not _may_close_connection(scope) or any(name.lower() == b"connection" for name, _ in headers):
        return start
    return {**start, "headers": [*headers, _CLOSE]}


def _may_close_connection(scope: Scope) -> bool:
    return scope.get("http_version") in ("1.0", "1.1")
