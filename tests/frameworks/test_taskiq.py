"""Taskiq: a task, which runs in an event loop, notifies from a thread."""

import asyncio
from typing import Any

from taskiq import InMemoryBroker

from purgatory import Purgatory
from purgatory.relay import MemoryTransport, Notifier, Relay


async def test_a_task_notifies_through_a_thread() -> None:
    """The task of the page: ``await asyncio.to_thread(notifier.check, ...)`` answers the request that waits."""
    transport = MemoryTransport()
    broker, notifier, done = InMemoryBroker(), Notifier(transport), set[str]()

    @broker.task
    async def work(job: str) -> None:
        done.add(job)
        await asyncio.to_thread(notifier.check, job)

    room = Purgatory[Any]("requests")
    async with room, Relay(room, transport) as relay:
        waiting = asyncio.create_task(relay.wait_until(lambda: "job 1" in done, keys=["job 1"], timeout=30.0))
        await asyncio.sleep(0)
        await broker.startup()
        result = await (await work.kiq("job 1")).wait_result(timeout=30.0)
        assert not result.is_err, result.error
        assert await waiting is True
        await broker.shutdown()
    await asyncio.to_thread(notifier.close)
