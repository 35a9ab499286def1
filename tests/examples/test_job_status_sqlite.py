"""The job example without a server: two workers of uvicorn, SQLite, and sockets in a directory."""

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.relay.engines import free_port
from tests.testclient import TestClient

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on this system"),
]


@contextlib.asynccontextmanager
async def running(folder: str, *, workers: int) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the workers that makes a new connection for each request."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "examples.job_status_sqlite:app", "--workers", str(workers),
        "--port", str(port), "--log-level", "warning", cwd=ROOT, env={**os.environ, "JOBS_FOLDER": folder},
    )  # fmt: skip
    limits = httpx.Limits(max_keepalive_connections=0)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0, limits=limits) as client:
            async with asyncio.timeout(60.0):
                while len(list(Path(folder).glob("relay/*.sock"))) < workers:  # noqa: ASYNC110, ASYNC240 - they start
                    await asyncio.sleep(0.1)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def follow_a_job(folder: str) -> None:
    """Poll a job until it has ended, with a new connection for each request."""
    async with running(folder, workers=2) as client, asyncio.timeout(100.0):
        assert (await client.get("/jobs/nothing", params={"wait": 30})).status_code == 404
        job = (await client.post("/jobs")).json()["job"]
        seen = -1
        while seen < 100:
            polls = (client.get(f"/jobs/{job}", params={"seen": seen, "wait": 30}) for _ in range(6))
            answers = [answer.json() for answer in await asyncio.gather(*polls)]
            assert all(answer >= min(seen + 10, 100) for answer in answers)
            seen = min(answers)


def test_polls_in_any_worker_follow_a_job() -> None:
    """Any of the workers may accept a poll; one of them does the job."""
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        asyncio.run(follow_a_job(folder))


async def follow_jobs(folder: str, jobs: int) -> None:
    """Start jobs on four workers, and poll each of them until it has ended."""

    async def follow(job: str, client: httpx.AsyncClient) -> None:
        for goal in range(0, 101, 10):
            answer = await client.get(f"/jobs/{job}", params={"seen": goal - 10, "wait": 55})
            assert answer.status_code == 200
            assert answer.json() >= goal

    async with running(folder, workers=4) as client, asyncio.timeout(100.0):
        started = [(await client.post("/jobs")).json()["job"] for _ in range(jobs)]
        await asyncio.gather(*[follow(job, client) for job in started])


@pytest.mark.slow
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_many_jobs_at_a_time_end(journal: str, capfd: pytest.CaptureFixture[str]) -> None:
    """While four workers write for 24 jobs, every poll gets its progress, and every job ends."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # the test is about locks, not about a slow disk
    with tempfile.TemporaryDirectory(prefix="jobs-", dir=memory) as folder:
        with contextlib.closing(sqlite3.connect(Path(folder) / "jobs.sqlite")) as database:
            database.execute(f"PRAGMA journal_mode = {journal}")
        asyncio.run(follow_jobs(folder, 24))
    assert capfd.readouterr().err == ""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the program, with a new file."""
    monkeypatch.setenv("JOBS_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "examples.job_status_sqlite", raising=False)
    program = importlib.import_module("examples.job_status_sqlite")
    yield program
    program.store.close()


async def test_it_can_run_where_the_tutorial_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two programs keep different tables, so by default their folders differ."""
    monkeypatch.chdir(tmp_path)
    for variable in ("JOBS", "JOBS_FOLDER"):
        monkeypatch.delenv(variable, raising=False)
    for name in ("examples.tutorial.chapter_5", "examples.job_status_sqlite"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        program = importlib.import_module(name)
        assert await program.load(["1"]) == {}
    program.store.close()


async def test_the_loop_runs_while_another_worker_has_locked_the_file(program: Any, tmp_path: Path) -> None:
    """Reads and writes wait for the lock, one after the other and not in the thread of the event loop."""
    program.store.execute("INSERT INTO jobs VALUES ('1', 7)")
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        loads = [asyncio.create_task(program.load(["1", "2"])) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert not any(load.done() for load in loads)
        other.execute("COMMIT")
    assert await asyncio.gather(*loads) == [{"1": 7}] * 2


@pytest.mark.parametrize("seen", ["9" * 400, "-" + "9" * 400, "101", "-11"])
def test_a_progress_that_no_job_makes_gets_422(seen: str, program: Any) -> None:
    """A number outside the range is refused, so that no threshold is too large for a float."""
    program.store.execute("INSERT INTO jobs VALUES ('1', 0)")
    assert TestClient(program.app).get(f"/jobs/1?wait=30&seen={seen}").status_code == 422


def test_the_file_is_not_switched_to_wal(program: Any) -> None:
    """SQLite's timeout does not cover this switch, so one of several workers that start together could fail."""
    assert program.store.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_it_has_at_most_55_lines() -> None:
    """Several workers cost no more than the transport: the program is as short as the one with Redis."""
    lines = (ROOT / "examples" / "job_status_sqlite.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 55
