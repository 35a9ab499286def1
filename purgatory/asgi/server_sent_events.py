"""Server-sent events: an async iterator as a ``text/event-stream`` response.

The format follows the HTML standard, section 9.2 (https://html.spec.whatwg.org/multipage/server-sent-events.html).

FastAPI accepts a class as the return annotation of a path operation only if it is a subclass of Starlette's
``Response``, so this module imports Starlette if it is installed.  ``purgatory.asgi`` imports this module when
``EventSourceResponse`` is first used.
"""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import suppress
from datetime import date, time
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from purgatory.core.timer.units import ceil_ms
from purgatory.errors import OperationCancelled, PurgatoryClosed, PurgatoryFull, RelayLost
from purgatory.texts import safe_repr

from .connection import pending_connection
from .responses import is_disconnect
from .types import Message, Receive, Scope, Send

if TYPE_CHECKING:
    from starlette.responses import Response
else:
    try:
        from starlette.responses import Response
    except ImportError:  # a plain ASGI application
        Response = object

__all__ = ["EventSourceResponse", "server_sent_event"]

_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # otherwise, nginx would buffer the events
}
_HEARTBEAT: Final = b":\n\n"
# A client that asked again would receive 503 or 429, but now it is too late for another status.
_ENDING: Final = (PurgatoryClosed, PurgatoryFull, OperationCancelled, RelayLost)
_LONGEST_RETRY: Final = 1e9  # seconds


def server_sent_event(item: Any) -> bytes:
    """Encode one item as an event: str and bytes as the event's data, None as a comment, and anything else as JSON.

    A comment keeps the connection alive; the browser's ``EventSource`` ignores it.  In JSON, a UUID is a string, a date
    or time a string in ISO 8601, and a member of an Enum its value, as in FastAPI.  Raises TypeError or ValueError if
    an item cannot be encoded as JSON.
    """
    if item is None:
        return _HEARTBEAT
    if isinstance(item, bytes):
        data = item
    elif isinstance(item, str):
        data = item.encode()
    else:
        data = json.dumps(item, allow_nan=False, separators=(",", ":"), default=_as_json).encode()
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"".join([b"data: %b\n" % line for line in lines]) + b"\n"


def _as_json(value: object) -> Any:
    """Return what JSON contains in place of a value that path parameters can have, and so keys."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"an item must be JSON-serializable, got {safe_repr(value)}")


class EventSourceResponse(Response):
    """Sends the items of an async iterator as server-sent events until the iterator ends or the client hangs up.

    ::

        @app.get("/events")
        async def events() -> EventSourceResponse:
            return EventSourceResponse(room.changes(["orders"], heartbeat=15))

    Return the response from a FastAPI path operation or a Starlette endpoint; in a plain ASGI application, call it with
    ``scope``, ``receive``, and ``send``.  If Starlette is installed, the class is a subclass of Starlette's
    ``Response``.  The response to a HEAD request, which Starlette allows for each GET route, contains only the headers,
    and the iterator is closed.

    ``items``: the items, which :func:`server_sent_event` encodes.  At the end, the iterator is closed if it has
    ``aclose()``, so the places of a client that hangs up are free at once.  If it raises :class:`PurgatoryClosed`,
    :class:`PurgatoryFull`, :class:`OperationCancelled`, or :class:`~purgatory.relay.RelayLost`, as a generator does
    that waits while the purgatory closes or the relay loses its connection, the stream ends, and browsers reconnect.
    Any other error is raised, so that the server logs it and closes the connection.  ``headers``: additional headers.
    ``retry``: the number of seconds, at most 1e9, after which a browser that has lost the connection tries again; None
    leaves the delay to the browser.  ``status_code``: the HTTP status.
    """

    media_type: str | None = "text/event-stream"

    def __init__(
        self,
        items: AsyncIterable[Any],
        *,
        headers: Mapping[str, str] | None = None,
        retry: float | None = None,
        status_code: int = 200,
    ) -> None:
        if not isinstance(items, AsyncIterable):
            raise TypeError(f"items must be an async iterable, got {items!r}")
        if retry is not None and not 0 <= retry <= _LONGEST_RETRY:
            limits = f"at least 0 and at most {_LONGEST_RETRY:g}"
            raise ValueError(f"retry must be a number of seconds, {limits}, got {safe_repr(retry)}")
        self._items = items
        self._retry = retry
        self.status_code = status_code
        self.background: Any = None
        merged = _HEADERS | {name.lower(): value for name, value in (headers or {}).items()}
        self.raw_headers: list[tuple[bytes, bytes]] = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in merged.items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        connection = pending_connection(scope, receive)
        if connection is not None:
            receive = connection.receive
        stopped = asyncio.Event()
        streaming = asyncio.create_task(self._stream(send, stopped, head=scope.get("method") == "HEAD"))
        listening = asyncio.create_task(_stop_when_disconnected(streaming, stopped, receive))
        try:
            await asyncio.wait([streaming, listening], return_when=asyncio.FIRST_COMPLETED)
        finally:  # the task that ends first also ends the other; a cancelled request ends both
            _stop(streaming, stopped)
            listening.cancel()
            await asyncio.wait([streaming, listening])
        for task in (streaming, listening):
            if not task.cancelled():
                task.result()
        if self.background is not None:
            await self.background()

    async def _stream(self, send: Send, stopped: asyncio.Event, *, head: bool) -> None:
        items = aiter(self._items)
        try:
            await _send(send, {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if not head:
                # Servers send nothing before the first part of the body, and browsers wait for the headers.
                first = _HEARTBEAT if self._retry is None else b"retry: %d\n\n" % ceil_ms(self._retry)
                await _send_chunk(send, first)
                with suppress(*_ENDING):
                    async for item in items:
                        if stopped.is_set():
                            return  # the iterator has caught the cancellation
                        await _send_chunk(send, server_sent_event(item))
            await _send(send, {"type": "http.response.body", "body": b"", "more_body": False})
        except _ClientGoneError:
            return
        finally:
            stopped.set()  # from here on, a disconnect, which servers also report at the end, changes nothing
            await _close(items)


class _ClientGoneError(Exception):
    """The server could not send because the client is gone.  An OSError that the iterator raises is a different
    error.
    """


async def _send(send: Send, message: Message) -> None:
    try:
        await send(message)
    except Exception as error:
        if is_disconnect(error):
            raise _ClientGoneError from error
        raise


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await _send(send, {"type": "http.response.body", "body": chunk, "more_body": True})


async def _stop_when_disconnected(streaming: "asyncio.Task[None]", stopped: asyncio.Event, receive: Receive) -> None:
    ended = False
    while (message := await receive())["type"] != "http.disconnect":
        if ended:  # a middleware returns the body again and again, perhaps without ever suspending
            await asyncio.wait([streaming])
        ended = not message.get("more_body", False)
    _stop(streaming, stopped)


def _stop(streaming: "asyncio.Task[None]", stopped: asyncio.Event) -> None:
    """Cancel the stream once, because a second cancellation would interrupt the iterator's cleanup."""
    if not stopped.is_set():
        stopped.set()
        streaming.cancel()


async def _close(items: AsyncIterator[Any]) -> None:
    aclose = getattr(items, "aclose", None)
    if aclose is not None:
        await aclose()
