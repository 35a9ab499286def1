"""Requests and WebSockets as a server would pass them to an application."""

import asyncio
import json
from typing import Any

from purgatory.asgi.types import ASGIApp, Message, Scope

__all__ = ["Call", "http_scope", "websocket_scope"]


def http_scope(target: str = "/", method: str = "GET") -> Scope:
    """Return the scope of an HTTP request."""
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1")],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }


def websocket_scope(target: str = "/", *, denial: bool = False) -> Scope:
    """Return the scope of a WebSocket.  ``denial``: whether the server can refuse it with an HTTP response."""
    return {
        **http_scope(target),
        "type": "websocket",
        "scheme": "ws",
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}} if denial else {},
    }


class Call:
    """One call of an application.

    The server announces a hang-up once, as the strictest of them do.  ``sent``: what the application has sent;
    ``receiving``: how many ``receive()`` are pending now, ``most_receiving``: the most that ever were.
    """

    def __init__(self, app: ASGIApp, scope: Scope, *messages: Message) -> None:
        self.sent: list[Message] = []
        self.receiving = 0
        self.most_receiving = 0
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages:
            self._messages.put_nowait(message)
        self._kind = scope["type"]
        self.task: asyncio.Task[None] = asyncio.ensure_future(app(scope, self.receive, self.send))

    @classmethod
    def get(cls, app: ASGIApp, target: str = "/") -> "Call":
        """Return a GET request without a body."""
        return cls(app, http_scope(target), {"type": "http.request", "body": b"", "more_body": False})

    async def receive(self) -> Message:
        """The server's receive()."""
        self.receiving += 1
        self.most_receiving = max(self.most_receiving, self.receiving)
        try:
            return await self._messages.get()
        finally:
            self.receiving -= 1

    async def send(self, message: Message) -> None:
        """The server's send()."""
        self.sent.append(message)

    def arrive(self, body: bytes, *, more: bool = False) -> None:
        """Deliver a part of the body."""
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def say(self, text: str) -> None:
        """Deliver a WebSocket message."""
        self._messages.put_nowait({"type": "websocket.receive", "text": text})

    def hang_up(self) -> None:
        """Disconnect the client."""
        self._messages.put_nowait(
            {"type": f"{self._kind}.disconnect", **({"code": 1006} if self._kind != "http" else {})}
        )

    @property
    def unread(self) -> int:
        """How many messages the application has not received."""
        return self._messages.qsize()

    @property
    def status(self) -> int | None:
        """The status of the response, if it has begun."""
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response."""
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """The body of the response."""
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def json(self) -> Any:
        """The body of the response, parsed."""
        return json.loads(self.body)
