"""The long poll as a process: its output, its shutdown, and its exit codes."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import examples
from examples.long_poll.server_process import ServerProcess

_ROOT = Path(examples.__file__).resolve().parents[1]


def same_loop() -> list[str]:
    """Run the server on the same kind of loop as the test."""
    on_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return [] if on_uvloop else ["--no-uvloop"]


@pytest.fixture
async def server() -> AsyncIterator[ServerProcess]:
    """Yield a server on a free port."""
    async with ServerProcess("--port", "0", "--drain", "0.2", *same_loop()) as server:
        yield server


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield an HTTP client session."""
    async with aiohttp.ClientSession() as session:
        yield session


async def get(session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    async with session.get(url) as response:
        return response.status, await response.json()


async def until(session: aiohttp.ClientSession, server: ServerProcess, holds: Callable[[Any], bool]) -> Any:
    """Read the statistics until they are as expected; only the time limit of the test ends the wait."""
    while True:
        _, stats = await get(session, f"{server.url}/stats")
        if holds(stats):
            return stats


_WAIT = b"GET /topics/a?max_wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextlib.asynccontextmanager
async def connection(
    server: ServerProcess, request: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection on which the request has been sent."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.slow
async def test_it_says_where_it_listens_and_on_which_loop(server: ServerProcess) -> None:
    """The server prints one line when it is ready, and nothing else."""
    assert server.output == [f"ready {server.url} on {'asyncio' if same_loop() else 'uvloop'}\n"]


async def test_sigterm_answers_everyone_and_exits_with_0(server: ServerProcess, session: aiohttp.ClientSession) -> None:
    """Fifty readers that wait for a minute are answered at once; the final statistics show this."""
    readers = [
        asyncio.create_task(get(session, f"{server.url}/topics/t{number % 7}?max_wait=60")) for number in range(50)
    ]
    await until(session, server, lambda stats: stats["parked"] == 50)
    exit_report = await server.stop()
    answers = await asyncio.gather(*readers)
    assert [status for status, _ in answers] == [200] * 50
    assert all(answer["messages"] == [] for _, answer in answers)
    assert exit_report.exit_code == 0
    assert exit_report.seconds < 10
    assert (exit_report.statistics["submitted"], exit_report.statistics["expired_by_closing"]) == (50, 50)
    assert exit_report.statistics["parked"] == 0
    assert len(server.output) == 2


@pytest.mark.slow
@pytest.mark.parametrize("rudely", [False, True])
async def test_a_client_who_hangs_up_is_withdrawn_at_once(
    server: ServerProcess, session: aiohttp.ClientSession, rudely: bool
) -> None:
    """An orderly close and a reset both withdraw the operation."""
    async with connection(server, _WAIT) as (_, writer):
        await until(session, server, lambda stats: stats["parked"] == 1)
        if rudely:
            writer.transport.abort()
    stats = await until(session, server, lambda stats: stats["parked"] == 0)
    assert (stats["cancelled"], stats["watched"], stats["num_delayed"]) == (1, 0, 0)


@pytest.mark.slow
async def test_a_connection_is_closed_after_its_last_answer(
    server: ServerProcess, session: aiohttp.ClientSession
) -> None:
    """The response tells the client not to reuse the connection, so the client does not delay the shutdown."""
    async with connection(server, _WAIT) as (reader, _):
        await until(session, server, lambda stats: stats["parked"] == 1)
        stopping = asyncio.create_task(server.stop())
        answer = (await reader.read()).lower()
        assert answer.startswith(b"http/1.1 200")
        assert b"connection: close" in answer
        assert (await stopping).exit_code == 0


@pytest.mark.slow
async def test_a_client_who_dawdles_is_cut_off(server: ServerProcess) -> None:
    """A body that does not arrive delays the shutdown for at most ``--drain`` seconds."""
    unfinished = b"POST /topics/a HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
    async with connection(server, unfinished) as (reader, _):
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
        exit_report = await server.stop()
    assert exit_report.exit_code == 0
    assert exit_report.seconds < 5


@pytest.mark.slow
async def test_a_second_server_takes_the_port_over(server: ServerProcess, session: aiohttp.ClientSession) -> None:
    """When the first server has ended, the next one can listen on the same port."""
    await get(session, f"{server.url}/stats")
    await server.stop()
    port = server.url.rpartition(":")[2]
    async with ServerProcess("--port", port, *same_loop()) as second:
        assert second.url == server.url
        assert (await get(session, f"{second.url}/stats"))[0] == 200
        assert (await second.stop()).exit_code == 0


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=_ROOT, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.slow
def test_an_address_in_use_is_an_error_in_one_line() -> None:
    """The error contains the address, and the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("examples.long_poll", "--port", str(port))
    assert ran.returncode == 1
    assert ran.stderr == f"cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--max-parked", "0"], "--max-parked must be 1 to "),
        (["--port", "99999"], "--port must be 0 to 65535, got 99999"),
        (["--longest-wait", "nan"], "--longest-wait must be 0 to 86400, got nan"),
        (["--drain=-1"], "--drain must be 0 to 86400, got -1.0"),
    ],
)
def test_a_bad_option_is_told(words: list[str], reason: str) -> None:
    """The error explains the bad option, and the exit code is 2."""
    ran = run("examples.long_poll", *words)
    assert ran.returncode == 2
    assert reason in ran.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--hang-up", "0.5"], ["--no-uvloop"], ["--stop"]])
def test_the_load_command_ends_well(words: list[str]) -> None:
    """In a small load, all readers are answered, nothing is left, and the exit code is 0."""
    ran = run("examples.long_poll.load", "--readers", "60", "--topics", "6", "--rate", "100", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    expected = "30 of 30" if "--hang-up" in words else "60 of 60"
    assert f"answered    {expected}" in ran.stdout
    assert "WRONG" not in ran.stdout
    assert ran.stderr == ""


@pytest.mark.slow
async def test_the_load_command_finds_what_is_lost(session: aiohttp.ClientSession) -> None:
    """If the server rejects readers, the command reports this and exits with 1."""
    async with ServerProcess("--port", "0", "--max-parked", "50", *same_loop()) as server:
        words = ["--readers", "60", "--topics", "6", "--url", server.url, "--timeout", "0.5"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.long_poll.load", *words),
            cwd=_ROOT,
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
        assert process.returncode == 1
        assert b"60 readers connected, 50 are parked" in output
        assert b"10 were answered wrongly or not at all: statuses [200, 503]" in output
        _, stats = await get(session, f"{server.url}/stats")
        assert stats["parked"] == 0


@pytest.mark.slow
def test_the_soak_command_ends_well() -> None:
    """In a short soak with a restart, every request is answered once, the counters match, and the exit code is 0."""
    words = ["--seconds", "2", "--restart-every", "1", "--rests", "1", "--readers", "30", "--seed", "5"]
    ran = run("examples.long_poll.soak", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WRONG" not in ran.stdout
    assert "every request answered once" in ran.stdout
    assert ran.stderr == ""


async def test_requests_of_other_sites_are_refused(session: aiohttp.ClientSession) -> None:
    """Another host name gets 400, a message from a page of another site 403; ``--allow-host`` adds a name."""
    async with ServerProcess("--port", "0", "--allow-host", "poll.example", *same_loop()) as server:
        topic = f"{server.url}/topics/a"
        for headers, status in (
            ({"Host": "attacker.example"}, 400),
            ({"Origin": "http://attacker.example"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Host": "poll.example", "Origin": "http://poll.example"}, 201),
            ({}, 201),
        ):
            async with session.post(topic, data="hello", headers=headers) as response:
                assert response.status == status, headers
