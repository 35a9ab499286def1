"""``connected`` is proven by a ping that has come back; what an engine merely accepts proves nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from purgatory import Purgatory
from purgatory.relay import MemoryTransport, PostgresTransport, RedisTransport, Relay, RelayLost, Transport
from purgatory.testing import VirtualClock
from tests.parts import missing
from tests.relay.engines import Engine, NatsServer, PostgresServer, RedisServer
from tests.relay.pooler import PgBouncer

pytestmark = pytest.mark.timeout(60)


class Deaf(MemoryTransport):
    """Confirms subscriptions, accepts messages, and delivers none."""

    silence = "it is deaf"

    async def publish(self, payload: str) -> None:
        pass


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the levels and the messages of the relay in the log."""
    return [
        f"{record.levelname} {record.getMessage()}" for record in caplog.records if record.name == "purgatory.relay"
    ]


async def test_a_subscription_that_delivers_nothing_is_not_connected(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read, no line says "connected", and one warning names the likely cause, for any number of attempts."""
    caplog.set_level(logging.INFO)
    reads: list[Any] = []

    async def load(keys: list[Any]) -> dict[Any, Any]:
        reads.append(keys)
        return {}

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, Deaf(clock=clock), refresh=load, heartbeat=2.0, resync_every=3600.0) as relay:
        waiting = asyncio.create_task(relay.wait_until(lambda: False, key="a", timeout=100.0))
        await clock.settle()
        assert reads == [["a"]]
        for _ in range(100):
            await clock.advance(0.6)
            assert not relay.connected
        statistics = relay.statistics()
        assert statistics.connects > 3
        assert (statistics.resyncs, statistics.lag, reads) == (0, None, [["a"]])
        (line,) = lines(caplog)
        assert line.startswith("WARNING the relay of purgatory 'test' is not connected: TimeoutError: a ping through")
        assert line.endswith("has not come back within 2 s: it is deaf")
        waiting.cancel()


async def test_with_on_lost_nothing_waits_before_the_connection_is_proven(clock: VirtualClock) -> None:
    """With ``on_lost="fail"``, a wait is refused until a ping has come back."""
    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, Deaf(clock=clock), on_lost="fail") as relay:
        with pytest.raises(RelayLost):
            await relay.wait_until(lambda: False, key="a", timeout=5.0)
    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, MemoryTransport(clock=clock), on_lost="fail") as relay:
        assert relay.connected
        assert await relay.wait_until(lambda: True, key="a", timeout=5.0)


async def test_keys_are_sent_and_received_before_the_connection_is_proven(clock: VirtualClock) -> None:
    """A slow first ping delays neither the keys of this process nor those of others."""
    slow = MemoryTransport(clock=clock, deliveries=lambda payload: [5.0 if '"ping"' in payload else 0.0])
    rooms = [Purgatory[Any](f"test {number}", clock=clock) for number in range(2)]
    async with rooms[0], rooms[1], Relay(rooms[0], slow) as one, Relay(rooms[1], slow.peer()) as other:
        assert not one.connected
        ready = False
        waiting = asyncio.create_task(one.wait_until(lambda: ready, key="a", timeout=30.0))
        await clock.settle()
        ready = True
        other.check("a")
        one.check("b")
        await clock.settle()
        assert await waiting is True
        assert (other.statistics().received, one.statistics().connected) == (1, False)
        await clock.advance(5.0)
        assert one.connected
        assert one.statistics().resyncs == 1


@pytest.mark.parametrize(("lost", "seconds"), [(1, 0.1), (3, 0.7), (5, 3.1)])
async def test_the_first_ping_is_sent_again_until_it_comes_back(clock: VirtualClock, lost: int, seconds: float) -> None:
    """In a cluster, the first ones may reach a server that has not heard of the new subscription."""
    pings: list[str] = []

    def deliveries(payload: str) -> list[float]:
        if '"ping"' in payload:
            pings.append(payload)
            return [] if len(pings) <= lost else [0.0]
        return [0.0]

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, MemoryTransport(clock=clock, deliveries=deliveries)) as relay:
        begun = clock.time()
        while not relay.connected:
            await clock.advance(0.1)
        assert clock.time() - begun == pytest.approx(seconds)
        assert len(set(pings)) == 1
        await clock.advance(5.0)
        assert len(pings) == lost + 1  # and no more until the next heartbeat
        assert (relay.statistics().losses, relay.statistics().resyncs) == (0, 1)


async def test_each_reason_of_an_outage_is_logged_once(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """The engine is away, then it refuses the password: both are in the log, and numbers make no difference."""
    caplog.set_level(logging.INFO)

    class Failing(MemoryTransport):
        attempts = 0

        async def listen(self, subscribed: Any, received: Any) -> None:
            self.attempts += 1
            if self.attempts < 5:
                raise OSError(f"connection to port {5000 + self.attempts} failed")
            if self.attempts < 10:
                raise PermissionError("wrong password")
            await super().listen(subscribed, received)

    room = Purgatory[Any]("test", clock=clock)
    async with room, Relay(room, Failing(clock=clock)) as relay:
        await clock.advance(60.0)
        assert relay.connected
    start = "the relay of purgatory 'test' is"
    assert lines(caplog) == [
        f"WARNING {start} not connected: OSError: connection to port 5001 failed",
        f"WARNING {start} not connected: PermissionError: wrong password",
        f"INFO {start} connected again",
    ]


# Real engines


@asynccontextmanager
async def running(kind: type[Engine]) -> AsyncIterator[Engine]:
    """Yield a server of its own, or skip the test with the reason."""
    reason = kind.missing()
    if reason:
        missing(reason)
    server = kind()
    if server.given:
        pytest.skip(f"{server.variable} names a server with other settings")
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.close)


async def attempts(relay: "Relay[Any, Any]", number: int) -> list[bool]:
    """Wait until this number of connections was lost; return whether it was connected, at the end of each."""
    seen: list[bool] = []
    enough = asyncio.Event()
    lost = relay._lost

    def note(connection: Any) -> None:
        seen.append(connection.proven)
        lost(connection)
        if len(seen) == number:
            enough.set()

    relay._lost = note  # type: ignore[method-assign]
    await enough.wait()
    return seen


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Yield a server whose sessions end when they are idle for an hour."""
    reason = PostgresServer.missing() or PgBouncer.missing()
    if reason:
        missing(reason)
    server = PostgresServer()
    server.given = None
    server.start()
    try:
        with psycopg.connect(server.url, autocommit=True) as direct:
            direct.execute("ALTER ROLE postgres SET idle_session_timeout = '1h'")
        yield server
    finally:
        server.close()


async def test_through_a_pooler_in_transaction_mode(postgres: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    """The relay is never connected, reads nothing, and says once that a pooler discards LISTEN."""
    caplog.set_level(logging.INFO, "purgatory.relay")
    with PgBouncer(postgres) as pooler:
        transport = PostgresTransport(pooler.url, channel="orders")
        async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=0.5) as relay:
            assert await attempts(relay, 3) == [False] * 3
            statistics = relay.statistics()
            assert (statistics.resyncs, statistics.messages_received) == (0, 0)
        (line,) = lines(caplog)
        assert "a pooler in transaction mode, such as pgbouncer, discards LISTEN" in line


async def test_a_session_of_a_pooler_is_given_back_clean(postgres: PostgresServer) -> None:
    """The next client of the pooler's only session finds neither a subscription nor another setting."""
    with PgBouncer(postgres) as pooler:
        transport = PostgresTransport(pooler.url, channel="orders")
        async with Purgatory[Any]("test") as room, Relay(room, transport, heartbeat=0.5) as relay:
            for number in range(20):
                relay.check(number)
                await asyncio.sleep(0)
            await attempts(relay, 2)
        async with await psycopg.AsyncConnection.connect(pooler.url, prepare_threshold=None) as client:
            found = await client.execute(
                "SELECT current_setting('idle_session_timeout'), (SELECT count(*) FROM pg_listening_channels()),"
                " (SELECT count(*) FROM pg_prepared_statements)"
            )
            assert await found.fetchone() == ("1h", 0, 0)


class _NoPublish(RedisServer):
    def command(self, folder: Path) -> list[str]:
        users = "--user app on >secret ~* &* +@all -publish --user shy on >secret ~* &* +@all -role -info"
        return [*super().command(folder), *users.split()]


async def test_redis_denies_publishing(caplog: pytest.LogCaptureFixture) -> None:
    """A user who may subscribe and not publish is never connected, and the log says why, once."""
    caplog.set_level(logging.INFO, "purgatory.relay")
    async with running(_NoPublish) as server:
        transport = RedisTransport(f"redis://app:secret@127.0.0.1:{server.port}")
        async with Purgatory[Any]("test") as room, Relay(room, transport) as relay:
            assert await attempts(relay, 3) == [False] * 3
            statistics = relay.statistics()
            assert (statistics.resyncs, statistics.connected) == (0, False)
        (line,) = lines(caplog)
        assert "permissions" in line
        assert "secret" not in line


async def test_redis_denies_the_role() -> None:
    """A user who may not ask for the role of the server can use the relay."""
    async with running(_NoPublish) as server:
        transport = RedisTransport(f"redis://shy:secret@127.0.0.1:{server.port}")
        async with Purgatory[Any]("test") as room, Relay(room, transport) as relay:
            assert relay.connected
            assert relay.statistics().losses == 0


class _Denying(NatsServer):
    def settings(self) -> list[str]:
        return ['authorization { users = [{user: app, password: secret, permissions: {publish: {deny: "orders"}}}] }']


async def test_nats_denies_publishing(caplog: pytest.LogCaptureFixture) -> None:
    """A user who may subscribe and not publish is never connected, and the log says why, once."""
    caplog.set_level(logging.INFO, "purgatory.relay")
    async with running(_Denying) as server:
        transport: Transport = server.transport("orders", f"nats://app:secret@127.0.0.1:{server.port}")
        async with Purgatory[Any]("test") as room, Relay(room, transport) as relay:
            assert await attempts(relay, 3) == [False] * 3
            statistics = relay.statistics()
            assert (statistics.resyncs, statistics.connected) == (0, False)
        (line,) = lines(caplog)
        assert 'permissions violation for publish to "orders"' in line
        assert "secret" not in line
