"""The long poll on several event loops in threads: a process with real clients."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples import long_poll_threads
from examples.long_poll_threads import make_app
from examples.orders import __main__ as orders
from tests.asgi.tools import Call
from tests.helpers import turns_until

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]


async def test_a_message_answers_the_readers_of_every_loop() -> None:
    """Readers wait on more than one loop; one message answers them all, and SIGTERM answers those that still wait."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.long_poll_threads", "--loops", "4", "--port", "0",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60.0):
            line = (await process.stdout.readline()).decode()
            url = line.split()[0]
            # A new connection for each request: any loop accepts it, also one that has started later than the others.
            anew = httpx.Limits(max_keepalive_connections=0)
            async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=anew) as client:
                for end in range(1, 100):
                    readers = [
                        asyncio.create_task(client.get("/topics/a", params={"offset": end - 1, "wait": 50}))
                        for _ in range(24)
                    ]
                    posted = await client.post("/topics/a", content=f"message {end}")
                    assert (posted.status_code, posted.json()["end"]) == (201, end)
                    answers = [(await reader).json() for reader in readers]
                    assert {tuple(answer["messages"]) for answer in answers} == {(f"message {end}",)}
                    if len({answer["loop"] for answer in answers}) > 1:
                        break
                else:
                    pytest.fail("one loop has accepted every connection")
                for offset in ("x", "-3", "9" * 400):
                    bad = await client.get("/topics/a", params={"offset": offset})
                    assert bad.status_code == 422
                late = await client.get("/topics/a", params={"offset": 99, "wait": 0.05})
                assert late.status_code == 204
                waiting = asyncio.create_task(client.get("/topics/b", params={"wait": 50}))
                while (await client.post("/topics/c", content="x")).json()["end"] < 20:
                    pass  # by now the request has arrived
                process.send_signal(signal.SIGTERM)
                assert (await waiting).status_code == 204
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_reader_that_hangs_up_is_no_error() -> None:
    """The request ends with 499, and the server logs no exception."""
    app = make_app(0)
    async with app.router.lifespan_context(app):
        call = Call.get(app, "/topics/hang-up?wait=50")
        await turns_until(lambda: call.receiving)
        call.hang_up()
        await call.task
        assert call.status == 499


def test_an_address_in_use_is_an_error_in_one_line() -> None:
    """The error contains the address, and the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = subprocess.run(
            [sys.executable, "-m", "examples.long_poll_threads", "--port", str(port)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, f"cannot listen on 127.0.0.1:{port}: Address already in use\n")


@pytest.mark.parametrize("example", [long_poll_threads, orders])
@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_does_not_exist_is_refused(
    example: Any, port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In words, as by the other examples."""
    monkeypatch.setattr(sys, "argv", ["example", "--port", port])
    with pytest.raises(SystemExit):
        example.main()
    assert f"--port must be from 0 to 65535, got {port}" in capsys.readouterr().err
