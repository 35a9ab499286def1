"""The transports on real Postgres, Redis and NATS servers, which are killed, stopped and cut off, and without one."""

import asyncio
import functools
import gc
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Hashable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from purgatory import Purgatory
from purgatory.relay import (
    NatsTransport,
    Notifier,
    PostgresTransport,
    RedisTransport,
    Relay,
    TransactionalTransport,
    Transport,
)
from purgatory.relay.nats import _Client
from tests.conftest import _LOOPS
from tests.helpers import turns_until
from tests.parts import missing
from tests.relay.engines import ENGINES, SERVERS, Engine, NatsServer, PostgresServer
from tests.relay.kit import Worker
from tests.relay.proxy import Proxy

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Yield a running server of each kind, or skip the test with the reason."""
    kind = ENGINES[request.param]
    reason = kind.missing()
    if reason:
        missing(reason)
    server = kind()
    server.start()
    yield server
    server.close()


@pytest.fixture
def channel() -> str:
    """The name of a channel that no other test uses."""
    return f"channel_{uuid4().hex}"


@pytest.fixture
async def pair(engine: Engine, channel: str) -> AsyncIterator[tuple[Worker, Worker]]:
    """Yield the purgatories and relays of two processes on one channel."""
    table: dict[Hashable, float] = {}
    async with (
        Worker(None, engine.transport(channel), table, heartbeat=2.0) as first,
        Worker(None, engine.transport(channel), table, heartbeat=2.0) as second,
    ):
        yield first, second


async def connected(*processes: Worker) -> None:
    """Wait until all relays are connected; every key is checked at that moment."""
    for worker in processes:
        relay = worker.relay
        assert await worker.purgatory.wait_until(
            functools.partial(getattr, relay, "connected"), keys=[object()], timeout=30.0
        )


async def have_read(worker: Worker, *keys: Hashable) -> None:
    """Wait until the worker has read the keys, so that only a notice can change them from now on."""
    await worker.purgatory.wait_until(lambda: all(key in worker.state for key in keys), keys=keys, timeout=30.0)


ON_SERVERS = pytest.mark.parametrize("engine", SERVERS, indirect=True)


def own(engine: Engine) -> None:
    """Skip the test if the test did not start the engine itself."""
    if engine.given:
        pytest.skip(f"{engine.variable} names a server that is not killed")


async def test_a_check_travels(pair: tuple[Worker, Worker]) -> None:
    """A request in one process is answered by a check in the other, of each kind of key."""
    first, second = pair
    keys: list[Hashable] = ["o-1", 17, ("o", 1, ("x", -1)), 'quote " \\ \0 ü 😀', "", 2**70]
    waiting = [second.waits(key, 3) for key in keys]
    await have_read(second, *keys)
    for key in keys:
        first.write(key, 3)
        first.relay.check(key, 3)
    assert await asyncio.gather(*waiting) == [True] * len(keys)
    assert first.relay.connected
    await first.relay.aclose()
    statistics = first.relay.statistics()
    assert (statistics.sent, statistics.losses, statistics.unreadable) == (len(keys), 0, 0)


@pytest.mark.slow
async def test_many_keys_are_split_below_the_limit_of_the_engine(pair: tuple[Worker, Worker]) -> None:
    """Eight thousand keys are split into several messages, each of which the engine accepts."""
    first, second = pair
    keys = [f"order-{number:08}" for number in range(8_000)]
    waiting = [second.waits(key, timeout=60.0) for key in keys]
    await have_read(second, *keys)
    before = first.relay.statistics().messages_sent
    for key in keys:
        first.write(key, 1)
        first.relay.check(key)
    assert all(await asyncio.gather(*waiting))
    await first.relay.aclose()
    statistics = first.relay.statistics()
    assert statistics.sent == 8_000
    assert statistics.messages_sent - before >= 5
    assert (statistics.losses, statistics.collapsed) == (0, 0)


async def test_a_key_that_is_too_long_is_every_key(pair: tuple[Worker, Worker]) -> None:
    """A key above the limit of the engine is answered nevertheless."""
    first, second = pair
    key = "x" * 40_000
    waiting = second.waits(key)
    await have_read(second, key)
    first.write(key, 1)
    first.relay.check(key)
    assert await waiting is True
    await first.relay.aclose()
    assert first.relay.statistics().everything_sent == 1
    assert second.relay.statistics().everything_received == 1


async def test_the_largest_payload_is_taken(engine: Engine) -> None:
    """A payload of exactly ``max_payload`` bytes arrives."""
    transport = engine.transport(f"channel_{uuid4().hex}")
    subscribed, arrived = asyncio.Event(), asyncio.get_running_loop().create_future()
    listening = asyncio.create_task(transport.listen(subscribed.set, arrived.set_result))
    await subscribed.wait()
    payload = "x" * transport.max_payload
    await transport.publish(payload)
    heard = await arrived
    assert (heard if isinstance(heard, str) else heard.decode()) == payload
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    await transport.aclose()
    assert isinstance(transport, Transport)


@ON_SERVERS
async def test_the_engine_is_killed_and_started_again(engine: Engine, pair: tuple[Worker, Worker]) -> None:
    """Changes during the outage are answered after the restart, in both directions."""
    own(engine)
    first, second = pair
    waiting = [second.waits("a"), first.waits("b")]
    await have_read(second, "a")
    await have_read(first, "b")
    await asyncio.to_thread(engine.kill)
    first.write("a", 1)
    first.relay.check("a")
    second.write("b", 1)
    second.relay.check("b")
    await asyncio.to_thread(engine.start)
    assert await asyncio.gather(*waiting) == [True, True]
    await connected(first, second)
    assert first.relay.statistics().losses >= 1


@ON_SERVERS
async def test_an_engine_that_stands_still_is_given_up(engine: Engine, pair: tuple[Worker, Worker]) -> None:
    """SIGSTOP closes no socket: the relay misses the ping, disconnects, and reconnects after SIGCONT."""
    own(engine)
    first, _ = pair
    lost = asyncio.Event()
    connection = first.relay._connection
    assert connection is not None
    give_up = connection.lose
    connection.lose = lambda reason: (give_up(reason), lost.set())  # type: ignore[method-assign, assignment, func-returns-value]
    engine.stop()
    try:
        await asyncio.wait_for(lost.wait(), 30.0)
        assert not first.relay.connected
    finally:
        engine.go_on()
    await connected(first)
    assert "within 2 s" in str(first.relay.statistics().last_loss)


async def test_two_loops_of_one_process(engine: Engine, channel: str, pair: tuple[Worker, Worker]) -> None:
    """A relay in the event loop of another thread is like one in another process."""
    first, _ = pair
    parked: Future[None] = Future()

    async def other() -> bool:
        async with Worker(None, engine.transport(channel), first.table, heartbeat=2.0) as third:
            await connected(third)
            waiting = third.waits("a", timeout=20.0)
            await have_read(third, "a")
            parked.set_result(None)
            return await waiting

    answer = asyncio.create_task(asyncio.to_thread(asyncio.run, other()))
    await asyncio.wrap_future(parked)
    first.write("a", 1)
    first.relay.check("a")
    assert await answer is True


@ON_SERVERS
async def test_closing_while_the_line_is_silent(engine: Engine) -> None:
    """If nothing answers or fails, the relay drops its connections within its grace and its heartbeats."""
    proxy = Proxy(engine.url)
    await proxy.start()
    channel = f"channel_{uuid4().hex}"
    worker = Worker(None, engine.transport(channel, proxy.url), {}, heartbeat=1.0)
    async with worker.purgatory:
        await worker.relay.__aenter__()
        await connected(worker)
        worker.relay.check("a")
        await asyncio.sleep(0)
        proxy.silence()
        worker.relay.check("b")
        async with asyncio.timeout(8.0):
            await worker.relay.aclose(grace=0.1)
    assert not [task for task in asyncio.all_tasks() if "purgatory/relay" in repr(task)]
    await proxy.close()


async def test_two_relays_share_a_transport(engine: Engine) -> None:
    """Two relays connect at the same moment; one is closed while the other publishes, and the other loses nothing."""
    transport = engine.transport(f"channel_{uuid4().hex}")
    table: dict[Hashable, float] = {}
    before = asyncio.all_tasks()
    first, second = (Worker(None, transport, table, heartbeat=5.0) for _ in range(2))
    await asyncio.gather(first.__aenter__(), second.__aenter__())
    await connected(first, second)
    waiting = [first.waits(number) for number in range(20)]
    await have_read(first, *range(20))
    third = Worker(None, transport, table, heartbeat=5.0)
    async with third:
        await connected(third)
    for number in range(20):
        second.write(number, 1)
        second.relay.check(number)
        if number == 10:
            closing = asyncio.create_task(transport.aclose())  # as when one more relay is closed
        await asyncio.sleep(0)
    await closing
    assert await asyncio.gather(*waiting) == [True] * 20
    assert first.relay.statistics().losses == second.relay.statistics().losses == 0
    await asyncio.gather(first.__aexit__(None, None, None), second.__aexit__(None, None, None))
    del first, second, third, waiting, closing
    gc.collect()  # a connection that was left open warns
    assert asyncio.all_tasks() == before


@ON_SERVERS
@pytest.mark.parametrize("loop", _LOOPS)
def test_relays_that_share_a_transport_in_one_event_loop_after_another(engine: Engine, loop: str) -> None:
    """Both loops have relays that wait for each other, and a publish is interrupted when the first loop ends."""
    transport = engine.transport(f"channel_{uuid4().hex}")

    async def publish_together() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(transport.publish('[1,"other","all"]') for _ in range(3)))
            await transport.aclose()

    async def interrupted() -> None:
        await publish_together()
        publishing.append(asyncio.create_task(transport.publish('[1,"other","all"]')))
        await asyncio.sleep(0)

    publishing: list[asyncio.Task[None]] = []
    with asyncio.Runner(loop_factory=_LOOPS[loop]) as runner:
        runner.run(interrupted())
    assert publishing[0].cancelled()
    with asyncio.Runner(loop_factory=_LOOPS[loop]) as runner:
        runner.run(publish_together())


async def test_a_transport_serves_one_loop_at_a_time(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """In a second loop, both calls and a relay are refused with the reason; the first relay does not notice.

    When the first relay has closed the transport, the second loop can use it.
    """
    transport = engine.transport(f"channel_{uuid4().hex}")
    refusal = f"a {type(transport).__name__} serves one event loop at a time: create another one for this loop"
    heard: list[str | bytes] = []

    async def refused() -> None:
        for call in (transport.publish('[1,"","all"]'), transport.listen(lambda: None, heard.append)):
            with pytest.raises(RuntimeError) as refused:
                await asyncio.wait_for(call, 10.0)
            assert str(refused.value) == refusal
        async with Worker(None, transport, {}, heartbeat=30.0) as second:
            figures = second.relay.statistics()
            assert (figures.connected, figures.connects) == (False, 0)
            assert figures.last_loss == f"RuntimeError: {refusal}"

    async def served() -> None:
        async with Worker(None, transport, {}, heartbeat=30.0) as second:
            assert second.relay.statistics().last_loss is None
            await connected(second)

    async with Worker(None, transport, {}, heartbeat=30.0) as first:
        await connected(first)
        with caplog.at_level(logging.WARNING, "purgatory.relay"):
            await asyncio.to_thread(asyncio.run, refused())
        assert caplog.messages == [f"the relay of purgatory 'worker' is not connected: RuntimeError: {refusal}"]
        await transport.publish('[1,"other","all"]')
        received = first.relay.statistics
        await first.purgatory.wait_until(lambda: received().everything_received > 0, keys=[object()], timeout=30.0)
        assert (received().everything_received, received().losses) == (1, 0)
    await asyncio.to_thread(asyncio.run, served())
    assert heard == []


@ON_SERVERS
@pytest.mark.parametrize("is_closed", [False, True], ids=["stopped", "closed"])
@pytest.mark.parametrize("loop", _LOOPS)
# Nothing closes the first connection.  If the warning raised an error, uvloop would not end.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_transport_whose_loop_has_ended(engine: Engine, loop: str, is_closed: bool) -> None:
    """In the next loop, the transport opens a connection of its own, and a relay connects at the first attempt."""
    transport = engine.transport(f"channel_{uuid4().hex}")

    async def publish() -> None:
        await transport.publish('[1,"other","all"]')

    async def relay() -> None:
        async with Worker(None, transport, {}, heartbeat=30.0) as worker:
            await connected(worker)
            figures = worker.relay.statistics()
            assert (figures.losses, figures.last_loss) == (0, None)

    with asyncio.Runner(loop_factory=_LOOPS[loop]) as runner:
        runner.run(publish())
        if not is_closed:
            with asyncio.Runner(loop_factory=_LOOPS[loop]) as other:
                other.run(relay())
    if is_closed:
        with asyncio.Runner(loop_factory=_LOOPS[loop]) as other:
            other.run(relay())
    gc.collect()


@ON_SERVERS
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
async def test_a_child_that_is_forked_while_the_loop_runs(engine: Engine) -> None:
    """The child uses the transport in its own loop, with its own connection; the parent's connections stay."""
    transport = engine.transport(f"channel_{uuid4().hex}")
    async with Worker(None, transport, {}, heartbeat=30.0) as parent:
        await connected(parent)
        pid = os.fork()
        if not pid:
            try:
                asyncio.run(_publish_and_close(transport))
                gc.collect()
                os._exit(0)
            finally:
                os._exit(1)
        assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
        parent.relay.check("a")
        await transport.publish('[1,"other","all"]')  # after it, the engine delivers nothing from the child
        received = parent.relay.statistics
        await parent.purgatory.wait_until(lambda: received().everything_received >= 2, keys=[object()], timeout=30.0)
        assert (received().everything_received, received().losses) == (2, 0)


async def _publish_and_close(transport: Transport) -> None:
    await transport.publish('[1,"child","all"]')
    await transport.aclose()


@ON_SERVERS
async def test_an_engine_that_is_away_at_the_start(engine: Engine, reported: list[dict[str, Any]]) -> None:
    """The relay opens without a connection, connects when the engine is available, and only logs a line."""
    own(engine)
    await asyncio.to_thread(engine.kill)
    try:
        worker = Worker(None, engine.transport(f"channel_{uuid4().hex}"), {}, heartbeat=2.0)
        await worker.__aenter__()
        assert not worker.relay.connected
    finally:
        await asyncio.to_thread(engine.start)
    await connected(worker)
    await worker.__aexit__(None, None, None)
    del worker
    gc.collect()
    assert reported == []


# Postgres


ON_POSTGRES = pytest.mark.parametrize("engine", ["postgres"], indirect=True)
ON_REDIS = pytest.mark.parametrize("engine", ["redis"], indirect=True)
ON_NATS = pytest.mark.parametrize("engine", ["nats"], indirect=True)


@ON_POSTGRES
async def test_the_listening_backend_is_terminated(engine: Engine, pair: tuple[Worker, Worker]) -> None:
    """Changes before the relay detects the loss are answered at the reconnect."""
    first, second = pair
    for number in range(3):
        waiting = second.waits("a", number + 1)
        await have_read(second, "a")
        async with await psycopg.AsyncConnection.connect(engine.url, autocommit=True) as other:
            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %channel%'"
            )
        first.write("a", number + 1)
        first.relay.check("a")
        assert await waiting is True
        await connected(first, second)
    assert second.relay.statistics().losses == 3


@ON_POSTGRES
async def test_the_notice_commits_with_the_transaction(engine: Engine, pair: tuple[Worker, Worker]) -> None:
    """The notice arrives only after the commit, not after a rollback, and also in the process that commits."""
    first, second = pair
    received = [worker.relay.statistics().received for worker in pair]
    waiting = [first.waits("a"), second.waits("a")]
    for worker in pair:
        await have_read(worker, "a")
    async with await psycopg.AsyncConnection.connect(engine.url) as connection:
        await first.relay.check_in(connection, ["rolled back"])
        await connection.rollback()
        await first.relay.check_in(connection.cursor(), {"a": 1})
        async with await psycopg.AsyncConnection.connect(engine.url, autocommit=True) as other:
            for worker in pair:  # another notice overtakes the one that is not committed
                seen = worker.waits("b", worker.table.get("b", 0) + 1, timeout=10.0)
                await have_read(worker, "b")
                worker.write("b", worker.table.get("b", 0) + 1)
                await worker.relay.check_in(other, ["b"])
                assert await seen is True
        assert not any(task.done() for task in waiting)
        first.write("a", 1)
        await connection.commit()
    assert await asyncio.gather(*waiting) == [True, True]
    assert [worker.relay.statistics().received - before for worker, before in zip(pair, received, strict=True)] == [
        3,
        3,
    ]


@ON_POSTGRES
async def test_a_transaction_that_touches_many_keys(engine: Engine, pair: tuple[Worker, Worker]) -> None:
    """The notice is split below the limit; a key that is too long for one message becomes "every key"."""
    first, second = pair
    long = "x" * 9_000
    waiting = [second.waits(key) for key in [*range(3000), long]]
    await have_read(second, *range(3000), long)
    async with await psycopg.AsyncConnection.connect(engine.url) as connection:
        for number in range(3000):
            first.write(number, 1)
        await first.relay.check_in(connection, range(3000))
        await connection.commit()
        assert await asyncio.gather(*waiting[:3000]) == [True] * 3000
        assert second.relay.statistics().everything_received == 0
        first.write(long, 1)
        await first.relay.check_in(connection, [long])
        await connection.commit()
        assert await waiting[3000] is True
        assert second.relay.statistics().everything_received == 1


@ON_POSTGRES
async def test_any_name_is_a_channel(engine: Engine) -> None:
    """The name is quoted, and has at most 63 bytes."""
    name = 'Orders"; DROP TABLE x; -- ü'
    transport = PostgresTransport(engine.url, channel=name)
    subscribed, arrived = asyncio.Event(), asyncio.get_running_loop().create_future()
    listening = asyncio.create_task(transport.listen(subscribed.set, arrived.set_result))
    await subscribed.wait()
    await transport.publish("x")
    assert await arrived == "x"
    listening.cancel()
    await asyncio.wait([listening])
    await transport.aclose()
    with pytest.raises(ValueError, match="channel must have 1 to 63 bytes"):
        PostgresTransport(engine.url, channel="x" * 64)


@ON_POSTGRES
async def test_one_byte_more_is_refused_by_postgres(engine: Engine) -> None:
    """``max_payload`` is the exact limit; after the error, the transport works with a new connection."""
    transport = PostgresTransport(engine.url)
    with pytest.raises(psycopg.Error, match="payload"):
        await transport.publish("x" * (transport.max_payload + 1))
    await transport.publish("x")
    await transport.aclose()


@ON_POSTGRES
@pytest.mark.parametrize(
    "kind", [psycopg.AsyncCursor, psycopg.AsyncServerCursor, psycopg.AsyncClientCursor, psycopg.AsyncRawCursor]
)
async def test_check_in_with_each_kind_of_cursor(
    engine: Engine, pair: tuple[Worker, Worker], kind: type[psycopg.AsyncCursor[Any]]
) -> None:
    """The notice is sent with the cursor, and with a connection whose cursors are of this kind."""
    first, second = pair
    async with await psycopg.AsyncConnection.connect(engine.url) as connection:
        cursor: psycopg.AsyncCursor[Any]
        if kind is psycopg.AsyncServerCursor:
            cursor = connection.cursor(name="named")
        else:
            connection.cursor_factory = kind
            cursor = connection.cursor()
        assert type(cursor) is kind
        for number, sender in enumerate([cursor, connection], 1):
            waiting = second.waits("a", number)
            await have_read(second, "a")
            first.write("a", number)
            await first.relay.check_in(sender, ["a"])
            await connection.commit()
            assert await waiting is True
        await cursor.close()


@ON_POSTGRES
async def test_the_server_does_not_end_the_idle_connections(engine: Engine) -> None:
    """Neither connection is ended by ``idle_session_timeout``, although one of them never sends anything."""
    url = make_conninfo(engine.url, options="-c idle_session_timeout=300")
    transport = PostgresTransport(url, channel=f"channel_{uuid4().hex}")
    subscribed = asyncio.Event()
    arrived: asyncio.Queue[str | bytes] = asyncio.Queue()
    listening = asyncio.create_task(transport.listen(subscribed.set, arrived.put_nowait))
    await subscribed.wait()
    await transport.publish("first")
    assert await arrived.get() == "first"
    other = await psycopg.AsyncConnection.connect(url, autocommit=True)
    with pytest.raises(psycopg.OperationalError):
        await anext(other.notifies())  # it has been idle for a shorter time than the transport
    await other.close()
    await transport.publish("second")
    assert await asyncio.wait_for(arrived.get(), 10.0) == "second"
    listening.cancel()
    await asyncio.wait([listening])
    await transport.aclose()


@ON_POSTGRES
async def test_the_first_of_several_hosts_does_not_answer(engine: Engine, channel: str) -> None:
    """A relay and a notifier connect to the next host before their own time is up."""
    one = conninfo_to_dict(engine.url)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel connects, and nobody answers
        ports = f"{silent.getsockname()[1]},{one['port']}"
        dsn = make_conninfo(engine.url, host=f"127.0.0.1,{one['host']}", port=ports)
        async with Worker(None, PostgresTransport(dsn, channel=channel), {}, heartbeat=10.0) as worker:
            await connected(worker)
            assert worker.relay.statistics().losses == 0
        with Notifier(PostgresTransport(dsn, channel=channel)) as notifier:
            await asyncio.to_thread(notifier.check, "a")


@pytest.mark.parametrize(
    ("dsn", "environment", "limits"),
    [
        ("host=a,b", {}, {"connect_timeout": 2}),
        ("postgresql://a,b/orders", {}, {"connect_timeout": 2}),
        ("hostaddr=127.0.0.1,127.0.0.2", {}, {"connect_timeout": 2}),
        ("host=a", {}, {}),
        ("host=a,b connect_timeout=7", {}, {}),
        ("host=a,b", {"PGCONNECT_TIMEOUT": "7"}, {}),
        ("dbname=orders", {"PGHOST": "a,b"}, {"connect_timeout": 2}),
        ("dbname=orders", {"PGHOSTADDR": "127.0.0.1,127.0.0.2"}, {"connect_timeout": 2}),
        ("dbname=orders connect_timeout=7", {"PGHOST": "a,b"}, {}),
        ("dbname=orders", {"PGHOST": "a,b", "PGCONNECT_TIMEOUT": "7"}, {}),
        ("host=a", {"PGHOST": "a,b"}, {}),
    ],
)
async def test_the_time_for_each_of_several_hosts(
    monkeypatch: pytest.MonkeyPatch, dsn: str, environment: dict[str, str], limits: dict[str, int]
) -> None:
    """A time that the user has set is kept."""
    given: dict[str, Any] = {}

    async def connect(dsn: str, **options: Any) -> None:
        given.update(options)
        raise ConnectionRefusedError

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect)
    for name in ("PGHOST", "PGHOSTADDR", "PGCONNECT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConnectionRefusedError):
        await PostgresTransport(dsn).publish("")
    assert {name: given[name] for name in given if "timeout" in name} == limits


@ON_POSTGRES
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
async def test_a_channel_that_is_not_ascii_in_each_encoding(engine: Engine, encoding: str) -> None:
    """The name travels through a database of this encoding, and with a client's connection of any encoding."""
    own(engine)
    database = f"database_{uuid4().hex}"
    url = make_conninfo(engine.url, dbname=database)
    async with await psycopg.AsyncConnection.connect(engine.url, autocommit=True) as connection:
        created = "CREATE DATABASE {} ENCODING {} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        await connection.execute(sql.SQL(created).format(sql.Identifier(database), encoding))
    table: dict[Hashable, float] = {}
    async with Worker(None, PostgresTransport(url, channel="commandé"), table) as worker:
        await connected(worker)
        for number, client in enumerate(["SQL_ASCII", "LATIN1", "UTF8"], 1):
            waiting = worker.waits("a", number)
            await have_read(worker, "a")
            async with await psycopg.AsyncConnection.connect(url, client_encoding=client) as connection:
                worker.write("a", number)
                await worker.relay.check_in(connection, ["a"])
            assert await waiting is True
        statistics = worker.relay.statistics()
        assert (statistics.losses, statistics.received) == (0, 3)


@ON_POSTGRES
async def test_check_in_wants_an_async_connection(engine: Engine) -> None:
    """A blocking connection, and any other object, raise TypeError, and nothing is sent."""
    transport = PostgresTransport(engine.url)
    room = Purgatory[Any]("test")
    assert isinstance(transport, TransactionalTransport)
    async with room, Relay(room, transport) as relay:
        with psycopg.connect(engine.url) as blocking:
            for connection in (blocking, None, "dsn"):
                with pytest.raises(TypeError, match="connection must be an AsyncConnection or AsyncCursor of psycopg"):
                    await relay.check_in(connection, ["a"])


# Redis


@ON_REDIS
async def test_redis_kills_the_subscriber(engine: Engine, pair: tuple[Worker, Worker]) -> None:
    """Redis ends a subscriber whose output buffer is full; the relay detects this and reads the missed changes."""
    first, second = pair
    client = Redis.from_url(engine.url)
    for number in range(3):
        waiting = second.waits("a", number + 1)
        await have_read(second, "a")
        await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call]
        first.write("a", number + 1)
        first.relay.check("a")
        assert await waiting is True
        await connected(first, second)
    await client.aclose()
    assert second.relay.statistics().losses == 3


@ON_REDIS
@pytest.mark.parametrize("options", ["", "?socket_timeout=7", "?socket_timeout=7&socket_connect_timeout=8"])
async def test_a_timeout_of_redis_does_not_end_a_silent_subscription(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """The timeout of the address limits how long a publish waits, not how long a subscription may receive nothing."""
    timeouts: list[tuple[object, object]] = []
    connect = AbstractConnection.connect

    async def recorded(connection: AbstractConnection) -> None:
        timeouts.append((connection.socket_timeout, connection.socket_connect_timeout))
        await connect(connection)

    monkeypatch.setattr(AbstractConnection, "connect", recorded)
    transport = RedisTransport(engine.url + options)
    subscribed = asyncio.Event()
    listening = asyncio.create_task(transport.listen(subscribed.set, lambda payload: None))
    await subscribed.wait()
    await transport.publish("x")
    listening.cancel()
    await asyncio.wait([listening])
    await transport.aclose()
    (subscription, to_connect), (publishing, publishing_to_connect) = timeouts
    assert subscription is None
    assert to_connect == publishing_to_connect
    assert publishing == 7 or not options


# NATS


@ON_NATS
async def test_a_server_that_allows_shorter_payloads(engine: Engine) -> None:
    """Many keys are split below the limit of the server; a longer key reaches the others as "every key"."""
    own(engine)

    class Small(NatsServer):
        def settings(self) -> list[str]:
            return ["max_payload: 1KB"]

    server = Small()
    await asyncio.to_thread(server.start)
    table: dict[Hashable, float] = {}
    try:
        async with (
            Worker(None, server.transport("small"), table) as first,
            Worker(None, server.transport("small"), table) as second,
        ):
            await connected(first, second)
            long = "x" * 2000
            waiting = [second.waits(key) for key in [*range(500), long]]
            await have_read(second, *range(500), long)
            before = first.relay.statistics().messages_sent
            for number in range(500):
                first.write(number, 1)
                first.relay.check(number)
            assert await asyncio.gather(*waiting[:500]) == [True] * 500
            first.write(long, 1)
            first.relay.check(long)
            assert await waiting[500] is True
            await first.relay.aclose()
            statistics = first.relay.statistics()
            assert (statistics.sent, statistics.everything_sent) == (500, 1)
            assert 3 + 1 <= statistics.messages_sent - before <= 6 + 1
            assert (statistics.losses, second.relay.statistics().losses) == (0, 0)
    finally:
        await asyncio.to_thread(server.close)


INFO = b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true}\r\n'


async def serve_nats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a connection as a NATS server that answers pings, and does nothing else."""
    writer.write(INFO)
    async for line in reader:
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
    writer.close()


async def test_the_nats_server_has_read_a_command_when_it_confirms() -> None:
    """A ping follows each subscription and each message, so its answer, or an error before it, is about them."""
    commands: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        async for line in reader:
            commands.append(line.split()[0])
            if commands[-1] == b"PING":
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        transport = NatsTransport(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        subscribed = asyncio.Event()
        listening: asyncio.Task[None] | None = None
        try:
            await transport.publish("x")
            assert commands == [b"CONNECT", b"PING", b"PUB", b"x", b"PING"]
            commands.clear()
            await transport.publish("x")
            assert commands == [b"PUB", b"x", b"PING"]
            commands.clear()
            listening = asyncio.create_task(transport.listen(subscribed.set, lambda _: None))
            await subscribed.wait()
            assert commands == [b"CONNECT", b"PING", b"SUB", b"PING"]
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.wait([listening])
            await transport.aclose()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_connection_to_nats_that_ends_while_a_message_is_sent(
    reset: bool, reported: list[dict[str, Any]]
) -> None:
    """The call fails at once, not after nats-py's timeout of 10 seconds, and the next one connects again."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        fails = connections == 1
        writer.write(INFO)
        async for line in reader:
            if line.startswith(b"PUB") and fails:
                break
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        if reset and fails:
            no_linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        transport = NatsTransport(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ConnectionResetError, match="the connection to NATS was lost"):
            await transport.publish("x" * 20_000)
        await transport.publish("x")
        await transport.aclose()
    assert connections == 2
    assert reported == []


async def test_a_connection_to_nats_that_ends_as_the_next_message_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end, which is noted in the next turn of the loop, is not that of the new connection."""
    async with await asyncio.start_server(serve_nats, "127.0.0.1", 0) as server:
        transport = NatsTransport(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        connect, clients = transport._connect, []

        async def connecting(failed: Any) -> _Client:
            clients.append(await connect(failed))
            return clients[-1]

        monkeypatch.setattr(transport, "_connect", connecting)
        await transport.publish("x")
        closing = asyncio.create_task(clients[0].close())
        await asyncio.sleep(0)  # it is closed now
        await transport.publish("x")
        await closing
        await transport.aclose()
    assert len(clients) == 2


async def test_a_client_of_nats_that_cannot_send_what_it_has_left_is_closed(reported: list[dict[str, Any]]) -> None:
    """The connection has been reset: no task of nats-py is left, and its socket is closed."""

    class Refusing(_Client):
        async def _process_connect_init(self) -> None:
            await super()._process_connect_init()
            assert self._transport is not None
            self._transport.drain = self.refuse  # type: ignore[method-assign]

        async def refuse(self) -> None:
            raise ConnectionResetError

    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_nats(reader, writer)
        closed.set()

    async def ignore(_: Any) -> None:
        pass

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        before = asyncio.all_tasks()
        client = Refusing()
        port = server.sockets[0].getsockname()[1]
        await client.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=ignore)
        await client.subscribe("a", cb=ignore)
        await client.close()
        await closed.wait()
        await turns_until(lambda: asyncio.all_tasks() <= before)
    assert reported == []


async def test_an_answer_of_nats_to_a_call_that_was_given_up_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The answer may arrive while the connection of the cancelled call is being closed; nats-py logs no error."""
    calls: list[asyncio.Task[None]] = []
    serving: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        writer.write(INFO)
        pings = 0
        async for line in reader:
            if line.startswith(b"PING"):
                pings += 1
                if pings == 2:  # the first belongs to CONNECT
                    calls[-1].cancel()
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        transport = NatsTransport(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        before = asyncio.all_tasks()
        for call in (transport.publish("x"), transport.listen(lambda: None, lambda _: None)):
            calls.append(asyncio.create_task(call))
            await asyncio.wait(calls)
            assert calls[-1].cancelled()
        await transport.aclose()
        await asyncio.wait([task for task in serving if task is not None])
    assert asyncio.all_tasks() <= before
    assert caplog.records == []


@ON_NATS
async def test_nats_denies_publishing_or_subscribing(engine: Engine) -> None:
    """Each call raises the error of the server; the relay shows it, and its keys do not count as sent."""
    own(engine)

    class Denying(NatsServer):
        def settings(self) -> list[str]:
            users = ", ".join(
                f'{{user: no_{action}, password: x, permissions: {{{action}: {{deny: "denied"}}}}}}'
                for action in ("publish", "subscribe")
            )
            return [f"authorization {{ users = [{users}] }}"]

    server = Denying()
    await asyncio.to_thread(server.start)
    try:
        transport = NatsTransport(server.url, subject="denied", user="no_publish", password="x")
        for _ in range(50):
            with pytest.raises(Exception, match='permissions violation for publish to "denied"'):
                await transport.publish("x")
        await transport.aclose()
        for user, action in [("no_publish", "publish"), ("no_subscribe", "subscription")]:
            transport = NatsTransport(server.url, subject="denied", user=user, password="x")
            async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=5.0) as relay:
                relay.check("a")
                await relay.aclose()
                statistics = relay.statistics()
                assert statistics.sent == 0
                assert f"permissions violation for {action}" in str(statistics.last_loss)
    finally:
        await asyncio.to_thread(server.close)


def test_bad_arguments() -> None:
    """The error states the expected and the passed value."""
    for make, kind, message in [
        (lambda: PostgresTransport(3), TypeError, "dsn must be a str, got 3"),  # type: ignore[arg-type]
        (lambda: PostgresTransport("", channel=3), TypeError, "channel must be a str, got 3"),  # type: ignore[arg-type]
        (lambda: RedisTransport(3), TypeError, "url must be a str, got 3"),  # type: ignore[arg-type]
        (lambda: RedisTransport("redis://h", channel=3), TypeError, "channel must be a str, got 3"),  # type: ignore[arg-type]
        (lambda: RedisTransport("redis://h", channel=""), ValueError, "channel must not be empty"),
        (lambda: NatsTransport(3), TypeError, "url must be a str or a list of str, got 3"),  # type: ignore[arg-type]
        (lambda: NatsTransport("", subject=3), TypeError, "subject must be a str, got 3"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(kind) as refused:
            make()
        assert str(refused.value) == message
    with pytest.raises(ValueError, match="URL"):
        RedisTransport("http://host")
    for subject in ("", "orders.*", "orders.>", "a b"):
        with pytest.raises(ValueError, match="subject must not be empty and must have no wildcards or blanks, got "):
            NatsTransport("nats://h", subject=subject)


def test_nats_refuses_a_subject_or_an_option_that_cannot_work() -> None:
    """An empty token, an unknown option, and an option that the transport sets itself raise an error."""
    for subject in ("a..b", ".a", "a.", "."):
        with pytest.raises(ValueError, match="subject must have no empty tokens between its dots, got "):
            NatsTransport("nats://h", subject=subject)
    with pytest.raises(TypeError) as refused:
        NatsTransport("nats://h", nonsense=1)
    assert str(refused.value) == "options must be arguments of nats.aio.client.Client.connect, got 'nonsense'"
    for option in ("max_reconnect_attempts", "allow_reconnect", "error_cb", "closed_cb", "no_echo", "servers"):
        with pytest.raises(TypeError) as refused:
            NatsTransport("nats://h", **{option: None})
        assert str(refused.value) == f"options must not include those that the transport sets itself, got {option!r}"
    NatsTransport("nats://h", subject="a.b", user="u", name="n")


async def test_nats_says_why_it_cannot_connect() -> None:
    """The error of the attempt is the reason, and not one of closing a client that was never connected."""
    for url, options, reason in [
        ("nats://h", {"disconnected_cb": print}, "callback"),
        ("nats://h", {"inbox_prefix": 3}, "AssertionError"),
    ]:
        transport = NatsTransport(url, **options)
        async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=5.0) as relay:
            last_loss = relay.statistics().last_loss
            assert last_loss is not None
            assert reason in last_loss
            assert "Client.connect must be called first" not in last_loss


def test_they_say_what_they_are() -> None:
    """The ``repr`` of a transport contains its channel, and not its password."""
    assert repr(PostgresTransport("postgresql://me:secret@h/db", channel="c")) == "<PostgresTransport channel='c'>"
    assert repr(RedisTransport("redis://:secret@h", channel="c")) == "<RedisTransport channel='c'>"
    assert repr(NatsTransport("nats://me:secret@h", subject="c")) == "<NatsTransport subject='c'>"


def test_an_environment_that_only_root_can_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres runs as another user than root, so the fixture copies a server that this user cannot reach."""
    programs = tmp_path / "package" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    (programs / "postgres").touch()
    (tmp_path / "package.libs").mkdir()
    (tmp_path / "package.libs" / "libpq.so").touch()
    tmp_path.chmod(0o700)
    folder = tmp_path / "data"
    server = PostgresServer()
    monkeypatch.setattr(server, "program", lambda: str(programs / "postgres"))
    monkeypatch.setattr(server, "as_user", dict)
    assert server.binaries(folder) == programs
    monkeypatch.setattr(server, "as_user", lambda: {"user": 65534})
    copied = server.binaries(folder)
    assert copied.is_relative_to(folder)
    assert (copied / "postgres").exists()
    assert (copied / ".." / ".." / ".." / "package.libs" / "libpq.so").exists()
