"""Responses to requests that could not wait: 429 or 503, or nothing if the client has hung up.

A middleware sees an exception only if the framework lets it through, as Starlette and FastAPI do.  Litestar, Quart, and
Django respond to every exception themselves; with these frameworks, call :func:`error_response` in an error handler.
"""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from purgatory import OperationCancelled, PurgatoryClosed, PurgatoryFull
from purgatory.errors import RelayLost

from .asked import InvalidWait
from .clients import TooManyWaits
from .connection import ClientDisconnected
from .responses import body_of, close, is_disconnect, respond
from .types import CLOSING, HEADERS, ASGIApp, Message, Receive, Scope, Send

__all__ = ["ErrorResponse", "PurgatoryErrorMiddleware", "error_response", "install_errors"]

RETRY_AFTER: Final = (1.0, 5.0)
"""The default bounds of the header ``Retry-After``, in seconds."""

_random = random.SystemRandom()  # differs between processes and does not use a generator that the user has seeded
_CLIENT_CLOSED_REQUEST: Final = 499  # as in nginx; only other middlewares and logs see it
_TRY_AGAIN_LATER: Final = 1013  # a WebSocket close code, as registered with IANA
_CODES: Final = ((InvalidWait, 1008), (PurgatoryClosed, 1012))  # policy violation, service restart
_LONGEST_CHAIN: Final = 20  # exceptions
_CLOSE: Final = (b"connection", b"close")


class RetryAfter:
    """The values of the header ``Retry-After``: whole seconds, chosen at random between two bounds.

    The bounds are given as one or two numbers, in seconds; anything else raises TypeError or ValueError.
    """

    __slots__ = ("_longest", "_shortest")

    def __init__(self, retry_after: float | tuple[float, float]) -> None:
        bounds = retry_after if isinstance(retry_after, tuple) else (retry_after, retry_after)
        if len(bounds) != 2:
            raise ValueError(f"retry_after must be one or two numbers of seconds, got {retry_after!r}")
        self._shortest, self._longest = map(_whole_seconds, bounds)
        if self._shortest > self._longest:
            raise ValueError(f"retry_after must have the shorter time first, got {retry_after!r}")

    def headers(self, error: Exception) -> list[tuple[bytes, bytes]]:
        """Return the header for the response to an exception, or no header if trying again would be useless."""
        if isinstance(error, (ClientDisconnected, InvalidWait)):
            return []
        return [(b"retry-after", b"%d" % _random.randint(self._shortest, self._longest))]


def _whole_seconds(retry_after: float) -> int:
    if isinstance(retry_after, bool) or not isinstance(retry_after, (int, float)):
        raise TypeError(f"retry_after must be a number of seconds, got {retry_after!r}")
    if not 0 <= retry_after < math.inf:
        raise ValueError(f"retry_after must be a finite number of seconds, at least 0, got {retry_after!r}")
    return math.ceil(retry_after)


class PurgatoryErrorMiddleware:
    """ASGI middleware that turns the exceptions of a purgatory into responses.

    ``app``: the application inside the middleware.

    ==============================  ==========================  ============================================
    raised                          HTTP                        WebSocket
    ==============================  ==========================  ============================================
    PurgatoryFull, whole purgatory  503 and Retry-After         the same before it is accepted, then close 1013
    PurgatoryFull, one key          429 and Retry-After         the same before it is accepted, then close 1013
    TooManyWaits, one client        429 and Retry-After         the same before it is accepted, then close 1013
    PurgatoryClosed                 503 and Retry-After         the same before it is accepted, then close 1012
    RelayLost                       503 and Retry-After         the same before it is accepted, then close 1013
    OperationCancelled              503 and Retry-After         the same before it is accepted, then close 1013
    InvalidWait                     422                         the same before it is accepted, then close 1008
    ClientDisconnected              499, seen by no client;     nothing
                                    only with HTTP/1
    ==============================  ==========================  ============================================

    If a request waited in a purgatory that is closing, its response gets ``Connection: close`` (HTTP/1 only): the
    server is about to close its connections, and the client's next request on this connection would be lost.

    The same exceptions from a task group (an ExceptionGroup that contains no others) are handled in the same way;
    beside ClientDisconnected, the group may also contain the framework's own exceptions for the disconnect.  If the
    response has already started, nothing more is sent: ClientDisconnected is dropped, and any other exception is
    raised, so that the server closes the connection.  If the server cannot refuse a WebSocket with a status, the
    WebSocket is closed before it is accepted, and clients see 403.

    ``retry_after``: the number of seconds after which a refused client may try again, or a pair of numbers, the
    shortest and the longest such time.  Each is rounded up to whole seconds.  With a pair, each response contains a
    random number of seconds between the two, so that clients refused at the same time do not return at the same time.
    """

    def __init__(self, app: ASGIApp, *, retry_after: float | tuple[float, float] = RETRY_AFTER) -> None:
        self.app = app
        self._retry_after = RetryAfter(retry_after)

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
        gone: list[BaseException] = []  # errors raised by sends to a client that has disconnected
        headers: dict[bytes, bytes] = {}
        scope[HEADERS] = headers

        async def watched_send(message: Message) -> None:
            nonlocal started
            if not started and message["type"] == "http.response.start":  # an extension's message may come first
                started = True
                if CLOSING in scope:
                    message = _with_connection_close(scope, message)
                if headers:
                    message = _with_headers(message, headers)
            try:
                await send(message)
            except Exception as error:
                _raise_disconnect(error, gone)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            if gone and _comes_from(error, gone):
                return
            cause = _cause(error)
            if cause is None:
                raise
            disconnected = isinstance(cause, ClientDisconnected)
            if not started:
                # With HTTP/2, Hypercorn never finishes a response that begins after the client has disconnected.
                if not disconnected or scope.get("http_version") in ("1.0", "1.1"):
                    await self._respond(scope, send, cause)
            elif not disconnected:
                raise

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = ""
        gone: list[BaseException] = []

        async def watched_send(message: Message) -> None:
            nonlocal sent
            if message["type"] != "websocket.send":
                sent = message["type"]
            try:
                await send(message)
            except Exception as error:
                _raise_disconnect(error, gone)

        try:
            await self.app(scope, receive, watched_send)
        except Exception as error:
            if gone and _comes_from(error, gone):
                return
            cause = _cause(error)
            if cause is None:
                raise
            if isinstance(cause, ClientDisconnected):
                return
            if sent == "" and "websocket.http.response" in scope.get("extensions", {}):
                await self._respond(scope, send, cause)
            elif sent in ("", "websocket.accept"):
                code = next((code for kind, code in _CODES if isinstance(cause, kind)), _TRY_AGAIN_LATER)
                await close(send, code, _response(cause)[1])
            else:
                raise

    async def _respond(self, scope: Scope, send: Send, error: Exception) -> None:
        status, detail = _response(error)
        headers = self._retry_after.headers(error)
        if isinstance(error, PurgatoryClosed) and _may_close_connection(scope):
            headers.append(_CLOSE)
        await respond(scope, send, status, detail, headers)


class ErrorResponse(NamedTuple):
    """The response to a request that could not wait: what :func:`error_response` returns."""

    status: int
    headers: dict[str, str]
    body: bytes


def error_response(
    error: BaseException, *, retry_after: float | tuple[float, float] = RETRY_AFTER
) -> ErrorResponse | None:
    """Return the response of :class:`PurgatoryErrorMiddleware` to an exception, or None if the middleware does not
    handle it.

    ``error``: any exception.

    Use this function in the error handlers of frameworks that respond to exceptions themselves, so that no middleware
    sees the exceptions: Litestar, Quart, Django, and aiohttp.  The body is JSON and contains no names or keys.  Unlike
    the middleware's response, the response to PurgatoryClosed has no ``Connection: close``, because this function does
    not know the HTTP version, and HTTP/2 forbids the header; over HTTP/1, add it yourself.  Raises TypeError or
    ValueError for an invalid ``retry_after``, as :func:`install_errors` does.
    """
    bounds = RetryAfter(retry_after)
    cause = _cause(error)
    if cause is None:
        return None
    status, detail = _response(cause)
    headers = {name.decode(): value.decode() for name, value in bounds.headers(cause)}
    return ErrorResponse(status, {"content-type": "application/json", **headers}, body_of(detail))


def install_errors(app: Any, *, retry_after: float | tuple[float, float] = RETRY_AFTER) -> None:
    """Add :class:`PurgatoryErrorMiddleware` to a FastAPI or Starlette application, before it starts.

    ``app``: a FastAPI or Starlette application.

    A FastAPI or Starlette application that is mounted in this one is not covered and responds to its own errors with
    500, so call this function for each mounted application.  Wrap any other kind of application: ``app =
    PurgatoryErrorMiddleware(app)``.  Raises TypeError if the application has no ``add_middleware``, and TypeError or
    ValueError unless ``retry_after`` is a finite, nonnegative number of seconds, or two such numbers in ascending
    order.
    """
    add_middleware = getattr(app, "add_middleware", None)
    if not callable(add_middleware):
        raise TypeError(f"app must have add_middleware(), as Starlette and FastAPI applications do, got {app!r}")
    RetryAfter(retry_after)
    add_middleware(PurgatoryErrorMiddleware, retry_after=retry_after)


def _response(error: Exception) -> tuple[int, str]:
    """Return the response's status and detail.  The detail names neither keys nor the engine, because both are
    internal.
    """
    if isinstance(error, InvalidWait):
        return 422, str(error)
    if isinstance(error, ClientDisconnected):
        return _CLIENT_CLOSED_REQUEST, "the client closed the request"
    if isinstance(error, PurgatoryClosed):
        return 503, "the server is shutting down"
    if isinstance(error, RelayLost):
        return 503, "the server is temporarily unavailable"
    if isinstance(error, OperationCancelled):
        return 503, "the request was withdrawn"
    if isinstance(error, TooManyWaits):
        return 429, "too many requests from this client are waiting"
    if isinstance(error, PurgatoryFull) and error.key is not None:
        return 429, "too many requests are waiting for this resource"
    return 503, "too many requests are waiting"


def _raise_disconnect(error: Exception, gone: list[BaseException]) -> None:
    """Raise the error of a ``send()``.  If it means that the client has disconnected, raise it as an OSError and add it
    to ``gone``.
    """
    if not is_disconnect(error):
        raise error
    gone.append(error)
    if isinstance(error, OSError):
        raise error
    gone.append(ConnectionAbortedError("the client has disconnected"))  # frameworks handle this error
    raise gone[-1] from error


def _cause(error: BaseException) -> Exception | None:
    """Return the exception to respond to, or None.

    It is the given exception, or one from a group in which every exception gets a response.  Beside ClientDisconnected,
    a group may contain what a framework raises for the same disconnect, for example in a task that reads the body or
    the WebSocket.
    """
    leaves = list(_leaves(error))
    for kind in _ANSWERED:
        for leaf in leaves:
            if isinstance(leaf, kind):
                others = [other for other in leaves if not isinstance(other, _ANSWERED)]
                if kind is ClientDisconnected:
                    others = [other for other in others if type(other).__name__ not in _BESIDE]
                return None if others else leaf
    return None


_ANSWERED: Final = (
    ClientDisconnected,
    InvalidWait,
    PurgatoryClosed,
    RelayLost,
    PurgatoryFull,
    OperationCancelled,
)  # if there are several, the first one counts
_REPLACING: Final = (ConnectionAbortedError, ConnectionResetError, BrokenPipeError, *_ANSWERED)
_DISCONNECTS: Final = ("ClientDisconnect", "RequestAborted")  # of Starlette and Django
_BESIDE: Final = (*_DISCONNECTS, "WebSocketDisconnect")  # the last one of Starlette and Litestar


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _comes_from(error: BaseException, causes: list[BaseException]) -> bool:
    """Return whether the exception is one of the causes, or stands for one of them.

    An exception stands for another one if it was raised from the other one, or if it was raised while the other one was
    being handled and states that the client has disconnected or that the request could not wait.  If any other
    exception was raised while a disconnect was being handled, it is a bug in the code that handled the disconnect.
    This includes an OSError, which may concern a file or another connection.
    """
    for leaf in _leaves(error):
        cause: BaseException | None = leaf
        for _ in range(_LONGEST_CHAIN):
            if cause is None or cause in causes:
                break
            stands_for_context = isinstance(cause, _REPLACING) or type(cause).__name__ in _BESIDE
            cause = cause.__cause__ or (cause.__context__ if stands_for_context else None)
        if cause not in causes:
            return False
    return True


def _with_headers(start: Message, added: Mapping[bytes, bytes]) -> Message:
    """Return the start of a response with the ``added`` headers that the response does not contain yet.

    An entity tag belongs to the content of the resource, so it is not added to a redirect or an error.
    """
    headers = list(start.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    status: int = start["status"]
    if status >= 300 and status != 304:
        present.add(b"etag")
    missing = [(name, value) for name, value in added.items() if name not in present]
    return {**start, "headers": [*headers, *missing]}


def _with_connection_close(scope: Scope, start: Message) -> Message:
    """Return the start of a response with ``Connection: close`` if it is HTTP/1 and has no such header yet."""
    headers = list(start.get("headers", ()))
    if not _may_close_connection(scope) or any(name.lower() == b"connection" for name, _ in headers):
        return start
    return {**start, "headers": [*headers, _CLOSE]}


def _may_close_connection(scope: Scope) -> bool:
    return scope.get("http_version") in ("1.0", "1.1")
