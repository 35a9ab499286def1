"""The orders example with real processes: uvicorn with workers; SQLite, and a real Postgres."""

import asyncio
import contextlib
import importlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.parts import missing
from tests.relay.engines import PostgresServer, free_port

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(150)


class OrdersServer:
    """The command, and a client that opens a new connection for every request, so any worker may accept it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=60.0, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def workers(self, number: int, losses: int = 0) -> list[dict[str, Any]]:
        """Return the reports of the workers when this number is connected, each after this number of losses."""
        async with asyncio.timeout(60.0):
            while True:
                try:
                    rows: list[dict[str, Any]] = (await self.client.get("/workers")).json()
                except (httpx.TransportError, json.JSONDecodeError):
                    rows = []
                if len(rows) == number and all(row["connected"] and row["losses"] == losses for row in rows):
                    return rows
                await asyncio.sleep(0.2)  # they are processes; they say it when they can

    async def polls(self, order: str, after: int) -> list[asyncio.Task[httpx.Response]]:
        """Start readers until they wait in two workers; the kernel selects the worker."""
        polls: list[asyncio.Task[httpx.Response]] = []
        async with asyncio.timeout(90.0):
            while True:
                await asyncio.sleep(0.2)  # they say once a second how many wait
                if not any(row["waiting"] for row in (await self.client.get("/workers")).json()):
                    break
            while True:
                parameters = {"after": after, "wait": 60}
                polls.append(asyncio.create_task(self.client.get(f"/orders/{order}", params=parameters)))
                await asyncio.sleep(0.1)
                rows = (await self.client.get("/workers")).json()
                if sum(row["waiting"] > 0 for row in rows) > 1:
                    return polls


async def serve(*arguments: str) -> OrdersServer:
    """Start the command on a free port."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.orders", "--port", str(port), *arguments, cwd=ROOT, start_new_session=True
    )
    return OrdersServer(process, port)


async def stop(served: OrdersServer) -> int:
    """Send SIGTERM, as an orchestrator does."""
    await served.client.aclose()
    if served.process.returncode is None:
        served.process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(30.0):
            return await served.process.wait()
    finally:
        if served.process.returncode is None:
            os.killpg(served.process.pid, signal.SIGKILL)


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Yield a Postgres server whose connections the test may end."""
    reason = PostgresServer.missing()
    if reason:
        missing(reason)
    server = PostgresServer()
    server.start()
    yield server
    server.close()


async def change_and_read(dsn: str | None) -> int:
    """Run readers on three workers and a writer; repeat after Postgres has ended every listener."""
    served = await serve("--workers", "3", *(["--dsn", dsn] if dsn else []))
    try:
        await served.workers(3)
        for version, status in enumerate(["placed", "paid"], 1):
            polls = await served.polls("o-1", after=version - 1)
            if status == "paid" and dsn:
                async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                    await connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
                    )
            changed = (await served.client.put("/orders/o-1", params={"status": status})).json()
            assert changed["version"] == version
            answers = [(await poll).json() for poll in polls]
            assert {(answer["version"], answer["status"]) for answer in answers} == {(version, status)}
            assert len({answer["worker"] for answer in answers}) > 1
        late = await served.client.get("/orders/o-1", params={"after": 2, "wait": 0.1})
        assert late.status_code == 204
        rows = await served.workers(3, losses=1 if dsn else 0)
        assert sum(row["answered"] for row in rows) >= 4
        assert (await served.client.get("/ready")).status_code == 200
        assert "Several workers" in (await served.client.get("/")).text
    finally:
        code = await stop(served)
    return code


async def lose_postgres(postgres: PostgresServer) -> int:
    """One worker, whose Postgres is killed while a reader waits, and started again."""
    served = await serve("--workers", "1", "--dsn", postgres.url)
    try:
        await served.workers(1)
        assert (await served.client.put("/orders/o-1", params={"status": "placed"})).status_code == 200
        poll = asyncio.create_task(served.client.get("/orders/o-1", params={"after": 1, "wait": 60}))
        async with asyncio.timeout(30.0):
            while True:
                if (await served.client.get("/workers")).json()[0]["waiting"]:
                    break
                await asyncio.sleep(0.2)
        await asyncio.to_thread(postgres.kill)
        changed = await served.client.put("/orders/o-1", params={"status": "paid"})
        assert (changed.status_code, changed.json()) == (503, {"error": "Postgres is not available"})
        assert (await served.client.get("/ready")).status_code == 503
        workers = await served.client.get("/workers")
        assert workers.status_code == 503
        assert [(row["connected"], row["waiting"], row["age_s"]) for row in workers.json()] == [(False, 1, 0.0)]
        await asyncio.to_thread(postgres.start)
        async with asyncio.timeout(30.0):
            while True:
                changed = await served.client.put("/orders/o-1", params={"status": "paid"})
                if changed.status_code == 200:
                    break
                await asyncio.sleep(0.2)
        answer = (await poll).json()
        assert (answer["version"], answer["status"]) == (2, "paid")
    finally:
        code = await stop(served)
    return code


def test_a_change_in_any_worker_answers_the_readers_in_all(postgres: PostgresServer) -> None:
    """A change in any worker answers the readers in all, also after every listener was ended; SIGTERM exits with 0."""
    assert asyncio.run(change_and_read(postgres.url)) == 0


@pytest.mark.slow
def test_while_postgres_is_away(postgres: PostgresServer) -> None:
    """Changes are refused with 503, readers keep waiting, and the next change answers them when Postgres is back."""
    if postgres.given:
        pytest.skip(f"{postgres.variable} names a server that is not killed")
    assert asyncio.run(lose_postgres(postgres)) == 0


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on this system")
def test_without_a_server_it_is_the_same() -> None:
    """Without ``--dsn``, the workers use a file and sockets in a temporary folder, which is gone afterward."""
    folders = set(Path(tempfile.gettempdir()).glob("orders-*"))
    assert asyncio.run(change_and_read(None)) == 0
    assert set(Path(tempfile.gettempdir()).glob("orders-*")) <= folders


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/orders", "connection failed: "),
        ("postgresql+psycopg://me:s3cret@127.0.0.1/orders", "dsn must be a connection string of libpq"),
    ],
)
def test_a_server_that_cannot_be_used_is_an_error_in_one_line(dsn: str, reason: str) -> None:
    """The exit code is 1, and the error does not show the password."""
    ran = subprocess.run(
        [sys.executable, "-m", "examples.orders", "--dsn", dsn], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"the Postgres server of --dsn cannot be used: {reason}")
    assert ran.stderr.count("\n") == 1
    assert "s3cret" not in ran.stderr


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on this system")
def test_the_file_exists_before_the_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not wait for other workers when it switches a file to WAL, so they find it created."""
    from examples.orders import __main__ as program

    found = []

    def run(*_: object, **__: object) -> None:
        path = Path(os.environ["ORDERS_FOLDER"]) / "orders.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found.extend(connection.execute("PRAGMA journal_mode").fetchone())
            found.extend(connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone())

    for name in ("ORDERS_DSN", "ORDERS_FOLDER", "ORDERS_HOSTS"):
        monkeypatch.setenv(name, "")  # restored at the end
    monkeypatch.setattr(sys, "argv", ["orders"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(program.uvicorn, "run", run)
    assert program.main() == 0
    assert found == ["wal", 2]


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on this system")
async def test_a_reader_that_leaves_during_a_read_leaves_no_old_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reader gets the order as it is then, and not as that read found it."""
    with tempfile.TemporaryDirectory(prefix="o-") as folder:  # the path of a socket is short
        monkeypatch.setenv("ORDERS_FOLDER", folder)
        from examples.orders import app as module

        importlib.reload(module)
        read, go_on, orders = asyncio.Event(), asyncio.Event(), module.store.orders

        async def slow(ids: list[str]) -> Any:
            found = await orders(ids)
            read.set()
            await go_on.wait()
            return found

        monkeypatch.setattr(module.store, "orders", slow)
        transport = httpx.ASGITransport(module.app)
        async with module.lifespan(module.app), httpx.AsyncClient(transport=transport, base_url="http://o") as client:
            await client.put("/orders/o-1", params={"status": "new"})
            leaving = asyncio.create_task(client.get("/orders/o-1", params={"after": 1, "wait": 60}))
            await read.wait()
            leaving.cancel()
            await asyncio.wait([leaving])
            go_on.set()
            await client.put("/orders/o-1", params={"status": "paid"})
            answer = await client.get("/orders/o-1", params={"after": 0, "wait": 60})
            assert answer.json()["version"] == 2


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets on this system")
async def test_a_reader_that_does_not_wait_gets_the_order_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader waits, so the worker has not read the order yet."""
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        monkeypatch.setenv("ORDERS_FOLDER", folder)
        from examples.orders import app as module

        importlib.reload(module)
        transport = httpx.ASGITransport(module.app)
        async with module.lifespan(module.app), httpx.AsyncClient(transport=transport, base_url="http://o") as client:
            await client.put("/orders/o-1", params={"status": "new"})
            answers = [await client.get("/orders/o-1", params={"after": after, "wait": 0}) for after in (0, 1)]
            assert [answer.status_code for answer in answers] == [200, 204]
            assert answers[0].json()["status"] == "new"


@pytest.mark.parametrize(
    ("method", "path", "parameters"),
    [
        ("GET", "/orders/%00", {}),
        ("PUT", "/orders/%00", {"status": "paid"}),
        ("PUT", "/orders/o-1", {"status": "\0"}),
        ("GET", "/orders/" + "o" * 6000, {}),
        ("PUT", "/orders/" + "o" * 6000, {"status": "paid"}),
        ("GET", "/orders/o-1", {"after": "9" * 400}),
        ("GET", "/orders/o-1", {"after": str(2**31)}),
        ("GET", "/orders/o-1", {"after": "-3"}),
        ("GET", "/orders/o-1", {"wait": "nan"}),
    ],
)
async def test_a_request_that_postgres_cannot_hold_is_invalid(
    monkeypatch: pytest.MonkeyPatch, method: str, path: str, parameters: dict[str, str]
) -> None:
    """A request with an order, a status or a version that no row can hold gets 422 before Postgres is asked."""
    monkeypatch.setenv("ORDERS_DSN", "host=127.0.0.1 port=1")
    from examples.orders.app import app

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://orders") as client:
        answer = await client.request(method, path, params=parameters)
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("hosts", "headers", "status"),
    [
        ("localhost", {"host": "attacker.example"}, 400),
        ("localhost shop.example", {"host": "shop.example:80"}, 422),
        (None, {"host": "attacker.example"}, 422),
        (None, {"origin": "http://attacker.example"}, 403),
        (None, {"sec-fetch-site": "cross-site"}, 403),
    ],
)
async def test_a_page_of_another_site_changes_no_order(
    monkeypatch: pytest.MonkeyPatch, hosts: str | None, headers: dict[str, str], status: int
) -> None:
    """The check comes before the request is validated; without the names of hosts, only the origin counts."""
    monkeypatch.setenv("ORDERS_DSN", "host=127.0.0.1 port=1")
    if hosts is not None:
        monkeypatch.setenv("ORDERS_HOSTS", hosts)
    from examples.orders import app as module

    app = importlib.reload(module).app
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.put("/orders/" + "o" * 6000, params={"status": "paid"}, headers=headers)
    assert answer.status_code == status
