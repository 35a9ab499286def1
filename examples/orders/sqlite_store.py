"""Orders in a file: SQLite, and sockets beside the file.  Nothing has to be installed or started."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from purgatory.relay import Relay, Transport, UnixTransport

from .store import COLUMNS, Order, Unavailable

__all__ = ["SqliteStore"]

T = TypeVar("T")

_TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, version INT NOT NULL, status TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS workers (
    pid INT PRIMARY KEY, seen REAL NOT NULL, waiting INT NOT NULL, answered INT NOT NULL, connected INT NOT NULL,
    lag_ms REAL, resyncs INT NOT NULL, losses INT NOT NULL, sent INT NOT NULL, received INT NOT NULL
);
"""
_WRITE = """
INSERT INTO orders (id, version, status) VALUES (?, 1, ?)
ON CONFLICT (id) DO UPDATE SET version = version + 1, status = excluded.status RETURNING version
"""
_MOST_VARIABLES = 500  # in one query; every version of SQLite allows more


class SqliteStore:
    """One connection for each worker, in a thread of its own.  The writers in all workers take turns."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.transport: Transport = UnixTransport(folder / "relay")
        self._path = folder / "orders.sqlite"
        self._thread = ThreadPoolExecutor(1, "sqlite")
        self._connection: sqlite3.Connection | None = None

    async def create(self) -> None:
        """Create the file.  Call this before the workers start: SQLite's timeout does not cover the switch to WAL."""
        async with self:
            pass

    async def __aenter__(self) -> Self:
        await self._run(lambda connection: connection.executescript(_TABLES))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    async def _run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            if self._connection is None:
                self._connection = sqlite3.connect(self._path, timeout=2.0)
            with self._connection:  # one transaction
                return query(self._connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except sqlite3.OperationalError as error:
            raise Unavailable(str(error)) from error

    async def change(self, relay: Relay, order: str, status: str) -> int:
        """See :meth:`Store.change`.  The notice follows the commit; after a crash in between, a resync replaces it."""
        (version,) = await self._run(lambda connection: connection.execute(_WRITE, (order, status)).fetchone())
        relay.check(order, version)
        return int(version)

    async def orders(self, ids: list[str]) -> dict[str, Order]:
        """See :meth:`Store.orders`."""

        def read(connection: sqlite3.Connection) -> dict[str, Order]:
            found = {}
            for start in range(0, len(ids), _MOST_VARIABLES):
                part = ids[start : start + _MOST_VARIABLES]
                query = f"SELECT id, version, status FROM orders WHERE id IN ({', '.join('?' * len(part))})"  # noqa: S608
                found.update(
                    {order: Order(version, status) for order, version, status in connection.execute(query, part)}
                )
            return found

        return await self._run(read)

    async def report(self, figures: dict[str, Any]) -> None:
        """See :meth:`Store.report`."""
        pid, *values = (figures[name] for name in COLUMNS)
        row = (pid, time.time(), *values)
        places = ", ".join("?" * len(row))
        await self._run(lambda connection: connection.execute(f"INSERT OR REPLACE INTO workers VALUES ({places})", row))  # noqa: S608

    async def workers(self) -> list[dict[str, Any]]:
        """See :meth:`Store.workers`."""
        now = time.time()
        query = f"SELECT {', '.join(COLUMNS)}, ? - seen FROM workers WHERE seen > ? - 15 ORDER BY pid"  # noqa: S608
        rows = await self._run(lambda connection: connection.execute(query, (now, now)).fetchall())
        found = [dict(zip((*COLUMNS, "age_s"), row, strict=True)) for row in rows]
        return [{**row, "connected": bool(row["connected"])} for row in found]
