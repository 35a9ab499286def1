"""What relaying a check costs: ``python -m benchmarks.relay [--engine NAME ...] [--samples N] [--down SECONDS]``.

Two processes share a channel of a real Postgres, Redis, or NATS server on loopback, or a directory of sockets.  One
process parks a request, and the other checks its key.  The time from the check to the answer is compared with the time
that the same message takes through the bare client library or transport.  The two kinds of samples take turns, so other
load on the machine affects both equally.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Hashable
from typing import Any

from purgatory import DelayedOperation, Purgatory
from purgatory.relay import MemoryTransport, Relay
from tests.relay.engines import ENGINES, SERVERS, Engine

CHANNEL = "measured"
BARE = "bare"
WATCHED = 5_000  # keys on which operations wait while CPU time is measured
TABLE = "purgatory_measured"


class SecondTry(DelayedOperation[float]):
    """An operation that completes when it is tried again; its result is the time at which it completes."""

    tried = False

    def try_complete(self) -> bool:
        again, self.tried = self.tried, True
        return again

    def on_complete(self) -> float:
        return time.monotonic()


class Never(DelayedOperation[None]):
    """An operation that never completes."""

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None: ...


# The process that waits


async def wait(engine: Engine) -> None:
    """Report the time of every message and of every answer, one per line, and then the CPU time of the checks."""
    state: dict[Hashable, int] = {}
    database: Any = None
    if engine.name == "postgres":
        import psycopg

        database = await psycopg.AsyncConnection.connect(engine.url, autocommit=True)

    async def load(keys: list[Hashable]) -> dict[Hashable, int]:
        rows = await database.execute(f"SELECT key, version FROM {TABLE} WHERE key = ANY(%s)", ([*map(str, keys)],))  # noqa: S608
        found = dict(await rows.fetchall())
        state.update(found)
        return found

    bare = asyncio.create_task(
        engine.transport(BARE).listen(lambda: _tell("bare", 0.0), lambda _: _tell("bare", time.monotonic()))
    )
    room, read = Purgatory[Any]("waiting"), Purgatory[Any]("reading")
    async with room, read, Relay(room, engine.transport(CHANNEL)) as relay:
        answers = asyncio.create_task(_answer(relay))
        if database is not None:
            reading = Relay(read, engine.transport(CHANNEL + "_read"), refresh=load)
            async with reading:
                await _answer_reads(reading, state)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        answers.cancel()
        watchers = [asyncio.create_task(room.park(Never(None), [f"key-{number}"])) for number in range(WATCHED)]
        await asyncio.sleep(0)
        before, cpu = relay.statistics().received, time.process_time()
        _tell("watchers", 0.0)
        total = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        while relay.statistics().received - before < int(total):
            await asyncio.sleep(0.01)
        _tell("cpu", time.process_time() - cpu)
        for task in watchers:
            task.cancel()
    bare.cancel()
    await asyncio.wait([bare, answers])
    if database is not None:
        await database.close()


async def _answer(relay: Relay) -> None:
    """Park one request after another; report each answer after the next request has been parked."""
    answered = 0.0
    while True:
        waiting = asyncio.ensure_future(relay.park(SecondTry(None), ["key"]))
        await asyncio.sleep(0)
        _tell("answer", answered)
        answered = await waiting


async def _answer_reads(relay: Relay, state: dict[Hashable, int]) -> None:
    """Do the same for the next version of a row; end when the version is -1."""
    answered, version = 0.0, 0

    def reached() -> bool:
        nonlocal answered
        if state.get("row", 0) > version or state.get("row", 0) < 0:
            answered = time.monotonic()
            return True
        return False

    while state.get("row", 0) >= 0:
        version = state.get("row", 0)
        waiting = asyncio.ensure_future(relay.wait_until(reached, keys=["row"], timeout=None))
        while not relay.statistics().refreshed or relay.statistics().stale:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.002)  # wait for the read that parking starts
        _tell("read", answered)
        await waiting


def _tell(kind: str, value: float) -> None:
    print(json.dumps([kind, value]), flush=True)


# The process that checks


class Other:
    """The process that waits, and what it reports."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._reported: dict[str, asyncio.Queue[float]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            kind, value = json.loads(line)
            self._reported.setdefault(kind, asyncio.Queue()).put_nowait(value)

    async def next(self, kind: str) -> float:
        """Return the next timestamp that the process reports."""
        async with asyncio.timeout(30.0):
            return await self._reported.setdefault(kind, asyncio.Queue()).get()

    def say(self, line: object) -> None:
        """Write a line to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def end(self) -> None:
        """Wait until the process has ended."""
        await self.process.wait()
        await self._reading


async def measure(engine: Engine, samples: int) -> None:
    """Print the rows of one engine."""
    database: Any = None
    if engine.name == "postgres":
        import psycopg

        database = await psycopg.AsyncConnection.connect(engine.url)
        await database.execute(f"CREATE TABLE {TABLE} (key text PRIMARY KEY, version int)")
        await database.execute(f"INSERT INTO {TABLE} VALUES ('row', 0)")  # noqa: S608
        await database.commit()
    other = Other(
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.relay", "--wait", engine.name, engine.url,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
    )  # fmt: skip
    bare, room = engine.transport(BARE), Purgatory[Any]("checking")
    late: dict[str, list[float]] = {"bare client, publish to message": [], "relay, check to answer": []}
    async with room, Relay(room, engine.transport(CHANNEL), max_keys=100_000) as relay:
        await other.next("bare")
        await other.next("answer")
        for _ in range(samples):
            began = time.monotonic()
            await bare.publish("x" * 60)
            late["bare client, publish to message"].append(await other.next("bare") - began)
            began = time.monotonic()
            relay.check("key")
            late["relay, check to answer"].append(await other.next("answer") - began)
        if database is not None:
            late["relay, commit to answer, with a SELECT in refresh"] = await _commits(engine, database, other, samples)
        for name, values in late.items():
            settled = sorted(values[samples // 10 :])
            p50, p99 = settled[len(settled) // 2], settled[int(len(settled) * 0.99)]
            print(f"{engine.name:9} {name:52} p50 {p50 * 1000:7.2f} ms   p99 {p99 * 1000:7.2f} ms", flush=True)
        await _cpu(engine, other, relay)
    await bare.aclose()
    await other.end()
    if database is not None:
        await database.close()


async def _commits(engine: Engine, database: Any, other: Other, samples: int) -> list[float]:
    """Return the times from COMMIT to the answer in a process that reads the row."""
    late = []
    room = Purgatory[Any]("writing")
    async with room, Relay(room, engine.transport(CHANNEL + "_read")) as relay:
        await other.next("read")
        for number in range(1, samples + 1):
            await database.execute(f"UPDATE {TABLE} SET version = %s WHERE key = 'row'", (number,))  # noqa: S608
            await relay.check_in(database, ["row"])
            began = time.monotonic()
            await database.commit()
            late.append(await other.next("read") - began)
        await database.execute(f"UPDATE {TABLE} SET version = -1 WHERE key = 'row'")  # noqa: S608
        await relay.check_in(database, ["row"])
        await database.commit()
    return late


async def _cpu(engine: Engine, other: Other, relay: Relay) -> None:
    """Print the CPU time of each process per relayed key, with one hundred keys in each turn of the loop."""
    other.say("")
    await other.next("watchers")
    total = 20 * WATCHED
    before, cpu = relay.statistics(), time.process_time()
    for number in range(total):
        relay.check(f"key-{number % WATCHED}")
        if number % 100 == 99:
            await asyncio.sleep(0)
    while relay.statistics().pending:
        await asyncio.sleep(0.001)
    spent = time.process_time() - cpu
    after = relay.statistics()
    sent = after.sent - before.sent
    other.say(sent)
    received = await other.next("cpu")
    messages = after.messages_sent - before.messages_sent
    print(
        f"{engine.name:9} CPU for each of {sent} keys in {messages} messages"
        f"          sender {spent / sent * 1e6:.1f} us, receiver {received / sent * 1e6:.1f} us",
        flush=True,
    )


async def coalesced() -> None:
    """Print the number of messages needed to relay 200,000 checks of 50,000 keys in one turn."""
    for max_keys in (10_000, 100_000):
        for max_payload in (7_999, 32_768):
            room = Purgatory[Any]("coalesced")
            transport = MemoryTransport(max_payload=max_payload)
            async with room, Relay(room, transport, max_keys=max_keys) as relay:
                before = relay.statistics().messages_sent
                for _ in range(4):
                    for number in range(50_000):
                        relay.check(f"order-{number}")
                await relay.aclose(grace=30.0)
                messages = relay.statistics().messages_sent - before
            print(f"200,000 checks of 50,000 keys, max_keys={max_keys}, {max_payload} bytes: {messages} messages")


async def down(engine: Engine, seconds: float) -> None:
    """Print what a worker does while its engine is unavailable."""
    room = Purgatory[Any]("alone")
    async with room, Relay(room, engine.transport(CHANNEL)) as relay:
        began = time.monotonic()
        waiting = asyncio.create_task(room.wait_until(lambda: False, keys=["deadline"], timeout=seconds / 2))
        await asyncio.to_thread(engine.kill)
        await waiting
        late = time.monotonic() - began - seconds / 2
        done = [False]
        local = asyncio.create_task(room.wait_until(lambda: done[0], keys=["local"], timeout=None))
        await asyncio.sleep(0)
        done[0] = True
        answered = relay.check("local")
        await local
        connected = relay.connected
        await asyncio.sleep(seconds / 2)
        losses = relay.statistics().losses
        await asyncio.to_thread(engine.start)
        began = time.monotonic()
        await room.wait_until(lambda: relay.connected, keys=["connected"], timeout=None)
        print(
            f"{engine.name:9} away for {seconds:g} s: connected={connected}, a deadline late by {late * 1000:.1f} ms,"
            f" a local check answered {answered}, {losses} attempts;"
            f" connected {time.monotonic() - began:.1f} s after it was back"
        )


def main() -> int:
    """Run the command."""
    if sys.argv[1:2] == ["--wait"]:
        engine = ENGINES[sys.argv[2]]()
        engine.given = sys.argv[3]
        asyncio.run(wait(engine))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=ENGINES, help="may be given more than once; default: all")
    parser.add_argument("--samples", type=int, default=2000, help="of each latency")
    parser.add_argument("--down", type=float, default=0.0, metavar="SECONDS", help="also kill the engine for so long")
    options = parser.parse_args()
    asyncio.run(coalesced())
    for name in options.engine or ENGINES:
        reason = ENGINES[name].missing()
        if reason:
            print(f"{name}: not measured: {reason}")
            continue
        engine = ENGINES[name]()
        engine.start()
        try:
            asyncio.run(measure(engine, options.samples))
            if options.down and name in SERVERS:
                asyncio.run(down(engine, options.down))
        finally:
            engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
