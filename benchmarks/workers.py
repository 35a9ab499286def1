"""What a second worker brings and costs: one worker, and two with a relay.

A worker is a process with the application of ``server``, as in ``connections``: uvicorn's HTTP protocol, Starlette, and
an in-memory transport for each client, so the CPU time includes the clients but no TCP sockets.  The same number of
requests wait in every form; two workers have half of them each.  The state is a counter for each key in shared memory,
so the relay has no ``refresh``; with a database, its reads come on top, in both forms.  The forms:

=============================  =====================================================================================
one worker                     a purgatory without a relay
one worker with a relay        ``UnixTransport``, although there is no other worker
two workers, UnixTransport     the requests of each key wait in both workers; each worker publishes half of the keys
two workers, Redis             the same; the CPU time includes the server
=============================  =====================================================================================

If a publish completes only one request, that request waits in the publishing worker for half of the keys, and in the
other worker for the other half.

**Rate**: in a pass, the workers publish once on every key, each as fast as it can, and the pass ends when all requests
have been answered and wait again.  A worker publishes on its next key when its own requests on the previous key have
been answered; it does not wait for the other worker, so the relay combines keys as it does under any full load.  The
rate is the number of answers of all workers, divided by the time of the pass.

**Latency**: the same with pauses, 500 publishes a second in all, each of which completes one request.  The time is from
just before the publish until the first byte of the response, measured with a clock that both processes share.

The forms take turns after every pass, so a change in the speed of the machine meets all of them.  Nothing is pinned to
a core.  On a machine with two cores, two workers, the Redis server, and the measuring process, which sleeps during a
pass, share these cores: the server's part then lowers the rate of the form with Redis.  Compare the CPU time
per answer, too.

The garbage collector is on.  It visits all requests of its process, so it costs less per answer if two workers share
them.  The rows ``without the collector`` show the CPU time of the remaining work, the relay's included.
"""

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

from purgatory.asgi import purgatory_lifespan
from purgatory.relay import Relay, Transport
from tests.relay.engines import ENGINES, Engine

from .connections import Client
from .measure import compare
from .row import Row, Scale, Unavailable, quantile
from .server.app import Collector, Topic, WithThresholds, make_app
from .server.process import cpu_of
from .server.section import require_packages

__all__ = ["REDIS", "RELAYED", "UNIX", "Shape", "missing_redis", "prepare", "rows", "shapes"]

SECTION = "workers"
ONE = "one worker"
RELAYED = "one worker with a relay"
UNIX = "two workers, UnixTransport"
REDIS = "two workers, Redis"
_PAUSE = 0.002  # seconds between two publishes of all workers, on average, while latency is measured
_READY = 30.0  # seconds until the relays of two workers have found each other


class Shape(NamedTuple):
    """Some keys, and the number of requests that wait on each of them, in all workers together."""

    first: int
    keys: int
    answers: int


def shapes(scale: Scale) -> list[Shape]:
    """Return the shape for latency, and then those for the rate: as many requests on fewer and fewer keys."""
    waiting = scale.pick(2_000, 400)
    found = [Shape(0, scale.pick(200, 80), 1)]
    for answers in (1, 10, 100):
        found.append(Shape(found[-1].first + found[-1].keys, waiting // answers, answers))
    return found


def prepare() -> None:
    """Raise Unavailable if this cannot be measured here."""
    if sys.platform != "linux":
        raise Unavailable("the CPU time of another process is read on Linux only")
    if len(os.sched_getaffinity(0)) < 2:
        raise Unavailable("two workers need two cores")
    if reason := ENGINES["unix"].missing():
        raise Unavailable(reason)
    require_packages()


def missing_redis() -> str | None:
    """Return the reason why the form with Redis cannot be measured here, or None."""
    if importlib.util.find_spec("redis") is None:
        return "redis is not installed: install the extra 'redis'"
    return ENGINES["redis"].missing()


class _Samples:
    """The measurements of one form, one for each pass; the rates and the costs are listed by shape."""

    def __init__(self, shapes: int) -> None:
        self.rates: list[list[float]] = [[] for _ in range(shapes)]  # answers per second
        self.cpu_us: list[list[float]] = [[] for _ in range(shapes)]  # per answer
        self.own_us: list[list[float]] = [[] for _ in range(shapes)]  # the same without the garbage collector
        self.same_us: list[list[float]] = []  # all latencies of each pass, within a worker
        self.across_us: list[list[float]] = []  # and from one worker to the other


def rows(scale: Scale) -> Iterator[Row]:
    """Measure all forms in turn."""
    turns, paced, missing = scale.pick(30, 4), scale.pick(20, 2), missing_redis()
    slow, *fast = measured = shapes(scale)
    with contextlib.ExitStack() as ended:
        folder = Path(ended.enter_context(tempfile.TemporaryDirectory(prefix="workers-")))
        unix = ended.enter_context(_running("unix"))
        forms = {
            ONE: ended.enter_context(_Form(folder / "one", measured, 1)),
            RELAYED: ended.enter_context(_Form(folder / "relayed", measured, 1, unix)),
            UNIX: ended.enter_context(_Form(folder / "unix", measured, 2, unix)),
        }
        if missing is None:
            redis = ended.enter_context(_running("redis"))
            forms[REDIS] = ended.enter_context(_Form(folder / "redis", measured, 2, redis))
        for form in forms.values():
            form.wait_until_ready()
        samples = {name: _Samples(len(fast)) for name in forms}
        for turn in range(turns + 1):  # the first one warms up
            for index, shape in enumerate(fast):
                for name, form in forms.items():
                    rate, cost, own = form.measure(index + 1, shape)
                    if turn:
                        samples[name].rates[index].append(rate)
                        samples[name].cpu_us[index].append(cost)
                        samples[name].own_us[index].append(own)
        for turn in range(paced + 1):
            for name, form in forms.items():
                same, across = form.latencies()
                if turn:
                    samples[name].same_us.append(same)
                    samples[name].across_us.append(across)
    found = [*_rates(fast, samples), *_latencies(slow, samples)]
    if missing is not None:
        found[-1].note = f"{REDIS}: not measured: {missing}"
    yield from found


@contextlib.contextmanager
def _running(name: str) -> Iterator[Engine]:
    engine = ENGINES[name]()
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def _named(shape: Shape) -> str:
    return f"{shape.answers} per publish"


def _rates(fast: list[Shape], samples: dict[str, _Samples]) -> Iterator[Row]:
    for index, shape in enumerate(fast):
        for name in list(samples)[1:]:
            ours, one = samples[name].rates[index], samples[ONE].rates[index]
            ratios = [mine / single for mine, single in zip(ours, one, strict=True)]
            row = Row(SECTION, f"answers, {_named(shape)}: {name}", "1/s", statistics.median(ours), ONE)
            row.theirs, row.ratio = statistics.median(one), statistics.median(ratios)
            row.low, row.high = quantile(ratios, 0.25), quantile(ratios, 0.75)
            row.note = "the ratio of answers per second: the rate of this form divided by that of one worker"
            yield row
    for what, of in (("CPU per answer", attrgetter("cpu_us")), ("without the collector", attrgetter("own_us"))):
        for index, shape in enumerate(fast):
            for name in list(samples)[1:]:
                costs = {form: of(samples[form])[index] for form in (name, ONE)}
                yield from compare(SECTION, f"{what}, {_named(shape)}: {name}", "us", costs, ours=name)


def _latencies(slow: Shape, samples: dict[str, _Samples]) -> Iterator[Row]:
    one = samples[ONE].same_us
    for fraction, text in ((0.5, "p50"), (0.99, "p99")):
        for name in list(samples)[1:]:
            for where, passes in (
                ("in the same worker", samples[name].same_us),
                ("across workers", samples[name].across_us),
            ):
                if not any(passes):
                    continue
                what = f"answer {where}, {text}: {name}"
                ours, theirs = (quantile(list(chain.from_iterable(each)), fraction) for each in (passes, one))
                row = Row(SECTION, what, "us", ours, ONE, theirs, theirs / ours)
                if fraction == 0.5:  # a pass has too few publishes for a p99 of its own
                    pairs = zip(passes, one, strict=True)
                    ratios = [quantile(single, fraction) / quantile(mine, fraction) for mine, single in pairs]
                    row.ratio, row.low, row.high = (quantile(ratios, each) for each in (0.5, 0.25, 0.75))
                yield row


# The measuring process


class _Form:
    """The workers of one form, all of whose requests wait."""

    def __init__(self, file: Path, measured: list[Shape], workers: int, engine: Engine | None = None) -> None:
        file.write_bytes(bytes(16 * sum(shape.keys for shape in measured)))
        self._workers: list[subprocess.Popen[str]] = []
        for number in range(workers):
            settings = {
                "file": str(file),
                "shapes": measured,
                "number": number,
                "workers": workers,
                "engine": None if engine is None else engine.name,
                "url": None if engine is None else engine.url,
                "channel": f"{file.stem}-{os.getpid()}",
            }
            command = [sys.executable, "-m", "benchmarks.workers", json.dumps(settings)]
            self._workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        self._pids = [process.pid for process in self._workers]
        if engine is not None and engine.process is not None:  # not a server that runs elsewhere
            self._pids.append(engine.process.pid)

    def wait_until_ready(self) -> None:
        """Return when all requests wait, and the workers are connected."""
        for process in self._workers:
            _line(process)

    def measure(self, index: int, shape: Shape) -> tuple[float, float, float]:
        """Publish on each key once.

        Return the answers per second, and the microseconds of CPU time per answer with and without the collector.
        """
        answers = shape.keys * shape.answers
        cpu, began = self._cpu(), time.perf_counter()
        found = self._one_pass(index, 0.0)
        took = time.perf_counter() - began
        cpu = self._cpu() - cpu
        own = cpu - sum(each["collector"] for each in found)
        return answers / took, cpu / answers * 1e6, own / answers * 1e6

    def latencies(self) -> tuple[list[float], list[float]]:
        """Publish with pauses; return the latencies within a worker, and from one to the other, in microseconds."""
        found = self._one_pass(0, _PAUSE * len(self._workers))
        same, across = ([value for each in found for value in each[kind]] for kind in ("same", "across"))
        return same, across

    def _one_pass(self, index: int, pause: float) -> list[dict[str, Any]]:
        for process in self._workers:
            assert process.stdin is not None
            process.stdin.write(json.dumps([index, pause]) + "\n")
            process.stdin.flush()
        return [json.loads(_line(process)) for process in self._workers]

    def _cpu(self) -> float:
        return sum(map(cpu_of, self._pids))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for process in self._workers:
            process.communicate()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker ended with status {process.wait()}")
    return line


# A worker


class _SharedTopic(Topic):
    """A topic whose number of entries is in memory that all workers share."""

    def __init__(self, ends: memoryview, number: int) -> None:  # without an event and a condition
        self._ends = ends
        self._number = number

    @property
    def end(self) -> int:
        return self._ends[self._number]

    @end.setter
    def end(self, value: int) -> None:
        self._ends[self._number] = value


class _Shared(WithThresholds):
    """The form of ``server`` with thresholds, its state in shared memory, and with or without a relay."""

    def __init__(self, ends: memoryview, transport: Transport | None) -> None:
        super().__init__()
        self.topics.update({str(number): _SharedTopic(ends, number) for number in range(len(ends))})
        self.purgatory = self.room
        self.relay: Relay | None = None
        if transport is not None:
            self.relay = Relay(self.room, transport)
            self.room = self.relay  # type: ignore[assignment]
            self.lifespan = purgatory_lifespan(self.relay)

    async def wake(self, key: str, topic: Topic) -> None:
        if self.relay is None:
            self.purgatory.check_and_complete(key, topic.end)
        else:
            self.relay.check(key, topic.end)


class _Waiting(Client):
    """A client that sends its next request as soon as it has the answer."""

    __slots__ = ("_worker", "key")

    def __init__(self, worker: "_Worker", key: int) -> None:
        super().__init__()
        self._worker = worker
        self.key = key

    def write(self, data: bytes) -> None:
        if not self.answered:  # the body may follow in another write
            self.answered = True
            self._worker.answered(self, data)


class _Worker:
    """A process that serves its part of the requests, and publishes on its part of the keys."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._shapes = [Shape(*shape) for shape in settings["shapes"]]
        self._number, self._workers = settings["number"], settings["workers"]
        with Path(settings["file"]).open("r+b") as file:
            shared = memoryview(mmap.mmap(file.fileno(), 0))
        half = len(shared) // 2
        self._ends, self._published = shared[:half].cast("q"), shared[half:].cast("d")
        transport = None
        if settings["engine"] is not None:
            engine = ENGINES[settings["engine"]]()
            engine.given = settings["url"]
            transport = engine.transport(settings["channel"])
        self._form = _Shared(self._ends, transport)
        self._local = [0] * len(self._ends)  # how many of this worker's requests wait on the key
        self._left = [0] * len(self._ends)  # how many of those have no answer to the present entry yet
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._same: list[float] = []
        self._across: list[float] = []

    async def run(self) -> None:
        """Connect the clients, and then obey standard input until it ends."""
        import uvicorn
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
        from uvicorn.server import ServerState

        app = make_app(self._form)
        options: dict[str, Any] = {"http": "httptools", "ws": "none", "lifespan": "off", "log_level": "critical"}
        config = uvicorn.Config(app, access_log=False, timeout_keep_alive=3600, **options)
        config.load()
        state, self._loop = ServerState(), asyncio.get_running_loop()
        assert self._form.lifespan is not None
        lifespan = self._form.lifespan(app)  # the reference keeps the purgatory and the relay open
        await lifespan.__aenter__()
        for shape in self._shapes:
            for key in range(shape.first, shape.first + shape.keys):
                for place in range(shape.answers):
                    if (key // self._workers + place) % self._workers == self._number:
                        client = _Waiting(self, key)
                        client.protocol = HttpToolsProtocol(config, state, {}, self._loop)
                        client.protocol.connection_made(client)
                        self._ask(client)
                        self._local[key] += 1
        await self._all_wait()
        await self._connected()
        gc.collect()
        gc.freeze()  # as in ``connections``
        collector = Collector()
        print("ready", flush=True)
        while line := await self._loop.run_in_executor(None, sys.stdin.readline):
            index, pause = json.loads(line)
            before = collector.seconds
            await self._one_pass(self._shapes[index], pause)
            latencies = {"same": self._same, "across": self._across} if pause else {}
            print(json.dumps({"collector": collector.seconds - before, **latencies}), flush=True)

    async def _connected(self) -> None:
        relay = self._form.relay
        if relay is not None:
            async with asyncio.timeout(_READY):
                while not relay.connected or relay.statistics().peers < self._workers - 1:
                    relay.check("here")  # the other worker counts the relays from which it has heard
                    await asyncio.sleep(0.01)

    async def _one_pass(self, shape: Shape, pause: float) -> None:
        keys = range(shape.first, shape.first + shape.keys)
        pauses = random.Random(self._number)  # the workers do not publish in step
        for key in keys:
            self._left[key] = self._local[key]
        self._unanswered += sum(self._local[key] for key in keys)
        self._all_answered.clear()
        self._same, self._across = [], []
        for key in keys[(self._number - keys.start) % self._workers :: self._workers]:
            topic = self._form.topics[str(key)]
            self._published[key] = time.monotonic()
            topic.end += 1
            await self._form.wake(str(key), topic)
            await asyncio.sleep(pauses.uniform(0.0, 2 * pause) if pause else 0.0)
            while self._left[key]:
                await asyncio.sleep(0)
        await self._all_answered.wait()
        await self._all_wait()

    async def _all_wait(self) -> None:
        while len(self._form.purgatory) < sum(self._local):
            await asyncio.sleep(0)

    def _ask(self, client: _Waiting) -> None:
        client.answered = False
        target = b"/topics/%d?after=%d" % (client.key, self._ends[client.key])
        client.protocol.data_received(b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % target)

    def answered(self, client: _Waiting, data: bytes) -> None:
        """Count the answer, and let the client wait again in the next turn of the loop."""
        assert data.startswith(b"HTTP/1.1 200 "), data
        key = client.key
        mine = key % self._workers == self._number
        (self._same if mine else self._across).append((time.monotonic() - self._published[key]) * 1e6)
        self._left[key] -= 1
        self._unanswered -= 1
        if not self._unanswered:
            self._all_answered.set()
        self._loop.call_soon(self._ask, client)


def _serve() -> None:
    async def run() -> None:
        await _Worker(json.loads(sys.argv[1])).run()
        os._exit(0)  # do not answer the requests that are still waiting

    importlib.import_module("uvloop").run(run())


if __name__ == "__main__":
    _serve()
