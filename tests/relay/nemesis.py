"""Fault injection: workers wait for each other through a real engine, while the engine and the connections break.

::

    python -m tests.relay.nemesis --engine postgres --engine redis --engine nats --seconds 60

Each of several processes has a purgatory, a relay, writers and waiters.  The state is a table in shared memory with
the version of every key and the time at which it was written.  A waiter waits for the next version of a key, which a
writer in any of the processes writes.  Meanwhile, the engine is killed with SIGKILL and restarted; the engine ends the
connections that listen (for NATS, which has no command for this, the proxy does); a worker is stopped with SIGSTOP, or
killed with SIGKILL and replaced; the connections become silent or are cut; and a flood of messages fills the buffers of
a worker that does not read, until the engine ends its subscription.  Postgres keeps the messages instead.

``--engine unix`` has no server and no proxy: instead, the directory with the sockets is removed, and where this process
may mount a file system, the directory has no room for sockets for a while.

The command prints one table per engine.  It fails if a waiter was answered twice, or if it expired although its key had
the version for longer than the resync bound.
"""

import argparse
import asyncio
import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from purgatory import DelayedOperation, Purgatory
from purgatory.relay import Relay
from purgatory.relay.codec import encode_keys
from tests.relay.engines import ENGINES, SERVERS, Engine
from tests.relay.proxy import Proxy

CHANNEL = "nemesis"
WRITES = 0.8  # by each process, per second and key of the table
AT_ONCE = 8  # writes
VERSIONS = 64  # number of versions of each key whose times are kept
HEARTBEAT = 1.0
RESYNC = 8.0
TIMEOUT = 40.0
BOUND = RESYNC + 4.0  # a worker that is stopped does not look at the time
ROW = struct.calcsize(f"q{VERSIONS}d")


class Table:
    """The shared state: for every key its version, and the times of the latest versions."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.num_keys = len(self._memory) // ROW

    @staticmethod
    def create(path: Path, num_keys: int) -> None:
        """Create an empty table."""
        path.write_bytes(b"\0" * ROW * num_keys)

    def version(self, key: int) -> int:
        """Return the current version of a key."""
        return int(struct.unpack_from("q", self._memory, key * ROW)[0])

    def written(self, key: int, version: int) -> float:
        """Return the time at which a version was written."""
        return float(struct.unpack_from("d", self._memory, key * ROW + 8 + 8 * (version % VERSIONS))[0])

    def write(self, key: int) -> int:
        """Write the next version; each key has one process that writes it."""
        version = self.version(key) + 1
        struct.pack_into("d", self._memory, key * ROW + 8 + 8 * (version % VERSIONS), time.monotonic())
        struct.pack_into("q", self._memory, key * ROW, version)
        return version


class NextVersion(DelayedOperation[bool]):
    """An operation that waits until this process has read a version."""

    def __init__(self, worker: "Worker", key: int, version: int) -> None:
        super().__init__(TIMEOUT)
        self.worker = worker
        self.key = key
        self.version = version
        self.ended = 0

    def try_complete(self) -> bool:
        return self.worker.versions[self.key] >= self.version

    def on_complete(self) -> bool:
        self.ended += 1
        return not self.expired


class Worker:
    """One process."""

    def __init__(self, number: int, of: int, table: Table, url: str, engine: Engine, waiters: int) -> None:
        self.number = number
        self.of = of
        self.table = table
        self.waiters = waiters
        self.versions = [0] * table.num_keys
        self.purgatory = Purgatory[Any](f"worker {number}")
        transport = engine.transport(CHANNEL, url)
        self.relay = Relay(
            self.purgatory, transport, refresh=self.load, heartbeat=HEARTBEAT, resync_every=RESYNC, max_keys=5_000
        )
        self.late = array("d")  # compact, so that the memory of a long run is the relay's
        self.lost = 0
        self.twice = 0
        self.expired = 0
        self.memory: list[int] = []
        self.stopping = False
        self.done = False

    async def load(self, keys: list[Any]) -> dict[Any, float]:
        """Read versions; the keys of a flood have none."""
        found = {key: self.table.version(key) for key in keys if isinstance(key, int)}
        for key, version in found.items():
            self.versions[key] = version
        return dict(found)

    async def wait(self, rng: random.Random) -> None:
        """Wait for one version after another."""
        while not self.stopping:
            key = rng.randrange(self.table.num_keys)
            version = self.table.version(key) + 1
            if rng.random() < 0.5:
                answered = await self.park(key, version)
            else:
                answered = await self.wait_value(key, version)
            now = time.monotonic()
            written = self.table.written(key, version)
            if answered:
                if self.table.version(key) - version < VERSIONS // 2:
                    self.late.append(now - written)
            else:
                self.expired += 1
                self.lost += self.table.version(key) >= version and now - written > BOUND

    async def park(self, key: int, version: int) -> bool:
        """Wait with an operation whose condition finds the state in this object; return whether it was answered."""
        operation = NextVersion(self, key, version)
        answered = await self.relay.park(operation, {key: version})
        self.twice += operation.ended != 1
        return answered

    async def wait_value(self, key: int, version: int) -> bool:
        """Wait with a condition that finds the state in ``relay.state``; return whether it was answered."""
        state = self.relay.state

        def reached() -> float | None:
            found = state.get(key, 0.0)
            return found if found >= version else None

        found = await self.relay.wait_value(reached, keys={key: version}, timeout=TIMEOUT)
        assert found is None or version <= found <= self.table.version(key)
        return found is not None

    async def write(self, rng: random.Random) -> None:
        """Change keys of this process, a few at a time."""
        own = range(self.number, self.table.num_keys, self.of)
        pause = AT_ONCE / WRITES / self.table.num_keys
        while not self.done:
            for _ in range(AT_ONCE):
                key = rng.choice(own)
                self.relay.check(key, self.table.write(key))
            await asyncio.sleep(pause)

    async def watch_memory(self) -> None:
        """Record the resident memory at intervals."""
        while not self.done:
            self.memory.append(_resident())
            await asyncio.sleep(0.5)

    async def run(self) -> dict[str, Any]:
        """Wait and write until a line arrives on standard input, and then until every waiter has its answer.

        The writers continue until a second line arrives, because other processes may still wait for their writes.
        """
        loop = asyncio.get_running_loop()
        rng = random.Random(self.number)
        async with self.purgatory, self.relay:
            background = [asyncio.create_task(self.write(rng)), asyncio.create_task(self.watch_memory())]
            waiters = [asyncio.create_task(self.wait(random.Random(f"{self.number}/{n}"))) for n in range(self.waiters)]
            print("ready", flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            self.stopping = True
            await asyncio.gather(*waiters)
            print("answered", flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            self.done = True
            await asyncio.gather(*background)
            statistics = self.relay.statistics()
        third = max(1, len(self.memory) // 3)
        return {
            "late": self.late.tolist(),
            "expired": self.expired,
            "lost": self.lost,
            "twice": self.twice,
            "resyncs": statistics.resyncs,
            "losses": statistics.losses,
            "sent": statistics.sent,
            "messages": statistics.messages_sent,
            "memory": [max(self.memory[:third]), max(self.memory[-third:])],
            "reads": statistics.reads,
        }


def _resident() -> int:
    """Return the resident memory of this process in KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


# The parent


def run(*command: str) -> bool:
    """Run a program.  Return whether it succeeded."""
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


class Nemesis:
    """A program that injects one fault after another.  ``start``: starts the worker of this number."""

    def __init__(
        self,
        engine: Engine,
        proxy: Proxy | None,
        workers: list[asyncio.subprocess.Process],
        start: Callable[[int], Awaitable[asyncio.subprocess.Process]],
        seed: int,
    ) -> None:
        self.engine = engine
        self.proxy = proxy
        self.workers = workers
        self.start = start
        self.rng = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.flooding = engine.transport(CHANNEL)
        self.overflows = 0

    async def rage(self, seconds: float) -> None:
        """Inject one fault after another, with pauses in between."""
        kinds: list[Callable[[], Awaitable[None]]] = [self.worker_stopped, self.worker_killed, self.flood]
        if self.proxy is not None:
            kinds += [self.engine_killed, self.listener_ended, self.line_silent, self.line_cut]
        else:
            kinds.append(self.directory_removed)
            if await self._mount():
                await self._unmount()
                kinds.append(self.directory_full)
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            if number % len(kinds) == 0:
                self.rng.shuffle(kinds)
            kind = kinds[number % len(kinds)]
            number += 1
            await kind()
            self.faults[kind.__name__.replace("_", " ")] += 1
            await asyncio.sleep(self.rng.uniform(0.2, 1.5))

    async def engine_killed(self) -> None:
        """Kill the engine with SIGKILL, and restart it after up to two seconds."""
        assert not self.engine.given, "only an engine of its own may be killed"
        await asyncio.to_thread(self.engine.kill)
        await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        await asyncio.to_thread(self.engine.start)

    async def listener_ended(self) -> None:
        """Make the engine end the connections that listen."""
        if self.engine.name == "postgres":
            import psycopg

            async with await psycopg.AsyncConnection.connect(self.engine.url, autocommit=True) as connection:
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
                )
        elif self.engine.name == "redis":
            from redis.asyncio import Redis

            async with Redis.from_url(self.engine.url) as client:
                await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call]
        else:
            await self.line_cut()  # NATS, for one, has no command to end a connection

    async def worker_stopped(self) -> None:
        """Stop a worker with SIGSTOP for some seconds."""
        worker = self.rng.choice(self.workers)
        worker.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.rng.uniform(0.5, 3.0))
        worker.send_signal(signal.SIGCONT)

    async def worker_killed(self) -> None:
        """Kill a worker with SIGKILL, and start another one that writes the same keys."""
        number = self.rng.randrange(len(self.workers))
        self.workers[number].kill()
        await self.workers[number].wait()
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        self.workers[number] = await self.start(number)

    async def directory_removed(self) -> None:
        """Remove the directory with the sockets of the workers."""
        await asyncio.to_thread(shutil.rmtree, Path(self.engine.url, CHANNEL), ignore_errors=True)

    async def directory_full(self) -> None:
        """For some seconds, a new directory has no room for a socket."""
        await self._mount()
        await asyncio.sleep(self.rng.uniform(0.5, 2.0))
        await self._unmount()

    async def _unmount(self) -> None:
        await asyncio.to_thread(run, "umount", f"{self.engine.url}/{CHANNEL}")

    async def _mount(self) -> bool:
        """Cover a new directory with a file system without room.  Return whether that is possible here."""
        await self.directory_removed()
        await asyncio.to_thread(Path(self.engine.url, CHANNEL).mkdir, 0o700, exist_ok=True)
        options = "nr_inodes=1,mode=0700"
        return await asyncio.to_thread(
            run, "mount", "-t", "tmpfs", "-o", options, "none", f"{self.engine.url}/{CHANNEL}"
        )

    async def line_silent(self) -> None:
        """Make every open connection half-open."""
        assert self.proxy is not None
        self.proxy.silence()
        await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        self.proxy.restore()

    async def line_cut(self) -> None:
        """Reset every connection."""
        assert self.proxy is not None
        self.proxy.cut()

    async def flood(self) -> None:
        """Stop a worker while tens of megabytes are sent to it.

        The engine ends its subscription, or, with Postgres, keeps the messages until the worker reads again.
        """
        worker = self.rng.choice(self.workers)
        payload = next(iter(encode_keys("nemesis", [(f"x{n}", None) for n in range(5000)], self.flooding.max_payload)))
        before = self.engine.overflows()
        listening = None
        if self.proxy is None:  # a worker that listens drops notices; another program would wait for the stopped one
            subscribed = asyncio.Event()
            listening = asyncio.create_task(self.flooding.listen(subscribed.set, lambda _: None))
            await asyncio.wait([listening, asyncio.create_task(subscribed.wait())], return_when=asyncio.FIRST_COMPLETED)
        worker.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(5.0):
                for number in range(40 * 1024 * 1024 // len(payload[0])):
                    with contextlib.suppress(Exception):  # the connection is older than the kill of the engine
                        await self.flooding.publish(payload[0])
                    if number % 100 == 99 and self.engine.overflows() > before:
                        break
        except TimeoutError:
            pass
        finally:
            worker.send_signal(signal.SIGCONT)
            if listening is not None:
                listening.cancel()
                await asyncio.wait([listening])
        self.overflows = self.engine.overflows()


async def trial(kind: type[Engine], seconds: float, number: int, keys: int, waiters: int, seed: int) -> bool:
    """Test one engine.  Return True if no wake-up was lost."""
    engine = kind(small_buffers=True)
    await asyncio.to_thread(engine.start)
    proxy = None
    if engine.name in SERVERS:
        proxy = Proxy(engine.url)
        await proxy.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        Table.create(path, keys)
        arguments = [engine.name, str(number), str(path), proxy.url if proxy is not None else engine.url, str(waiters)]

        async def start(index: int) -> asyncio.subprocess.Process:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.relay.nemesis", "--worker", str(index), *arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26,
            )  # fmt: skip
            assert worker.stdout is not None
            assert (await worker.stdout.readline()).strip() == b"ready"
            return worker

        workers: list[asyncio.subprocess.Process] = []
        try:
            # At the same time: the waiters of one worker wait for the writers of another.
            starting = [asyncio.create_task(start(index)) for index in range(number)]
            await asyncio.wait(starting)
            workers.extend([worker.result() for worker in starting])
            nemesis = Nemesis(engine, proxy, workers, start, seed)
            await nemesis.rage(seconds)
            await nemesis.flooding.aclose()
            await _ask(workers)  # to wait no further
            reports = [json.loads(line) for line in await _ask(workers)]  # to write no further
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()
            if proxy is not None:
                await proxy.close()
            await asyncio.to_thread(engine.close)
    return _print(engine, nemesis, reports)


async def _ask(workers: list[asyncio.subprocess.Process]) -> list[bytes]:
    """Send a line to each worker, and return the line that each one answers."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go on\n")
    lines = []
    for worker in workers:
        assert worker.stdout is not None
        async with asyncio.timeout(TIMEOUT + 30.0):
            line = await worker.stdout.readline()
        if not line:
            raise RuntimeError("a worker has died")
        lines.append(line)
    return lines


def _print(engine: Engine, nemesis: Nemesis, reports: list[dict[str, Any]]) -> bool:
    """Print the table of one engine.  Return True if no wait was lost or answered twice."""
    total = Counter[str]()
    for report in reports:
        total.update({name: value for name, value in report.items() if isinstance(value, int)})
    late = sorted(value for report in reports for value in report["late"])
    told = ", ".join(f"{name} {number}" for name, number in sorted(nemesis.faults.items()))
    print(f"engine                      {engine.name}, {len(reports)} workers")
    print(f"faults                      {sum(nemesis.faults.values())}: {told}")
    if engine.overflowed is not None:
        print(f"full buffers                {nemesis.overflows} subscriptions ended by the engine")
    print(f"waits answered              {len(late)}")
    for name, quantile in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)):
        value = late[min(len(late) - 1, int(quantile * len(late)))] if late else float("nan")
        print(f"  from write to answer, {name:6}{value * 1000:10.1f} ms")
    print(f"waits expired               {total['expired']}")
    print(f"waits lost                  {total['lost']}")
    print(f"waits answered twice        {total['twice']}")
    print(f"connections lost            {total['losses']}")
    print(f"resyncs                     {total['resyncs']}")
    print(f"checks relayed              {total['sent']} keys in {total['messages']} messages")
    for number, report in enumerate(reports):
        first, last = (kib / 1024 for kib in report["memory"])
        print(f"memory of worker {number}          {first:.1f} MiB in the first third, {last:.1f} in the last")
    print(flush=True)
    return bool(late) and not total["lost"] and not total["twice"]


def main() -> int:
    """Run the command."""
    if sys.argv[1:2] == ["--worker"]:
        number, name, of, path, url, waiters = sys.argv[2:]
        worker = Worker(int(number), int(of), Table(Path(path)), url, ENGINES[name](), int(waiters))
        print(json.dumps(asyncio.run(worker.run())), flush=True)
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.relay.nemesis", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=ENGINES, help="may be given more than once; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults, per engine")
    parser.add_argument("--workers", type=int, default=3, help="processes")
    parser.add_argument("--keys", type=int, default=1000, help="rows of the table; the more, the more writes")
    parser.add_argument("--waiters", type=int, default=200, help="tasks that wait in each process")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the faults")
    options = parser.parse_args()
    good = True
    for name in options.engine or ENGINES:
        reason = ENGINES[name].missing()
        if reason:
            parser.error(reason)
        load = (options.workers, options.keys, options.waiters)
        good &= asyncio.run(trial(ENGINES[name], options.seconds, *load, options.seed))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
