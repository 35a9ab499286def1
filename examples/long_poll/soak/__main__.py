"""The soak test with random load: ``python -m examples.long_poll.soak --seconds 600``.

Readers wait on random topics for random sizes and times.  Some disconnect while they wait, and some are rejected
because of a limit.  Writers publish messages.  From time to time, the load pauses.  The test then compares the
responses that the clients received with the statistics of the server and checks the server's memory.  Every
``--restart-every`` seconds, the server gets SIGTERM while readers wait and is started again on the same port.

The exit code is 0 if every request got one response with the right messages at the right time, if no operation is left,
if the counters match, and if the memory use is flat.
"""

import argparse
import asyncio
import random
import string
import sys
import time
from dataclasses import dataclass, field, replace

import aiohttp

from examples.long_poll.load_tools import loop_factory, quantiles
from examples.long_poll.server import raise_file_limit
from examples.long_poll.server_process import ExitReport, ServerProcess

from .answer_check import AnswerCheck, Asked

__all__ = ["main"]

_MIB = 1 << 20
_ALLOWED_GROWTH = 8 * _MIB  # between the first and the last pause of one server
_PATIENCE = 90.0  # seconds to wait for a response
_NOTICE = 10.0  # seconds for the server to detect disconnects, and to stop
_SHORT, _LONG = 1.5, 60.0  # seconds to wait for messages
_LETTERS = string.ascii_letters + string.digits
_HEADS = (
    *("run", "seconds", "requests", "filled", "timed-out", "hung-up", "turned-away", "cut-off", "posted", "left"),
    *("memory,MiB", "exit"),
)
_ROW = "{:>5} {:>8} {:>9} {:>9} {:>9} {:>8} {:>11} {:>8} {:>8} {:>5} {:>15} {:>5}"


@dataclass(slots=True)
class Plan:
    """The options for the test.  Times are in seconds."""

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
class ServerRun:
    """One server from start to end, with its checks and memory samples."""

    number: int
    answers: AnswerCheck = field(default_factory=AnswerCheck)
    memory: list[int] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    exit_report: ExitReport | None = None

    def row(self) -> str:
        """Return a row of the table."""
        counts = self.answers.counts
        left = "?" if self.exit_report is None else self.exit_report.statistics.get("parked", "?")
        code = "?" if self.exit_report is None else self.exit_report.exit_code
        memory = " -> ".join(f"{rss / _MIB:.1f}" for rss in (self.memory[0], self.memory[-1])) if self.memory else "?"
        seconds = f"{time.perf_counter() - self.began:.1f}"
        ends = (counts.filled, counts.timed_out, counts.hung_up, counts.turned_away, counts.cut_off)
        return _ROW.format(self.number, seconds, counts.requests, *ends, counts.posted, left, memory, code)


class Clients:
    """Readers and writers of one server."""

    def __init__(self, plan: Plan, server: ServerProcess, session: aiohttp.ClientSession, answers: AnswerCheck) -> None:
        self._plan = plan
        self._url = server.url
        self._session = session
        self._answers = answers
        self._over = asyncio.Event()

    async def load(self, seconds: float, draw: random.Random, *, hang_up: float = 0.0, stay: float = 0.0) -> None:
        """Run the load for ``seconds``, and return when no request is in progress.

        ``hang_up``: the share of requests that the client aborts.  ``stay``: the share of requests that wait so long
        that only a message or the shutdown ends the wait.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.readers):
                group.create_task(self._read_on(random.Random(draw.random()), hang_up, stay))
            for _ in range(self._plan.writers):
                group.create_task(self._write_on(random.Random(draw.random())))
            await asyncio.sleep(seconds)
            self._over.set()

    def stopping(self) -> None:
        """Record that the server is about to get SIGTERM."""
        self._answers.stopping_since = time.perf_counter()

    async def _read_on(self, draw: random.Random, hang_up: float, stay: float) -> None:
        while not self._over.is_set():
            hangs_up = draw.random() < hang_up
            # Aborted requests have a long wait, so a missing withdrawal is visible in the next pause.
            max_wait = _LONG if hangs_up or draw.random() < stay else round(draw.random() * _SHORT, 3)
            topic = f"soak-{draw.randrange(self._plan.topics)}"
            offset = max(0, self._answers.end_of(topic) - draw.choice((0, 0, 0, 0, 1, 3)))
            asked = Asked(topic, offset, draw.randint(1, 2000), max_wait, time.perf_counter())
            reading = asyncio.create_task(self._read(asked))
            if hangs_up:
                await asyncio.wait([reading], timeout=draw.random() * _SHORT)
                if reading.cancel():
                    await asyncio.wait([reading])
                    if reading.cancelled():
                        self._answers.counts.hung_up += 1
                        continue
            if not await reading:
                if self._answers.stopping_since is not None:
                    return
                await asyncio.sleep(draw.random() * 0.2)

    async def _read(self, asked: Asked) -> bool:
        """Send one request.  Return whether it got a response."""
        query = {"offset": str(asked.offset), "min_bytes": str(asked.min_bytes), "max_wait": str(asked.max_wait)}
        try:
            async with self._session.get(f"{self._url}/topics/{asked.topic}", params=query) as response:
                answer = await response.json()
                now = time.perf_counter()
        except (aiohttp.ClientError, OSError) as error:
            self._answers.cut_off(asked, error)
            return False
        if response.status != 200:
            self._answers.turned_away(asked, response.status, response.headers.get("Retry-After"))
            return False
        self._answers.answered(asked, answer, now)
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
                self._answers.cut_off(None, error)
                return
            if response.status == 201:
                self._answers.posted(topic, answer["offset"], body, time.perf_counter())
            elif self._answers.stopping_since is None:
                self._answers.complain(f"a writer got status {response.status}: {answer}")
            else:
                return


async def _rest(run: ServerRun, server: ServerProcess, session: aiohttp.ClientSession) -> dict[str, int]:
    """Pause: wait until the server has detected all disconnects, and compare the counters."""
    end = time.perf_counter() + _NOTICE
    while True:
        async with session.get(f"{server.url}/stats") as response:
            statistics: dict[str, int] = await response.json()
        if not statistics["parked"] or time.perf_counter() > end:
            break
        await asyncio.sleep(0.02)
    run.answers.check_at_rest(statistics)
    run.memory.append(server.rss())
    return statistics


async def _live(plan: Plan, run: ServerRun, server: ServerProcess, seconds: float, draw: random.Random) -> None:
    """Alternate load and pauses, and stop the server under load.

    In every second phase, and in the last one, no client disconnects.  In these phases, the counters must match
    exactly.
    """
    answers = run.answers
    # Clients close idle connections before the server does (after 5 s), so no request uses a closing connection.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1.0)
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    load = seconds / (plan.rests + 1)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        before = await _rest(run, server, session)
        run.memory.clear()  # the server was idle until now
        for number in range(plan.rests):
            counts = replace(answers.counts)
            hang_up = 0.3 if number % 2 == 0 else 0.0
            await Clients(plan, server, session, answers).load(load, draw, hang_up=hang_up)
            after = await _rest(run, server, session)
            if not hang_up:
                answers.check_exactly(before, after, counts)
            before = after
        counts = replace(answers.counts)
        run.exit_report = await _end(Clients(plan, server, session, answers), server, load, draw)
    after = run.exit_report.statistics
    if (
        run.exit_report.exit_code or not after or len(server.output) != 2
    ):  # the line at the start and the line at the end
        answers.complain(f"the server ended with {run.exit_report.exit_code} and said {''.join(server.output)[-2000:]}")
    if not after:
        return
    if run.exit_report.seconds > _NOTICE / 2:
        answers.complain(f"the server took {run.exit_report.seconds:.1f} s to end")
    answers.check_exactly(before, after, counts)
    answers.check_at_rest(after)
    if run.memory[-1] - run.memory[0] > _ALLOWED_GROWTH:
        answers.complain(f"memory grew: {[round(rss / _MIB, 1) for rss in run.memory]} MiB")


async def _end(clients: Clients, server: ServerProcess, seconds: float, draw: random.Random) -> ExitReport:
    load = asyncio.create_task(clients.load(seconds + 1.0, draw, stay=0.5))
    try:
        await asyncio.sleep(seconds)
        clients.stopping()
        return await server.stop()
    finally:
        await load


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
            port = server.url.rpartition(":")[2]  # the next server uses the same port
            run = ServerRun(number)
            left = max(end - time.perf_counter(), 1.0)
            await _live(plan, run, server, left if left < 1.5 * plan.restart_every else plan.restart_every, draw)
        print(run.row(), flush=True)
        wrong += [f"run {number}: {complaint}" for complaint in run.answers.wrong]
        lateness += run.answers.lateness
        requests += run.answers.counts.requests
    if lateness:
        print(f"timed out   {quantiles(lateness)} after the deadline, as the client saw it")
    print(f"requests    {requests} from {plan.readers} readers to {number} servers")
    return wrong


def _per_topic(plan: Plan) -> int:
    return max(2, 2 * plan.readers // plan.topics)


def main(arguments: list[str] | None = None) -> int:
    """Run the soak test and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.long_poll.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=600.0, help="duration (%(default)s)")
    parser.add_argument("--restart-every", type=float, default=60.0, help="seconds between restarts (%(default)s)")
    parser.add_argument("--rests", type=int, default=4, help="pauses between two restarts (%(default)s)")
    parser.add_argument("--readers", type=int, default=200, help="concurrent readers (%(default)s)")
    parser.add_argument("--writers", type=int, default=10, help="concurrent writers (%(default)s)")
    parser.add_argument("--topics", type=int, default=20, help="number of topics (%(default)s)")
    parser.add_argument("--rate", type=float, default=100.0, help="messages per second (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="(random)")
    parser.add_argument("--no-uvloop", action="store_true", help="run server and clients on asyncio's event loop")
    given = parser.parse_args(arguments)
    for name in ("seconds", "restart_every", "rests", "readers", "writers", "topics", "rate"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {getattr(given, name)}")
    uvloop = not given.no_uvloop
    options = {name: value for name, value in vars(given).items() if name != "no_uvloop"}
    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory(uvloop=uvloop)) as runner:
        wrong = runner.run(_soak(Plan(uvloop=uvloop, **options)))
    for line in wrong:
        print("WRONG      ", line)
    print(
        "verdict     " + ("failed, see above" if wrong else "every request answered once, counters match, memory flat")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
