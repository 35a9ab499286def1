"""Random load for as long as you like: ``python -m examples.long_poll.soak --seconds 600``.

Readers wait on random topics for random amounts and times, some hang up in the middle, writers write, limits turn some
away.  Now and then everything comes to rest and the books are compared: what the clients were told, what the server
says, how much memory it holds.  Every ``--restart-every`` seconds the server gets SIGTERM while readers wait, and is
started again on the same port.

Exit code 0 if every request was answered once, with the right messages, never early and never too late to matter; if
nothing was left behind; if the books balance and the memory is flat.
"""

import argparse
import asyncio
import random
import string
import sys
import time
from dataclasses import dataclass, field, replace

import aiohttp

from .client import loop_factory, quantiles
from .ledger import Asked, Ledger
from .process import Farewell, ServerProcess
from .server import raise_file_limit

__all__ = ["main"]

_MIB = 1 << 20
_ALLOWED_GROWTH = 8 * _MIB  # between the first rest and the last one of a server
_PATIENCE = 90.0  # for an answer
_NOTICE = 10.0  # for the server to notice who hung up, and to stop
_SHORT, _LONG = 1.5, 60.0  # waits
_LETTERS = string.ascii_letters + string.digits
_HEADS = (
    *("run", "seconds", "requests", "filled", "timed-out", "hung-up", "turned-away", "cut-off", "posted", "left"),
    *("memory,MiB", "exit"),
)
_ROW = "{:>5} {:>8} {:>9} {:>9} {:>9} {:>8} {:>11} {:>8} {:>8} {:>5} {:>15} {:>5}"


@dataclass(slots=True)
class Plan:
    """What is to be run; times in seconds."""

    seconds: float
    restart_every: float
    rests: int
    readers: int
    writers: int
    topics: int
    rate: float
    seed: int
    uvloop: bool


@dataclass(slots=True)
class Life:
    """One server from start to end, and what was seen of it."""

    number: int
    ledger: Ledger = field(default_factory=Ledger)
    memory: list[int] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    farewell: Farewell | None = None

    def row(self) -> str:
        """A line of the table."""
        counts = self.ledger.counts
        left = "?" if self.farewell is None else self.farewell.statistics.get("parked", "?")
        code = "?" if self.farewell is None else self.farewell.exit_code
        memory = " -> ".join(f"{rss / _MIB:.1f}" for rss in (self.memory[0], self.memory[-1])) if self.memory else "?"
        seconds = f"{time.perf_counter() - self.began:.1f}"
        ends = (counts.filled, counts.timed_out, counts.hung_up, counts.turned_away, counts.cut_off)
        return _ROW.format(self.number, seconds, counts.requests, *ends, counts.posted, left, memory, code)


class Clients:
    """Readers and writers that use one server for a while."""

    def __init__(self, plan: Plan, server: ServerProcess, session: aiohttp.ClientSession, ledger: Ledger) -> None:
        self._plan = plan
        self._url = server.url
        self._session = session
        self._ledger = ledger
        self._over = asyncio.Event()

    async def storm(self, seconds: float, draw: random.Random, *, hang_up: float = 0.0, stay: float = 0.0) -> None:
        """Load for some seconds; returns when no request is under way.

        ``hang_up``: the share of requests that the client gives up.  ``stay``: the share that waits so long that only
        a message ends it, or the server's end.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.readers):
                group.create_task(self._read_on(random.Random(draw.random()), hang_up, stay))
            for _ in range(self._plan.writers):
                group.create_task(self._write_on(random.Random(draw.random())))
            await asyncio.sleep(seconds)
            self._over.set()

    def stopping(self) -> None:
        """The server is about to be told to stop."""
        self._ledger.stopping_since = time.perf_counter()

    async def _read_on(self, draw: random.Random, hang_up: float, stay: float) -> None:
        while not self._over.is_set():
            hangs_up = draw.random() < hang_up
            # Who hangs up would wait for long: whoever is not withdrawn is found parked when all is at rest.
            max_wait = _LONG if hangs_up or draw.random() < stay else round(draw.random() * _SHORT, 3)
            topic = f"soak-{draw.randrange(self._plan.topics)}"
            offset = max(0, self._ledger.end_of(topic) - draw.choice((0, 0, 0, 0, 1, 3)))
            asked = Asked(topic, offset, draw.randint(1, 2000), max_wait, time.perf_counter())
            reading = asyncio.create_task(self._read(asked))
            if hangs_up:
                await asyncio.wait([reading], timeout=draw.random() * _SHORT)
                if reading.cancel():
                    await asyncio.wait([reading])
                    if reading.cancelled():
                        self._ledger.counts.hung_up += 1
                        continue
            if not await reading:
                if self._ledger.stopping_since is not None:
                    return
                await asyncio.sleep(draw.random() * 0.2)

    async def _read(self, asked: Asked) -> bool:
        """One request; whether it was answered."""
        query = {"offset": str(asked.offset), "min_bytes": str(asked.min_bytes), "max_wait": str(asked.max_wait)}
        try:
            async with self._session.get(f"{self._url}/topics/{asked.topic}", params=query) as response:
                answer = await response.json()
                now = time.perf_counter()
        except (aiohttp.ClientError, OSError) as error:
            self._ledger.cut_off(asked, error)
            return False
        if response.status != 200:
            self._ledger.turned_away(asked, response.status, response.headers.get("Retry-After"))
            return False
        self._ledger.answered(asked, answer, now)
        return True

    async def _write_on(self, draw: random.Random) -> None:
        while not self._over.is_set():
            await asyncio.sleep(draw.expovariate(self._plan.rate / self._plan.writers))
            topic = f"soak-{draw.randrange(self._plan.topics)}"
            body = "".join(draw.choices(_LETTERS, k=draw.randint(16, 1500)))
            try:
                async with self._session.post(f"{self._url}/topics/{topic}", data=body.encode()) as response:
                    answer = await response.json()
            except (aiohttp.ClientError, OSError) as error:
                self._ledger.cut_off(None, error)
                return
            if response.status == 201:
                self._ledger.posted(topic, answer["offset"], body, time.perf_counter())
            elif self._ledger.stopping_since is None:
                self._ledger.complain(f"a writer got {response.status}: {answer}")
            else:
                return


async def _rest(life: Life, server: ServerProcess, session: aiohttp.ClientSession) -> dict[str, int]:
    """Everything is at rest: wait until the server has noticed who hung up, and compare."""
    end = time.perf_counter() + _NOTICE
    while True:
        async with session.get(f"{server.url}/stats") as response:
            books: dict[str, int] = await response.json()
        if not books["parked"] or time.perf_counter() > end:
            break
        await asyncio.sleep(0.02)
    life.ledger.check_at_rest(books)
    life.memory.append(server.rss())
    return books


async def _live(plan: Plan, life: Life, server: ServerProcess, seconds: float, draw: random.Random) -> None:
    """Storms and rests, and the end in the middle of a storm.

    In every other storm nobody hangs up, nor in the last one: there each single answer has to be accounted for.
    """
    ledger = life.ledger
    # Clients let go of a connection long before the server does (5 s): no request crosses an idle one being closed.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    storm = seconds / (plan.rests + 1)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        before = await _rest(life, server, session)
        life.memory.clear()  # it has done nothing yet
        for number in range(plan.rests):
            counts = replace(ledger.counts)
            hang_up = 0.3 if number % 2 == 0 else 0.0
            await Clients(plan, server, session, ledger).storm(storm, draw, hang_up=hang_up)
            after = await _rest(life, server, session)
            if not hang_up:
                ledger.check_exactly(before, after, counts)
            before = after
        counts = replace(ledger.counts)
        life.farewell = await _end(Clients(plan, server, session, ledger), server, storm, draw)
    after = life.farewell.statistics
    if life.farewell.exit_code or not after or len(server.output) != 2:  # the line at the start and the one at the end
        ledger.complain(f"the server ended with {life.farewell.exit_code} and said {''.join(server.output)[-2000:]}")
    if not after:
        return
    if life.farewell.seconds > _NOTICE / 2:
        ledger.complain(f"the server took {life.farewell.seconds:.1f} s to end")
    ledger.check_exactly(before, after, counts)
    ledger.check_at_rest(after)
    if life.memory[-1] - life.memory[0] > _ALLOWED_GROWTH:
        ledger.complain(f"memory grew: {[round(rss / _MIB, 1) for rss in life.memory]} MiB")


async def _end(clients: Clients, server: ServerProcess, seconds: float, draw: random.Random) -> Farewell:
    storm = asyncio.create_task(clients.storm(seconds + 1.0, draw, stay=0.5))
    try:
        await asyncio.sleep(seconds)
        clients.stopping()
        return await server.stop()
    finally:
        await storm


async def _soak(plan: Plan) -> list[str]:
    draw = random.Random(plan.seed)
    print(f"seed {plan.seed}, {'uvloop' if plan.uvloop else 'asyncio'}\n{_ROW.format(*_HEADS)}", flush=True)
    end = time.perf_counter() + plan.seconds
    wrong: list[str] = []
    lateness: list[float] = []
    requests, number, port = 0, 0, "0"
    while number == 0 or time.perf_counter() < end:
        number += 1
        limits = ["--max-parked", str(plan.readers * 9 // 10), "--max-parked-per-topic", str(_per_topic(plan))]
        words = ["--port", port, "--retain-bytes", "16384", *limits, *([] if plan.uvloop else ["--no-uvloop"])]
        async with ServerProcess(*words) as server:
            port = server.url.rpartition(":")[2]  # the next one listens where this one did
            life = Life(number)
            left = max(end - time.perf_counter(), 1.0)
            await _live(plan, life, server, left if left < 1.5 * plan.restart_every else plan.restart_every, draw)
        print(life.row(), flush=True)
        wrong += [f"run {number}: {complaint}" for complaint in life.ledger.wrong]
        lateness += life.ledger.lateness
        requests += life.ledger.counts.requests
    if lateness:
        print(f"timed out   {quantiles(lateness)} after the deadline, as the client saw it")
    print(f"requests    {requests} from {plan.readers} readers to {number} servers")
    return wrong


def _per_topic(plan: Plan) -> int:
    return max(2, 2 * plan.readers // plan.topics)


def main(arguments: list[str] | None = None) -> int:
    """Run the soak; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.long_poll.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (%(default)s)")
    parser.add_argument("--restart-every", type=float, default=60.0, help="seconds (%(default)s)")
    parser.add_argument("--rests", type=int, default=4, help="comparisons between two restarts (%(default)s)")
    parser.add_argument("--readers", type=int, default=200, help="at a time (%(default)s)")
    parser.add_argument("--writers", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--topics", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--rate", type=float, default=100.0, help="messages per second (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="(random)")
    parser.add_argument("--no-uvloop", action="store_true", help="server and clients on asyncio's own loop")
    given = parser.parse_args(arguments)
    for name in ("seconds", "restart_every", "rests", "readers", "writers", "topics", "rate"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} is above 0, not {getattr(given, name)}")
    uvloop = not given.no_uvloop
    options = {name: value for name, value in vars(given).items() if name != "no_uvloop"}
    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory(uvloop=uvloop)) as runner:
        wrong = runner.run(_soak(Plan(uvloop=uvloop, **options)))
    for line in wrong:
        print("WRONG      ", line)
    print(
        "verdict     " + ("wrong, see above" if wrong else "every request answered once, books balanced, memory flat")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
