"""Event loops in threads: how much more work two loops do than one loop does in the same time.

Each thread runs an event loop with a purgatory of its own, parks operations, and completes them through a check, as in
``watching``; the loops share nothing but the package.  One loop and two loops take turns of a fifth of a second in the
same process, so that a change in the speed of the machine meets both.  The rate is the sum of the rates of all loops in
that time.  With the GIL, one loop runs at a time.

There are two loads: operations of a user's class, and operations of ``wait_value``, which ask a method of the request.
For each, a second row is computed from the CPU time of a step, which grows if the loops contend for the memory
of the package; it is the rate on otherwise idle cores.  Two loops in two processes share nothing at all; their row is
the most that this machine can do.  It and the rows after it have operations of the user's class, except for the row
with a partial.

Without the GIL, the loops of one process can scale and those of the next contend, because CPython's type cache has
collisions in some processes (``type_cache``).  Each row therefore combines turns of several processes, and one more
row shows the loops in processes in which the lookups of the package do not collide.

The objects of a program may be counted by all threads, too: CPython 3.13 without the GIL counts the references to the
class ``functools.partial``, for example.  One row shows ``wait_value`` with a partial in place of the method.

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
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Self

from purgatory import DelayedOperation
from purgatory.core.operation.wait_until import MISSING, value_wait

from .fifo import KEY_SPACE, TIMEOUT, Fifo
from .measure import cpu
from .row import Budget, Row, Scale, Unavailable
from .type_cache import available, names_by_type, spread
from .watching import LibraryFifo

__all__ = ["prepare", "rows"]

SECTION = "threads"
OUTSTANDING = 1_000
TURN = 0.2  # seconds
_AT_ONCE = 100  # steps between two looks at the clock


class _Job:
    """What a request waits for, in a user's program."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: bool | None = None

    def result(self) -> bool | None:
        return self.outcome


class _JobFifo(Fifo):
    """The same with the operation of ``wait_value``, which asks a job for its result."""

    def __init__(self, outstanding: int, keys: int) -> None:
        self.jobs: deque[_Job] = deque()
        super().__init__(outstanding, keys, self._make)

    def _make(self, timeout: float, _: Any) -> DelayedOperation[Any]:
        job = _Job()
        self.jobs.append(job)
        wait: DelayedOperation[Any] = value_wait(self.purgatory.timer, job.result, timeout, MISSING, None, None)
        return wait

    def steps(self, number: int) -> float:
        """Run ``number`` steps; return the nanoseconds of CPU time per step."""
        jobs, first, all_keys, timer = self.jobs, self.number, self.keys, self.purgatory.timer
        watch, check = self.purgatory.try_complete_else_watch, self.purgatory.check_and_complete
        outstanding = len(jobs)
        done = 0
        start = cpu()
        for index in range(first, first + number):
            job = _Job()
            watch(value_wait(timer, job.result, TIMEOUT, MISSING, None, None), all_keys[index % KEY_SPACE])
            jobs.append(job)
            jobs.popleft().outcome = True
            done += check(all_keys[(index - outstanding) % KEY_SPACE][0])
        cost = cpu() - start
        assert done == number, f"{done} of {number} operations were completed through their first key"
        self.number += number
        return cost / number * 1e9


_LOADS = {"class": Fifo, "job": _JobFifo, "partial": LibraryFifo, "spread": Fifo}


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def prepare() -> None:
    """Raise Unavailable on a machine with one core."""
    if (os.cpu_count() or 1) < 2:
        raise Unavailable("two loops need two cores")


def rows(scale: Scale) -> Iterator[Row]:
    """Measure one loop and two loops in turn, in several processes one after the other."""
    turns = scale.pick(8, 4)
    one, two, apart, spread_one, spread_two, compiled_here = [], [], [], [], [], []
    job_one, job_two, partial_one, partial_two = [], [], [], []
    medians, spread_medians, job_medians = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        without = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/nothing", "PYTHONDONTWRITEBYTECODE": "1"}
        with _Loops(environment, 1):
            pass  # writes the bytecode files
        for _ in range(scale.pick(10, 2)):
            with contextlib.ExitStack() as ended:
                threads = ended.enter_context(_Loops(environment, 2))
                jobs = ended.enter_context(_Loops(environment, 2, load="job"))
                processes = [ended.enter_context(_Loops(environment, 1, first_core)) for first_core in range(2)]
                more = not _has_gil()
                spreading = ended.enter_context(_Loops(environment, 2, load="spread")) if more and available() else None
                compiling = ended.enter_context(_Loops(without, 2)) if more else None
                partials = ended.enter_context(_Loops(environment, 2, load="partial")) if more else None
                for _ in range(turns):
                    one.append(_measure([threads], 1))
                    two.append(_measure([threads], 2))
                    apart.append(_measure(processes, 1))
                    job_one.append(_measure([jobs], 1))
                    job_two.append(_measure([jobs], 2))
                    if spreading is not None:
                        spread_one.append(_measure([spreading], 1))
                        spread_two.append(_measure([spreading], 2))
                    if compiling is not None:
                        compiled_here.append(_measure([compiling], 2))
                    if partials is not None:
                        partial_one.append(_measure([partials], 1))
                        partial_two.append(_measure([partials], 2))
            medians.append(_median(two[-turns:], one[-turns:]))
            job_medians.append(_median(job_two[-turns:], job_one[-turns:]))
            if spreading is not None:
                spread_medians.append(_median(spread_two[-turns:], spread_one[-turns:]))
    how = "with" if _has_gil() else "without"
    row = _row("park and check, steps of all loops: two loops in two threads", two, one)
    row.budget = None if _has_gil() else Budget.ratio_at_least(1.8)
    row.note = f"the ratio: the rate of two loops divided by that of one, {how} the GIL; {_range(medians)}"
    yield row
    yield _row("the same for each second of CPU time: two loops in two threads", *_by_cpu(two, one))
    row = _row("park and check of wait_value, steps of all loops: two loops in two threads", job_two, job_one)
    row.budget = None if _has_gil() else Budget.ratio_at_least(1.8)
    row.note = _range(job_medians)
    yield row
    yield _row("the same for each second of CPU time, wait_value: two loops in two threads", *_by_cpu(job_two, job_one))
    row = _row("the same: two loops in two processes", apart, one)
    row.note = "the ratio: the rate of two processes divided by that of one loop"
    yield row
    if spread_two:
        row = _row("the same without collisions in the type cache: two loops in two threads", spread_two, spread_one)
        row.note = _range(spread_medians)
        yield row
    if partial_two:
        yield _row("park and check of wait_value with a partial: two loops in two threads", partial_two, partial_one)
    if compiled_here:
        yield _row("the same without bytecode files: two loops in two threads", compiled_here, one)


def _by_cpu(*measured: list[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Yield the rates that two loops and one loop would have on cores that nothing else uses."""
    for loops, found in zip((2, 1), measured, strict=True):
        yield [(1e9 * loops / cost, cost) for _, cost in found]


def _median(ours: list[tuple[float, float]], one: list[tuple[float, float]]) -> float:
    return median(mine[0] / single[0] for mine, single in zip(ours, one, strict=True))


def _range(medians: list[float]) -> str:
    return f"{len(medians)} processes, with medians of {min(medians):.2f}x to {max(medians):.2f}x"


def _row(what: str, ours: list[tuple[float, float]], one: list[tuple[float, float]]) -> Row:
    ratios = sorted(mine[0] / single[0] for mine, single in zip(ours, one, strict=True))
    row = Row(SECTION, what, "1/s", median(rate for rate, _ in ours), "one loop", median(rate for rate, _ in one))
    row.ratio, row.low, row.high = median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return row


def _measure(processes: "list[_Loops]", loops: int) -> tuple[float, float]:
    """Run the given number of loops of each process, all at the same time.

    Return the steps per second of all loops, and the nanoseconds of CPU time per step.
    """
    for process in processes:
        process.begin(loops, TURN)
    found = [process.end() for process in processes]
    return sum(rate for rate, _, _ in found), 1e9 * sum(cpu for _, _, cpu in found) / sum(
        steps for _, steps, _ in found
    )


class _Loops:
    """A process with event loops in threads, each on a core of its own, which wait until they are told to run."""

    def __init__(self, environment: dict[str, str], loops: int, first_core: int = 0, load: str = "class") -> None:
        command = [sys.executable, "-m", "benchmarks.threads", str(loops), str(first_core), load]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        self.begin(loops, 0.0)
        self.end()

    def begin(self, loops: int, seconds: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{loops} {seconds}\n")

    def end(self) -> tuple[float, int, float]:
        """Wait until all loops have finished.  Return their steps per second, their steps, and their CPU seconds."""
        assert self._process.stdout is not None
        rate, steps, cpu = self._process.stdout.readline().split()
        return float(rate), int(steps), float(cpu)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate()


async def _spread() -> None:
    fifo = Fifo(OUTSTANDING, 1)
    fifo.steps(_AT_ONCE)
    spread(names_by_type(lambda: fifo.steps(_AT_ONCE)), "purgatory")


def _serve(loops: int, first_core: int, make: Callable[[int, int], Fifo]) -> None:
    """For each line with a number of loops and a number of seconds on standard input: run so many loops for that time,
    and print their steps per second, their steps, and their CPU seconds."""
    orders: list[queue.SimpleQueue[float]] = [queue.SimpleQueue() for _ in range(loops)]
    done: queue.SimpleQueue[tuple[float, int, float]] = queue.SimpleQueue()

    async def run(number: int, given: "queue.SimpleQueue[float]") -> None:
        with contextlib.suppress(AttributeError):  # Linux only; a fifth of a second is too short to spread the threads
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[(first_core + number) % len(cores)]})
        fifo = make(OUTSTANDING, 1)
        while True:
            seconds = given.get()
            steps, cpu, began = 0, time.thread_time(), time.perf_counter()
            while not steps or time.perf_counter() - began < seconds:
                fifo.steps(_AT_ONCE)
                steps += _AT_ONCE
            done.put((steps / (time.perf_counter() - began), steps, time.thread_time() - cpu))

    for number, given in enumerate(orders):
        threading.Thread(target=asyncio.run, args=[run(number, given)], daemon=True).start()
    for line in sys.stdin:
        active, seconds = line.split()
        for given in orders[: int(active)]:
            given.put(float(seconds))
        print(*map(sum, zip(*[done.get() for _ in range(int(active))], strict=True)), flush=True)
    os._exit(0)  # skip the shutdown of the interpreter, which is not measured


if __name__ == "__main__":
    if sys.argv[3] == "spread":
        asyncio.run(_spread())
    _serve(int(sys.argv[1]), int(sys.argv[2]), _LOADS[sys.argv[3]])
