"""A broker on a free port, and clients that send bytes."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from examples.broker import Server, Settings
from tests.examples.broker.request_harness import frame

__all__ = ["HELLO", "Client", "FakeTransport", "SocketHarness", "serving"]

HELLO = frame(ApiVersionsRequest(), 0)


class Client:
    """A connection that sends bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def response(self) -> tuple[int, bytes]:
        """Return the correlation id and the body of the next response."""
        size, correlation_id = struct.unpack(">ii", await self.reader.readexactly(8))
        return correlation_id, await self.reader.readexactly(size - 4)

    async def says_hello(self) -> bool:
        """Return whether the broker serves this connection."""
        self.writer.write(HELLO)
        return (await self.response())[0] == 7

    def stop_reading(self) -> None:
        """Stop reading from the socket."""
        transport: Any = self.writer.transport
        transport.pause_reading()

    async def closed(self) -> bool:
        """Wait until the broker has closed the connection.  Return whether it sent no further byte."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


class FakeTransport:
    """A transport without a socket that stores the written bytes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close


class SocketHarness:
    """A server and its clients."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.writers: list[asyncio.StreamWriter] = []

    async def client(self, **options: Any) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, **options)
        self.writers.append(writer)
        return Client(reader, writer)

    async def until(self, condition: Any) -> None:
        """Run the loop until the condition holds; only the time limit of the test ends it."""
        while not condition():  # noqa: ASYNC110 (what is in the kernel sets no event; each turn looks again)
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[SocketHarness]:
    """Yield a server on a free port."""
    async with asyncio.timeout(20):
        async with Server(Settings(port=0, replication_delay=0.0, **settings)) as server:
            sockets = SocketHarness(server)
            server.broker.topics.create("t")
            server.broker.topics.create("stalled")
            try:
                yield sockets
            finally:
                for writer in sockets.writers:
                    writer.close()
                for writer in sockets.writers:
                    with contextlib.suppress(ConnectionError, OSError):
                        await writer.wait_closed()
