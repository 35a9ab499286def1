"""Seconds from SIGTERM to exit, with long polls parked: ``python -m benchmarks.shutdown [SERVER ...]``.

Each server runs :mod:`benchmarks.shutdown_app`, started with the server's own command line.  ``--connections`` clients
poll with a deadline of ``--timeout`` seconds.  When all are parked, a fraction of them (``--hang-up``) hangs up.  When
the operations of those clients have been withdrawn, the server gets SIGTERM.  The exit status is 1 if a client was not
answered, the statistics do not balance, or the server wrote a traceback.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["SERVERS", "Client", "Run", "ServerProcess", "main", "shut_down"]

_ROOT = Path(__file__).resolve().parents[1]
_APP = "benchmarks.shutdown_app:app"
_CONNECTING = 200  # clients that connect at the same time

SERVERS: dict[str, list[str]] = {
    "uvicorn": ["uvicorn", _APP, "--port", "{port}", "--no-access-log"],
    "uvicorn --workers 2": ["uvicorn", _APP, "--port", "{port}", "--workers", "2", "--no-access-log"],
    "gunicorn, uvicorn worker": [
        *("gunicorn", _APP, "--bind", "127.0.0.1:{port}", "--worker-class", "uvicorn_worker.UvicornWorker"),
    ],
    "gunicorn, its asgi worker": [
        *("gunicorn", _APP, "--bind", "127.0.0.1:{port}", "--worker-class", "asgi", "--worker-connections", "20000"),
    ],
    "hypercorn": ["hypercorn", _APP, "--bind", "127.0.0.1:{port}"],
    "granian": ["granian", _APP, "--interface", "asgi", "--port", "{port}"],
    "granian --workers 2": ["granian", _APP, "--interface", "asgi", "--port", "{port}", "--workers", "2"],
    "hypercorn --workers 0": ["hypercorn", _APP, "--bind", "127.0.0.1:{port}", "--workers", "0"],
}


class ServerProcess:
    """A server on a free loopback port, as a child process; ``async with`` starts it and ensures that it ends.

    ``options``: further arguments on its command line.  ``output``: the lines that it has written to both streams.
    """

    def __init__(self, name: str, application: str = _APP, options: Sequence[str] = (), **environment: str) -> None:
        self.name = name
        self.output: list[str] = []
        self.port = _free_port()
        self._environment = environment
        words = [word.format(port=self.port).replace(_APP, application) for word in SERVERS[name]]
        self._command = [sys.executable, "-m", *words, *options]
        self._news: asyncio.Condition = asyncio.Condition()
        self._ended = False
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._clients: list[Client] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=_ROOT,
            env={**os.environ, **self._environment},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        workers = 2 if "2" in self.name else 1
        await self.until(lambda: self.count("ready") >= workers)
        while not await self._accepts():
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._reading is not None
        if self._process.returncode is None or not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its workers too: they are in the same process group
        await self._process.wait()
        await self._reading
        for client in self._clients:
            client.hang_up()

    async def connect(self) -> "Client":
        """Connect a client, which is disconnected when the server ends."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except ConnectionRefusedError:
            if self._ended:
                raise RuntimeError(f"{self.name} has ended: {''.join(self.output)}") from None
            return False
        writer.close()
        return True

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.output.append(line.decode(errors="replace"))
            async with self._news:
                self._news.notify_all()
        self._ended = True
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for output that makes the condition true.  Raise RuntimeError, with the output, if the server ends."""
        async with self._news:
            await self._news.wait_for(lambda: condition() or self._ended)
        if not condition():
            raise RuntimeError(f"{self.name} has ended: {''.join(self.output)}")

    def count(self, word: str, key: str | None = None) -> int:
        """Return how many lines begin with the word.  ``key``: only those that end with it."""
        return sum(
            line.startswith(f"{word} ") and line.split()[-1] == (key or line.split()[-1]) for line in self.output
        )

    def statistics(self) -> dict[str, int]:
        """Return the sums of the statistics that the workers wrote when they stopped."""
        total: dict[str, int] = {}
        for line in self.output:
            if line.startswith("statistics "):
                for name, value in json.loads(line.removeprefix("statistics ")).items():
                    if isinstance(value, int):
                        total[name] = total.get(name, 0) + value
        return total

    def signal(self, number: int = signal.SIGTERM, *, to_all: bool = False) -> None:
        """Send a signal to the process that was started, as a supervisor does, or ``to_all`` processes of the server,
        as systemd does by default.
        """
        assert self._process is not None
        if to_all:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    async def exited(self) -> int:
        """Wait until the process and its workers have ended; return the exit status."""
        assert self._process is not None
        assert self._reading is not None
        status = await self._process.wait()
        await self._reading
        return status


class Client:
    """A separate connection with one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, method: str, target: str, *lines: str, body: bytes = b"") -> None:
        """Send a request."""
        head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""])
        self._writer.write(head.encode() + body)

    def write(self, data: bytes) -> None:
        """Send more of the body."""
        self._writer.write(data)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read the response: status, headers, body.  The status is 0 if the server closes the connection instead."""
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, {}, b""
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body

    def hang_up(self, *, reset: bool = False) -> None:
        """Close the connection, or reset it."""
        if reset:
            self._writer.transport.abort()
        else:
            self._writer.close()


@dataclass
class Run:
    """One shutdown: the seconds from SIGTERM to the exit, the statuses of the clients, and what was wrong."""

    seconds: float
    statuses: dict[int, int]
    statistics: dict[str, int]
    wrong: list[str] = field(default_factory=list)


async def shut_down(name: str, *, connections: int, hang_up: float, timeout: float, **environment: str) -> Run:
    """Park polls in a server, let a share of them hang up, send SIGTERM, and check every outcome."""
    gone = round(connections * hang_up)
    async with ServerProcess(name, **environment) as server:
        limit = asyncio.Semaphore(_CONNECTING)

        async def connected(number: int) -> Client:
            async with limit:
                client = await server.connect()
            client.send("GET", f"/poll/key-{number % 100}?timeout={timeout:g}")
            return client

        clients = await asyncio.gather(*(connected(number) for number in range(connections)))
        await server.until(lambda: server.count("parked") == connections)
        for client in clients[:gone]:
            client.hang_up()
        await server.until(lambda: server.count("withdrawn") == gone)
        began = time.perf_counter()
        server.signal()
        responses = await asyncio.gather(*(client.response() for client in clients[gone:]))
        status = await server.exited()
        seconds = time.perf_counter() - began
        statuses: dict[int, int] = {}
        for code, _, _ in responses:
            statuses[code] = statuses.get(code, 0) + 1
        run = Run(seconds, statuses, server.statistics())
        if statuses != {204: connections - gone}:
            run.wrong.append(f"of {connections - gone} clients not all were answered with 204: {statuses}")
        if any(headers.get("connection", "").lower() != "close" for _, headers, _ in responses):
            run.wrong.append("a response does not say that the connection is closed")
        expected = {"submitted": connections, "expired_by_closing": connections - gone, "cancelled": gone, "parked": 0}
        found = {word: run.statistics.get(word) for word in expected}
        if found != expected:
            run.wrong.append(f"the statistics are {found}, not {expected}")
        if any("Traceback" in line or "Exception" in line for line in server.output):
            run.wrong.append(f"the server wrote {''.join(server.output)[-3000:]}")
        if status not in (0, -signal.SIGTERM):
            run.wrong.append(f"the exit status is {status}")
        return run


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shutdown", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"some of: {', '.join(SERVERS)} (all)")
    parser.add_argument("--connections", type=int, default=20, help="clients (%(default)s)")
    parser.add_argument("--hang-up", type=float, default=0.5, help="share of them that hang up (%(default)s)")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds, of each poll (%(default)s)")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.servers if name not in SERVERS]:
        parser.error(f"SERVER must be one of {', '.join(SERVERS)}, got {', '.join(unknown)}")
    if given.connections < 1 or not 0 <= given.hang_up <= 1 or given.timeout <= 0:
        parser.error("--connections must be at least 1, --hang-up from 0 to 1, --timeout above 0")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < given.connections + 100 <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif hard < given.connections + 100:
        parser.error(f"--connections must be at most {hard - 100} here, got {given.connections}")
    wrong = False
    print(f"{'server':<28}{'SIGTERM to exit':>16}{'answered':>10}{'hung up':>9}")
    for name in given.servers or SERVERS:
        run = asyncio.run(shut_down(name, connections=given.connections, hang_up=given.hang_up, timeout=given.timeout))
        answered = run.statuses.get(204, 0)
        print(f"{name:<28}{run.seconds:>14.2f} s{answered:>10}{run.statistics.get('cancelled', 0):>9}", flush=True)
        for line in run.wrong:
            wrong = True
            print("WRONG", line)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
