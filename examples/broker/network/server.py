"""The server: it listens, tracks its connections, and answers every request when it stops."""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from examples.broker.broker import Broker
from examples.broker.settings import Settings
from purgatory import Observer

from .connection import Connection, Memory

__all__ = ["Server"]

_LOGGER = logging.getLogger("examples.broker")


class Server:
    """A broker that accepts connections.

    ::

        async with Server(Settings(port=0)) as server:
            print(server.port)
            ...

    On exit, the server stops listening, answers every parked request, waits up to ``shutdown_timeout`` seconds for the
    responses to be sent, and closes the connections.
    """

    def __init__(self, settings: Settings | None = None, *, observers: Sequence[Observer] = ()) -> None:
        self.broker = Broker(settings, observers=observers)
        self.memory = Memory(self.broker.settings.max_buffered_bytes)
        self.connections: set[Connection] = set()
        self.dropped = 0
        self._listener: asyncio.Server | None = None
        self._all_closed: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self.broker.port

    async def __aenter__(self) -> Self:
        settings = self.broker.settings
        await self.broker.__aenter__()
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: Connection(self), settings.host, settings.port, backlog=1024
            )
        except BaseException:
            await self.broker.__aexit__(None, None, None)
            raise
        self.broker.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for connection in list(self.connections):
            connection.finish()
        await self.broker.answer_all()
        await self._wait_closed(self.broker.settings.shutdown_timeout)
        await self.broker.__aexit__(kind, error, traceback)

    async def _wait_closed(self, timeout: float) -> None:
        """Wait until all connections have ended.  Drop the remaining connections after ``timeout`` seconds."""
        if not self.connections:
            return
        self._all_closed = asyncio.get_running_loop().create_future()
        limit = self.broker.timer.call_later(timeout, self._drop_all)
        await self._all_closed
        limit.cancel()

    def _drop_all(self) -> None:
        for connection in list(self.connections):
            connection.drop("the broker is shutting down")

    # Callbacks from connections

    def opened(self, connection: Connection) -> bool:
        """Accept the connection and return True, or return False if the limit is reached."""
        if len(self.connections) >= self.broker.settings.max_connections:
            _LOGGER.warning("connection %s refused: %d connections are open", connection.peer, len(self.connections))
            return False
        self.connections.add(connection)
        return True

    def relieve(self, connection: Connection) -> None:
        """Close the connections that hold the most bytes, until the total is within the limit."""
        while self.memory.used > self.memory.limit:
            most = max(self.connections, key=lambda other: other.counted, default=connection)
            if most.counted <= connection.counted:
                most = connection
            if not most.counted:
                return
            most.drop("all connections together hold too many bytes")

    def closed(self, connection: Connection, reason: str) -> None:
        """Forget the connection.  ``reason``: why the broker closed it, or "" if the client did."""
        self.connections.discard(connection)
        if reason:
            self.dropped += 1
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)
