"""The loads of the comparison.  They call only what an older version of the library has, too."""

import asyncio
import gc
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.fifo import TIMEOUT, Fifo
from benchmarks.lateness import RATE, operations_late
from benchmarks.lateness import run as run_late
from benchmarks.measure import cpu, loops, new_loop
from benchmarks.memory import measured
from benchmarks.operations import NoopTask, Request, noop
from benchmarks.row import Unit, quantile
from benchmarks.stall import close, expire
from benchmarks.stall import run as run_stall
from benchmarks.timers import CallLater, OwnTasks
from benchmarks.waiting import Park, WaitUntil
from purgatory import Purgatory, SystemTimer, TimerTask

__all__ = ["LOADS", "Load"]

Sample = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Load:
    """A load.  ``samples``: how many a process takes.  ``prepared``: yields the function that takes one."""

    unit: Unit
    samples: int
    prepared: Callable[[], AbstractContextManager[Sample]]


LOADS: dict[str, Load] = {}


def _load(name: str, unit: Unit = "ns", samples: int = 8) -> Callable[[Callable[[], Iterator[Sample]]], None]:
    def note(prepared: Callable[[], Iterator[Sample]]) -> None:
        LOADS[name] = Load(unit, samples, contextmanager(prepared))

    return note


def _fifo(outstanding: int, keys: int, steps: int) -> None:
    @_load(f"park + check, {outstanding:,} outstanding, {keys} key{'s' * (keys > 1)}")
    def fifo() -> Iterator[Sample]:
        load = Fifo(outstanding, keys)
        yield lambda: load.steps(steps)


for _outstanding, _steps in ((1_000, 4_000), (100_000, 4_000)):
    for _keys in (1, 3, 16):
        _fifo(_outstanding, _keys, _steps // _keys)


def _ended(name: str, end: Callable[[Request], object]) -> None:
    @_load(name)
    def ended() -> Iterator[Sample]:
        room: Purgatory[Any] = Purgatory("ended")
        number = 3_000

        def sample() -> float:
            operations = [Request(TIMEOUT, key) for key in range(number)]
            start = cpu()
            for operation in operations:
                room.try_complete_else_watch(operation, (operation.key,))
            for operation in operations:
                end(operation)
            return (cpu() - start) / number * 1e9

        yield sample


_ended("park + force_complete", lambda operation: operation.force_complete())
_ended("park + cancel", lambda operation: operation.cancel())


@_load("park + check with a threshold, 1,000 waiting on one key")
def _thresholds() -> Iterator[Sample]:
    room: Purgatory[Any] = Purgatory("thresholds")
    number = 1_000

    def sample() -> float:
        operations = [Request(TIMEOUT, "key") for _ in range(number)]
        start = cpu()
        for offset, operation in enumerate(operations):
            room.try_complete_else_watch(operation, {"key": offset + 1})
        for offset, operation in enumerate(operations):
            operation.ready = True
            room.check_and_complete("key", offset + 1)
        return (cpu() - start) / number * 1e9

    yield sample


@_load("a check of a key with 10,000 watchers, of which one is ready, with thresholds")
def _hot_key() -> Iterator[Sample]:
    room: Purgatory[Any] = Purgatory("hot")
    for offset in range(10_000):
        room.try_complete_else_watch(Request(TIMEOUT * 100, "key"), {"key": 1_000_000 + offset})
    number = 1_000

    def sample() -> float:
        spent = 0.0
        for _ in range(number):
            ready = Request(TIMEOUT, "key")
            room.try_complete_else_watch(ready, {"key": 1})
            ready.ready = True
            start = cpu()
            found = room.check_and_complete("key", 1)
            spent += cpu() - start
            assert found == 1
        return spent / number * 1e9

    yield sample


def _in_tasks(name: str, kind: str, make: Callable[[int], Any]) -> None:
    @_load(f"{name}, {kind}")
    def waiting() -> Iterator[Sample]:
        with _loop(kind) as run:
            contender = make(500)
            yield lambda: run(contender.run(5)) * 1e9
            run(contender.close())


@contextmanager
def _loop(kind: str = "asyncio") -> "Iterator[Callable[[Awaitable[Any]], Any]]":
    loop = new_loop(kind)
    try:
        yield loop.run_until_complete
    finally:
        loop.close()


for _kind in loops():
    _in_tasks("a task in park(), completed by a check", _kind, Park)
    _in_tasks("a task in wait_until(), completed by a check", _kind, WaitUntil)


@_load("a task in park() is cancelled")
def _cancelled() -> Iterator[Sample]:
    async def sample() -> float:
        number = 1_000
        async with Purgatory[Any]("cancelled") as room:
            tasks = [asyncio.ensure_future(room.park(Request(TIMEOUT, key), (key,))) for key in range(number)]
            await asyncio.sleep(0)
            start = cpu()
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cost = cpu() - start
            assert all(task.done() for task in tasks)
        return cost / number * 1e9

    with _loop() as run:
        yield lambda: run(sample())


def _timers(name: str, outstanding: int, make: Callable[[Any, SystemTimer], CallLater | OwnTasks]) -> None:
    @_load(f"{name}, {outstanding:,} outstanding")
    def timers() -> Iterator[Sample]:
        loop = new_loop("asyncio")
        timer = SystemTimer()

        async def start() -> None:
            timer.start()

        loop.run_until_complete(start())
        contender = make(loop, timer)
        draw = random.Random(7)
        delays = [draw.randrange(300_000, 900_000) / 1000 for _ in range(max(outstanding, 10_000))]
        contender.fill(delays[:outstanding])
        some = delays[:10_000]
        yield lambda: contender.churn(some) * 1e9
        contender.close()
        loop.run_until_complete(timer.aclose())
        loop.close()


for _size in (10_000, 1_000_000):
    _timers("call_later + cancel", _size, lambda loop, timer: CallLater(loop, timer.call_later))
    _timers("TimerTask, add + cancel", _size, OwnTasks)


def _alone(name: str, add: Callable[[SystemTimer], TimerTask]) -> None:
    @_load(f"{name} of the same, nothing else outstanding")
    def alone() -> Iterator[Sample]:
        async def sample() -> float:
            number = 4_000
            async with SystemTimer() as timer:
                start = cpu()
                for _ in range(number):
                    add(timer).cancel()
                return (cpu() - start) / number * 1e9

        with _loop() as run:
            yield lambda: run(sample())


def _added(timer: SystemTimer) -> TimerTask:
    task = NoopTask(400_000)
    timer.add(task)
    return task


_alone("TimerTask, add + cancel", _added)
_alone("call_later + cancel", lambda timer: timer.call_later(400.0, noop))


@_load("park + expire")
def _expired() -> Iterator[Sample]:
    async def sample() -> float:
        number = 4_000
        async with Purgatory[Any]("expired") as room:
            operations = [Request(0.02, key) for key in range(number)]
            start = cpu()
            for key, operation in enumerate(operations):
                room.try_complete_else_watch(operation, (key % 100,))
            while len(room):
                await asyncio.sleep(0.005)
            return (cpu() - start) / number * 1e9

    with _loop() as run:
        yield lambda: run(sample())


@_load("aclose, for each parked operation")
def _closed() -> Iterator[Sample]:
    async def sample() -> float:
        number = 4_000
        room: Purgatory[Any] = Purgatory("closed")
        async with room:
            for key in range(number):
                room.try_complete_else_watch(Request(TIMEOUT, key), (key % 100,))
            start = cpu()
            await room.aclose()
            return (cpu() - start) / number * 1e9

    with _loop() as run:
        yield lambda: run(sample())


@_load("a full collection, for each of 100,000 parked operations")
def _collected() -> Iterator[Sample]:
    number = 100_000
    room: Purgatory[Any] = Purgatory("collected")
    for key in range(number):
        room.try_complete_else_watch(Request(3600.0, key), (key,))
    gc.collect()

    def sample() -> float:
        start = cpu()
        gc.collect()
        return (cpu() - start) / number * 1e9

    yield sample
    assert len(room) == number


@_load("memory of a parked operation, of 100,000", "bytes", samples=1)
def _memory() -> Iterator[Sample]:
    yield lambda: asyncio.run(measured("operation", 100_000))


def _journals(name: str, *, written: bool) -> None:
    @_load(name)
    def journal() -> Iterator[Sample]:
        from benchmarks.journal import Turns, serve  # needs the extra 'journal'
        from purgatory.journal import Journal

        async def sample() -> float:
            turns = Turns()
            with tempfile.TemporaryDirectory() as folder:
                async with Journal(folder) as journal:
                    await serve([journal] if written else [], 10_000, None, turns, None)
            return turns.costs[0] * 1e9

        with _loop() as run:
            yield lambda: run(sample())


_journals("park + check, without a journal", written=False)
_journals("park + check, with a journal", written=True)


@_load("lateness at 50,000 expiries/s, p99", "ms", samples=2)
def _lateness() -> Iterator[Sample]:
    yield lambda: quantile(run_late("asyncio", operations_late, RATE // 2), 0.99) * 1e3


@_load("the longest turn while 100,000 expire", "ms", samples=2)
def _longest_expire() -> Iterator[Sample]:
    yield lambda: run_stall("asyncio", expire, 100_000).cpu_ms


@_load("the longest turn of aclose() with 100,000 parked", "ms", samples=2)
def _longest_close() -> Iterator[Sample]:
    yield lambda: run_stall("asyncio", close, 100_000).cpu_ms
