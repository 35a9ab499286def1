"""Kafka's own purgatory, from its published jar, compared with ours under the load of ``benchmarks/watching.py``.

One JVM for each collector runs alongside this process from start to end.  This process and the JVMs take turns
running their steps, so other load on the machine affects all of them equally; each process keeps to one core.  A cost
is CPU time: of this thread for ours, and of the whole process for a JVM, because its collector, its compiler, and
Kafka's reaper run in separate threads on the same core.  This process collects its garbage in the measured thread.

The mean includes every round; the best is the cheapest round.  The JVM's JIT compiler has warmed up on every shape
before the first round that counts.

Ours is a class of the user's own, with three interpreted methods; the rows of ``wait_value`` are the library's own
operation, with a ``get`` that is not interpreted either.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Self

from benchmarks.fifo import Fifo
from benchmarks.maven import classpath, compile_java, program
from benchmarks.measure import frozen, rounds
from benchmarks.row import Budget, Row, Scale, Unavailable, grouped, quantile
from benchmarks.watching import LibraryFifo

__all__ = ["KAFKA", "prepare", "rows"]

SECTION = "jvm"
KAFKA = "4.4.0"
ARTIFACT = f"org.apache.kafka:kafka-server-common:{KAFKA}"
COLLECTORS = ("SerialGC", "G1GC")
SHAPES = [(outstanding, keys) for outstanding in (1_000, 100_000) for keys in (1, 3)]
SOURCE = Path(__file__).parent / "KafkaPurgatory.java"


def prepare() -> str:
    """Fetch the jars and compile the driver; return the class path.  Raise Unavailable if that is not possible here."""
    if sys.platform != "linux":
        raise Unavailable("the CPU time of another process, and its core, are read and set on Linux only")
    program("java")
    path = classpath(ARTIFACT)
    return os.pathsep.join([str(compile_java(SOURCE, path)), path])


class Jvm:
    """A JVM that runs the driver; ``steps`` makes it run steps and returns their cost."""

    def __init__(self, path: str, collector: str, core: int) -> None:
        heap = ["-Xms1g", "-Xmx1g", f"-XX:+Use{collector}"]
        command = [program("java"), *heap, "-cp", path, SOURCE.stem]
        pinned = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})  # a child inherits the affinity, so the JVM sees one core
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
            )
        finally:
            os.sched_setaffinity(0, pinned)
        self.pid = self._process.pid
        # The id of the clock for the process's CPU time, as clock_getcpuclockid(3) returns it on Linux.
        self._clock = (~self.pid << 3) | 2

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):  # the JVM has ended before reading everything
            self._pipe(self._process.stdin).close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe(self._process.stdout).close()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def steps(self, shape: tuple[int, int], number: int) -> float:
        """Run ``number`` steps; return the nanoseconds of CPU time per step.

        Operations of the shape whose deadlines have passed since the shape's last turn are replaced before the
        measurement.
        """
        self._do(shape, shape[0])
        start = time.clock_gettime(self._clock)
        done = self._do(shape, number)
        cost = time.clock_gettime(self._clock) - start
        if done != number:
            raise RuntimeError(f"{done} of {number} operations were completed on the JVM")
        return cost / number * 1e9

    def _do(self, shape: tuple[int, int], number: int) -> int:
        """Run ``number`` steps; return how many operations were completed."""
        try:
            self._pipe(self._process.stdin).write(f"{shape[0]} {shape[1]} {number}\n")
            done = self._pipe(self._process.stdout).readline()
        except BrokenPipeError:
            done = ""
        if not done:
            raise RuntimeError(f"the JVM has ended with status {self._process.wait(10)}")
        return int(done)


def rows(scale: Scale) -> Iterator[Row]:
    """Yield the rows of this section.  Raise Unavailable if Maven or a JDK is missing, or if this is not Linux."""
    path = prepare()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    try:
        with ExitStack() as stack:
            jvms = {name: stack.enter_context(Jvm(path, name, cores[-1])) for name in COLLECTORS}
            return iter(asyncio.run(_rows(scale, jvms)))
    finally:
        os.sched_setaffinity(0, cores)


async def _rows(scale: Scale, jvms: dict[str, Jvm]) -> list[Row]:
    # A loop runs, as in a server, so that the purgatories have reapers; it makes no turn during the measurement.
    number, theirs = scale.pick(50_000, 10_000), scale.pick(200_000, 50_000)
    with frozen():
        lines = {shape: Fifo(*shape) for shape in SHAPES}
        library_lines = {shape: LibraryFifo(*shape) for shape in SHAPES}
    for _ in range(scale.pick(8, 4)):
        for jvm in jvms.values():
            for shape in SHAPES:
                jvm.steps(shape, theirs)
    ours: dict[tuple[int, int], list[float]] = {}
    library: dict[tuple[int, int], list[float]] = {}
    peers: dict[str, dict[tuple[int, int], list[float]]] = {name: {} for name in jvms}
    with frozen():
        for shape, line in lines.items():
            contenders: dict[str, Callable[[], float]] = {
                "ours": partial(line.steps, number),
                "library": partial(library_lines[shape].steps, number),
            }
            contenders |= {name: partial(jvm.steps, shape, theirs) for name, jvm in jvms.items()}
            samples = rounds(contenders, scale.pick(15, 5))
            ours[shape] = samples["ours"]
            library[shape] = samples["library"]
            for name in jvms:
                peers[name][shape] = samples[name]
    for line in (*lines.values(), *library_lines.values()):
        await line.purgatory.aclose()
    found = []
    for step, costs, limit in (("park + check", ours, 0.85), ("park + check of wait_value", library, 1.0)):
        for shape in SHAPES:
            outstanding, keys = shape
            what = f"{step}, {grouped(outstanding)} outstanding, {keys} key{'s' * (keys > 1)}"
            for name in jvms:
                found += _pair(what, name, [costs[shape]], [peers[name][shape]])
        mean_of_four = "geometric mean of the four" + step.removeprefix("park + check")
        for name in jvms:
            pair = _pair(mean_of_four, name, list(costs.values()), list(peers[name].values()))
            pair[0].budget = Budget.ratio_at_least(limit)
            found += pair
    return found


def _pair(what: str, collector: str, ours: Sequence[list[float]], theirs: Sequence[list[float]]) -> list[Row]:
    """Return two rows, for the mean and the best of a single cell, or for the geometric means of several cells."""
    peer = f"Kafka {KAFKA}, {collector}"
    mean = Row(SECTION, f"{what}, mean", "ns", _cells(ours, statistics.fmean), peer, _cells(theirs, statistics.fmean))
    best = Row(SECTION, f"{what}, best", "ns", _cells(ours, min), peer, _cells(theirs, min))
    for row in (mean, best):
        assert row.theirs is not None
        row.ratio = row.theirs / row.ours
    by_round = zip(_by_round(ours), _by_round(theirs), strict=True)
    ratios = [peer_cost / own_cost for own_cost, peer_cost in by_round]
    mean.low, mean.high = quantile(ratios, 0.25), quantile(ratios, 0.75)
    return [mean, best]


def _cells(cells: Sequence[list[float]], pick: Callable[[list[float]], float]) -> float:
    return statistics.geometric_mean(pick(costs) for costs in cells)


def _by_round(cells: Sequence[list[float]]) -> list[float]:
    return [statistics.geometric_mean(costs) for costs in zip(*cells, strict=True)]
