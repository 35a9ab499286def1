"""The job example with real processes: two workers of uvicorn, and a real Redis."""

import asyncio
import importlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.parts import missing
from tests.relay.engines import RedisServer, free_port
from tests.testclient import TestClient

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "several-workers.md"
EXAMPLE = ROOT / "examples" / "job_status_relayed.py"

pytestmark = pytest.mark.timeout(90)


@asynccontextmanager
async def worker(redis: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of one worker, when it is ready; SIGTERM ends the worker."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "examples.job_status_relayed:app",
        "--port",
        str(port),
        "--log-level",
        "warning",
    ]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env={**os.environ, "REDIS_URL": redis})
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client,
            asyncio.timeout(60.0),
        ):
            while True:
                try:
                    assert (await client.get("/healthz/")).json() == {"status": "open"}
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.1)  # the process starts
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def test_a_poll_in_one_worker_follows_a_job_of_the_other() -> None:
    """A poll waits for 10 % more than it has seen, and a plain request does not wait."""
    if reason := RedisServer.missing():
        missing(reason)
    redis = RedisServer()
    await asyncio.to_thread(redis.start)
    try:
        async with worker(redis.url) as other, worker(redis.url) as one:
            assert (await other.get("/jobs/nothing", params={"wait": 30})).status_code == 404
            job = (await one.post("/jobs")).json()["job"]
            assert (await other.get(f"/jobs/{job}")).json() < 100
            seen = -1
            while seen < 80:
                answer = await other.get(f"/jobs/{job}", params={"seen": seen, "wait": 30})
                assert answer.json() >= seen + 10
                seen = answer.json()
            preferred = {"Prefer": "wait=30"}
            assert (await other.get(f"/jobs/{job}", params={"seen": 95}, headers=preferred)).json() == 100
    finally:
        redis.close()


@pytest.mark.parametrize("seen", ["9" * 400, "-" + "9" * 400, "101", "-11"])
def test_a_progress_that_no_job_makes_gets_422(seen: str) -> None:
    """A number outside the range is refused before Redis is asked."""
    pytest.importorskip("redis")
    program = importlib.import_module("examples.job_status_relayed")
    assert TestClient(program.app).get(f"/jobs/1?wait=30&seen={seen}").status_code == 422


def test_the_page_shows_the_example() -> None:
    """The program in the page is this file, and has at most 55 lines."""
    shown = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    source = EXAMPLE.read_text(encoding="utf-8")
    assert source in shown
    assert len(source.splitlines()) <= 55
