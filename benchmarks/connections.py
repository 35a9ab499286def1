"""From one waiting request to many: ``python -m benchmarks.connections [--requests 10,1000,10000,100000] [FORM ...]``.

Each size and form runs in a separate process, which holds the server and its clients: uvicorn's HTTP protocol, a
Starlette application (``benchmarks.server.app``), and an in-memory transport for each client.  Neither file descriptors
nor kernel buffers limit the number of requests.  A socket would add the same cost to all forms.

All requests wait on one key, each for a different entry, as in the program in the README.  The columns:

=====================  =============================================================================================
bytes per request      the growth of resident memory, divided by the number of requests
publish, us            CPU time from one new entry until the one request that it completes has its response
hang-up, us            CPU time for each client that disconnects, if half of them do so in one turn of the loop
stop, us               CPU time for each request that is answered when the server stops
longest turn, ms       the longest turn of the loop during the mass hang-up and the stop
=====================  =============================================================================================

If a form does not notice a hang-up, or answers nothing when the server stops, the table omits that figure.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = ["Client", "InMemoryServer", "main"]

FORMS = {
    "thresholds": "purgatory, thresholds",
    "event": "asyncio.timeout + Event",
    "event-reader": "timeout + Event + reader task",
}
_PUBLISHES = 50
_LONGEST_WAKING = 2_000_000  # the most tasks that an Event form may wake in total; limits the number of publishes


class Client:
    """An in-memory transport that records whether the server has answered."""

    __slots__ = ("answered", "protocol")

    def __init__(self) -> None:
        self.protocol: Any = None
        self.answered = False

    def write(self, data: bytes) -> None:
        self.answered = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


class _Turns:
    """The longest turn of the loop, from :meth:`start` on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.longest = 0.0
        self._began: float | None = None

    def start(self) -> None:
        self._began = time.perf_counter()
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._began is not None:
            now = time.perf_counter()
            self.longest = max(self.longest, now - self._began)
            self._began = now
            self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._began = None


async def _settle(turns: int = 8) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


class InMemoryServer:
    """uvicorn's HTTP protocol, and the application in the given form; inside ``async with``, it can be connected to."""

    def __init__(self, name: str) -> None:
        import uvicorn
        from uvicorn.server import ServerState

        from benchmarks.server.app import FORMS as APPLICATIONS
        from benchmarks.server.app import make_app

        self.form = APPLICATIONS[name]()
        app = make_app(self.form)
        self._config = uvicorn.Config(
            app, http="httptools", ws="none", lifespan="off", log_level="critical", access_log=False
        )
        self._config.load()
        self.state = ServerState()
        self._lifespan = None if self.form.lifespan is None else self.form.lifespan(app)

    async def __aenter__(self) -> Self:
        if self._lifespan is not None:
            await self._lifespan.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._lifespan is not None:
            await self._lifespan.__aexit__(*error)  # type: ignore[arg-type]

    def connect(self, key: str, after: int) -> Client:
        """Connect a new client, and send its request."""
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        client = Client()
        client.protocol = HttpToolsProtocol(self._config, self.state, {}, asyncio.get_running_loop())
        client.protocol.connection_made(client)
        client.protocol.data_received(
            b"GET /topics/%s?after=%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % (key.encode(), after)
        )
        return client


async def _measure(name: str, requests: int) -> dict[str, float]:
    server = InMemoryServer(name)
    await server.__aenter__()  # the process ends before it could be left
    form, state = server.form, server.state
    topic = form.topics["orders"]
    for number in range(3):  # so that caches and free lists exist before the measurement
        client = server.connect("orders", number)
        await _settle()
        topic.end += 1
        await form.wake("orders", topic)
        await _settle()
        assert client.answered
    gc.collect()
    before = _resident()
    clients = []
    for number in range(requests):
        clients.append(server.connect("orders", topic.end + number))
        if number % 1_000 == 999:
            await _settle()
    await _settle()
    gc.collect()
    result = {"bytes": (_resident() - before) / requests} if requests >= 100 else {}  # a page of memory is 4,096 bytes
    gc.freeze()  # recommended for a server with many waiting requests; applied to every form

    publishes = min(_PUBLISHES, requests)
    if name != "thresholds":
        publishes = max(1, min(publishes, _LONGEST_WAKING // requests))
    costs = []
    for number in range(publishes):
        began = time.process_time()
        topic.end += 1
        await form.wake("orders", topic)
        while not clients[number].answered:
            await asyncio.sleep(0)
        costs.append(time.process_time() - began)
        await _settle()
    result["publish"] = median(costs) * 1e6
    waiting = clients[publishes:]
    assert not any(client.answered for client in waiting)

    turns = _Turns(asyncio.get_running_loop())
    leaving = waiting[: len(waiting) // 2]
    if name != "event" and leaving:
        turns.start()
        began = time.process_time()
        for client in leaving:
            client.protocol.connection_lost(None)
        while len(state.tasks) > len(waiting) - len(leaving):
            await asyncio.sleep(0)
        result["hang-up"] = (time.process_time() - began) / len(leaving) * 1e6
        turns.stop()
        waiting = waiting[len(leaving) :]
    if form.lifespan is not None and waiting:
        turns.start()
        began = time.process_time()
        await form.room.aclose()  # type: ignore[attr-defined]
        while not all(client.answered for client in waiting[-1:]) or len(state.tasks):
            await asyncio.sleep(0)
        result["stop"] = (time.process_time() - began) / len(waiting) * 1e6
        turns.stop()
        assert all(client.answered for client in waiting)
    if turns.longest:
        result["turn"] = turns.longest * 1e3
    return result


def _child(name: str, requests: int) -> None:
    import os

    import uvloop

    async def run() -> None:
        print(json.dumps(await _measure(name, requests)), flush=True)
        os._exit(0)  # do not answer the requests that are still waiting

    uvloop.run(run())


def _run(name: str, requests: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.connections", "--child", name, "--requests", str(requests)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(finished.stdout)
    return found


def _cell(found: dict[str, float], name: str) -> str:
    value = found.get(name)
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def main(arguments: list[str] | None = None) -> None:
    """Measure every size in every form, and print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__.split("\n")[0])
    parser.add_argument("form", nargs="*", metavar="FORM", help=f"some of: {', '.join(FORMS)} (all)")
    parser.add_argument("--requests", default="10,1000,10000,100000", help="numbers of waiting requests (%(default)s)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.requests.split(",")]
    if options.child is not None:
        _child(options.child, sizes[0])
        return
    for name in options.form:
        if name not in FORMS:
            parser.error(f"FORM must be one of {', '.join(FORMS)}, got {name}")
    table = Table(box=SIMPLE_HEAD)
    for column in (
        "waiting",
        "form",
        "bytes per request",
        "publish, us",
        "hang-up, us",
        "stop, us",
        "longest turn, ms",
    ):
        table.add_column(column, justify="left" if column == "form" else "right")
    for size in sizes:
        for name in options.form or FORMS:
            found = _run(name, size)
            table.add_row(
                f"{size:,}",
                FORMS[name],
                *(_cell(found, column) for column in ("bytes", "publish", "hang-up", "stop", "turn")),
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
