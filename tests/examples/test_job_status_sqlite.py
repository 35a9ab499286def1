"""The job example without a server: two workers of uvicorn, SQLite, and sockets in a directory."""

import asyncio
import importlib
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from tests.relay.engines import free_port
from tests.testclient import TestClient

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on this system"),
]


async def follow_a_job(folder: str) -> None:
    """Poll a job until it has ended, with a new connection for each request."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "examples.job_status_sqlite:app", "--workers", "2", "--port", str(port),
        "--log-level", "warning", cwd=ROOT, env={**os.environ, "JOBS_FOLDER": folder},
    )  # fmt: skip
    limits = httpx.Limits(max_keepalive_connections=0)
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0, limits=limits) as client,
            asyncio.timeout(100.0),
        ):
            while len(list(Path(folder).glob("relay/*.sock"))) < 2:  # noqa: ASYNC110, ASYNC240 - the processes start
                await asyncio.sleep(0.1)
            assert (await client.get("/jobs/nothing", params={"wait": 30})).status_code == 404
            job = (await client.post("/jobs")).json()["job"]
            seen = -1
            while seen < 100:
                polls = (client.get(f"/jobs/{job}", params={"seen": seen, "wait": 30}) for _ in range(6))
                answers = [answer.json() for answer in await asyncio.gather(*polls)]
                assert all(answer >= min(seen + 10, 100) for answer in answers)
                seen = min(answers)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


def test_polls_in_any_worker_follow_a_job() -> None:
    """Any of the workers may accept a poll; one of them does the job."""
    with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
        asyncio.run(follow_a_job(folder))


@pytest.mark.parametrize("seen", ["9" * 400, "-" + "9" * 400, "101", "-11"])
def test_a_progress_that_no_job_makes_gets_422(seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number outside the range is refused, so that no threshold is too large for a float."""
    monkeypatch.setenv("JOBS_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "examples.job_status_sqlite", raising=False)
    program = importlib.import_module("examples.job_status_sqlite")
    program.store.execute("INSERT INTO jobs VALUES ('1', 0)")
    assert TestClient(program.app).get(f"/jobs/1?wait=30&seen={seen}").status_code == 422
    program.store.close()


def test_the_file_is_not_switched_to_wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's timeout does not cover this switch, so one of several workers that start together could fail."""
    monkeypatch.setenv("JOBS_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "examples.job_status_sqlite", raising=False)
    program = importlib.import_module("examples.job_status_sqlite")
    assert program.store.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    program.store.close()


def test_it_has_at_most_55_lines() -> None:
    """Several workers cost no more than the transport: the program is as short as the one with Redis."""
    lines = (ROOT / "examples" / "job_status_sqlite.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 55
