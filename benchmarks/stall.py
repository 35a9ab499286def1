"""The longest turn of the loop while very many operations end at once.

A callback that schedules itself again runs in every turn of the loop and records the longest turn, in the thread's CPU
time and in wall-clock time.  The budget is for the CPU time.  The wall-clock time also includes the time that other
processes take; ``an idle loop`` is the same measurement with nothing to do.  The ways to end:

``expire``    all deadlines lie at one instant.  Peers: as many ``call_at`` timers of asyncio and uvloop at one instant.
``close``     ``aclose()`` while all are parked; it answers all operations.  The event loops have no such call.
``remove``    ``aclose()`` of a timer that holds them all: plain timer tasks with deadlines spread over an hour.
``one operation``  on a tenth as many keys is completed.  Peer: a plain dict with as many keys, which maps each to an
              object of its own, loses all of them one after another, which frees the objects.
``for key``   ``acancel_for_key`` for one key with a tenth as many operations.
``withdraw``  the operations are cancelled, 1,000 in each turn of the loop, as if clients disconnected.  Peers: as many
              timer handles, cancelled in the same portions; asyncio rebuilds its heap when half of it is cancelled.

The purgatory runs on the loop.  No task awaits the operations: their callback is the answer.  Objects that exist when
the measurement begins are excluded from garbage collection (``gc.freeze``); ``collector`` measures that cost.
"""

import asyncio
import gc
import random
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from purgatory import Purgatory, SystemTimer, TimerTask

from .measure import cpu, frozen, loops, new_loop
from .operations import Request, noop
from .row import Budget, Row, Scale, grouped, quantile

__all__ = ["TurnMonitor", "close", "expire", "rows", "run"]

SECTION = "stall"
PORTION = 1_000
MARGINS = (3, 9, 27)  # factors for the time until the deadlines, tried in this order until all are parked in time


@dataclass(slots=True)
class Turn:
    """The longest turn by each clock; the two need not be the same turn."""

    wall_ms: float
    cpu_ms: float


class TurnMonitor:
    """Record the longest turn of the running loop, from ``start()`` to ``stop()``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = False
        self._wall = 0.0
        self._cpu = 0.0
        self.longest = Turn(0.0, 0.0)

    def start(self) -> None:
        self._running = True
        self._wall, self._cpu = time.perf_counter(), cpu()
        self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._running = False

    def _turn(self) -> None:
        wall, own = time.perf_counter(), cpu()
        longest = self.longest
        if wall - self._wall > longest.wall_ms / 1e3 or own - self._cpu > longest.cpu_ms / 1e3:
            longest.wall_ms = max(longest.wall_ms, (wall - self._wall) * 1e3)
            longest.cpu_ms = max(longest.cpu_ms, (own - self._cpu) * 1e3)
        self._wall, self._cpu = wall, own
        if self._running:
            self._loop.call_soon(self._turn)


@asynccontextmanager
async def watched() -> AsyncIterator[TurnMonitor]:
    """Monitor the turns during the block, including the turn in which the block ends."""
    monitor = TurnMonitor()
    await asyncio.sleep(0)
    monitor.start()
    try:
        yield monitor
    finally:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        monitor.stop()
        await asyncio.sleep(0)


class _Count:
    """A count that decreases as operations end."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.done = asyncio.get_running_loop().create_future()

    def one(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.set_result(None)


class _Counted(Request):
    """A request that increments a counter when it is answered."""

    __slots__ = ("count",)

    def __init__(self, timeout: float | None, key: int, count: _Count) -> None:
        super().__init__(timeout, key)
        self.count = count

    def on_complete(self) -> bool:
        self.count.one()
        return False


Scenario = Callable[[int], Awaitable[Turn]]


async def _idle(number: int) -> Turn:
    async with watched() as monitor:
        end = time.perf_counter() + number / 400_000
        while time.perf_counter() < end:
            await asyncio.sleep(0)
    return monitor.longest


async def _filled(purgatory: Purgatory[Any], number: int, count: _Count, instant: float | None) -> list[Request]:
    """Park ``number`` operations, each on its own key, with a deadline at ``instant`` or in an hour."""
    operations: list[Request] = []
    for index in range(number):
        timeout = 3600.0 if instant is None else max(0.0, instant - time.monotonic())
        operation = _Counted(timeout, index, count)
        purgatory.try_complete_else_watch(operation, (index,))
        operations.append(operation)
    return operations


async def expire(number: int) -> Turn:
    time_to_park = await _time_to_park()
    for margin in MARGINS:
        count = _Count(number)
        async with Purgatory[Any]("expire") as purgatory:
            instant = time.monotonic() + 1.0 + margin * time_to_park * number
            await _filled(purgatory, number, count, instant)
            if time.monotonic() >= instant:
                continue  # the machine was busy, and the deadline passed before all were parked
            gc.freeze()
            async with watched() as monitor:
                await count.done
                assert len(purgatory) == 0
            return monitor.longest
    raise RuntimeError("the machine is too busy to park them all before the deadline")


async def _time_to_park() -> float:
    """Return the seconds that it takes to park one operation."""
    some = 20_000
    start = time.perf_counter()
    async with Purgatory[Any]("trial") as purgatory:
        for operation in await _filled(purgatory, some, _Count(some), None):
            operation.cancel()
    return (time.perf_counter() - start) / some


async def close(number: int) -> Turn:
    count = _Count(number)
    purgatory: Purgatory[Any] = Purgatory("close")
    await _filled(purgatory, number, count, None)
    gc.freeze()
    async with watched() as monitor:
        await purgatory.aclose()
        assert count.left == 0, f"{count.left} were not answered"
    return monitor.longest


async def _remove(number: int) -> Turn:
    timer = SystemTimer()
    timer.start()
    for index in range(number):
        timer.add(TimerTask(1_800_000 + index * 37 % 1_800_000))
    gc.freeze()
    async with watched() as monitor:
        await timer.aclose()
        assert timer.size == 0, f"{timer.size} are still on the timer"
    return monitor.longest


async def _one_operation(number: int) -> Turn:
    async with Purgatory[Any]("one operation") as purgatory:
        operation = Request(3600.0, 0)
        purgatory.try_complete_else_watch(operation, tuple(range(number // 10)))
        gc.freeze()
        async with watched() as monitor:
            assert operation.force_complete()
        return monitor.longest


class _Entry:
    __slots__ = ("after", "before", "key", "value")


async def _dict_entries(number: int) -> Turn:
    entries = {key: _Entry() for key in range(number // 10)}
    keys = tuple(entries)
    gc.freeze()
    async with watched() as monitor:
        deque(map(entries.__delitem__, keys), maxlen=0)
    return monitor.longest


async def _for_key(number: int) -> Turn:
    async with Purgatory[Any]("for key") as purgatory:
        for _ in range(number // 10):
            purgatory.try_complete_else_watch(Request(3600.0, 0), ("key",))
        gc.freeze()
        async with watched() as monitor:
            withdrawn = await purgatory.acancel_for_key("key")
        assert len(withdrawn) == number // 10
        return monitor.longest


async def _withdraw(number: int) -> Turn:
    async with Purgatory[Any]("withdraw") as purgatory:
        operations = await _filled(purgatory, number, _Count(number), None)
        return await _cancelled(operations)


async def _cancelled(handles: list[Any]) -> Turn:
    random.Random(3).shuffle(handles)  # clients disconnect in any order
    gc.freeze()
    async with watched() as monitor:
        for start in range(0, len(handles), PORTION):
            for handle in handles[start : start + PORTION]:
                handle.cancel()
            await asyncio.sleep(0)
    return monitor.longest


async def _loop_expire(number: int) -> Turn:
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    for _ in range(20_000):
        loop.call_later(3600.0, noop).cancel()
    time_to_add = (time.perf_counter() - start) / 20_000
    for margin in MARGINS:
        count = _Count(number)
        instant = loop.time() + 1.0 + margin * time_to_add * number
        handles = [loop.call_at(instant, count.one) for _ in range(number)]
        if loop.time() >= instant:
            for handle in handles:
                handle.cancel()
            continue
        del handles
        gc.freeze()
        async with watched() as monitor:
            await count.done
        return monitor.longest
    raise RuntimeError("the machine is too busy to set all timers before the deadline")


async def _loop_withdraw(number: int) -> Turn:
    loop = asyncio.get_running_loop()
    count = _Count(number)
    return await _cancelled([loop.call_later(3600.0 + index / 1e6, count.one) for index in range(number)])


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    number = scale.pick(1_000_000, 100_000)
    repeats = scale.pick(3, 2)
    scenarios: list[tuple[str, Scenario, Scenario | None]] = [
        ("expire in one instant", expire, _loop_expire),
        ("answered by aclose()", close, None),
        ("removed by SystemTimer.aclose()", _remove, None),
        ("cancelled, 1,000 a turn", _withdraw, _loop_withdraw),
    ]
    for kind in loops():
        idle = [run(kind, _idle, number).wall_ms for _ in range(repeats)]
        yield Row(SECTION, f"an idle loop, in wall-clock time, {kind}", "ms", statistics.median(idle))
        for words, ours, theirs in scenarios:
            yield from _compared(f"{grouped(number)} {words}, {kind}", kind, number, repeats, ours, theirs)
        what = f"{grouped(number // 10)} on one key, acancel_for_key, {kind}"
        yield from _compared(what, kind, number, repeats, _for_key, None)
        what = f"{grouped(number // 10)} keys of one operation, {kind}"
        yield from _compared(what, kind, number, repeats, _one_operation, _dict_entries, "the entries of a dict")


def _compared(
    what: str, kind: str, number: int, repeats: int, ours: Scenario, theirs: Scenario | None, peer: str = ""
) -> Iterator[Row]:
    own, peers = [], []
    for _ in range(repeats):
        own.append(run(kind, ours, number))
        if theirs is not None:
            peers.append(run(kind, theirs, number))
    by_cpu, by_wall = [turn.cpu_ms for turn in own], [turn.wall_ms for turn in own]
    row = Row(SECTION, f"longest turn, {what}", "ms", statistics.median(by_cpu), budget=Budget.at_most_value(5.0))
    wall = Row(SECTION, f"the same in wall-clock time, {what}", "ms", statistics.median(by_wall))
    if peers:
        peer = peer or f"{kind} timers"
        _beside(row, peer, by_cpu, [turn.cpu_ms for turn in peers])
        _beside(wall, peer, by_wall, [turn.wall_ms for turn in peers])
    yield row
    yield wall


def _beside(row: Row, peer: str, own: list[float], peers: list[float]) -> None:
    ratios = [theirs / mine for mine, theirs in zip(own, peers, strict=True)]
    row.peer, row.theirs, row.ratio = peer, statistics.median(peers), statistics.median(ratios)
    row.low, row.high = quantile(ratios, 0.25), quantile(ratios, 0.75)


def run(kind: str, scenario: Scenario, number: int) -> Turn:
    async def run() -> Turn:
        return await scenario(number)

    loop = new_loop(kind)
    gc.disable()  # parking is not measured; reference counting frees the scenario's own garbage
    try:
        with frozen():
            return loop.run_until_complete(run())
    finally:
        gc.enable()
        loop.close()
