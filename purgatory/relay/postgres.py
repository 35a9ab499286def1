"""Postgres: ``LISTEN`` and ``NOTIFY`` through psycopg 3, with the ``postgres`` extra.

One connection listens, and another publishes.  ``LISTEN`` needs a dedicated session: give the address of the server,
not the address of a pooler in transaction mode.  The relay's ping detects a pooler that discards ``LISTEN``.  Behind a
pooler, other clients use the session afterward, so nothing that would persist is set there.  A pooler is detected
because the process ID that it gives to its clients differs from the server's process ID.

A channel belongs to one database: workers that use different databases on a server do not receive each other's notices.

Postgres delivers a notice when its transaction commits, in commit order; committing a notice takes a lock that covers
all databases on the server.  The server's queue of notices holds 8 GB by default, and a listener that does not read its
notices keeps them in the queue.
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
    from psycopg import pq, sql
    from psycopg.abc import ConnDict
    from psycopg.conninfo import conninfo_to_dict
except ImportError as _missing:
    raise ImportError("PostgresTransport needs psycopg: pip install 'aiopurgatory[postgres]'") from _missing

__all__ = ["PostgresTransport"]

_CANCEL_TIMEOUT: Final = 0.1  # seconds within which a working connection can cancel a query
# The setting is changed by a query rather than by a connection option, because a pooler may refuse the option.  Servers
# before Postgres 14 do not have the setting.
_NEVER_IDLE: Final = sql.SQL(
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings"
    " WHERE name = 'idle_session_timeout' AND pg_catalog.pg_backend_pid() = {}"
)
_HOST_S: Final = 2  # seconds for each of several hosts; libpq's minimum
_SECRET: Final = ("password", "sslpassword", "oauth_client_secret")
_NOTIFY: Final = "SELECT pg_catalog.pg_notify(pg_catalog.convert_from(%s, 'UTF8'), %s)"  # for any client encoding


class PostgresTransport:
    """Relays through one Postgres channel.

    ``dsn``: a libpq connection string; raises ValueError if libpq cannot read it.  If it names several hosts, they are
    tried in turn, each for ``connect_timeout`` seconds, or for 2 seconds if that is not set.  ``channel``: the name of
    the channel; Postgres allows at most 63 bytes.

    A transport serves one event loop at a time.  While a loop uses the transport, relays and calls in other loops are
    refused with a RuntimeError.
    """

    max_payload = 7_999
    """Just below 8,000 bytes, the size at which Postgres refuses a payload."""
    silence = "a pooler in transaction mode, such as pgbouncer, discards LISTEN: give the address of the server itself"
    """The likely reason why no ping comes back although the subscription was confirmed."""

    def __init__(self, dsn: str, *, channel: str = "purgatory_relay") -> None:
        if not isinstance(dsn, str):
            raise TypeError(f"dsn must be a str, got {described(dsn)}")
        parsed = _parsed(dsn)
        self._secrets = [dsn, *(str(parsed[name]) for name in _SECRET if parsed.get(name))]
        if not isinstance(channel, str):
            raise TypeError(f"channel must be a str, got {described(channel)}")
        if not 0 < len(channel.encode()) < 64 or "\0" in channel:
            raise ValueError(f"channel must have 1 to 63 bytes and no NUL, got {channel!r}")
        self._dsn = dsn
        given = _environment() | {name: value for name, value in parsed.items() if value is not None}
        # psycopg waits for a host that does not answer for 130 seconds, longer than anyone waits for a connection.
        several = "," in str(given.get("hostaddr") or given.get("host") or "")
        limit = several and given.get("connect_timeout") is None
        self._limits: dict[str, Any] = {"connect_timeout": _HOST_S} if limit else {}
        self._channel = channel
        self._loop_lock: LoopLock[psycopg.AsyncConnection[Any]] = LoopLock("PostgresTransport")

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # Behind a pooler, a statement that psycopg has prepared may be missing from the session of the next query.
        return await psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, client_encoding="UTF8", prepare_threshold=None, **self._limits
        )

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """See :meth:`Transport.listen`."""
        with self._loop_lock.used(), without_secrets(self._secrets):
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
                        await asyncio.sleep(0)  # psycopg returns buffered notices without yielding to other tasks
            finally:
                _leave(connection, self._channel)
                await connection.close()

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`."""
        with without_secrets(self._secrets):
            async with self._loop_lock.publishing() as use:
                connection = use.connection
                is_new = connection is None
                if connection is None:
                    connection = use.connection = await self._connect()
                try:
                    if is_new:
                        await _at_once(connection.execute(_NEVER_IDLE.format(connection.info.backend_pid)))
                    await _at_once(connection.execute(_NOTIFY, (self._channel.encode(), payload)))
                except BaseException:
                    use.connection = None
                    await connection.close()
                    raise

    async def publish_in(self, connection: Any, payload: str) -> None:
        """See :meth:`TransactionalTransport.publish_in`.

        ``connection``: a psycopg ``AsyncConnection`` or ``AsyncCursor``, an asyncpg ``Connection``, or an SQLAlchemy
        ``AsyncSession`` or ``AsyncConnection``.  A blocking connection would block the loop.
        """
        await notify_in(connection, self._channel, payload)

    def publish_in_sync(self, connection: Any, payload: str) -> None:
        """Do the same as :meth:`publish_in`, with a blocking psycopg, SQLAlchemy, or Django connection."""
        notify_in_sync(connection, self._channel, payload)

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`."""
        async with self._loop_lock.closing() as connection:
            if connection is not None:
                await connection.close()

    def __copy__(self) -> "PostgresTransport":
        """Return a new transport for the same channel, without connections."""
        return type(self)(self._dsn, channel=self._channel)

    def __repr__(self) -> str:
        return f"<PostgresTransport channel={self._channel!r}>"


async def _at_once(query: Coroutine[Any, Any, object]) -> None:
    """Run the query; if the calling task is cancelled, end the query without waiting for the server.

    When a psycopg call is cancelled, psycopg asks the server to cancel the query; if the connection is dead, this
    request takes several seconds.  A second cancellation ends the wait.
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
    """End the subscription in the session, which may return to a pooler.  The answer is not awaited."""
    with contextlib.suppress(Exception):  # the connection is lost, or busy
        unlisten = sql.SQL("UNLISTEN {}").format(sql.Identifier(channel))
        connection.pgconn.send_query(unlisten.as_bytes(connection))
        connection.pgconn.flush()


def _environment() -> ConnDict:
    """Return the parameters that libpq takes from the environment, such as PGHOST, or from the file of PGSERVICE."""
    defaults = pq.Conninfo.get_defaults()
    return {each.keyword.decode(): each.val.decode(errors="replace") for each in defaults if each.val}


def _parsed(dsn: str) -> ConnDict:
    """Return the parameters in the connection string.

    Raises ValueError if libpq cannot read the string or would misread it.
    """
    try:
        parsed = conninfo_to_dict(dsn)
    except psycopg.Error:
        parsed = {}
        readable = False
    else:
        # In a URL, an unencoded / or @ in a password would end up in one of these parts.
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
    return parsed
