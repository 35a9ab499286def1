"""The job status: FastAPI's TestClient, and the real uvicorn."""

import http.client
import importlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from examples import job_status
from tests.testclient import TestClient


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the program, newly loaded, because a purgatory is opened once.  A job makes a step for each release of
    ``steps``.
    """
    loaded = importlib.reload(job_status)
    steps = threading.Semaphore(0)
    monkeypatch.setattr(loaded, "steps", steps, raising=False)
    monkeypatch.setattr(loaded, "time", SimpleNamespace(sleep=lambda _: steps.acquire()))
    yield loaded
    steps.release(1000)
    loaded.pool.shutdown()


def test_a_poll_is_answered_by_the_thread(module: ModuleType) -> None:
    """A plain request is answered at once; with ``wait``, the answer comes when the job has made ten more percent."""
    with TestClient(module.app) as client, ThreadPoolExecutor(1) as browser:
        started = client.post("/jobs")
        assert started.status_code == 202
        assert started.json()["progress"] <= 1
        place = f"/jobs/{started.json()['id']}"
        assert client.get(place).json()["progress"] <= 1
        for seen, header in ((0, {}), (10, {"Prefer": "wait=30"})):
            query = f"seen={seen}" + ("" if header else "&wait=30")
            polling = browser.submit(client.get, f"{place}?{query}", headers=header)
            module.steps.release(10)
            answer = polling.result(30)
            assert answer.status_code == 200
            assert answer.json()["progress"] in (seen + 10, seen + 11)  # the thread has begun the next step
            assert answer.headers.get("preference-applied") == ("wait=30" if header else None)


def test_what_else_it_answers(module: ModuleType) -> None:
    """An unknown job, a bad parameter, the schema, and the readiness probe."""
    with TestClient(module.app) as client:
        assert client.get("/jobs/7?wait=30").status_code == 404
        assert client.get("/jobs/7?wait=abc").status_code == 422
        assert client.get("/healthz/").json() == {"status": "open"}
        parameters = client.get("/openapi.json").json()["paths"]["/jobs/{job_id}"]["get"]["parameters"]
        assert [each["name"] for each in parameters] == ["job_id", "seen", "wait", "Prefer"]
    assert len(module.room) == 0


@pytest.mark.parametrize("seen", ["9" * 400, "-" + "9" * 400, "101", "-11"])
def test_a_progress_that_no_job_makes_gets_422(module: ModuleType, seen: str) -> None:
    """A number outside the range is refused, so that no threshold is too large for a float."""
    with TestClient(module.app) as client:
        job = client.post("/jobs").json()["id"]
        assert client.get(f"/jobs/{job}?wait=30&seen={seen}").status_code == 422
    assert len(module.room) == 0


def test_it_is_as_short_as_promised() -> None:
    """The whole program, with imports and blank lines, has at most 50 lines."""
    assert len(Path(job_status.__file__).read_text().splitlines()) <= 50


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the program in uvicorn, and yield the process and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "uvicorn", "examples.job_status:app", "--fd", str(listener.fileno())]
        process = subprocess.Popen(
            command,
            cwd=Path(job_status.__file__).parents[1],
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process, listener.getsockname()[1]
        finally:
            process.kill()
            process.communicate()


def ask(port: int, method: str, target: str) -> Any:
    """Send a request, and return the status and the parsed body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="uvicorn takes over a socket, and SIGTERM is POSIX")
def test_uvicorn_serves_it_and_sigterm_answers() -> None:
    """In the real server, a job makes progress in its thread, and SIGTERM answers a poll long before its deadline."""
    with served() as (process, port), ThreadPoolExecutor(1) as browser:
        status, job = ask(port, "POST", "/jobs")
        assert status == 202
        status, job = ask(port, "GET", f"/jobs/{job['id']}?wait=30&seen=0")
        assert status == 200
        assert 10 <= job["progress"] < 100
        polling = browser.submit(ask, port, "GET", f"/jobs/{job['id']}?wait=30&seen=95")
        # The server handles requests in the order of arrival, and this one is answered after the poll is parked.
        assert ask(port, "GET", f"/jobs/{job['id']}?wait=30&seen=10")[0] == 200
        process.send_signal(signal.SIGTERM)
        status, job = polling.result(30)
        assert status == 200
        assert 20 <= job["progress"] < 100
        output, _ = process.communicate(timeout=30)
        assert "Traceback" not in output
