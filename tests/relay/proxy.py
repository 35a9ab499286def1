"""A TCP proxy on the loopback interface that can cut its connections, or stop forwarding without closing them."""

import asyncio
from urllib.parse import urlsplit, urlunsplit

__all__ = ["Proxy"]


class Proxy:
    """A proxy between the workers and an engine.

    ``silence()``: existing connections stay open and forward nothing; new connections are accepted and forward
    nothing.  ``restore()``: new connections work again.  ``cut()``: every connection is reset.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self._target = (parts.hostname or "127.0.0.1", parts.port)
        self._parts = parts
        self._silent = False
        self._connections: dict[asyncio.Task[None], asyncio.Event] = {}
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The address that the workers connect to."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}@" if self._parts.username else ""
        return urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{port}"))

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def close(self) -> None:
        """End everything."""
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._connections:
            await asyncio.wait(self._connections)

    def silence(self) -> None:
        """Carry nothing any more, and close nothing."""
        self._silent = True
        for silent in self._connections.values():
            silent.set()

    def restore(self) -> None:
        """Let new connections through."""
        self._silent = False

    def lead_to(self, url: str) -> None:
        """Let new connections lead to another server, as an address does after a failover."""
        parts = urlsplit(url)
        assert parts.port is not None
        self._target = (parts.hostname or "127.0.0.1", parts.port)

    def cut(self) -> None:
        """Reset every connection."""
        for task in self._connections:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        silent = self._connections[task] = asyncio.Event()
        if self._silent:
            silent.set()
        to: asyncio.StreamWriter | None = None
        try:
            if silent.is_set():
                await asyncio.get_running_loop().create_future()
            far, to = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._pump(reader, to, silent), self._pump(far, writer, silent))
        except (OSError, asyncio.CancelledError):
            pass  # cut, refused, or ended by one of the two
        finally:
            del self._connections[task]
            for end in (writer, to):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event) -> None:
        while data := await reader.read(65_536):
            if silent.is_set():
                await asyncio.get_running_loop().create_future()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one end has closed")
