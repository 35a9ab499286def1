"""uvicorn's HTTP protocol with additional limits.

The protocol closes a connection when the head of a request (request line and headers) is too long or does not arrive in
time, when the client does not read a response in time, and when there are too many connections.  It uses the timers of
the event loop.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["limited_protocol"]

_END_OF_HEAD = b"\r\n\r\n"
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
            self._head_bytes = 0
            self._tail = b""  # the last bytes, which may contain the start of the separator
            self._head_limit: asyncio.TimerHandle | None = None
            self._write_limit: asyncio.TimerHandle | None = None

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
            if self.transport.is_closing():
                return
            before: Any = self.cycle  # None until the first request
            if before is None or before.response_complete:
                if self._head_limit is None:
                    self._begin_head()
                if not self._head_fits(data):
                    self._refuse_head()
                    return
            super().data_received(data)
            if self.cycle is not before:
                self._end_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._write_limit is None:
                self._write_limit = self.loop.call_later(write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            self._end_write()
            super().resume_writing()

        def _begin_head(self) -> None:
            self._head_bytes = 0
            self._tail = b""
            self._head_limit = self.loop.call_later(head_timeout, self.transport.abort)

        def _end_head(self) -> None:
            if self._head_limit is not None:
                self._head_limit.cancel()
                self._head_limit = None

        def _end_write(self) -> None:
            if self._write_limit is not None:
                self._write_limit.cancel()
                self._write_limit = None

        def _head_fits(self, data: bytes) -> bool:
            """Count the bytes of the head.  Return whether they are within the limit."""
            end = (self._tail + data).find(_END_OF_HEAD)
            self._head_bytes += len(data) if end < 0 else end + len(_END_OF_HEAD) - len(self._tail)
            self._tail = (self._tail + data)[-len(_END_OF_HEAD) + 1 :]
            return self._head_bytes <= max_head_bytes

        def _refuse_head(self) -> None:
            body = b'{"error":"request head must have at most %d bytes"}' % max_head_bytes
            self.transport.write(_TOO_LARGE % (len(body), body))
            self.transport.close()

    return LimitedProtocol
