"""The content of the database: orders with a version, and the latest report of each worker."""

from typing import Any, NamedTuple

from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from purgatory.relay import RelayStatistics

__all__ = ["Order", "Pool", "create", "figures_of", "load_orders", "load_workers", "report", "write"]

Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]

_TABLES = """
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, version int NOT NULL, status text NOT NULL);
CREATE UNLOGGED TABLE IF NOT EXISTS workers (
    pid int PRIMARY KEY, seen timestamptz NOT NULL, waiting int NOT NULL, answered bigint NOT NULL,
    connected bool NOT NULL, lag_ms float, resyncs int NOT NULL, losses int NOT NULL, sent int NOT NULL,
    received int NOT NULL
);
"""
_WRITE = """
INSERT INTO orders (id, version, status) VALUES (%s, 1, %s)
ON CONFLICT (id) DO UPDATE SET version = orders.version + 1, status = excluded.status RETURNING version
"""
_REPORT = """
INSERT INTO workers VALUES (%s, now(), %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (pid) DO UPDATE SET
    seen = excluded.seen, waiting = excluded.waiting, answered = excluded.answered, connected = excluded.connected,
    lag_ms = excluded.lag_ms, resyncs = excluded.resyncs, losses = excluded.losses, sent = excluded.sent,
    received = excluded.received
"""
_COLUMNS = ("pid", "waiting", "answered", "connected", "lag_ms", "resyncs", "losses", "sent", "received")
_WORKERS = """
SELECT pid, waiting, answered, connected, lag_ms, resyncs, losses, sent, received,
    extract(epoch FROM now() - seen)::float AS age_s
FROM workers WHERE seen > now() - interval '15 seconds' ORDER BY pid
"""


class Order(NamedTuple):
    """The state of an order at the time it was read."""

    version: int
    status: str


async def create(connection: AsyncConnection[Any]) -> None:
    """Create the tables if they do not exist."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(7)")  # serializes commands that start at the same time
        for statement in _TABLES.split(";")[:-1]:
            await connection.execute(statement)


async def write(connection: AsyncConnection[Any], order: str, status: str) -> int:
    """Change an order.  Return its new version."""
    row = await (await connection.execute(_WRITE, (order, status))).fetchone()
    assert row is not None
    return int(row[0])


async def load_orders(pool: Pool, keys: list[str]) -> dict[str, Order]:
    """Read orders in one query."""
    async with pool.connection() as connection:
        rows = await connection.execute("SELECT id, version, status FROM orders WHERE id = ANY(%s)", (keys,))
        return {order: Order(version, status) async for order, version, status in rows}


async def report(pool: Pool, figures: dict[str, Any]) -> None:
    """Store the figures of a worker, for the page that any other worker may serve."""
    async with pool.connection() as connection:
        await connection.execute(_REPORT, [figures[name] for name in _COLUMNS])


def figures_of(pid: int, waiting: int, answered: int, relay: RelayStatistics) -> dict[str, Any]:
    """Return the figures of a worker, as a row of its table."""
    lag_ms = None if relay.lag is None else relay.lag * 1000
    values = (relay.connected, lag_ms, relay.resyncs, relay.losses, relay.sent, relay.received)
    return dict(zip(_COLUMNS, (pid, waiting, answered, *values), strict=True))


async def load_workers(pool: Pool) -> list[dict[str, Any]]:
    """Return the workers that reported in the last 15 seconds; ``age_s`` is the time since the report."""
    async with pool.connection() as connection:
        rows = await connection.execute(_WORKERS)
        names = [column.name for column in rows.description or ()]
        return [dict(zip(names, row, strict=True)) async for row in rows]
