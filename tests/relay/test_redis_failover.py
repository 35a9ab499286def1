"""A failover of Redis: the primary that the workers are connected to becomes a replica, and closes no connection."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from purgatory.relay import RedisTransport
from tests.parts import missing
from tests.relay.engines import RedisServer
from tests.relay.kit import Worker
from tests.relay.proxy import Proxy

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[RedisServer, RedisServer]]:
    """Yield a primary and its replica, which has caught up."""
    reason = RedisServer.missing()
    if reason:
        missing(reason)
    primary, replica = RedisServer(), RedisServer()
    for server in (primary, replica):
        server.given = None
        await asyncio.to_thread(server.start)
    try:
        await follow(replica, primary)
        yield primary, replica
    finally:
        for server in (primary, replica):
            await asyncio.to_thread(server.close)


async def follow(replica: RedisServer, primary: RedisServer) -> None:
    """Make the server a replica of the other, and return when it has caught up."""
    async with Redis.from_url(replica.url) as client:
        await client.execute_command("REPLICAOF", "127.0.0.1", primary.port)  # type: ignore[no-untyped-call]
        async with asyncio.timeout(20.0):
            while (await client.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110 - a server tells it
                await asyncio.sleep(0.05)


async def test_a_primary_that_was_demoted_is_given_up(pair: tuple[RedisServer, RedisServer]) -> None:
    """The next message or ping notices it, and the worker connects when its address leads to the new primary."""
    primary, replica = pair
    channel = f"channel_{uuid4().hex}"
    proxy = Proxy(primary.url)  # the address of the primary, which follows the failover late
    await proxy.start()
    table: dict[Hashable, float] = {}
    options = {"heartbeat": 1.0, "resync_every": 3600.0}
    try:
        async with Worker(None, RedisTransport(proxy.url, channel=channel), table, **options) as old:
            assert old.relay.connected
            lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            note = old.relay._lost
            old.relay._lost = lambda connection: (note(connection), lost.done() or lost.set_result(None))  # type: ignore[method-assign, assignment, func-returns-value]
            async with Redis.from_url(replica.url) as client:
                await client.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]
            await follow(primary, replica)
            async with Worker(None, RedisTransport(replica.url, channel=channel), table, **options) as new:
                assert new.relay.connected
                waiting = new.waits("a", timeout=30.0)
                await new.purgatory.wait_until(lambda: "a" in new.state, keys=["a"], timeout=10.0)
                old.write("a", 1)
                old.relay.check("a")
                await lost
                assert "replica" in str(old.relay.statistics().last_loss)
                assert not old.relay.connected
                proxy.lead_to(replica.url)
                assert await waiting is True
                assert new.relay.statistics().resyncs == 1  # so the notice itself has answered
    finally:
        await proxy.close()


async def test_a_replica_is_refused_at_the_first_attempt(pair: tuple[RedisServer, RedisServer]) -> None:
    """A worker whose address leads to a replica is never connected, and says why."""
    _, replica = pair
    worker = Worker(None, RedisTransport(replica.url), {})
    async with worker:
        assert not worker.relay.connected
        assert "this Redis server is a replica" in str(worker.relay.statistics().last_loss)
        assert worker.relay.statistics().resyncs == 0
