"""Small JSON responses, and sending to a client that may have disconnected."""

import json
from collections.abc import Iterable

from .types import Message, Scope, Send

__all__ = ["respond", "send_if_connected"]


async def respond(
    scope: Scope, send: Send, status: int, detail: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer a request, or refuse a WebSocket that is not accepted yet, with ``{"detail": ...}``.

    Where the server cannot refuse a WebSocket with a response, the WebSocket is closed, which clients see as 403.
    """
    kind = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send_if_connected(send, {"type": "websocket.close", "code": 1008, "reason": detail})
            return
        kind = "websocket.http.response"
    body = json.dumps({"detail": detail}).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send_if_connected(send, {"type": f"{kind}.start", "status": status, "headers": head})
    await send_if_connected(send, {"type": f"{kind}.body", "body": body})


async def send_if_connected(send: Send, message: Message) -> None:
    """Send the message; do nothing if the client has disconnected, which ASGI servers may report with an OSError."""
    try:
        await send(message)
    except OSError:
        return
