"""Resident memory per parked operation, and the time to import the package; each is measured in a separate process.

``python -m benchmarks.memory KIND NUMBER`` parks ``NUMBER`` operations, each on its own key, and prints the bytes of
resident memory (RSS) per operation: the operation, its watcher, its link in a bucket, the key, and the key's entry in
the dict.  The keys are ints.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from purgatory import Purgatory, SystemTimer

from .measure import loops, new_loop
from .operations import NoopTask, Request, RequestWithDict, noop
from .row import Budget, Row, Scale, grouped, quantile

__all__ = ["measured", "rows"]

SECTION = "memory"
FAR = 3600.0


def resident() -> int:
    """Return the resident bytes of this process or, on a system without ``/proc``, the maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * resource_page_size()


def resource_page_size() -> int:
    """Return the size of one memory page in bytes."""
    import resource

    return resource.getpagesize()


@asynccontextmanager
async def _parked(number: int, make: Callable[..., Any] = Request) -> AsyncIterator[Any]:
    purgatory: Purgatory[Any] = Purgatory("memory")
    for key in range(number):
        purgatory.try_complete_else_watch(make(FAR, key), (key,))
    yield purgatory
    assert len(purgatory) == number


@asynccontextmanager
async def _parked_with_dict(number: int) -> AsyncIterator[Any]:
    async with _parked(number, RequestWithDict) as purgatory:
        yield purgatory


@asynccontextmanager
async def _timer_tasks(number: int) -> AsyncIterator[Any]:
    timer = SystemTimer()
    for _ in range(number):
        timer.add(NoopTask(3_600_000))
    yield timer
    assert timer.size == number


@asynccontextmanager
async def _loop_timers(number: int) -> AsyncIterator[Any]:
    loop = asyncio.get_running_loop()
    handles = [loop.call_later(FAR, noop) for _ in range(number)]
    yield handles
    for handle in handles:
        handle.cancel()


async def _waits(purgatory: Purgatory[Any], key: int) -> None:
    await purgatory.park(Request(FAR, key), (key,))


async def _waits_for_event(events: dict[int, asyncio.Event], key: int) -> None:
    event = events[key] = asyncio.Event()
    async with asyncio.timeout(FAR):
        await event.wait()


@asynccontextmanager
async def _tasks(number: int) -> AsyncIterator[Any]:
    purgatory: Purgatory[Any] = Purgatory("memory")
    tasks = [asyncio.create_task(_waits(purgatory, key)) for key in range(number)]
    await asyncio.sleep(0)
    yield tasks
    assert len(purgatory) == number
    await _cancel(tasks)


@asynccontextmanager
async def _event_tasks(number: int) -> AsyncIterator[Any]:
    events: dict[int, asyncio.Event] = {}
    tasks = [asyncio.create_task(_waits_for_event(events, key)) for key in range(number)]
    await asyncio.sleep(0)
    yield tasks
    assert len(events) == number
    await _cancel(tasks)


async def _cancel(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


KINDS: dict[str, Callable[[int], Any]] = {
    "operation": _parked,
    "operation-with-dict": _parked_with_dict,
    "timer-task": _timer_tasks,
    "call-later": _loop_timers,
    "task-in-park": _tasks,
    "task-with-event": _event_tasks,
}


async def measured(kind: str, number: int) -> float:
    async with KINDS[kind](1_000):
        pass  # makes the one-time allocations
    gc.collect()
    gc.disable()
    before = resident()
    async with KINDS[kind](number):
        return (resident() - before) / number


def _apart(kind: str, number: int, loop: str = "asyncio") -> float:
    command = [sys.executable, "-m", "benchmarks.memory", kind, str(number), "--loop", loop]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(finished.stdout))


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    number = scale.pick(1_000_000, 100_000)
    at = f"of {grouped(number)}, one key each"
    plain = Row(SECTION, f"a parked operation that no task awaits, {at}", "bytes", _apart("operation", number))
    plain.budget = Budget.at_most_value(280, compiled_only=True)
    yield plain
    yield _beside("the same", plain.ours, "a subclass without __slots__", _apart("operation-with-dict", number))
    task = _apart("timer-task", number)
    for loop in loops():
        yield _beside("a TimerTask on the timer", task, f"{loop} call_later", _apart("call-later", number, loop))
    few = number // 10
    parked, event = _apart("task-in-park", few), _apart("task-with-event", few)
    what = f"a task in park(), of {grouped(few)}, one key each"
    yield _beside(what, parked, "a task in asyncio.timeout + Event", event)
    yield from _imports(scale)


def _beside(what: str, ours: float, peer: str, theirs: float) -> Row:
    return Row(SECTION, what, "bytes", ours, peer, theirs, theirs / ours)


_IMPORT = "import sys,time,{before};start=time.perf_counter();import {module};print((time.perf_counter()-start)*1e3)"


def _imports(scale: Scale) -> Iterator[Row]:
    """Measure ``import purgatory`` from cached bytecode, in a program that has already imported asyncio."""
    modules = {"purgatory": "asyncio", "anyio": "asyncio", "asyncio": "os"}
    costs: dict[str, list[float]] = {name: [] for name in modules}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        for number in range(scale.pick(9, 3) + 1):  # the first run writes the bytecode and does not count
            for module, before in modules.items():
                command = [sys.executable, "-c", _IMPORT.format(module=module, before=before)]
                finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                if number:
                    costs[module].append(float(finished.stdout))
    own = costs["purgatory"]
    for peer in ("anyio", "asyncio"):
        ratios = [theirs / mine for mine, theirs in zip(own, costs[peer], strict=True)]
        row = Row(SECTION, "import purgatory, asyncio being there", "ms", statistics.median(own), f"import {peer}")
        row.theirs, row.ratio = statistics.median(costs[peer]), statistics.median(ratios)
        row.low, row.high = quantile(ratios, 0.25), quantile(ratios, 0.75)
        yield row


def main() -> None:
    """Print the bytes per item of one kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("number", type=int)
    parser.add_argument("--loop", choices=loops(), default="asyncio")
    options = parser.parse_args()
    loop = new_loop(options.loop)
    try:
        print(loop.run_until_complete(measured(options.kind, options.number)))
    finally:
        loop.close()


if __name__ == "__main__":
    main()
