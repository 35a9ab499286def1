"""Notices in transactions: psycopg, asyncpg, and SQLAlchemy, of the relay and of the notifier."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from purgatory import Purgatory
from purgatory.relay import MemoryTransport, Notifier, PostgresTransport, Relay
from tests.parts import missing
from tests.relay.engines import PostgresServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Yield a running Postgres server."""
    reason = PostgresServer.missing()
    if reason:
        missing(reason)
    server = PostgresServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def channel() -> str:
    """The name of a channel that no other test uses."""
    return f"kanal ü {uuid4().hex}"


class Channel:
    """A connection that listens."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def heard(self) -> list[str]:
        """Return the payloads since the last call; the server sends them before it answers a query."""
        self._connection.execute("SELECT 1")
        return [notify.payload for notify in self._connection.notifies(timeout=0)]


@pytest.fixture
def listening(postgres: PostgresServer, channel: str) -> Iterator[Channel]:
    """Yield a listener of the channel."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        yield Channel(connection)


NOTICE = '[1,"","keys",[["o-1",3]]]'
ASYNC_KINDS = [
    "psycopg connection", "psycopg cursor", "asyncpg connection", "asyncpg pool", "AsyncSession asyncpg",
    "AsyncSession psycopg", "async_scoped_session", "AsyncConnection asyncpg", "AsyncConnection psycopg",
]  # fmt: skip


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[tuple[Any, Callable[[], Any], Callable[[], Any]]]:
    """Yield a connection within a transaction, and how it is committed and rolled back."""
    library = kind.split()[-1]
    if kind.startswith("psycopg"):
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection.cursor() if kind.endswith("cursor") else connection, connection.commit, connection.rollback
    elif kind == "asyncpg connection":
        raw = await asyncpg.connect(url)
        transaction = raw.transaction()
        await transaction.start()
        yield raw, transaction.commit, transaction.rollback
        await raw.close()
    elif kind == "asyncpg pool":
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as proxy:
            transaction = proxy.transaction()
            await transaction.start()
            yield proxy, transaction.commit, transaction.rollback
    else:
        driver = "asyncpg" if library == "asyncpg" else "psycopg"
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        try:
            if kind.startswith("AsyncSession"):
                async with AsyncSession(engine) as session:
                    yield session, session.commit, session.rollback
            elif kind == "async_scoped_session":
                scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
                yield scoped, scoped.commit, scoped.rollback
                await scoped.remove()
            else:
                async with engine.connect() as core:
                    yield core, core.commit, core.rollback
        finally:
            await engine.dispose()


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_a_relay_notifies_in_the_transaction(
    postgres: PostgresServer, channel: str, listening: Channel, kind: str
) -> None:
    """Each kind of asynchronous connection: nothing before the commit, one notice after it, none after a rollback."""
    room = Purgatory[Any]("test")
    async with room, Relay(room, PostgresTransport(postgres.url, channel=channel), heartbeat=60.0) as relay:
        async with opened(kind, postgres.url) as (connection, commit, _):
            await relay.check_in(connection, {"o-1": 3})
            assert [payload for payload in listening.heard() if '"ping"' not in payload] == []
            await commit()
            assert [payload for payload in listening.heard() if '"ping"' not in payload] == [NOTICE]
        async with opened(kind, postgres.url) as (connection, _, rollback):
            await relay.check_in(connection, {"o-1": 3})
            await rollback()
            assert [payload for payload in listening.heard() if '"ping"' not in payload] == []


SYNC_KINDS = [
    "psycopg connection",
    "psycopg cursor",
    "psycopg server cursor",
    "Session",
    "scoped_session",
    "Connection",
]


@contextmanager
def opened_sync(kind: str, url: str) -> Iterator[tuple[Any, Any]]:
    """Yield a connection within a transaction, and what commits it and rolls it back."""
    if kind.startswith("psycopg"):
        with psycopg.connect(url) as raw:
            if kind == "psycopg connection":
                yield raw, raw
            elif kind == "psycopg cursor":
                yield raw.cursor(), raw
            else:
                with raw.cursor(name="named") as cursor:
                    yield cursor, raw
        return
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    if kind == "Session":
        with Session(engine) as session:
            yield session, session
    elif kind == "scoped_session":
        scoped = scoped_session(sessionmaker(engine))
        yield scoped, scoped
        scoped.remove()
    else:
        with engine.connect() as core:
            yield core, core
    engine.dispose()


@pytest.mark.parametrize("kind", SYNC_KINDS)
def test_a_notifier_notifies_in_the_transaction(
    postgres: PostgresServer, channel: str, listening: Channel, kind: str
) -> None:
    """Each kind of blocking connection: nothing before the commit, one notice after it, none after a rollback."""
    with (
        Notifier(PostgresTransport(postgres.url, channel=channel)) as notifier,
        opened_sync(kind, postgres.url) as (connection, owner),
    ):
        notifier.check_in(connection, {"o-1": 3})
        assert listening.heard() == []
        owner.commit()
        assert listening.heard() == [NOTICE]
    with (
        Notifier(PostgresTransport(postgres.url, channel=channel)) as notifier,
        opened_sync(kind, postgres.url) as (connection, owner),
    ):
        notifier.check_in(connection, {"o-1": 3})
        owner.rollback()
        assert listening.heard() == []


def test_a_transaction_with_many_keys(postgres: PostgresServer, channel: str, listening: Channel) -> None:
    """The keys are split below the limit of the engine; above ten thousand they are "check every key"."""
    with Notifier(PostgresTransport(postgres.url, channel=channel)) as notifier, psycopg.connect(postgres.url) as raw:
        notifier.check_in(raw, [f"order {number:0100}" for number in range(200)])
        raw.commit()
        payloads = listening.heard()
        assert len(payloads) == 3
        assert max(map(len, payloads)) <= 7_999
        notifier.check_in(raw, range(10_001))
        raw.commit()
        assert listening.heard() == ['[1,"","all"]']


def test_the_notice_of_a_notifier_fails_with_its_transaction(postgres: PostgresServer, channel: str) -> None:
    """In a transaction that has failed, check_in raises the error of the client library."""
    with Notifier(PostgresTransport(postgres.url, channel=channel)) as notifier, psycopg.connect(postgres.url) as raw:
        with pytest.raises(psycopg.Error):
            raw.execute("SELECT nonsense")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            notifier.check_in(raw, ["a"])
        raw.rollback()


# Other engines: after the commit of a session


class Plain:
    """A transport without transactions, which records what it is given."""

    max_payload = 1000

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.error: Exception | None = None

    async def listen(self, subscribed: Any, received: Any) -> None:
        subscribed()
        await asyncio.get_running_loop().create_future()

    async def publish(self, payload: str) -> None:
        if self.error is not None:
            raise self.error
        if '"ping"' not in payload:
            self.sent.append(payload)

    async def aclose(self) -> None:
        pass

    def __copy__(self) -> "Plain":
        return self


def test_a_notifier_notifies_after_the_commit_of_a_session(tmp_path: Path) -> None:
    """Without transactions in the engine, the notice follows the commit, when another connection sees the change."""
    transport = Plain()
    file = tmp_path / "orders.sqlite"
    engine = sqlalchemy.create_engine(f"sqlite:///{file}")
    seen: list[int] = []

    async def publish(payload: str) -> None:
        with sqlite3.connect(file) as other:
            seen.append(other.execute("SELECT count(*) FROM orders").fetchone()[0])
        other.close()
        transport.sent.append(payload)

    transport.publish = publish  # type: ignore[method-assign]
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id TEXT)"))
    with Notifier(transport) as notifier, Session(engine) as session:
        for number in range(2):  # the same session again
            session.execute(text("INSERT INTO orders VALUES ('a')"))
            notifier.check_in(session, {"o-1": 3})
            notifier.check_in(session, ["o-2"])
            assert transport.sent == []
            session.commit()
            assert transport.sent == [NOTICE, '[1,"","keys",[["o-2"]]]']
            assert seen == [number + 1] * 2
            transport.sent.clear()
            seen.clear()
            notifier.check_in(session, ["o-3"])
            session.execute(text("SELECT 1"))
            session.rollback()
            session.execute(text("SELECT 1"))
            session.commit()
            assert transport.sent == []
    engine.dispose()


def test_savepoints(tmp_path: Path) -> None:
    """The end of a savepoint sends nothing; the commit of the transaction sends the notices of its savepoints."""
    transport = Plain()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}")
    with Notifier(transport) as notifier, Session(engine) as session:
        with session.begin():
            with session.begin_nested():
                notifier.check_in(session, ["in a savepoint"])
            assert transport.sent == []
            with session.begin_nested() as savepoint:
                session.execute(text("SELECT 1"))
                savepoint.rollback()
            assert transport.sent == []
        assert transport.sent == ['[1,"","keys",[["in a savepoint"]]]']
        transport.sent.clear()
        session.begin()
        notifier.check_in(session, ["rolled back"])
        session.rollback()
        with session.begin():
            session.execute(text("SELECT 1"))
        assert transport.sent == []
    engine.dispose()


@pytest.mark.parametrize("end", ["rollback", "close", "reset"])
@pytest.mark.parametrize("is_scoped", [False, True])
def test_a_session_that_has_not_begun_a_transaction(tmp_path: Path, end: str, is_scoped: bool) -> None:
    """``check_in`` begins it, so its end drops the notice, and its commit sends it."""
    transport = Plain()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}")
    make = sessionmaker(engine)
    session: Any = scoped_session(make) if is_scoped else make()
    with Notifier(transport) as notifier:
        notifier.check_in(session, ["dropped"])
        getattr(session, end)()
        notifier.check_in(session, {"o-1": 3})
        session.execute(text("SELECT 1"))
        assert transport.sent == []
        session.commit()
        assert transport.sent == [NOTICE]
    session.close()
    engine.dispose()


def test_a_session_that_must_be_begun_explicitly(tmp_path: Path) -> None:
    """With ``autobegin=False``, ``check_in`` raises before the transaction, as a query does, and remembers nothing."""
    transport = Plain()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}")
    with Notifier(transport) as notifier, Session(engine, autobegin=False) as session:
        with pytest.raises(sqlalchemy.exc.InvalidRequestError, match=r"call session\.begin\(\)"):
            notifier.check_in(session, ["refused"])
        with session.begin():
            notifier.check_in(session, {"o-1": 3})
        assert transport.sent == [NOTICE]
    engine.dispose()


def test_a_notice_after_a_commit_that_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The change is committed, so the commit does not raise; the error is logged."""
    transport = Plain()
    transport.error = ConnectionError("the engine is away")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}")
    with Notifier(transport) as notifier, Session(engine) as session, session.begin():
        notifier.check_in(session, ["a"])
    assert "a notice after a commit was not sent: ConnectionError: the engine is away" in caplog.text
    engine.dispose()


@pytest.mark.parametrize("is_scoped", [False, True])
async def test_a_relay_checks_after_the_commit_of_a_session(tmp_path: Path, is_scoped: bool) -> None:
    """The keys are checked here, and sent with their values; not before the commit, and not after a rollback."""
    transport = Plain()
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.sqlite'}")
    make = async_sessionmaker(engine)
    session: Any = async_scoped_session(make, asyncio.current_task) if is_scoped else make()
    room, paid = Purgatory[Any]("test"), False
    async with room, Relay(room, transport, heartbeat=60.0, resync_every=3600.0) as relay:
        waiting = asyncio.create_task(relay.wait_until(lambda: paid, keys=["o-1"], timeout=30.0))
        await asyncio.sleep(0)
        paid = True
        await session.execute(text("SELECT 1"))
        await relay.check_in(session, ["rolled back"])
        await session.rollback()
        await session.execute(text("SELECT 1"))
        await relay.check_in(session, {"o-1": 3})
        assert not transport.sent
        assert not waiting.done()
        await session.commit()
        assert await waiting is True
        await relay.aclose()
    assert [payload.partition('"keys"')[2] for payload in transport.sent] == [',[["o-1",3]]]']
    await (session.remove() if is_scoped else session.close())
    await engine.dispose()


@pytest.mark.parametrize("end", ["rollback", "close"])
@pytest.mark.parametrize("is_scoped", [False, True])
async def test_an_async_session_that_has_not_begun_a_transaction(tmp_path: Path, end: str, is_scoped: bool) -> None:
    """``check_in`` begins it, so its end drops the notice, and its commit sends it."""
    transport = Plain()
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.sqlite'}")
    make = async_sessionmaker(engine)
    session: Any = async_scoped_session(make, asyncio.current_task) if is_scoped else make()
    room = Purgatory[Any]("test")
    async with room, Relay(room, transport, heartbeat=60.0, resync_every=3600.0) as relay:
        await relay.check_in(session, ["dropped"])
        await getattr(session, end)()
        await relay.check_in(session, {"o-1": 3})
        await session.execute(text("SELECT 1"))
        await session.commit()
        await asyncio.sleep(0)
        await relay.aclose()
    assert [payload.partition('"keys"')[2] for payload in transport.sent] == [',[["o-1",3]]]']
    await (session.remove() if is_scoped else session.close())
    await engine.dispose()


async def test_a_session_with_memory(tmp_path: Path) -> None:
    """In tests with MemoryTransport, the notice follows the commit of a session as well."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.sqlite'}")
    room, paid = Purgatory[Any]("test"), False
    async with room, Relay(room, MemoryTransport()) as relay, AsyncSession(engine) as session:
        waiting = asyncio.create_task(relay.wait_until(lambda: paid, keys=["o-1"], timeout=30.0))
        await asyncio.sleep(0)
        await session.execute(text("SELECT 1"))
        await relay.check_in(session, ["o-1"])
        received = relay.statistics().received
        paid = True
        await session.commit()
        assert await waiting is True
        assert (received, relay.statistics().received) == (0, 1)
    await engine.dispose()


# What is refused


async def test_a_relay_refuses_a_blocking_connection(postgres: PostgresServer, tmp_path: Path) -> None:
    """TypeError, which names the notifier, with every transport; nothing is sent."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}")
    with psycopg.connect(postgres.url) as raw, Session(engine) as session, engine.connect() as core:
        for transport in (PostgresTransport(postgres.url), Plain(), MemoryTransport()):
            room = Purgatory[Any]("test")
            async with room, Relay(room, transport) as relay:
                for connection in (raw, raw.cursor(), session, scoped_session(sessionmaker(engine)), core):
                    with pytest.raises(TypeError, match=r"use Notifier\(transport\)\.check_in"):
                        await relay.check_in(connection, ["a"])
    engine.dispose()


def test_a_notifier_refuses_an_asynchronous_connection(postgres: PostgresServer) -> None:
    """TypeError, which names the relay, with every transport."""
    engine = create_async_engine(postgres.url.replace("postgresql:", "postgresql+asyncpg:"))
    for transport in (PostgresTransport(postgres.url), Plain(), MemoryTransport()):
        with Notifier(transport) as notifier, pytest.raises(TypeError, match=r"use relay\.check_in"):
            notifier.check_in(AsyncSession(engine), ["a"])


async def test_a_database_that_is_not_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    """A session of another database cannot send a notice of Postgres: TypeError, which names the database."""
    room = Purgatory[Any]("test")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.sqlite'}")
    relaying = Relay(room, PostgresTransport(postgres.url))
    async with room, relaying as relay, AsyncSession(engine) as session, engine.connect() as core:
        for connection in (session, core):
            with pytest.raises(TypeError, match="must be a connection to Postgres, got one to sqlite"):
                await relay.check_in(connection, ["a"])
    await engine.dispose()


async def test_connections_that_announce_no_commit(postgres: PostgresServer, tmp_path: Path) -> None:
    """Without transactions in the engine, a connection of a driver or of SQLAlchemy's core is refused."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'orders.sqlite'}")
    room = Purgatory[Any]("test")
    raw = await psycopg.AsyncConnection.connect(postgres.url)
    async with room, Relay(room, Plain()) as relay, engine.connect() as core, raw:
        for connection in (raw, core, None):
            with pytest.raises(TypeError, match=r"check_in needs a transport with transactions, got .*, and then call"):
                await relay.check_in(connection, ["a"])
    await engine.dispose()

    def refuse() -> None:
        sync = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'orders.sqlite'}")
        with Notifier(Plain()) as notifier, sync.connect() as core, psycopg.connect(postgres.url) as raw:
            for connection in (raw, core, None):
                with pytest.raises(TypeError, match="commit, and then call check: "):
                    notifier.check_in(connection, ["a"])
        sync.dispose()

    await asyncio.to_thread(refuse)


class _Base(DeclarativeBase):
    pass


class _Order(_Base):
    __tablename__ = "orders_of_handlers"
    id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int]


@pytest.mark.parametrize("ends", [True, False])
async def test_a_handler_that_reads_waits_and_reads_again(postgres: PostgresServer, channel: str, ends: bool) -> None:
    """A session that is not ended before the wait keeps a connection of the pool, and the row as it was."""
    engine = create_async_engine(postgres.url.replace("postgresql:", "postgresql+asyncpg:"))
    pool: Any = engine.pool

    async def load(orders: list[str]) -> dict[str, int]:
        async with AsyncSession(engine) as session:
            query = sqlalchemy.select(_Order.id, _Order.version).where(_Order.id.in_(orders))
            found = await session.execute(query)
            return {row.id: row.version for row in found}

    async def read(seen: int) -> int:
        async with AsyncSession(engine) as session:
            order = await session.get_one(_Order, "o-1")
            if order.version <= seen:
                if ends:
                    await session.rollback()
                await relay.wait_until(lambda: relay.state.get("o-1", 0) > seen, keys={"o-1": seen + 1}, timeout=30.0)
                order = await session.get_one(_Order, "o-1")
            return order.version

    async with engine.begin() as connection:
        await connection.run_sync(_Base.metadata.drop_all)
        await connection.run_sync(_Base.metadata.create_all)
    room = Purgatory[Any]("test")
    async with room, Relay(room, PostgresTransport(postgres.url, channel=channel), refresh=load) as relay:
        async with AsyncSession(engine) as session, session.begin():
            session.add(_Order(id="o-1", version=1))
        waiting = asyncio.create_task(read(1))
        while not (relay.state.get("o-1") and len(room)):  # noqa: ASYNC110 - a server and a thread decide
            await asyncio.sleep(0.001)
        assert pool.checkedout() == (0 if ends else 1)
        async with AsyncSession(engine) as session, session.begin():
            (await session.get_one(_Order, "o-1")).version = 2
            await relay.check_in(session, {"o-1": 2})
        assert await waiting == (2 if ends else 1)
    await engine.dispose()
