"""Connections that take part in a transaction: psycopg, asyncpg, SQLAlchemy, and Django.

With Postgres, the notice is a query within the transaction.  With other engines, the notice is sent after the commit,
which SQLAlchemy announces for a session and Django for a connection.  None of these packages is imported just to
recognize a connection: if a package is not loaded, the connection cannot be one of its objects.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

from .addresses import described

__all__ = [
    "ASYNC_CONNECTIONS",
    "SYNC_CONNECTIONS",
    "after_commit",
    "is_async",
    "is_sync",
    "notify_in",
    "notify_in_sync",
]

# The channel is sent as bytes, so that it is the same whatever the encoding of the connection.
_NOTIFY: Final = "SELECT pg_catalog.pg_notify(pg_catalog.convert_from({}, 'UTF8'), {})"
_PENDING: Final = "purgatory.after_commit"  # a key in a session's ``info``

ASYNC_CONNECTIONS: Final = (
    "connection must be an AsyncConnection or AsyncCursor of psycopg, a Connection of asyncpg, or an AsyncSession or"
    " AsyncConnection of SQLAlchemy"
)
SYNC_CONNECTIONS: Final = (
    "connection must be a Connection or Cursor of psycopg, a Session or Connection of SQLAlchemy, or a connection of"
    " Django"
)
_ASYNC: Final = (
    ("psycopg", "AsyncConnection"),
    ("psycopg", "AsyncCursor"),
    ("asyncpg", "Connection"),
    ("asyncpg.pool", "PoolConnectionProxy"),
    ("sqlalchemy.ext.asyncio", "AsyncSession"),
    ("sqlalchemy.ext.asyncio", "async_scoped_session"),
    ("sqlalchemy.ext.asyncio", "AsyncConnection"),
)
_SYNC: Final = (
    ("psycopg", "Connection"),
    ("psycopg", "Cursor"),
    ("sqlalchemy.orm", "Session"),
    ("sqlalchemy.orm", "scoped_session"),
    ("sqlalchemy.engine", "Connection"),
    ("django.db.backends.base.base", "BaseDatabaseWrapper"),
    ("django.utils.connection", "ConnectionProxy"),
)


def _is(connection: object, module: str, *names: str) -> bool:
    """Return whether the object is an instance of one of the named classes; their module might not be imported."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(connection, tuple(getattr(loaded, name) for name in names))


def is_async(connection: object) -> bool:
    """Return whether the connection is asynchronous, that is, used with ``await``."""
    return any(_is(connection, module, name) for module, name in _ASYNC)


def is_sync(connection: object) -> bool:
    """Return whether the connection blocks."""
    return any(_is(connection, module, name) for module, name in _SYNC)


def _is_django(connection: object) -> bool:
    return _is(connection, "django.db.backends.base.base", "BaseDatabaseWrapper") or _is(
        connection, "django.utils.connection", "ConnectionProxy"
    )


# Postgres: the notice is part of the transaction


async def notify_in(connection: Any, channel: str, payload: str) -> None:
    """Send the notice in the transaction of an asynchronous Postgres connection.

    Raises TypeError for any other kind of connection, and for a connection to any other database.
    """
    if _is(connection, "psycopg", "AsyncConnection", "AsyncCursor"):
        import psycopg

        # Use a separate cursor, because a server-side cursor would only declare the query, and a raw cursor uses other
        # placeholders.
        owner = connection.connection if isinstance(connection, psycopg.AsyncCursor) else connection
        async with psycopg.AsyncCursor(owner, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(_NOTIFY.format("%s", "%s"), (channel.encode(), payload))
    elif _is(connection, "asyncpg", "Connection") or _is(connection, "asyncpg.pool", "PoolConnectionProxy"):
        await connection.execute(_NOTIFY.format("$1", "$2"), channel.encode(), payload)
    elif _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
        _require_postgres(connection.get_bind().dialect.name, connection)
        await connection.execute(*_statement(channel, payload))
    elif _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        _require_postgres(connection.dialect.name, connection)
        await connection.execute(*_statement(channel, payload))
    else:
        raise TypeError(f"{ASYNC_CONNECTIONS}, got {described(connection)}")


def notify_in_sync(connection: Any, channel: str, payload: str) -> None:
    """Send the notice in the transaction of a blocking Postgres connection.

    Raises TypeError for any other kind of connection, and for a connection to any other database.
    """
    if _is(connection, "psycopg", "Connection", "Cursor"):
        import psycopg

        owner = connection.connection if isinstance(connection, psycopg.Cursor) else connection
        with psycopg.Cursor(owner, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(_NOTIFY.format("%s", "%s"), (channel.encode(), payload))
    elif _is(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        _require_postgres(connection.get_bind().dialect.name, connection)
        connection.execute(*_statement(channel, payload))
    elif _is(connection, "sqlalchemy.engine", "Connection"):
        _require_postgres(connection.dialect.name, connection)
        connection.execute(*_statement(channel, payload))
    elif _is_django(connection):
        _require_postgres(connection.vendor, connection)
        with connection.cursor() as cursor:
            cursor.execute(_NOTIFY.format("%s", "%s"), [channel.encode(), payload])
    else:
        raise TypeError(f"{SYNC_CONNECTIONS}, got {described(connection)}")


def _statement(channel: str, payload: str) -> tuple[Any, dict[str, Any]]:
    """Return the arguments for SQLAlchemy's ``execute``."""
    from sqlalchemy import text

    return text(_NOTIFY.format(":channel", ":payload")), {"channel": channel.encode(), "payload": payload}


def _require_postgres(name: str, connection: object) -> None:
    if name != "postgresql":
        raise TypeError(f"connection must be a connection to Postgres, got one to {name}: {described(connection)}")


# Other engines: the notice is sent after the commit


def after_commit(connection: Any, send: Callable[[], None]) -> bool:
    """Call ``send`` after the transaction has been committed, or not at all if it is rolled back.

    Return False if the connection does not announce its commits; only SQLAlchemy sessions and Django connections do.
    Rolling back a savepoint does not withdraw the notice, because an unnecessary check does no harm.

    If a session has not begun a transaction, this function begins one, as a query would.  Otherwise, the notice would
    be sent with a later commit, because ``rollback`` and ``close`` announce nothing if there is no transaction.  Raises
    InvalidRequestError if the session has ``autobegin=False``.
    """
    if _is_django(connection):
        connection.on_commit(send)
        return True
    if _is(connection, "sqlalchemy.ext.asyncio", "async_scoped_session"):
        connection = connection.registry()
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        connection = connection.sync_session
    if _is(connection, "sqlalchemy.orm", "scoped_session"):
        connection = connection.registry()
    if not _is(connection, "sqlalchemy.orm", "Session"):
        return False
    if not connection.in_transaction():
        _begin(connection)
    if _PENDING not in connection.info:
        from sqlalchemy import event

        # The listeners stay, because SQLAlchemy does not allow a listener to be removed while its event is running.
        connection.info[_PENDING] = []
        event.listen(connection, "after_commit", _committed)
        event.listen(connection, "after_transaction_end", _ended)
    connection.info[_PENDING].append(send)
    return True


def _begin(session: Any) -> None:
    """Begin a transaction; nothing is sent to the database yet."""
    if not session.autobegin:
        from sqlalchemy.exc import InvalidRequestError

        raise InvalidRequestError(
            "check_in needs a transaction, and autobegin is disabled on this session: call session.begin() first"
        )
    session.begin()


def _committed(session: Any) -> None:
    if session.get_nested_transaction() is None:  # not the end of a savepoint
        pending, session.info[_PENDING] = session.info[_PENDING], []
        for send in pending:
            send()


def _ended(session: Any, transaction: Any) -> None:
    if transaction.parent is None:
        session.info[_PENDING].clear()  # nonempty only if the transaction was rolled back
