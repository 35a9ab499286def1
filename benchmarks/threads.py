"""Event loops in threads: how much more work two loops do than one loop does in the same time.

Each thread runs an event loop with a purgatory of its own, parks operations, and completes them through a check, as in
``watching``; the loops share nothing but the package.  One loop and two loops take turns of a tenth of a second in the
same process, so that a change in the speed of the machine meets both.  The rate counts the steps of all loops until the
last one has finished.  With the GIL, one loop runs at a time.  The second row is computed from the CPU time of a step,
which grows if the loops contend for the memory of the package; it is the rate on otherwise idle cores.  The third row
shows the same loops in two processes, which share nothing at all; it is the most that this machine can do.

Every process loads the package from bytecode files.  CPython 3.13 without the GIL makes the constants of code immortal
only then: in a process that compiles the sources itself, all loops count the references to the same numbers, and wait
for each other.  The last row shows what that costs.
"""

import asyncio
import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import Self

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
    steps, turns = 6_000, scale.pick(80, 20)
    one, two, apart, compiled_here = [], [], [], []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ended:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        without = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/nothing", "PYTHONDONTWRITEBYTECODE": "1"}
        ended.enter_context(_Loops(environment, 1))  # writes the bytecode files
        threads = ended.enter_context(_Loops(environment, 2))
        processes = [ended.enter_context(_Loops(environment, 1, first_core)) for first_core in range(2)]
        compiling = None if _has_gil() else ended.enter_context(_Loops(without, 2))
        for _ in range(turns):
            one.append(_measure([threads], 1, steps))
            two.append(_measure([threads], 2, steps))
            apart.append(_measure(processes, 1, steps))
            if compiling is not None:
                compiled_here.append(_measure([compiling], 2, steps))
    how = "with" if _has_gil() else "without"
    row = _row("park and check, steps of all loops: two loops in two threads", two, one)
    row.budget = None if _has_gil() else Budget.ratio_at_least(1.8)
    row.note = f"the ratio: the rate of two loops divided by that of one, {how} the GIL"
    yield row
    by_cpu = [[(1e9 * loops / cost, cost) for _, cost in found] for loops, found in ((2, two), (1, one))]
    yield _row("the same for each second of CPU time: two loops in two threads", *by_cpu)
    row = _row("the same: two loops in two processes", apart, one)
    row.note = "the ratio: the rate of two processes divided by that of one loop"
    yield row
    if compiled_here:
        yield _row("the same without bytecode files: two loops in two threads", compiled_here, one)


def _row(what: str, ours: list[tuple[float, float]], one: list[tuple[float, float]]) -> Row:
    ratios = sorted(mine[0] / single[0] for mine, single in zip(ours, one, strict=True))
    row = Row(SECTION, what, "1/s", median(rate for rate, _ in ours), "one loop", median(rate for rate, _ in one))
    row.ratio, row.low, row.high = median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return row


def _measure(processes: "list[_Loops]", loops: int, steps: int) -> tuple[float, float]:
    """Run the steps in the given number of loops of each process, all at the same time.

    Return the steps per second of all loops, from the first start to the last end, and the nanoseconds of CPU time per
    step.
    """
    began = time.perf_counter()
    for process in processes:
        process.begin(loops, steps)
    cpu = sum(process.end() for process in processes)
    took = time.perf_counter() - began
    return len(processes) * loops * steps / took, cpu / (len(processes) * loops * steps) * 1e9


class _Loops:
    """A process with event loops in threads, each on a core of its own, which wait until they are told to run."""

    def __init__(self, environment: dict[str, str], loops: int, first_core: int = 0) -> None:
        command = [sys.executable, "-m", "benchmarks.threads", str(loops), str(first_core)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        self.begin(loops, 10)
        self.end()

    def begin(self, loops: int, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{loops} {steps}\n")

    def end(self) -> float:
        """Wait until all loops have finished; return the seconds of CPU time of all of them."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate()


def _serve(loops: int, first_core: int) -> None:
    """For each line with a number of loops and a number of steps on standard input: run the steps in each of so many
    loops, and print the CPU time of all of them."""
    orders: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(loops)]
    used: queue.SimpleQueue[float] = queue.SimpleQueue()

    async def run(number: int, given: "queue.SimpleQueue[int]") -> None:
        with contextlib.suppress(AttributeError):  # Linux only; a tenth of a second is too short to spread the threads
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[(first_core + number) % len(cores)]})
        fifo = Fifo(OUTSTANDING, 1)
        while True:
            steps = given.get()
            began = time.thread_time()
            fifo.steps(steps)
            used.put(time.thread_time() - began)

    for number, given in enumerate(orders):
        threading.Thread(target=asyncio.run, args=[run(number, given)], daemon=True).start()
    for line in sys.stdin:
        active, steps = map(int, line.split())
        for given in orders[:active]:
            given.put(steps)
        print(sum(used.get() for _ in range(active)), flush=True)
    os._exit(0)  # skip the shutdown of the interpreter, which is not measured


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
