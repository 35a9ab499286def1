"""Small JSON responses, WebSocket closes, and sending to a client that may have disconnected."""

import json
from collections.abc import Iterable
from typing import Final

from .types import Message, Scope, Send

__all__ = ["body_of", "close", "close_reason", "is_disconnect", "respond", "send_if_connected"]

_LONGEST_REASON: Final = 123  # bytes: a control frame has room for 125, and the code takes 2 (RFC 6455, section 5.5)


async def respond(
    scope: Scope, send: Send, status: int, detail: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer a request, or refuse a WebSocket that has not been accepted yet, with ``{"detail": ...}``.

    If the server cannot refuse a WebSocket with a response, the WebSocket is closed, and clients see 403.
    """
    kind = "http.response"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await close(send, 1008, detail)
            return
        kind = "websocket.http.response"
    body = body_of(detail)
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send_if_connected(send, {"type": f"{kind}.start", "status": status, "headers": head})
    await send_if_connected(send, {"type": f"{kind}.body", "body": body})


def body_of(detail: str) -> bytes:
    """Return the body of a response with this detail."""
    return json.dumps({"detail": detail}).encode()


async def close(send: Send, code: int, reason: str) -> None:
    """Close a WebSocket, or refuse one that has not been accepted yet; do nothing if the client has disconnected."""
    await send_if_connected(send, {"type": "websocket.close", "code": code, "reason": close_reason(reason)})


def close_reason(text: str) -> str:
    """Return as many characters from the beginning of the text as the reason of a WebSocket close may contain.

    A server cannot send a longer reason: the client would not receive the close code.
    """
    return text.encode(errors="replace")[:_LONGEST_REASON].decode(errors="ignore")


async def send_if_connected(send: Send, message: Message) -> None:
    """Send the message; do nothing if the client has disconnected."""
    try:
        await send(message)
    except Exception as error:
        if not is_disconnect(error):
            raise


def is_disconnect(error: BaseException) -> bool:
    """Return whether an exception raised by ``send()`` means that the client has disconnected.

    ASGI specifies an OSError in that case.  With uvloop, uvicorn does not notice a disconnect while it is not reading
    from the connection; its ``send()`` then raises uvloop's RuntimeError for a closed transport.
    """
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and "the handler is closed" in str(error))
