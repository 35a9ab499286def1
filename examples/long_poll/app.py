"""The HTTP application: routes and error responses.

==========================  ========================================================================================
``POST /topics/{topic}``    appends the body as one message, as JSON or text, and completes waiting readers
``GET /topics/{topic}``     waits for ``min_bytes`` after ``offset``, for at most ``max_wait`` seconds
``GET /stats``              the statistics of the purgatory
``GET /debug/parked``       the parked operations, with keys and times; the topics with the most readers
==========================  ========================================================================================

Errors are JSON, ``{"error": "..."}``:

*   400, 403: the host is not served here, or a page from another site sends a message; the body is
    ``{"detail": "..."}``
*   422: invalid parameter or message
*   410: the topic no longer keeps the messages
*   408: the message did not arrive in time
*   413: the message is too large
*   507: too many topics or too much memory
*   429: the topic has too many waiting readers
*   503: the server has too many waiting readers, or is stopping
"""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from purgatory import OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.asgi import PurgatoryErrorMiddleware, Wait, purgatory_lifespan

from .fetch import Fetch
from .parameters import BadParameter, Limits, OffsetGone, check_topic_name, fetch_request
from .topics import BadMessage, Messages, Topics, TopicsFull, render

__all__ = ["LongPoll", "make_app"]

_MOST_ROWS = 1000  # on the debug page, which is generated in one turn of the event loop
_CLIENT_DISCONNECTED = 499  # no client receives this status; nginx logs the same status


class LongPoll:
    """The topics, and the purgatory in which readers wait.

    ``retry_after``: the value of the Retry-After header, in whole seconds.
    """

    def __init__(
        self, purgatory: Purgatory[Fetch], topics: Topics, *, limits: Limits | None = None, retry_after: int = 1
    ) -> None:
        self.purgatory = purgatory
        self.topics = topics
        self.limits = limits or Limits()
        self.retry_after = retry_after

    def publish(self, name: str, body: bytes, *, is_json: bool) -> int:
        """Append a message, complete the readers that now have enough bytes, and return its offset."""
        topic, offset = self.topics.append(name, render(body, is_json=is_json), len(body))
        # There is no await between these steps, so no reader sees the new message before the waiting readers are
        # checked.
        self.purgatory.check_and_complete(name, topic.end_position)
        if topic.prepare_trim():
            self.purgatory.check_and_complete(name)  # the readers of messages that will be deleted
            self.topics.trim(topic)
        return offset

    async def fetch(self, fetch: Fetch, request: Request) -> Messages:
        """Wait for the messages.  Raise ClientDisconnected, and withdraw the operation, if the client disconnects."""
        return await Wait(self.purgatory, request).park(fetch, {fetch.request.topic: fetch.ready_at})

    @property
    def stopping(self) -> bool:
        """Whether the server is stopping and rejects new messages."""
        return self.purgatory.closed


def make_app(
    room: LongPoll, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None
) -> Starlette:
    """Return the ASGI application.  Its lifespan opens the purgatory and closes it on SIGTERM or SIGINT.

    ``lifespan``: an optional further lifespan, nested inside.
    """

    async def append(request: Request) -> Response:
        name = check_topic_name(request.path_params["topic"])
        is_json = _says_json(request.headers.get("content-type", ""))
        try:
            async with room.purgatory.timer.timeout(room.limits.body_timeout):
                body = await _body(request, room.limits.max_message_bytes)
        except TimeoutError:
            reason = f"message must arrive within {room.limits.body_timeout:g} seconds"
            raise HTTPException(408, reason, headers={"Connection": "close"}) from None
        if room.stopping:
            raise PurgatoryClosed("the server is stopping")
        return JSONResponse({"topic": name, "offset": room.publish(name, body, is_json=is_json)}, 201)

    async def read(request: Request) -> Response:
        name = check_topic_name(request.path_params["topic"])
        wanted = fetch_request(name, room.topics.get(name), request.query_params.multi_items(), room.limits)
        messages = await room.fetch(Fetch(room.topics, wanted), request)
        headers = {"Connection": "close"} if room.stopping else None
        return Response(messages.to_json(name), media_type="application/json", headers=headers)

    async def topic(request: Request) -> Response:
        return await (append if request.method == "POST" else read)(request)

    async def stats(_: Request) -> Response:
        return JSONResponse(dataclasses.asdict(room.purgatory.statistics()) | {"topics": len(room.topics)})

    async def parked(request: Request) -> Response:
        rows, as_text = _view(request)
        seen = room.purgatory.dump(rows)
        hottest = room.purgatory.hot_keys(rows)
        if as_text:
            ranking = "".join(f"  {count} on {topic}\n" for topic, count in hottest)
            return PlainTextResponse(f"{seen}\ntopics with the most readers\n{ranking}")
        return JSONResponse({**seen, "hot_topics": dict(hottest)})

    return Starlette(
        routes=[
            Route("/topics/{topic}", topic, methods=["GET", "POST"]),
            Route("/stats", stats, methods=["GET"]),
            Route("/debug/parked", parked, methods=["GET"]),
        ],
        lifespan=purgatory_lifespan(room.purgatory, lifespan=lifespan),
        middleware=[Middleware(PurgatoryErrorMiddleware)],  # for clients that disconnect while a response is sent
        exception_handlers=_errors(room.retry_after),
    )


def _says_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _view(request: Request) -> tuple[int, bool]:
    """Return the number of rows, and whether the format is text."""
    rows = request.query_params.get("rows", "20")
    if not (rows.isascii() and rows.isdigit() and len(rows) <= len(str(_MOST_ROWS)) and int(rows) <= _MOST_ROWS):
        raise BadParameter(f"rows must be an integer from 0 to {_MOST_ROWS}, got {rows[:40]!r}")
    kind = request.query_params.get("format", "json")
    if kind not in ("json", "text"):
        raise BadParameter(f"format must be json or text, got {kind[:40]!r}")
    return int(rows), kind == "text"


async def _body(request: Request, most: int) -> bytes:
    """Return the body.  Raise HTTPException with status 413 as soon as it is longer than ``most`` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            reason = f"message must have at most {most} bytes"
            raise HTTPException(413, reason, headers={"Connection": "close"})
    return bytes(body)


def _errors(retry_after: int) -> Mapping[Any, Any]:
    later = {"Retry-After": str(retry_after)}

    def answer(status: int, error: object, headers: Mapping[str, str] | None = None, **more: object) -> Response:
        return JSONResponse({"error": str(error), **more}, status, headers=headers)

    async def refused(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, error.detail, error.headers)

    async def bad(_: Request, error: Exception) -> Response:
        return answer(422, error)

    async def gone(_: Request, error: OffsetGone) -> Response:
        return answer(410, error, start=error.start)

    async def full(_: Request, error: PurgatoryFull) -> Response:
        return answer(503 if error.key is None else 429, error, later)

    async def closed(_: Request, error: PurgatoryClosed) -> Response:
        return answer(503, error, {**later, "Connection": "close"})

    async def no_room(_: Request, error: TopicsFull) -> Response:
        return answer(507, error)

    async def left(_: Request, __: Exception) -> Response:
        return Response(status_code=_CLIENT_DISCONNECTED)

    async def defect(_: Request, __: Exception) -> Response:
        return answer(500, "internal server error")  # the server logs the exception

    return {
        HTTPException: refused,
        BadParameter: bad,
        BadMessage: bad,
        OffsetGone: gone,
        PurgatoryFull: full,
        PurgatoryClosed: closed,
        TopicsFull: no_room,
        OperationCancelled: left,
        ClientDisconnect: left,
        Exception: defect,
    }
