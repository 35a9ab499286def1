"""The application of the long poll, called as a server would call it."""

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message

from examples.long_poll.app import LongPoll, make_app
from purgatory.testing import VirtualClock

__all__ = ["AppHarness", "Call"]


class Call:
    """One request and its response."""

    def __init__(self, app: ASGIApp, method: str, target: str, chunks: tuple[bytes, ...], content_type: str) -> None:
        path, _, query = target.partition("?")
        self.sent: list[Message] = []
        self.read = 0
        self.send_error: Exception | None = None
        self._chunks = chunks
        self.stops_after = len(chunks)
        self._left = asyncio.Event()
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"content-type", content_type.encode())],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        self.task: asyncio.Task[None] = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self.read < self.stops_after and not self._left.is_set():
            self.read += 1
            body = self._chunks[self.read - 1]
            return {"type": "http.request", "body": body, "more_body": body != b"" and self.read < len(self._chunks)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.send_error is not None:
            raise self.send_error
        self.sent.append(message)

    def hang_up(self) -> None:
        self._left.set()

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent[1:]).decode()

    @property
    def answer(self) -> Any:
        return json.loads(self.text)


class AppHarness:
    """The application and its state."""

    def __init__(self, clock: VirtualClock, room: LongPoll) -> None:
        self.clock = clock
        self.room = room
        self.purgatory = room.purgatory
        self.app = make_app(room)

    async def call(self, method: str, target: str, *chunks: bytes, content_type: str = "text/plain") -> Call:
        """Send a request, and return when no more work is possible without time passing."""
        call = Call(self.app, method, target, chunks or (b"",), content_type)
        await self.clock.settle()
        return call

    async def call_without_end(self, target: str, chunk: bytes) -> Call:
        """Send a POST whose body begins but does not end."""
        call = Call(self.app, "POST", target, (chunk, b"more", b"never"), "text/plain")
        call.stops_after = 1
        await self.clock.settle()
        return call

    async def get(self, target: str) -> Call:
        return await self.call("GET", target)

    async def post(self, topic: str, body: bytes) -> Call:
        return await self.call("POST", f"/topics/{topic}", body)
