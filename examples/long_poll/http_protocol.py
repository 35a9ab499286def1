"""uvicorn's HTTP protocol with additional limits.

The protocol closes a connection when the head of a request (request line and headers) is too long or does not arrive in
time, when the client does not read a response in time, and when there are too many connections.  It uses the timers of
the event loop.  The time for a response begins when its bytes begin to pile up, and ends when all have been written and
hardly any is left; reading some of it now and then does not prolong the time.

A client can send more while its request is in progress: trailers after a chunked body, and the next requests.  uvicorn
stores the headers of an unfinished head and of unfinished trailers, however many there are, and stops reading only at
the end of a head.  Therefore, the limit of a head also applies to these bytes.  The protocol parses them in pieces that
are hardly longer than a head may be, and counts each piece that neither completes a head or a message nor contains a
part of a body.  Above the limit, it closes the connection without 431, because the client would take 431 for the
response to the request in progress.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["limited_protocol"]

_END_OF_HEAD = b"\r\n\r\n"
_MOST_REQUESTS_AHEAD = 16  # that a client may send before the response to an earlier request
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
)


def limited_protocol(
    *, head_timeout: float, max_head_bytes: int, write_timeout: float, max_connections: int
) -> type[asyncio.Protocol]:
    """Return a protocol class with these limits for ``uvicorn.Config(http=...)``.  Times are in seconds."""

    class LimitedProtocol(HttpToolsProtocol):
        """One connection."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._head_bytes = 0  # since the last head, message, or part of a body
            self._tail = b""  # the last bytes, which may contain the start of the separator
            self._head_limit: asyncio.TimerHandle | None = None
            self._write_limit: asyncio.TimerHandle | None = None
            self._responses = 0  # that the application has finished
            self._responses_before = 0  # the one that the time limit applies to

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                transport.abort()
                return
            self._begin_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_head()
            self._end_write()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            start = 0
            while start < len(data) and not self.transport.is_closing():
                before: Any = self.cycle  # None until the first request
                in_progress = before is not None and not before.response_complete
                if not in_progress and self._head_limit is None:
                    self._begin_head()
                piece = self._piece(data, start, in_progress)
                start += len(piece)
                self._head_bytes += len(piece)
                if not in_progress and self._head_bytes > max_head_bytes:
                    self._refuse_head()
                    return
                super().data_received(piece)
                if self.cycle is not before:
                    self._end_head()
                if self._head_bytes > max_head_bytes or len(self.pipeline) > _MOST_REQUESTS_AHEAD:
                    self.transport.abort()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._head_bytes = 0

        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            self._head_bytes = 0

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._head_bytes = 0

        def on_response_complete(self) -> None:
            self._responses += 1
            if not self.flow.write_paused:
                self._end_write()
            super().on_response_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._write_limit is None:
                self._write_limit = self.loop.call_later(write_timeout, self.transport.abort)
                self._responses_before = self._responses

        def resume_writing(self) -> None:
            if self._responses > self._responses_before:
                self._end_write()
            super().resume_writing()

        def _begin_head(self) -> None:
            self._head_limit = self.loop.call_later(head_timeout, self.transport.abort)

        def _end_head(self) -> None:
            if self._head_limit is not None:
                self._head_limit.cancel()
                self._head_limit = None

        def _end_write(self) -> None:
            if self._write_limit is not None:
                self._write_limit.cancel()
                self._write_limit = None

        def _piece(self, data: bytes, start: int, in_progress: bool) -> bytes:
            """Return the bytes to parse next: up to the first byte above the limit and, if no request is in progress,
            up to the end of the head.
            """
            piece = data[start : start + max_head_bytes - self._head_bytes + 1]
            if not in_progress:
                end = (self._tail + piece).find(_END_OF_HEAD)
                if end >= 0:
                    piece = piece[: end + len(_END_OF_HEAD) - len(self._tail)]
            self._tail = (self._tail + piece)[-len(_END_OF_HEAD) + 1 :]
            return piece

        def _refuse_head(self) -> None:
            body = b'{"error":"request head must have at most %d bytes"}' % max_head_bytes
            self.transport.write(_TOO_LARGE % (len(body), body))
            self.transport.close()

    return LimitedProtocol
