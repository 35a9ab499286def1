"""A relay whose user may subscribe to the channel but not publish: checks in other workers never arrive.

Each worker assumes that its own check has reached the others.  A refused publish ends the relay's connection, so the
relay repeatedly connects and loses the connection.  The engine is a real Redis server if one is installed; otherwise,
it is in memory.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from purgatory import Clock
from purgatory.relay import MemoryTransport, Relay, Transport

from .redis_server import RedisServer
from .service import Service

__all__ = ["MuteRelay"]


class NoPermissionError(Exception):
    """The error that Redis returns; the Redis client has a class with this name."""


class _ReadOnlyTransport(MemoryTransport):
    """An in-memory transport that may only subscribe."""

    async def publish(self, payload: str) -> None:  # noqa: ARG002  # nothing is sent
        raise NoPermissionError("this user has no permissions to run the 'publish' command or its subcommand")


class MuteRelay(Service):
    """Orders that another worker marks as ready."""

    def __init__(self, clock: Clock | None = None, observers: Sequence[Any] = ()) -> None:
        super().__init__(clock, observers)
        self._ready: set[int] = set()
        self.server = RedisServer.installed() if clock is None else None  # a server has no virtual time
        transport: Transport = _ReadOnlyTransport()
        if self.server is not None:
            from purgatory.relay import RedisTransport

            transport = RedisTransport(self.server.url)
        self.relay = Relay(self.room, transport)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the server, if there is one, and enter the relay."""
        if self.server is None:
            async with super().running():
                yield
            return
        async with self.server, super().running():
            yield

    async def read(self, order: int) -> bool:
        """Handle ``GET /orders/{id}``: wait until the order is ready."""
        assert self.relay is not None
        key = f"order-{order}"
        return await self.relay.wait_until(
            lambda: order in self._ready, key=key, timeout=120.0, kind="GET /orders/{id}"
        )

    def write_elsewhere(self, order: int) -> None:
        """Record that the order is ready, without a check: the other worker's check never arrives here."""
        self._ready.add(order)

    def tick(self, second: int) -> None:
        self.request(self.read(second))
        if second >= 5:
            self.write_elsewhere(second - 5)
