"""Ten thousand readers at the same time: ``python -m examples.long_poll.load``.

The program starts a server (or uses the one at ``--url``).  ``--readers`` connections wait on ``--topics`` topics, and
some of them disconnect (``--hang-up 0.5``).  The program then publishes one message to every topic and checks each
reader's response.  With ``--stop``, it sends SIGTERM instead of messages, and every reader gets an empty list.

The exit code is 0 if every reader got one response with the right message, no operation is parked, and the counters of
the server add up.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from .load_tools import loop_factory, quantiles
from .server import raise_file_limit
from .server_process import ServerProcess

__all__ = ["main"]

_BATCH = 1000  # connections per batch; limited because the backlog of a listening socket is finite
_PER_ADDRESS = 20_000  # connections per loopback address, which has fewer than 30,000 ephemeral ports
_LONGEST = 300.0
_MIB = 1 << 20


@dataclass(slots=True)
class Reader:
    """One connection with its response and the time of the response."""

    topic: str
    task: "asyncio.Task[None] | None" = None
    answered_at: float = 0.0
    status: int = 0
    messages: list[Any] | None = None
    error: str = ""
    hangs_up: bool = False


@dataclass(slots=True)
class Run:
    """The state and the failures of a run."""

    url: str
    readers: list[Reader]
    control: aiohttp.ClientSession
    sessions: list[aiohttp.ClientSession]
    timeout: float
    before: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Record a failure unless ``holds``."""
        if not holds:
            self.wrong.append(otherwise)

    async def stats(self) -> dict[str, Any]:
        """Return the statistics of the server."""
        async with self.control.get(f"{self.url}/stats") as response:
            return await response.json()  # type: ignore[no-any-return]

    async def until_parked(self, enough: Callable[[int], bool]) -> int:
        """Wait until ``enough`` accepts the number of parked readers, or until a timeout.  Return the number."""
        end = time.perf_counter() + self.timeout
        while True:
            parked: int = (await self.stats())["parked"]
            if enough(parked) or time.perf_counter() > end:
                return parked
            await asyncio.sleep(0.02)


def main(arguments: list[str] | None = None) -> int:
    """Run the load and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.long_poll.load", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--readers", type=int, default=10_000, help="waiting connections (%(default)s)")
    parser.add_argument("--topics", type=int, default=100, help="number of topics (%(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="messages published per second (%(default)s)")
    parser.add_argument(
        "--hang-up", type=float, default=0.0, metavar="SHARE", help="share that disconnects (%(default)s)"
    )
    parser.add_argument("--stop", action="store_true", help="send SIGTERM instead of messages")
    parser.add_argument("--timeout", type=float, default=60.0, help="timeout of every wait in seconds (%(default)s)")
    parser.add_argument("--url", help="URL of a running server")
    parser.add_argument("--no-uvloop", action="store_true", help="run server and client on asyncio's event loop")
    parser.add_argument("--seed", type=int, default=1, help="seed that selects the disconnecting readers (%(default)s)")
    given = parser.parse_args(arguments)
    if given.readers < 1 or given.topics < 1 or not given.rate > 0 or not 0.0 <= given.hang_up <= 1.0:
        parser.error("--readers and --topics must be at least 1, --rate above 0, --hang-up 0 to 1")
    if given.stop and given.url:
        parser.error("--stop and --url cannot be combined")
    files = raise_file_limit()
    if files < given.readers + 100:
        parser.error(f"{given.readers} connections need more open files than the limit of {files} (ulimit -Hn)")
    with asyncio.Runner(loop_factory=loop_factory(uvloop=not given.no_uvloop)) as runner:
        try:
            wrong = runner.run(_load(given))
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            wrong = [f"the run was aborted: {error!r}"]
    for line in wrong:
        print("WRONG     ", line)
    return 1 if wrong else 0


async def _load(given: argparse.Namespace) -> list[str]:
    async with contextlib.AsyncExitStack() as stack:
        server: ServerProcess | None = None
        if given.url is None:
            words = ["--port", "0", "--longest-wait", str(_LONGEST), *(["--no-uvloop"] if given.no_uvloop else [])]
            server = await stack.enter_async_context(ServerProcess(*words))
            print(f"server      {server.url} on {server.loop}, pid {server.pid}")
        run = Run(
            given.url or server.url,  # type: ignore[union-attr]
            _readers(given),
            # One connection per request, so that no request uses a connection that the server is closing.
            await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))),
            [await stack.enter_async_context(_session(number)) for number in range(1 + given.readers // _PER_ADDRESS)],
            given.timeout,
        )
        run.before = await run.stats()
        await _connect(run, server)
        if given.hang_up:
            await _hang_up(run)
        if given.stop and server is not None:
            await _stop(run, server)
        else:
            published = await _publish(run, given.rate)
            _check_answers(run, published)
            await _check_statistics(run)
            if server is not None:
                exit_report = await server.stop()
                print(f"stopped     exit code {exit_report.exit_code} in {exit_report.seconds:.2f} s")
                run.expect(
                    exit_report.exit_code == 0, f"the server ended with {exit_report.exit_code}: {server.output}"
                )
        return run.wrong


def _readers(given: argparse.Namespace) -> list[Reader]:
    mark = secrets.token_hex(4)  # unique topics: a running server may have others
    readers = [Reader(f"load-{mark}-{number % given.topics}") for number in range(given.readers)]
    for reader in random.Random(given.seed).sample(readers, round(given.hang_up * given.readers)):
        reader.hangs_up = True
    return readers


@contextlib.asynccontextmanager
async def _session(number: int) -> AsyncIterator[aiohttp.ClientSession]:
    source = None if number == 0 else (f"127.0.0.{1 + number}", 0)
    connector = aiohttp.TCPConnector(limit=0, local_addr=source)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        yield session


async def _connect(run: Run, server: ServerProcess | None) -> None:
    began = time.perf_counter()
    parked = run.before["parked"]
    for start in range(0, len(run.readers), _BATCH):
        for index, reader in enumerate(run.readers[start : start + _BATCH], start):
            session = run.sessions[index // _PER_ADDRESS]
            reader.task = asyncio.create_task(_read(session, run.url, reader))
        wanted = run.before["parked"] + min(start + _BATCH, len(run.readers))
        parked = await run.until_parked(lambda parked, wanted=wanted: parked >= wanted)  # type: ignore[misc]
    parked -= run.before["parked"]
    memory = "" if server is None else f", the server uses {server.rss() / _MIB:.0f} MiB"
    topics = len({reader.topic for reader in run.readers})
    print(f"parked      {parked} readers on {topics} topics within {time.perf_counter() - began:.1f} s{memory}")
    run.expect(parked == len(run.readers), f"{len(run.readers)} readers connected, {parked} are parked")
    gc.freeze()  # keep this program's own pauses out of the latencies


async def _read(session: aiohttp.ClientSession, url: str, reader: Reader) -> None:
    try:
        query = {"offset": "0", "max_wait": f"{_LONGEST:g}"}
        async with session.get(f"{url}/topics/{reader.topic}", params=query) as response:
            body = await response.read()
            reader.answered_at = time.perf_counter()
            reader.status = response.status
            reader.messages = json.loads(body).get("messages")
    except aiohttp.ClientError as error:
        reader.error = repr(error)


async def _hang_up(run: Run) -> None:
    leaving = [reader for reader in run.readers if reader.hangs_up]
    wanted = run.before["parked"] + len(run.readers) - len(leaving)
    began = time.perf_counter()
    for reader in leaving:
        if reader.task is not None:
            reader.task.cancel()
    await asyncio.gather(*(reader.task for reader in leaving if reader.task is not None), return_exceptions=True)
    hung_up = time.perf_counter() - began
    parked = await run.until_parked(lambda parked: parked <= wanted)
    withdrawn = time.perf_counter() - began
    print(f"hung up     {len(leaving)} within {hung_up:.2f} s; all withdrawn after {withdrawn:.2f} s")
    run.expect(parked == wanted, f"{len(leaving)} hung up: parked must be {wanted}, got {parked}")
    statistics = await run.stats()
    cancelled = statistics["cancelled"] - run.before["cancelled"]
    run.expect(cancelled == len(leaving), f"withdrawn must be {len(leaving)}, as many as hung up, got {cancelled}")


async def _publish(run: Run, rate: float) -> dict[str, float]:
    """Publish one message to every topic, wait for all responses, and return the time of each message."""
    published: dict[str, float] = {}
    began = time.perf_counter()
    for number, topic in enumerate(dict.fromkeys(reader.topic for reader in run.readers)):
        await asyncio.sleep(began + number / rate - time.perf_counter())
        published[topic] = time.perf_counter()
        async with run.control.post(f"{run.url}/topics/{topic}", json={"for": topic}) as response:
            run.expect(response.status == 201, f"publishing to {topic}: {response.status} {await response.text()}")
    sent = time.perf_counter() - began
    await _wait_for_answers(run)
    print(f"published   {len(published)} messages within {sent:.1f} s")
    return published


async def _wait_for_answers(run: Run) -> None:
    staying = [reader.task for reader in run.readers if reader.task is not None and not reader.hangs_up]
    if staying:
        _, late = await asyncio.wait(staying, timeout=run.timeout)
        run.expect(not late, f"{len(late)} readers got no response within {run.timeout:g} s")


def _check_answers(run: Run, published: dict[str, float]) -> None:
    staying = [reader for reader in run.readers if not reader.hangs_up]
    right = [
        reader
        for reader in staying
        if reader.status == 200 and reader.messages == [{"offset": 0, "value": {"for": reader.topic}}]
    ]
    print(f"answered    {len(right)} of {len(staying)} with the message of their topic")
    _expect_all(run, staying, right)
    early = sum(reader.status != 0 for reader in run.readers if reader.hangs_up)
    run.expect(not early, f"{early} were answered before anything was published")
    if right:
        shown = quantiles([reader.answered_at - published[reader.topic] for reader in right])
        print(f"latency     {shown}, from publishing to the answer in the client")


def _expect_all(run: Run, staying: list[Reader], right: list[Reader]) -> None:
    errors = sorted({reader.error for reader in staying if reader.error})[:3]
    statuses = sorted({reader.status for reader in staying})
    run.expect(
        len(right) == len(staying),
        f"{len(staying) - len(right)} were answered wrongly or not at all: statuses {statuses}, errors {errors}",
    )


async def _check_statistics(run: Run) -> None:
    after = await run.stats()
    left = {name: after[name] - run.before[name] for name in ("parked", "watched", "keys", "num_delayed")}
    print("left        " + ", ".join(f"{number} {name}" for name, number in left.items()))
    run.expect(not any(left.values()), f"operations are left: {left}")
    _balance(run, after)


def _balance(run: Run, after: dict[str, Any]) -> None:
    names = ("submitted", "completed", "expired", "expired_by_closing", "cancelled", "failed")
    moved = {name: after[name] - run.before[name] for name in names}
    submitted = moved.pop("submitted")
    print(f"counters    {submitted} submitted = " + " + ".join(f"{number} {name}" for name, number in moved.items()))
    run.expect(submitted == sum(moved.values()) == len(run.readers), f"the counters do not add up: {submitted} {moved}")


async def _stop(run: Run, server: ServerProcess) -> None:
    began = time.perf_counter()
    exit_report = await server.stop()
    await _wait_for_answers(run)
    staying = [reader for reader in run.readers if not reader.hangs_up]
    right = [reader for reader in staying if reader.status == 200 and reader.messages == []]
    print(f"SIGTERM     exit code {exit_report.exit_code} after {exit_report.seconds:.2f} s")
    print(f"answered    {len(right)} of {len(staying)} with an empty list")
    run.expect(exit_report.exit_code == 0, f"the server ended with {exit_report.exit_code}: {''.join(server.output)}")
    _expect_all(run, staying, right)
    if right:
        print(f"latency     {quantiles([reader.answered_at - began for reader in right])}, from SIGTERM to the answer")
    if exit_report.statistics:
        _balance(run, exit_report.statistics)
    run.expect(exit_report.statistics.get("parked") == 0, f"final statistics of the server: {exit_report.statistics}")


if __name__ == "__main__":
    sys.exit(main())
