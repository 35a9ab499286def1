"""ASGI middleware that limits the memory of the responses that clients do not read.

A server buffers what a client has not read.  Here, a response is sent in pieces, so that the buffer of a connection
contains hardly more than one piece, and the responses of all connections that are not completely sent have a common
limit.  Above the limit, a response is replaced with 503 before it begins.  A response that fits in one piece is always
sent: clients who ask for little are served even if others exhaust the limit.
"""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["PIECE_BYTES", "UnsentLimit"]

PIECE_BYTES = 64 << 10


class UnsentLimit:
    """Limits the bytes of the responses of ``app`` that are longer than one piece and not completely sent.

    Each response of the application must have a single body message.  ``retry_after``: the value of the Retry-After
    header, in whole seconds.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, retry_after: int = 1) -> None:
        self.app = app
        self.unsent_bytes = 0
        self._max_bytes = max_bytes
        self._refusal = JSONResponse(
            {"error": f"responses that clients have not read must take at most {max_bytes} bytes"},
            503,
            headers={"Retry-After": str(retry_after)},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application."""
        start: Message = {}

        async def limited_send(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message  # is sent with the body, or not at all
                return
            body = message["body"]
            counted = len(body) if len(body) > PIECE_BYTES else 0
            if counted and self.unsent_bytes + counted > self._max_bytes:
                await self._refusal(scope, receive, send)
                return
            self.unsent_bytes += counted
            try:
                await send(start)
                for first in range(0, len(body) or 1, PIECE_BYTES):
                    last = first + PIECE_BYTES
                    await send({**message, "body": body[first:last], "more_body": last < len(body)})
            finally:
                self.unsent_bytes -= counted

        await self.app(scope, receive, limited_send if scope["type"] == "http" else send)
