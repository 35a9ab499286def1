"""Orders in Postgres, which also carries the notices: a change and its notice are committed together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from purgatory.relay import PostgresTransport, Relay, Transport

from .store import COLUMNS, Order, Unavailable

__all__ = ["PostgresStore"]

_Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]

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
_WORKERS = """
SELECT pid, waiting, answered, connected, lag_ms, resyncs, losses, sent, received,
    extract(epoch FROM now() - seen)::float AS age_s
FROM workers WHERE seen > now() - interval '15 seconds' ORDER BY pid
"""


class PostgresStore:
    """A pool of connections.  A connection that was lost because the server went down is replaced before it is used."""

    name = "Postgres"

    def __init__(self, dsn: str) -> None:
        self.transport: Transport = PostgresTransport(dsn, channel="orders")
        self._dsn = dsn
        self._pool = _Pool(dsn, min_size=1, max_size=4, open=False, timeout=2.0, check=_Pool.check_connection)

    async def create(self) -> None:
        """Create the tables if they do not exist."""
        async with await AsyncConnection.connect(self._dsn) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(7)")  # serializes commands that start together
            for statement in _TABLES.split(";")[:-1]:
                await connection.execute(statement)

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection[TupleRow]]:
        try:
            async with self._pool.connection() as connection, connection.transaction():
                yield connection
        except (psycopg.OperationalError, PoolTimeout) as error:
            raise Unavailable(str(error)) from error

    async def change(self, relay: Relay, order: str, status: str) -> int:
        """See :meth:`Store.change`."""
        async with self._transaction() as connection:
            row = await (await connection.execute(_WRITE, (order, status))).fetchone()
            assert row is not None
            version = int(row[0])
            await relay.check_in(connection, {order: version})
        return version

    async def orders(self, ids: list[str]) -> dict[str, Order]:
        """See :meth:`Store.orders`."""
        async with self._transaction() as connection:
            rows = await connection.execute("SELECT id, version, status FROM orders WHERE id = ANY(%s)", (ids,))
            return {order: Order(version, status) async for order, version, status in rows}

    async def report(self, figures: dict[str, Any]) -> None:
        """See :meth:`Store.report`."""
        async with self._transaction() as connection:
            await connection.execute(_REPORT, [figures[name] for name in COLUMNS])

    async def workers(self) -> list[dict[str, Any]]:
        """See :meth:`Store.workers`."""
        async with self._transaction() as connection:
            rows = await connection.execute(_WORKERS)
            names = [column.name for column in rows.description or ()]
            return [dict(zip(names, row, strict=True)) async for row in rows]
