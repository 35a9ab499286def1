"""Celery: tasks of a real worker notify the requests that wait in another process."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from purgatory import Purgatory
from purgatory.relay import RedisTransport, Relay
from tests.parts import missing
from tests.relay.engines import RedisServer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """Yield a running Redis server, the broker and the engine of the relay."""
    reason = RedisServer.missing()
    if reason:
        missing(reason)
    server = RedisServer()
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize("pool", ["solo", "prefork"])
async def test_a_task_answers_the_requests_that_wait(redis: RedisServer, pool: str) -> None:
    """Tasks report to a notifier that was created before the worker forked; each process has its own connection."""
    environment = {**os.environ, "CELERY_REDIS": redis.url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "celery", "-A", "tests.frameworks.celery_app", "worker", "--pool", pool, "-c", "2",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR",
        cwd=ROOT, env=environment, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    client = Celery("tests", broker=f"{redis.url}/1")
    room = Purgatory[Any]("requests")
    noticed: dict[Any, float | None] = {}
    try:
        async with room, Relay(room, RedisTransport(redis.url, channel="jobs"), resync_every=3600.0) as relay:
            mark = relay._refresher.mark

            def marked(key: Any, value: float | None) -> None:
                noticed[key] = value
                mark(key, value)

            relay._refresher.mark = marked  # type: ignore[method-assign]
            jobs = [f"job {number}" for number in range(6)]
            waits = [
                asyncio.ensure_future(
                    relay.wait_until(lambda job=job: noticed.get(job) == 100, keys={job: 100}, timeout=90.0)  # type: ignore[misc]
                )
                for job in jobs
            ]
            await asyncio.sleep(0)
            for job in jobs:
                await asyncio.to_thread(client.send_task, "tests.frameworks.celery_app.work", [job])
            assert await asyncio.gather(*waits) == [True] * len(jobs)
            assert process.returncode is None
            assert relay.statistics().unreadable == 0
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60.0):
            await process.wait()
        client.close()
    pids = {key[1] for key in noticed if isinstance(key, tuple)}
    assert pids
    assert (process.pid in pids) == (pool == "solo")
