"""The wire format, as programs without this package write it: the examples of the page on notices, on real engines."""

import asyncio
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from purgatory import Purgatory
from purgatory.relay import PostgresTransport, Relay
from tests.parts import missing
from tests.relay.engines import ENGINES, Engine, RedisServer

pytestmark = pytest.mark.timeout(120)
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "notify.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the block of the page that is in this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def command(program: str) -> list[str]:
    """Return the words of the command of the page that begins with this program."""
    (found,) = re.findall(rf"^\$ ({program} .*)$", PAGE, re.MULTILINE)
    return shlex.split(found)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Yield a running server, or skip the test with the reason."""
    kind = ENGINES[request.param]
    reason = kind.missing()
    if reason:
        missing(reason)
    server = kind()
    server.start()
    yield server
    server.close()


@asynccontextmanager
async def waiting(engine: Engine, *keys: Any) -> AsyncIterator["asyncio.Task[list[bool]]"]:
    """Yield a task that waits for a notice of each of the keys, each with a condition that holds when it is tried."""
    room = Purgatory[Any]("test")
    async with room, Relay(room, engine.transport("orders"), heartbeat=30.0, resync_every=3600.0) as relay:
        assert relay.connected
        mark = relay._refresher.mark
        noticed: set[Any] = set()

        def marked(key: Any, value: float | None) -> None:
            noticed.add(key if value is None else (key, value))
            mark(key, value)

        relay._refresher.mark = marked  # type: ignore[method-assign]

        async def wait() -> list[bool]:
            watched = [key[0] if isinstance(key, tuple) else key for key in keys]
            predicates = [partial(noticed.__contains__, key) for key in keys]
            pairs = zip(predicates, watched, strict=True)
            return list(
                await asyncio.gather(
                    *(relay.wait_until(predicate, keys=[key], timeout=30.0) for predicate, key in pairs)
                )
            )

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        yield task
        assert relay.statistics().unreadable == 0
        assert relay.statistics().everything_received == 0


async def run(*words: str, stdin: str = "") -> None:
    """Run a program, which must succeed."""
    result = await asyncio.to_thread(
        subprocess.run, words, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_trigger_notifies(engine: Engine) -> None:
    """The trigger of the page notifies of each row that any program inserts or changes, when it commits."""
    async with await psycopg.AsyncConnection.connect(engine.url, autocommit=True) as connection:
        await connection.execute("DROP TABLE IF EXISTS orders")
        await connection.execute("DROP FUNCTION IF EXISTS orders_changed")
        await connection.execute("CREATE TABLE orders (id text PRIMARY KEY, version int NOT NULL)")
        await connection.execute(block("sql"))
        async with waiting(engine, ("o-1", 1), ('o "2" ü', 1)) as inserted:
            await connection.execute("INSERT INTO orders VALUES ('o-1', 1), ('o \"2\" ü', 1)")
            assert await inserted == [True, True]
        async with waiting(engine, ("o-1", 2)) as updated:
            await connection.execute("UPDATE orders SET version = 7 WHERE id = 'there is none'")
            await connection.execute("UPDATE orders SET version = 2 WHERE id = 'o-1'")
            assert await updated == [True]


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_a_trigger_with_many_rows(engine: Engine) -> None:
    """A statement with more rows than a payload of Postgres can hold sends "check every key", and commits."""
    async with await psycopg.AsyncConnection.connect(engine.url, autocommit=True) as connection:
        await connection.execute("DROP TABLE IF EXISTS orders")
        await connection.execute("DROP FUNCTION IF EXISTS orders_changed")
        await connection.execute("CREATE TABLE orders (id text PRIMARY KEY, version int NOT NULL)")
        await connection.execute(block("sql"))
        room = Purgatory[Any]("test")
        transport = PostgresTransport(engine.url, channel="orders")
        async with room, Relay(room, transport, heartbeat=30.0, resync_every=3600.0) as relay:
            received = relay.statistics

            def noticed() -> bool:
                return received().everything_received == 1

            waits = asyncio.ensure_future(relay.wait_until(noticed, keys=["any"], timeout=30.0))
            await asyncio.sleep(0)
            await connection.execute("INSERT INTO orders SELECT 'order ' || n, n FROM generate_series(1, 2000) n")
            assert await waits is True
            assert received().unreadable == 0


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_psql(engine: Engine) -> None:
    """The command of the page."""
    program = shutil.which("psql")
    if program is None:
        pytest.skip("psql is not installed")
    words = command("psql")
    assert words[1] == "$DSN"
    async with waiting(engine, "o-1") as answered:
        await run(program, engine.url, *words[2:])
        assert await answered == [True]


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
async def test_redis_cli(engine: Engine) -> None:
    """The command of the page; where redis-cli is missing, its argument is sent as the Redis protocol has it."""
    _, publish, channel, payload = command("redis-cli")
    assert publish == "publish"
    installed = RedisServer.program()
    assert installed is not None or engine.given
    beside = Path(installed or "").with_name("redis-cli")
    program = str(beside) if beside.exists() else shutil.which("redis-cli")
    async with waiting(engine, "o-1") as answered:
        address = engine.url.removeprefix("redis://")
        host, port = address.split(":")
        if program is not None:
            await run(program, "-h", host, "-p", port, publish, channel, payload)
        else:
            words = ["PUBLISH", channel, payload]
            await talk(host, int(port), f"*{len(words)}\r\n" + "".join(f"${len(w)}\r\n{w}\r\n" for w in words), b":1")
        assert await answered == [True]


@pytest.mark.parametrize("engine", ["nats"], indirect=True)
async def test_nats_pub(engine: Engine) -> None:
    """What the command of the page sends, as the protocol of NATS has it; the server needs no client library."""
    _, pub, subject, payload = command("nats")
    assert pub == "pub"
    async with waiting(engine, "o-1") as answered:
        host, port = engine.url.removeprefix("nats://").split(":")
        text = f"CONNECT {{}}\r\nPUB {subject} {len(payload)}\r\n{payload}\r\nPING\r\n"
        await talk(host, int(port), text, b"PONG")
        assert await answered == [True]


async def talk(host: str, port: int, text: str, until: bytes) -> None:
    """Send the text, and read until the server has sent a line that begins with ``until``."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(text.encode())
    async with asyncio.timeout(30.0):
        while not (line := await reader.readline()).startswith(until):
            assert line
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("engine", ["unix"], indirect=True)
async def test_node(engine: Engine, tmp_path: Path) -> None:
    """The program of the page notifies the workers on its machine."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    program = tmp_path / "check.mjs"
    await asyncio.to_thread(program.write_text, block("js"))
    async with waiting(engine, "o-1", "o-2") as answered:
        await run(node, str(program), f"{engine.url}/orders", "o-1", "o-2")
        assert await answered == [True, True]


@pytest.mark.parametrize("engine", ["unix"], indirect=True)
async def test_nc(engine: Engine) -> None:
    """The loop of the page, in a shell; where nc is missing, a socket sends the bytes that nc would send."""
    (loop,) = re.findall(r"^\$ (for socket in .* nc .*)$", PAGE, re.MULTILINE)
    directory = f"{engine.url}/orders"
    async with waiting(engine, "o-1") as answered:
        if shutil.which("nc") is not None:
            await run("sh", "-c", loop.replace("/run/orders/relay", directory))
        else:
            printed = loop.replace("/run/orders/relay", directory).replace("nc -NU", "printf '%s\\n'")
            assert "nc -" not in printed
            shown = await asyncio.to_thread(subprocess.run, ["sh", "-c", printed], capture_output=True, check=True)
            (address,) = shown.stdout.decode().split()
            (echo,) = re.findall(r"do (echo .*) \| nc", loop)
            line = await asyncio.to_thread(subprocess.run, ["sh", "-c", echo], capture_output=True, check=True)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(address)
                client.sendall(line.stdout)
        assert await answered == [True]
