"""Postgres: ``LISTEN`` and ``NOTIFY`` through psycopg 3; the extra ``postgres``.

One connection listens and another one publishes.  ``LISTEN`` needs a session of its own: give the address of the
server, not of a pooler in transaction mode.  The relay's ping detects a pooler that discards ``LISTEN``.  Behind a
pooler, other clients use the session afterwards, so nothing is set in it that would stay.  A pooler is detected because
the process id that it gives to its clients differs from the server's.

A channel belongs to one database: workers that use different databases of a server receive none of each other's
notices.

Postgres delivers a notice when its transaction commits, in the order of the commits, and takes a lock for all
databases of the server while it commits a notice.  Its queue of notices holds 8 GB by default, and a listener
that does not read keeps them in the queue.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

from .addresses import described, without_secrets
from .loop_lock import LoopLock
from .transactions import notify_in, notify_in_sync
from .transport import SLICE, Received, Subscribed

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError as _missing:
    raise ImportError("PostgresTransport needs psycopg: pip install 'aiopurgatory[postgres]'") from _missing

__all__ = ["PostgresTransport"]

_CANCEL_TIMEOUT: Final = 0.1  # seconds in which a working connection can cancel a query
# Not an option of the connection, which a pooler may refuse.  Servers before Postgres 14 do not have the setting.
_NEVER_IDLE: Final = sql.SQL(
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings"
    " WHERE name = 'idle_session_timeout' AND pg_catalog.pg_backend_pid() = {}"
)
_SECRET: Final = ("password", "sslpassword", "oauth_client_secret")
_NOTIFY: Final = "SELECT pg_catalog.pg_notify(pg_catalog.convert_from(%s, 'UTF8'), %s)"  # with any client encoding


class PostgresTransport:
    """Relay through one Postgres channel.

    ``dsn``: a connection string as libpq reads it; ValueError if libpq cannot read it.  ``channel``: at most 63 bytes,
    the longest name in Postgres.
    """

    max_payload = 7_999
    """Postgres refuses a payload of 8,000 bytes."""
    silence = "a pooler in transaction mode, such as pgbouncer, discards LISTEN: give the address of the server itself"
    """Why a ping does not come back although the subscription was confirmed."""

    def __init__(self, dsn: str, *, channel: str = "purgatory_relay") -> None:
        if not isinstance(dsn, str):
            raise TypeError(f"dsn must be a str, got {described(dsn)}")
        self._secrets = [dsn, *_secrets_of(dsn)]
        if not isinstance(channel, str):
            raise TypeError(f"channel must be a str, got {channel!r}")
        if not 0 < len(channel.encode()) < 64 or "\0" in channel:
            raise ValueError(f"channel must have 1 to 63 bytes and no NUL, got {channel!r}")
        self._dsn = dsn
        self._channel = channel
        self._publishing: psycopg.AsyncConnection[Any] | None = None
        self._publish_lock = LoopLock()  # relays that share the transport publish one after the other

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # Behind a pooler, a statement that psycopg has prepared may be missing in the session of the next one.
        return await psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, client_encoding="UTF8", prepare_threshold=None
        )

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """See :meth:`Transport.listen`."""
        with without_secrets(self._secrets):
            connection = await self._connect()
            try:
                never_idle = _NEVER_IDLE.format(connection.info.backend_pid)
                listen = sql.SQL("LISTEN {}; {}").format(sql.Identifier(self._channel), never_idle)
                await _at_once(connection.execute(listen))
                subscribed()
                in_a_row = 0
                async for notify in connection.notifies():
                    received(notify.payload)
                    in_a_row += 1
                    if in_a_row % SLICE == 0:
                        await asyncio.sleep(0)  # psycopg yields what it has without giving way to other tasks
            finally:
                _leave(connection, self._channel)
                await connection.close()

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`."""
        with without_secrets(self._secrets):
            async with self._publish_lock.get():
                connection = self._publishing
                is_new = connection is None
                if connection is None:
                    connection = self._publishing = await self._connect()
                try:
                    if is_new:
                        await _at_once(connection.execute(_NEVER_IDLE.format(connection.info.backend_pid)))
                    await _at_once(connection.execute(_NOTIFY, (self._channel.encode(), payload)))
                except BaseException:
                    self._publishing = None
                    await connection.close()
                    raise

    async def publish_in(self, connection: Any, payload: str) -> None:
        """See :meth:`TransactionalTransport.publish_in`.

        ``connection``: an ``AsyncConnection`` or ``AsyncCursor`` of psycopg, a ``Connection`` of asyncpg, or an
        ``AsyncSession`` or ``AsyncConnection`` of SQLAlchemy.  A blocking one would block the loop.
        """
        await notify_in(connection, self._channel, payload)

    def publish_in_sync(self, connection: Any, payload: str) -> None:
        """Do the same with a blocking connection of psycopg, SQLAlchemy, or Django."""
        notify_in_sync(connection, self._channel, payload)

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`."""
        async with self._publish_lock.get():
            connection, self._publishing = self._publishing, None
            if connection is not None:
                await connection.close()

    def __copy__(self) -> "PostgresTransport":
        """Return a transport for the same channel, without connections."""
        return type(self)(self._dsn, channel=self._channel)

    def __repr__(self) -> str:
        return f"<PostgresTransport channel={self._channel!r}>"


async def _at_once(query: Coroutine[Any, Any, object]) -> None:
    """Run the query; when cancelled, end it without waiting for the server.

    psycopg answers a cancellation with a request to the server to cancel the query, and waits for seconds where the
    line is dead.  A second cancellation ends that.
    """
    task = asyncio.get_running_loop().create_task(query)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_TIMEOUT)
        if not task.cancelled():
            task.exception()
        raise


def _leave(connection: psycopg.AsyncConnection[Any], channel: str) -> None:
    """End the subscription of the session, which may go back to a pooler.  Nothing waits for the answer."""
    with contextlib.suppress(Exception):  # the connection is lost, or busy
        unlisten = sql.SQL("UNLISTEN {}").format(sql.Identifier(channel))
        connection.pgconn.send_query(unlisten.as_bytes(connection))
        connection.pgconn.flush()


def _secrets_of(dsn: str) -> list[str]:
    """Return the passwords in the connection string.

    Raises ValueError if libpq cannot read it, or would misread it.
    """
    try:
        parsed = conninfo_to_dict(dsn)
    except psycopg.Error:
        parsed = {}
        readable = False
    else:
        # In a URL, an unencoded / or @ of a password would become a part of these.
        ports = str(parsed.get("port", "")).split(",")
        readable = all(not port or port.isdecimal() for port in ports) and not (
            "://" in dsn and any("@" in str(parsed.get(name, "")) for name in ("host", "dbname"))
        )
    if not readable:
        hint = "; remove the name of the driver" if dsn.partition("://")[0].startswith("postgresql+") else ""
        raise ValueError(
            "dsn must be a connection string of libpq, such as postgresql://user:password@host:5432/database, with the"
            f" characters / ? # @ % and spaces of a password percent-encoded{hint}; it is not repeated here, because it"
            " may contain a password"
        )
    return [str(parsed[name]) for name in _SECRET if parsed.get(name)]
