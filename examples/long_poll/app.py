"""The HTTP side: three kinds of request, and what happens when one cannot be taken.

==========================  ========================================================================================
``POST /topics/{topic}``    appends the body as one message, JSON if the content type says so, and wakes its readers
``GET /topics/{topic}``     waits until there are ``min_bytes`` beyond ``offset``, or ``max_wait`` seconds have passed
``GET /stats``              the books of the waiting room
``GET /debug/parked``       who waits on what, since when and until when; the topics with the most readers
==========================  ========================================================================================

Errors are JSON, ``{"error": "..."}``: 422 for what cannot be meant, 410 for messages that are no longer kept, 413 and
507 for what is too much, 429 where one topic has too many readers, 503 where the server has, or is stopping.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive

from purgatory import OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryFull

from .fetch import Fetch
from .parameters import BadParameter, Limits, OffsetGone, check_topic_name, fetch_request
from .topics import BadMessage, Messages, Topics, TopicsFull, render

__all__ = ["LongPoll", "make_app"]

_CLIENT_HAS_LEFT = 499  # nobody reads it; other servers log the same number


class LongPoll:
    """The topics and the room in which their readers wait.

    ``retry_after``: whole seconds after which who was turned away may come back.
    """

    def __init__(
        self, purgatory: Purgatory[Fetch], topics: Topics, *, limits: Limits | None = None, retry_after: int = 1
    ) -> None:
        self.purgatory = purgatory
        self.topics = topics
        self.limits = limits or Limits()
        self.retry_after = retry_after
        self.stopping = False

    def publish(self, name: str, body: bytes, *, is_json: bool) -> int:
        """Append a message and answer the readers whose bytes are there now; return its offset."""
        topic, offset = self.topics.append(name, render(body, is_json=is_json), len(body))
        # Nothing else runs between these three: no reader sees a topic that was trimmed under him.
        self.purgatory.check_and_complete(name, topic.end_position)
        topic.trim()
        return offset

    async def fetch(self, fetch: Fetch, receive: Receive) -> Messages:
        """What the reader waits for.  OperationCancelled if he hangs up meanwhile: he is withdrawn at once."""
        if self.purgatory.try_complete_else_watch(fetch, {fetch.request.topic: fetch.ready_at}):
            return fetch.result()
        listener = asyncio.create_task(_withdraw_when_gone(fetch, receive))
        try:
            return await fetch
        finally:
            listener.cancel()
            fetch.cancel()  # only does something if this task was cancelled

    async def aclose(self) -> None:
        """Take nothing new, and answer everyone who waits with what there is."""
        self.stopping = True
        await self.purgatory.aclose()


async def _withdraw_when_gone(fetch: Fetch, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    fetch.cancel()


def make_app(room: LongPoll) -> Starlette:
    """The ASGI application.  Its lifespan opens the waiting room and closes it."""

    async def append(request: Request) -> Response:
        name = check_topic_name(request.path_params["topic"])
        is_json = _says_json(request.headers.get("content-type", ""))
        body = await _body(request, room.limits.max_message_bytes)
        if room.stopping:
            raise PurgatoryClosed("the server is stopping")
        return JSONResponse({"topic": name, "offset": room.publish(name, body, is_json=is_json)}, 201)

    async def read(request: Request) -> Response:
        name = check_topic_name(request.path_params["topic"])
        wanted = fetch_request(name, room.topics.get(name), request.query_params.multi_items(), room.limits)
        messages = await room.fetch(Fetch(room.topics, wanted), request.receive)
        last_words = {"Connection": "close"} if room.stopping else None
        return Response(messages.to_json(name), media_type="application/json", headers=last_words)

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

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with room.purgatory:
            yield

    return Starlette(
        routes=[
            Route("/topics/{topic}", topic, methods=["GET", "POST"]),
            Route("/stats", stats, methods=["GET"]),
            Route("/debug/parked", parked, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers=_errors(room.retry_after),
    )


def _says_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _view(request: Request) -> tuple[int, bool]:
    """How many rows, and whether as text for people."""
    rows = request.query_params.get("rows", "20")
    if not (rows.isascii() and rows.isdigit() and len(rows) < 7):
        raise BadParameter(f"rows is a whole number below a million, not {rows[:40]!r}")
    kind = request.query_params.get("format", "json")
    if kind not in ("json", "text"):
        raise BadParameter(f"format is json or text, not {kind[:40]!r}")
    return int(rows), kind == "text"


async def _body(request: Request, most: int) -> bytes:
    """The whole body; 413 as soon as it is longer than ``most`` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            reason = f"a message is at most {most} bytes"
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
        return Response(status_code=_CLIENT_HAS_LEFT)

    async def defect(_: Request, __: Exception) -> Response:
        return answer(500, "internal server error")  # the server logs what it was

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
