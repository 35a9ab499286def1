"""Event loops in threads: how much more work two loops do than one loop does in the same time.

Each thread runs an event loop with a purgatory of its own, parks operations, and completes them through a check, as in
``watching``; the loops share nothing but the package.  The rate counts the steps of all loops until the last one has
finished.  With the GIL, one loop runs at a time.  The second row is computed from the CPU time of a step, which grows
if the loops contend for the memory of the package; it is the rate on otherwise idle cores.  The third row shows the
same loops in two processes, which share nothing at all; it is the most that this machine can do.
"""

import asyncio
import os
import subprocess
import sys
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
    one, two, apart = [], [], []
    for _ in range(repeats):
        one.append(_measure(1, steps))
        two.append(_measure(2, steps))
        apart.append(_measure_processes(2, steps) / _measure_processes(1, steps))
    ratios = sorted(double[0] / single[0] for single, double in zip(one, two, strict=True))
    yield Row(
        SECTION,
        "park and check, steps of all loops: two loops in two threads",
        "1/s",
        median([rate for rate, _ in two]),
        "one loop",
        median([rate for rate, _ in one]),
        ratio=median(ratios),
        low=ratios[len(ratios) // 4],
        high=ratios[-1 - len(ratios) // 4],
        budget=None if _has_gil() else Budget.ratio_at_least(1.8),
        note=f"the ratio: the rate of two loops divided by that of one, {'with' if _has_gil() else 'without'} the GIL",
    )
    costs = sorted(2 * single[1] / double[1] for single, double in zip(one, two, strict=True))
    yield Row(
        SECTION,
        "the same for each second of CPU time: two loops in two threads",
        "1/s",
        2e9 / median([cost for _, cost in two]),
        "one loop",
        1e9 / median([cost for _, cost in one]),
        ratio=median(costs),
        low=costs[len(costs) // 4],
        high=costs[-1 - len(costs) // 4],
    )
    apart.sort()
    alone = median([rate for rate, _ in one])
    yield Row(
        SECTION,
        "the same: two loops in two processes",
        "1/s",
        median(apart) * alone,
        "one loop",
        alone,
        ratio=median(apart),
        low=apart[len(apart) // 4],
        high=apart[-1 - len(apart) // 4],
        note="the ratio: the rate of two processes divided by that of one process",
    )


def _measure(loops: int, steps: int) -> tuple[float, float]:
    """Return the steps per second of all loops, and the nanoseconds of CPU time per step."""
    ready = threading.Barrier(loops + 1)
    cpu: list[float] = []

    async def run() -> None:
        fifo = Fifo(OUTSTANDING, 1)
        ready.wait()
        began = time.thread_time()
        fifo.steps(steps)
        cpu.append(time.thread_time() - began)
        await fifo.purgatory.aclose()

    threads = [threading.Thread(target=asyncio.run, args=[run()]) for _ in range(loops)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    return loops * steps / took, sum(cpu) / (loops * steps) * 1e9


def _measure_processes(processes: int, steps: int) -> float:
    """Return the steps per second of all processes, each with one loop, from the first start to the last end."""
    command = [sys.executable, "-m", "benchmarks.threads", str(steps)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    pipes = [(process.stdin, process.stdout) for process in started]
    for _, output in pipes:
        assert output is not None
        output.readline()  # ready
    began = time.perf_counter()
    for given, _ in pipes:
        assert given is not None
        given.close()
    for process, (_, output) in zip(started, pipes, strict=True):
        assert output is not None
        output.read()
        assert process.wait() == 0
    return processes * steps / (time.perf_counter() - began)


async def _run_when_told(steps: int) -> None:
    """Run the steps of one loop as soon as standard input ends."""
    fifo = Fifo(OUTSTANDING, 1)
    print("ready", flush=True)
    sys.stdin.read()
    fifo.steps(steps)
    print("done", flush=True)
    os._exit(0)  # skip the shutdown of the interpreter, which is not measured


if __name__ == "__main__":
    asyncio.run(_run_when_told(int(sys.argv[1])))
