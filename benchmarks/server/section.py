"""CPU time per request, memory per waiting connection, and the time from a publish to its last answer.

The same Starlette handler waits in five ways.  Each form runs on its own uvicorn server (uvloop, httptools) in a
separate process, whose CPU time and memory are read from outside.  The clients are plain sockets on loopback in this
process.  The servers share one core, and this process has another.  The forms take turns after each pass; if the limit
on open files does not allow the connections of all forms at once, they take turns after each complete run of a server.

At the start of a pass, all clients wait.  A pass publishes the entries one by one.  It publishes an entry only after
all requests completed by the previous entry have been answered.  The answered clients then wait again.  The CPU time
per request covers one long poll and its share of a publish: parse, route, wait, wake, and answer.
"""

import importlib.util
import os
import resource
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.measure import compare
from benchmarks.row import Budget, Row, Scale, Unavailable, Unit, grouped, quantile

from .load import Load, Shape
from .process import ServerProcess

__all__ = [
    "ANSWER",
    "CPU",
    "MEMORY",
    "NAMES",
    "OWN_CPU",
    "Samples",
    "alternating",
    "on_many_keys",
    "ours_of",
    "prepare",
    "require_packages",
    "rows",
    "rows_of",
    "shapes",
]

SECTION = "server"
NAMES = {
    "wait": "purgatory",
    "thresholds": "purgatory, thresholds",
    "event": "asyncio.timeout + Event",
    "event-reader": "timeout + Event + reader task",
    "condition": "timeout + Condition.wait_for",
}
CPU = "CPU per request"
OWN_CPU = "the same without the garbage collector"
ANSWER = "publish to last answer, median"
MEMORY = "memory per waiting connection"
_NEEDED = ("starlette", "uvicorn", "uvloop", "httptools")
_SPARE_FILES = 200
_WARM_UP = 50  # requests that are answered before memory is read


def prepare() -> None:
    """Raise Unavailable if this cannot be measured here."""
    if sys.platform != "linux":
        raise Unavailable("the CPU time and the memory of another process are read on Linux only")
    require_packages()
    _allow_files(max(shape.clients for shape in shapes(Scale())) + _SPARE_FILES)


def require_packages() -> None:
    """Raise Unavailable if a package of the web stack is not installed."""
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise Unavailable(f"{name} is not installed: install the extra 'examples'")


def _allow_files(number: int) -> int:
    """Raise the limit on open files as far as possible; return it, or raise Unavailable if it is below ``number``."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < number:
        raise Unavailable(f"{number} open files are needed, and the limit is {hard}: ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def shapes(scale: Scale) -> list[Shape]:
    """Return the shapes that are measured, the most telling first."""
    return [
        _on_one_key(scale.pick(10_000, 1_000), scale.pick(40, 20)),
        _on_one_key(scale.pick(2_000, 500), scale.pick(100, 50)),
        on_many_keys(scale.pick(2_000, 500), scale.pick(200, 50)),
    ]


def _on_one_key(clients: int, publishes: int) -> Shape:
    name = f"{grouped(clients)} waiting on one key, a publish completes one"
    return Shape(name, clients, keys=1, publishes=publishes, apart=True)


def on_many_keys(clients: int, keys: int) -> Shape:
    """Return a shape in which a publish completes all requests on its key."""
    name = f"{grouped(clients)} waiting on {keys} keys, a publish completes its key"
    return Shape(name, clients, keys=keys, publishes=keys, apart=False)


@dataclass(slots=True)
class Samples:
    """The measurements of one form in one shape, one for each pass; ``memory`` has one for each server run."""

    cpu_us: list[float] = field(default_factory=list)
    own_us: list[float] = field(default_factory=list)  # without the garbage collector
    memory: list[float] = field(default_factory=list)
    median_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    sleeps: list[float] = field(default_factory=list)  # how often the server slept, for each request


class _Life:
    """A server that runs one of the forms, and its clients, all of them waiting."""

    def __init__(self, stack: ExitStack, form: str, shape: Shape, core: int, samples: Samples) -> None:
        self._samples = samples
        self._server = stack.enter_context(ServerProcess(form, core))
        self._load = stack.enter_context(Load(self._server.port, shape))
        self._load.warm_up(_WARM_UP)
        before = self._server.resident()
        self._load.connect()
        stack.callback(self._server.kill)  # before the clients close, so that it does not handle their hang-ups
        samples.memory.append((self._server.resident() - before) / shape.clients)

    def one_pass(self, *, counted: bool, busy: bool = False) -> None:
        """Publish, and let the answered clients wait again.

        ``counted``: record the cost.  ``busy``: publish without waiting for answers; there are no latencies then.
        """
        collector = self._load.collector()
        before = self._server.cpu()
        sleeps = self._server.sleeps()
        latencies = self._load.one_pass(busy=busy)
        sleeps = self._server.sleeps() - sleeps
        cost = self._server.cpu() - before
        collector = self._load.collector() - collector
        if counted:
            shape = self._load.shape
            requests = shape.publishes * shape.completed
            self._samples.cpu_us.append(cost / requests * 1e6)
            self._samples.own_us.append((cost - collector) / requests * 1e6)
            self._samples.sleeps.append(sleeps / requests)
            if latencies:
                self._samples.median_ms.append(statistics.median(latencies) * 1e3)
                self._samples.p99_ms.append(quantile(latencies, 0.99) * 1e3)


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    prepare()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    try:
        for shape in shapes(scale):
            yield from rows_of(shape, _measure(shape, scale, cores[-1]))
    finally:
        os.sched_setaffinity(0, cores)


def alternating(forms: Iterable[str], shape: Shape, passes: int, *, busy: bool) -> dict[str, Samples]:
    """Measure the passes of the forms in turns, in one run of their servers.  Raises Unavailable if that cannot be."""
    samples = {form: Samples() for form in forms}
    _allow_files(len(samples) * shape.clients + _SPARE_FILES)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    try:
        with ExitStack() as stack:
            servers = [_Life(stack, form, shape, cores[-1], samples[form]) for form in samples]
            for number in range(passes + 1):
                for server in servers if number % 2 else reversed(servers):
                    server.one_pass(counted=number > 0, busy=busy)
    finally:
        os.sched_setaffinity(0, cores)
    return samples


def _measure(shape: Shape, scale: Scale, core: int) -> dict[str, Samples]:
    samples = {form: Samples() for form in NAMES}
    # A pass in which a publish wakes every client takes a long time, so there are only a few.
    lives, passes = scale.pick(2, 1), scale.pick(2 if shape.apart else 8, 2)
    files = _allow_files(shape.clients + _SPARE_FILES)
    together = files >= len(samples) * shape.clients + _SPARE_FILES
    for _ in range(lives):
        for forms in [list(samples)] if together else [[form] for form in samples]:
            with ExitStack() as stack:
                servers = [_Life(stack, form, shape, core, samples[form]) for form in forms]
                for number in range(passes + 1):
                    for server in servers:
                        server.one_pass(counted=number > 0)
    return samples


def ours_of(shape: Shape) -> str:
    """Return the name of our form: the one with thresholds if a publish completes one request of many."""
    return NAMES["thresholds" if shape.apart else "wait"]


def rows_of(shape: Shape, samples: dict[str, Samples]) -> list[Row]:
    """Return the rows of one shape."""
    ours = ours_of(shape)

    def compared(what: str, unit: Unit, field: str, limits: Mapping[str, float] = {}) -> list[Row]:
        values = {NAMES[form]: getattr(samples[form], field) for form in NAMES}
        budgets = {NAMES[form]: Budget.ratio_at_least(limit) for form, limit in limits.items()}
        return compare(SECTION, f"{what}, {shape.name}", unit, values, ours=ours, budgets=budgets)

    return [
        *compared(CPU, "us", "cpu_us", _budgets(shape)),
        *compared(OWN_CPU, "us", "own_us"),
        *compared(ANSWER, "ms", "median_ms"),
        *compared("publish to last answer, p99", "ms", "p99_ms"),
        *compared(MEMORY, "bytes", "memory"),
    ]


def _budgets(shape: Shape) -> dict[str, float]:
    """Return the smallest allowed ratio of the CPU time of a form to ours, by form."""
    if shape.apart:
        return {"event": 30.0} if shape.clients == 10_000 else {}
    return {"event-reader": 1 / 0.95, "event": 1 / 1.05}  # ours takes at most 0.95 and 1.05 of theirs
