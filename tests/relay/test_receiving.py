"""What arrives from the engine: text of other programs, and a flood after a stall."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from purgatory.relay import NatsTransport, PostgresTransport, RedisTransport
from purgatory.testing import VirtualClock
from tests.parts import missing
from tests.relay.engines import SERVERS
from tests.relay.kit import workers

pytestmark = pytest.mark.timeout(60)


async def test_text_of_another_program_causes_one_read_in_a_second(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """300 messages in 15 s cause 20 reads at most, one line in the log, and none of the real notices is delayed."""
    (first, second), (_, transport) = workers(clock, resync_every=3600.0)
    stranger = transport.peer()
    async with first, second:
        waiting = [second.waits(number, timeout=300.0) for number in range(50)]
        await clock.settle()
        second.reads.clear()
        for number in range(300):
            await stranger.publish("hello")
            await clock.advance(0.05)
            if number % 30 == 0:
                key = number // 30
                first.write(key, 1)
                first.relay.check(key)
                await clock.settle()
                assert waiting[key].done()
        reads = [keys for keys in second.reads if len(keys) > 1]
        assert 10 <= len(reads) <= 20
        assert second.relay.statistics().unreadable == 300
        # The last message is not forgotten: after it, every key is read once more.
        second.write(49, 1)
        await clock.advance(1.1)
        assert waiting[49].done()
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2  # of two workers
        assert "received 1 payloads that it cannot read" in caplog.text
        assert "hello" not in caplog.text
        await clock.advance(60.0)
        await stranger.publish("hello")
        await clock.settle()
        assert "received 301 payloads that it cannot read" in caplog.text
        for task in waiting:
            task.cancel()


async def test_a_relay_that_closes_checks_nothing_any_more(clock: VirtualClock) -> None:
    """The check of every key that is still due is dropped."""
    (worker,), (transport,) = workers(clock, 1)
    async with worker:
        for _ in range(20):
            await transport.publish("hello")
        await clock.settle()
        await worker.relay.aclose()
        resyncs = worker.relay.statistics().resyncs
        await clock.advance(10.0)
        assert worker.relay.statistics().resyncs == resyncs


_TRANSPORTS: dict[str, Callable[..., Any]] = {
    "postgres": PostgresTransport,
    "redis": RedisTransport,
    "nats": lambda url, channel: NatsTransport(url, subject=channel),
}


@pytest.mark.parametrize("name", SERVERS)
async def test_what_gathered_during_a_stall_is_handled_in_slices(name: str) -> None:
    """After the loop was blocked, other tasks run between the messages: a hundred at most are handled in one turn."""
    kind = SERVERS[name]
    reason = kind.missing()
    if reason:
        missing(reason)
    server = kind()
    await asyncio.to_thread(server.start)
    try:
        transport = _TRANSPORTS[name](server.url, channel=f"channel_{uuid4().hex}")
        subscribed, arrived = asyncio.Event(), asyncio.Event()
        counts = [0]

        def received(payload: str | bytes) -> None:
            counts[-1] += 1
            if payload in ("last", b"last"):
                arrived.set()

        listening = asyncio.create_task(transport.listen(subscribed.set, received))
        await subscribed.wait()

        def flood() -> None:
            async def publish() -> None:
                other = _TRANSPORTS[name](
                    server.url, channel=transport._subject if name == "nats" else transport._channel
                )
                await asyncio.gather(*(other.publish("x") for _ in range(1000)))
                await other.publish("last")
                await other.aclose()

            asyncio.run(publish())

        thread = threading.Thread(target=flood)
        thread.start()
        thread.join()  # it blocks the loop while the messages arrive
        while not arrived.is_set():
            counts.append(0)
            await asyncio.sleep(0)
        assert sum(counts) == 1001
        assert max(counts) <= 100
        listening.cancel()
        await asyncio.wait([listening])
        await transport.aclose()
    finally:
        await asyncio.to_thread(server.close)
