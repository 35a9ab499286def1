"""The programs of the tutorial: each does what its chapter says, and the chapter shows it as it is."""

import asyncio
import http.client
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

from purgatory.asgi import ClientDisconnected
from purgatory.testing import VirtualClock
from tests.asgi.tools import Call
from tests.testclient import TestClient

ROOT = Path(__file__).parents[3]
WITH_THREADS = ("chapter_2", "chapter_3", "chapter_4", "chapter_6")


def load(name: str) -> ModuleType:
    """Import a chapter anew, because a purgatory is opened once."""
    sys.modules.pop(f"examples.tutorial.{name}", None)
    return importlib.import_module(f"examples.tutorial.{name}")


@contextmanager
def stepped(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, threading.Semaphore]]:
    """Import a chapter whose jobs make a step for each release of the semaphore."""
    chapter, steps = load(name), threading.Semaphore(0)
    monkeypatch.setattr(chapter, "time", SimpleNamespace(sleep=lambda _: steps.acquire()))
    try:
        yield chapter, steps
    finally:
        steps.release(10_000)
        chapter.pool.shutdown()


async def until_parked(chapter: ModuleType, number: int) -> None:
    """Return when so many requests wait."""
    while len(chapter.room) < number:  # noqa: ASYNC110 - the request takes some turns of the loop to arrive
        await asyncio.sleep(0)


@asynccontextmanager
async def served(chapter: ModuleType) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of the chapter's application, and yield a client of it."""
    transport = httpx.ASGITransport(chapter.app)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    async with chapter.app.router.lifespan_context(chapter.app), client:
        yield client
    if hasattr(chapter, "pool"):
        chapter.pool.shutdown()


@pytest.mark.parametrize("number", range(1, 7))
def test_the_page_shows_the_program(number: int) -> None:
    """The chapter contains the program that these tests run, word for word, without its docstring."""
    program = (ROOT / f"examples/tutorial/chapter_{number}.py").read_text(encoding="utf-8")
    (page,) = (ROOT / "docs" / "tutorial").glob(f"{number}-*.md")
    assert program.partition('"""\n\n')[2] in page.read_text(encoding="utf-8")


async def test_a_report_answers_the_request_that_waits() -> None:
    """Chapter 1: a request that waits is answered by the next report; without ``wait`` the answer is immediate."""
    chapter = load("chapter_1")
    async with served(chapter) as client:
        assert (await client.get("/jobs/7?wait=30")).status_code == 404
        assert (await client.put("/jobs/7?percent=10")).json() == 0
        assert (await client.get("/jobs/7")).json() == 10
        polling = asyncio.create_task(client.get("/jobs/7?seen=10&wait=30"))
        await until_parked(chapter, 1)
        assert (await client.put("/jobs/7?percent=11")).json() == 1
        assert (await polling).json() == 11


@pytest.mark.parametrize(("name", "answered"), [("chapter_1", False), ("chapter_3", True)])
async def test_a_client_that_hangs_up(name: str, answered: bool) -> None:
    """Chapter 1: the wait ends, and the server logs an exception; chapter 3 has the line that answers it."""
    chapter = load(name)
    chapter.progress["7"] = 50
    async with served(chapter):
        call = Call.get(chapter.app, "/jobs/7?seen=50&wait=30")
        await until_parked(chapter, 1)
        call.hang_up()
        with nullcontext() if answered else pytest.raises(ClientDisconnected):
            await call.task
        assert len(chapter.room) == 0


@pytest.mark.parametrize("name", WITH_THREADS)
def test_a_thread_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chapters 2 to 6: the job's thread answers the poll for ten more percent, and the poll for the result."""
    with (
        stepped(name, monkeypatch) as (chapter, steps),
        TestClient(chapter.app) as client,
        ThreadPoolExecutor(2) as browser,
    ):
        job = client.post("/jobs").json()
        polling = browser.submit(client.get, f"/jobs/{job}?seen=0&wait=30")
        finished = browser.submit(client.get, f"/jobs/{job}/result?wait=50")
        steps.release(10)
        assert polling.result(30).json() in (10, 11)
        assert client.get(f"/jobs/{job}/result").status_code == 204
        steps.release(90)
        assert finished.result(30).json() == f"the result of {job}"


@pytest.mark.parametrize("seen", ["9" * 400, "-" + "9" * 400, "101", "-11"])
@pytest.mark.parametrize("name", [*WITH_THREADS, "chapter_5"])
def test_a_progress_that_no_job_makes_gets_422(
    name: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chapters 2 to 6: a number outside the range is refused, so that no threshold is too large for a float."""
    monkeypatch.setenv("JOBS", str(tmp_path))
    chapter = load(name)
    if name == "chapter_5":
        chapter.query("INSERT INTO jobs VALUES ('7', 0)")
    else:
        chapter.progress["7"] = 0
    assert TestClient(chapter.app).get(f"/jobs/7?wait=30&seen={seen}").status_code == 422


@pytest.mark.parametrize("name", ["chapter_3", "chapter_4", "chapter_6"])
async def test_a_full_key_is_refused(name: str) -> None:
    """Chapter 3: the 21st poll of one job gets 429 with Retry-After; a request without ``wait`` is still answered."""
    chapter = load(name)
    chapter.progress["7"] = 50
    async with served(chapter) as client:
        polls = [asyncio.create_task(client.get("/jobs/7?seen=50&wait=30")) for _ in range(20)]
        await until_parked(chapter, 20)
        refused = await client.get("/jobs/7?seen=50&wait=30")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (await client.get("/jobs/7?seen=50")).json() == 50
        chapter.progress["7"] = 60
        assert chapter.room.check("7", 60) == 20
        assert [answer.json() for answer in await asyncio.gather(*polls)] == [60] * 20


@pytest.mark.parametrize("name", ["chapter_4", "chapter_6"])
async def test_a_deployment_is_no_deadline(name: str) -> None:
    """Chapter 4: closing answers a poll with 503 and Retry-After, and the health check is 503 from then on."""
    chapter = load(name)
    chapter.progress["7"] = 50
    async with served(chapter) as client:
        assert (await client.get("/healthz/")).status_code == 200
        polling = asyncio.create_task(client.get("/jobs/7/result?wait=30"))
        await until_parked(chapter, 1)
        await chapter.room.aclose()
        answer = await polling
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert (await client.get("/healthz/")).status_code == 503


def ask(port: int, method: str, target: str) -> Any:
    """Send a request to a server, and return the parsed body of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=50)
    try:
        connection.request(method, target)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_a_query_waits_long_enough_for_the_other_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chapter 5: with SQLite's default of 5 s, some of 60 jobs that start together find the file locked and stop."""
    monkeypatch.setenv("JOBS", str(tmp_path))
    assert load("chapter_5").query("PRAGMA busy_timeout") == [(60_000,)]


@pytest.mark.skipif(sys.platform == "win32", reason="workers of one machine need sockets of Unix")
def test_a_job_of_one_worker_answers_in_the_other(tmp_path: Path) -> None:
    """Chapter 5: two real servers with one folder; a poll in the second is answered by the job of the first."""
    ports = []
    with ExitStack() as stack:
        for _ in range(2):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(listener.getsockname()[1])
            command = [
                sys.executable,
                "-m",
                "uvicorn",
                "examples.tutorial.chapter_5:app",
                "--fd",
                str(listener.fileno()),
            ]
            process = subprocess.Popen(
                [*command, "--log-level", "warning"],
                cwd=ROOT,
                env={**os.environ, "JOBS": str(tmp_path)},
                pass_fds=[listener.fileno()],
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        job = ask(ports[0], "POST", "/jobs")
        assert 20 <= ask(ports[1], "GET", f"/jobs/{job}?seen=10&wait=50") < 100
        assert ask(ports[1], "GET", f"/jobs/{job}?seen=95&wait=50") == 100


async def test_the_page_of_the_operator_names_the_wait() -> None:
    """Chapter 6: the inspector shows the route and the key of a request that waits."""
    chapter = load("chapter_6")
    chapter.progress["7"] = 50
    async with served(chapter) as client:
        polling = asyncio.create_task(client.get("/jobs/7/result?wait=30"))
        await until_parked(chapter, 1)
        state = (await client.get("/purgatory/state.json")).text
        assert "GET /jobs/{job}/result" in state
        chapter.results["7"] = "done"
        chapter.room.check("7", 100)
        assert (await polling).json() == "done"


async def test_a_deadline_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chapter 6: the test of the page: thirty seconds pass at once, and the answer is 204."""
    import purgatory

    clock = VirtualClock()
    monkeypatch.setattr(purgatory, "Purgatory", lambda name, **options: _Purgatory(name, clock=clock, **options))
    _Purgatory = purgatory.aio.purgatory.Purgatory  # noqa: N806
    chapter = load("chapter_6")
    chapter.progress["7"] = 50
    async with served(chapter) as client:
        polling = asyncio.create_task(client.get("/jobs/7/result?wait=30"))
        await until_parked(chapter, 1)
        await clock.advance(29.9)
        assert not polling.done()
        await clock.advance(0.1)
        assert (await polling).status_code == 204
