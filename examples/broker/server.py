"""The server: listens, knows its connections, and ends with everyone answered."""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from purgatory import Observer

from .broker import Broker
from .connection import Connection, Memory
from .settings import Settings

__all__ = ["Server"]

_LOGGER = logging.getLogger("examples.broker")


class Server:
    """A broker that listens.

    ::

        async with Server(Settings(port=0)) as server:
            print(server.port)
            ...

    Leaving it stops listening, answers every parked request, waits until the answers are sent (for at most
    ``shutdown_timeout``) and closes the connections.
    """

    def __init__(self, settings: Settings | None = None, *, observers: Sequence[Observer] = ()) -> None:
        self.broker = Broker(settings, observers=observers)
        self.memory = Memory(self.broker.settings.max_buffered_bytes)
        self.connections: set[Connection] = set()
        self.dropped = 0
        self._listener: asyncio.Server | None = None
        self._nobody: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
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
        await self._until_nobody(self.broker.settings.shutdown_timeout)
        await self.broker.__aexit__(kind, error, traceback)

    async def _until_nobody(self, timeout: float) -> None:
        """Wait until the last connection has ended; after ``timeout`` seconds those that are left are dropped."""
        if not self.connections:
            return
        self._nobody = asyncio.get_running_loop().create_future()
        limit = self.broker.timer.call_later(timeout, self._drop_all)
        await self._nobody
        limit.cancel()

    def _drop_all(self) -> None:
        for connection in list(self.connections):
            connection.drop("the broker stops")

    # What connections tell

    def opened(self, connection: Connection) -> bool:
        """Take it, unless there are too many."""
        if len(self.connections) >= self.broker.settings.max_connections:
            _LOGGER.warning("connection %s refused: there are %d already", connection.peer, len(self.connections))
            return False
        self.connections.add(connection)
        return True

    def closed(self, connection: Connection, reason: str) -> None:
        """It has ended; ``reason``: why the broker wanted that, or "" if it did not."""
        self.connections.discard(connection)
        if reason:
            self.dropped += 1
        if self._nobody is not None and not self.connections and not self._nobody.done():
            self._nobody.set_result(None)
