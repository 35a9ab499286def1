"""Event loops in threads: how much more work two loops do than one loop does in the same time.

Each thread runs an event loop with a purgatory of its own, parks operations, and completes them through a check, as in
``watching``; the loops share nothing but the package.  The rate counts the steps of all loops until the last one has
finished.  With the GIL, one loop runs at a time.  The second row is computed from the CPU time of a step, which grows
if the loops contend for the memory of the package; it is the rate on otherwise idle cores.  The third row shows the
same loops in two processes, which share nothing at all; it is the most that this machine can do.

Every measurement is a process of its own that loads the package from bytecode files.  CPython 3.13 without the GIL
makes the constants of code immortal only then: in a process that compiles the sources itself, all loops count the
references to the same numbers, and wait for each other.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from statistics import median

from .row import Budget, Row, Scale, Unavailable
from .watching import Fifo

__all__ = ["prepare", "rows"]

SECTION = "threads"
OUTSTANDING = 1_000


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def prepare() -> None:
    """Raise Unavailable on a machine with one core."""
    if (os.cpu_count() or 1) < 2:
        raise Unavailable("two loops need two cores")


def rows(scale: Scale) -> Iterator[Row]:
    """Measure one loop and two loops in turn."""
    steps, repeats = scale.pick(60_000, 20_000), scale.pick(7, 3)
    one, two, apart, compiled_here = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        without = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/nothing", "PYTHONDONTWRITEBYTECODE": "1"}
        _measure(environment, 1, 1, 10)  # writes the bytecode files
        for _ in range(repeats):
            one.append(_measure(environment, 1, 1, steps))
            two.append(_measure(environment, 1, 2, steps))
            apart.append(_measure(environment, 2, 1, steps))
            if not _has_gil():
                compiled_here.append(_measure(without, 1, 2, steps))
    how = "with" if _has_gil() else "without"
    row = _row("park and check, steps of all loops: two loops in two threads", two, one)
    row.budget = None if _has_gil() else Budget.ratio_at_least(1.8)
    row.note = f"the ratio: the rate of two loops divided by that of one, {how} the GIL"
    yield row
    by_cpu = [[(1e9 * loops / cost, cost) for _, cost in found] for loops, found in ((2, two), (1, one))]
    yield _row("the same for each second of CPU time: two loops in two threads", *by_cpu)
    row = _row("the same: two loops in two processes", apart, one)
    row.note = "the ratio: the rate of two processes divided by that of one process"
    yield row
    if compiled_here:
        yield _row("the same without bytecode files: two loops in two threads", compiled_here, one)


def _row(what: str, ours: list[tuple[float, float]], one: list[tuple[float, float]]) -> Row:
    ratios = sorted(mine[0] / single[0] for mine, single in zip(ours, one, strict=True))
    row = Row(SECTION, what, "1/s", median(rate for rate, _ in ours), "one loop", median(rate for rate, _ in one))
    row.ratio, row.low, row.high = median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return row


def _measure(environment: dict[str, str], processes: int, loops: int, steps: int) -> tuple[float, float]:
    """Return the steps per second of all loops, from the first start to the last end, and the nanoseconds of CPU time
    per step."""
    command = [sys.executable, "-m", "benchmarks.threads", str(loops), str(steps)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(processes)
    ]
    pipes = [(process.stdin, process.stdout) for process in started]
    for _, output in pipes:
        assert output is not None
        output.readline()  # ready
    began = time.perf_counter()
    for given, _ in pipes:
        assert given is not None
        given.close()
    cpu = []
    for _, output in pipes:
        assert output is not None
        cpu.append(float(output.readline()))
        output.close()
    took = time.perf_counter() - began
    assert not any(process.wait() for process in started)
    return processes * loops * steps / took, sum(cpu) / (processes * loops * steps) * 1e9


def _run_when_told(loops: int, steps: int) -> None:
    """Run the steps of each loop in a thread as soon as standard input ends, and print the CPU time of all loops."""
    ready, start = threading.Barrier(loops + 1), threading.Event()
    cpu: list[float] = []

    async def run() -> None:
        fifo = Fifo(OUTSTANDING, 1)
        ready.wait()
        start.wait()
        began = time.thread_time()
        fifo.steps(steps)
        cpu.append(time.thread_time() - began)

    threads = [threading.Thread(target=asyncio.run, args=[run()]) for _ in range(loops)]
    for thread in threads:
        thread.start()
    ready.wait()
    print("ready", flush=True)
    sys.stdin.read()
    start.set()
    for thread in threads:
        thread.join()
    print(sum(cpu), flush=True)
    os._exit(0)  # skip the shutdown of the interpreter, which is not measured


if __name__ == "__main__":
    _run_when_told(int(sys.argv[1]), int(sys.argv[2]))
