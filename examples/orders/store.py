"""What the application needs from its database: orders with a version, and the latest report of each worker."""

from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from purgatory.relay import Relay, RelayStatistics, Transport

__all__ = ["COLUMNS", "Order", "Store", "Unavailable", "figures_of"]

COLUMNS = ("pid", "waiting", "answered", "connected", "lag_ms", "resyncs", "losses", "sent", "received")
"""The figures of a worker."""


class Order(NamedTuple):
    """The state of an order at the time it was read."""

    version: int
    status: str


class Unavailable(Exception):
    """The database cannot be reached."""


class Store(AbstractAsyncContextManager["Store", None], Protocol):
    """A database that all workers share, and the transport that goes with it.  Enter it in the worker.

    Each method raises :class:`Unavailable` while the database cannot be reached.  ``name`` is used in messages.
    """

    name: str
    transport: Transport

    async def change(self, relay: Relay, order: str, status: str) -> int:
        """Change an order and notify every worker.  Return its new version."""
        ...

    async def orders(self, ids: list[str]) -> dict[str, Order]:
        """Read orders in one query."""
        ...

    async def report(self, figures: dict[str, Any]) -> None:
        """Store the figures of a worker, for the page that any other worker may serve."""
        ...

    async def workers(self) -> list[dict[str, Any]]:
        """Return the workers that reported in the last 15 seconds; ``age_s`` is the age of the report in seconds."""
        ...


def figures_of(pid: int, waiting: int, answered: int, relay: RelayStatistics) -> dict[str, Any]:
    """Return the figures of a worker as a row of the table."""
    lag_ms = None if relay.lag is None else relay.lag * 1000
    values = (relay.connected, lag_ms, relay.resyncs, relay.losses, relay.sent, relay.received)
    return dict(zip(COLUMNS, (pid, waiting, answered, *values), strict=True))
