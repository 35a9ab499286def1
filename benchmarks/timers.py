"""Timers: add, cancel, and both with a steady number outstanding.

Peers: ``call_later`` of asyncio and of uvloop, each on its own running loop, and a plain ``heapq`` in which a cancelled
entry stays until it comes to the top (the recipe in the heapq documentation).  The last peer keeps no timers: in plain
Python, it makes an object, reads the clock, and is called twice.  Its cost is the lower bound.

Every contender draws the same delays, uniform over five to fifteen minutes in whole milliseconds, so that none falls
due.  The loop makes one turn for every 1,000 operations, because asyncio and uvloop do part of a timer's work in that
turn.

``add`` and ``cancel`` alone defer work: a cancelled timer stays in asyncio's heap until half of the heap is cancelled.
``add + cancel`` adds one and cancels the oldest, at a constant number outstanding, until all have been replaced at
least once, so the sample includes the deferred work.  Ours adds a new task of a class of the user's own; the rows
``call_later + cancel`` compare the same method, ``call_later``, of both.

The garbage collector is off here: a million new objects would start full collections, and chance would decide which
sample contains them.  ``collector`` measures that cost.
"""

import asyncio
import gc
import heapq
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from purgatory import SystemTimer

from .measure import OURS, compare, cpu, frozen, loops, new_loop, rounds
from .operations import NoopTask, noop
from .row import Budget, Row, Scale, grouped, quantile

__all__ = ["CallLater", "OwnTasks", "rows"]

SECTION = "timers"
TURN = 1000
LEAST = "an object, a clock, two calls"

_BUDGETS = {
    10_000: {
        "asyncio call_later": Budget.ratio_at_least(12, interpreted=2.5),
        "uvloop call_later": Budget.ratio_at_least(8, interpreted=1.2),
    },
    1_000_000: {
        "asyncio call_later": Budget.ratio_at_least(8, compiled_only=True),
        "uvloop call_later": Budget.ratio_at_least(5, compiled_only=True),
    },
}


class _Cancellable(Protocol):
    def cancel(self) -> Any: ...


class _Contender:
    """An implementation of timers, with some outstanding; its methods return seconds per operation."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.outstanding: deque[Any] = deque()

    def add(self, delay: float) -> Any:
        raise NotImplementedError

    def fill(self, delays: list[float]) -> None:
        async def fill() -> None:
            for delay in delays:
                self.outstanding.append(self.add(delay))

        self.loop.run_until_complete(fill())

    def add_and_cancel(self, delays: list[float]) -> tuple[float, float]:
        """Add all timers, and then cancel all of them in another order."""
        return self.loop.run_until_complete(self._add_and_cancel(delays))

    async def _add_and_cancel(self, delays: list[float]) -> tuple[float, float]:
        start = cpu()
        handles = await self.added(delays)
        added = cpu()
        random.Random(1).shuffle(handles)
        shuffled = cpu()
        await self.cancelled(handles)
        return (added - start) / len(delays), (cpu() - shuffled) / len(delays)

    async def added(self, delays: list[float]) -> list[Any]:
        raise NotImplementedError

    async def cancelled(self, handles: list[Any]) -> None:
        for block in _blocks(handles):
            for handle in block:
                handle.cancel()
            await asyncio.sleep(0)

    def churn(self, delays: list[float]) -> float:
        """Add one and cancel the oldest, again and again."""

        async def churn() -> float:
            start = cpu()
            await self.churned(delays)
            return (cpu() - start) / len(delays)

        return self.loop.run_until_complete(churn())

    async def churned(self, delays: list[float]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for handle in self.outstanding:
            handle.cancel()


class CallLater(_Contender):
    """``call_later`` of the loop or of our timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call_later: Callable[..., _Cancellable]) -> None:
        super().__init__(loop)
        self.call_later = call_later

    def add(self, delay: float) -> Any:
        return self.call_later(delay, noop)

    async def added(self, delays: list[float]) -> list[Any]:
        call_later = self.call_later
        handles: list[Any] = []
        for block in _blocks(delays):
            for delay in block:
                handles.append(call_later(delay, noop))  # noqa: PERF401  the loop is what is measured
            await asyncio.sleep(0)
        return handles

    async def churned(self, delays: list[float]) -> None:
        call_later, outstanding = self.call_later, self.outstanding
        for block in _blocks(delays):
            for delay in block:
                outstanding.append(call_later(delay, noop))
                outstanding.popleft().cancel()
            await asyncio.sleep(0)


class OwnTasks(_Contender):
    """``SystemTimer.add`` with a new ``TimerTask`` each time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timer: SystemTimer) -> None:
        super().__init__(loop)
        self.timer = timer

    def add(self, delay: float) -> Any:
        task = NoopTask(round(delay * 1000))
        self.timer.add(task)
        return task

    def _whole(self, delays: list[float]) -> list[int]:
        return [round(delay * 1000) for delay in delays]

    async def _add_and_cancel(self, delays: list[float]) -> tuple[float, float]:
        return await super()._add_and_cancel(self._whole(delays))  # type: ignore[arg-type]

    async def added(self, delays: list[float]) -> list[Any]:
        add = self.timer.add
        handles = []
        for block in _blocks(delays):
            for delay_ms in block:
                task = NoopTask(delay_ms)
                add(task)
                handles.append(task)
            await asyncio.sleep(0)
        return handles

    def churn(self, delays: list[float]) -> float:
        return super().churn(self._whole(delays))  # type: ignore[arg-type]

    async def churned(self, delays: list[float]) -> None:
        add, outstanding = self.timer.add, self.outstanding
        for block in _blocks(delays):
            for delay_ms in block:
                task = NoopTask(delay_ms)
                add(task)
                outstanding.append(task)
                outstanding.popleft().cancel()
            await asyncio.sleep(0)


class _Handle:
    """The handle of the smallest possible timer, which can be cancelled."""

    __slots__ = ("delay_ms",)

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms

    def cancel(self) -> None:
        pass


class _Least(_Contender):
    """The minimum, a contender that keeps no timers: it makes an object, reads the clock, and is called twice."""

    def add(self, delay: float) -> Any:
        return _Handle(delay)

    def accept(self, handle: _Handle) -> None:
        time.monotonic()

    async def added(self, delays: list[float]) -> list[Any]:
        accept = self.accept
        handles = []
        for block in _blocks(delays):
            for delay in block:
                handle = _Handle(delay)
                accept(handle)
                handles.append(handle)
            await asyncio.sleep(0)
        return handles

    async def churned(self, delays: list[float]) -> None:
        accept, outstanding = self.accept, self.outstanding
        for block in _blocks(delays):
            for delay in block:
                handle = _Handle(delay)
                accept(handle)
                outstanding.append(handle)
                outstanding.popleft().cancel()
            await asyncio.sleep(0)


class _Heap(_Contender):
    """A heap of [when, number, callback]; None in place of the callback means that the timer is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.heap: list[list[Any]] = []
        self.number = 0

    def add(self, delay: float) -> Any:
        self.number += 1
        entry = [time.monotonic() + delay, self.number, noop]
        heapq.heappush(self.heap, entry)
        return entry

    async def added(self, delays: list[float]) -> list[Any]:
        heap, push, now, number = self.heap, heapq.heappush, time.monotonic, self.number
        handles = []
        for block in _blocks(delays):
            for delay in block:
                number += 1
                entry = [now() + delay, number, noop]
                push(heap, entry)
                handles.append(entry)
            await asyncio.sleep(0)
        self.number = number
        return handles

    async def cancelled(self, handles: list[Any]) -> None:
        for block in _blocks(handles):
            for entry in block:
                entry[2] = None
            self._drop()
            await asyncio.sleep(0)

    async def churned(self, delays: list[float]) -> None:
        heap, push, now, outstanding, number = self.heap, heapq.heappush, time.monotonic, self.outstanding, self.number
        for block in _blocks(delays):
            for delay in block:
                number += 1
                entry = [now() + delay, number, noop]
                push(heap, entry)
                outstanding.append(entry)
                outstanding.popleft()[2] = None
            self._drop()
            await asyncio.sleep(0)
        self.number = number

    def _drop(self) -> None:
        while self.heap and self.heap[0][2] is None:
            heapq.heappop(self.heap)

    def close(self) -> None:
        self.heap.clear()


def _blocks(items: list[Any]) -> Iterable[list[Any]]:
    return [items[start : start + TURN] for start in range(0, len(items), TURN)]


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    sizes = scale.pick([1_000, 10_000, 100_000, 1_000_000], [1_000, 10_000, 100_000])
    for outstanding in sizes:
        for kind in loops():
            yield from _rows_at(scale, kind, outstanding)
    yield _against(scale, sizes[0], sizes[-1])


def _against(scale: Scale, smallest: int, largest: int) -> Row:
    """Return the cost of a timer with the largest number outstanding, as a multiple of the cost with the smallest."""
    loop = new_loop("asyncio")
    timers = {outstanding: SystemTimer() for outstanding in (smallest, largest)}
    contenders = {outstanding: CallLater(loop, timer.call_later) for outstanding, timer in timers.items()}
    rng = random.Random(7)
    delays = [rng.randrange(300_000, 900_000) / 1000 for _ in range(largest)]
    loop.run_until_complete(_start(*timers.values()))
    try:
        for outstanding, contender in contenders.items():
            contender.fill(delays[:outstanding])
        with frozen():
            gc.disable()
            costs = rounds(
                {str(size): partial(contender.churn, delays) for size, contender in contenders.items()},
                scale.pick(9, 3),
            )
    finally:
        gc.enable()
        for contender in contenders.values():
            contender.close()
        for timer in timers.values():
            loop.run_until_complete(timer.aclose())
        loop.close()
    few, many = ([cost * 1e9 for cost in costs[str(size)]] for size in (smallest, largest))
    what = f"call_later + cancel, {grouped(largest)} against {grouped(smallest)} outstanding"
    row = Row(SECTION, what, "ns", statistics.median(many), f"the same at {grouped(smallest)}", statistics.median(few))
    ratios = [larger / smaller for larger, smaller in zip(many, few, strict=True)]
    row.ratio, row.low, row.high = statistics.median(ratios), quantile(ratios, 0.25), quantile(ratios, 0.75)
    row.budget = Budget.ratio_at_most(1.3)
    row.note = "against: there the ratio is how many times the cost"
    return row


def _rows_at(scale: Scale, kind: str, outstanding: int) -> Iterator[Row]:
    loop = new_loop(kind)
    timer, second = SystemTimer(), SystemTimer()
    contenders: dict[str, _Contender] = {
        OURS: OwnTasks(loop, timer),
        "purgatory call_later": CallLater(loop, second.call_later),
        f"{kind} call_later": CallLater(loop, loop.call_later),
    }
    if kind == "asyncio":
        contenders["heapq"] = _Heap(loop)
        contenders[LEAST] = _Least(loop)
    rng = random.Random(7)
    delays = [rng.randrange(300_000, 900_000) / 1000 for _ in range(outstanding)]
    number = scale.pick(20_000, 5_000)
    some = [rng.randrange(300_000, 900_000) / 1000 for _ in range(number)]
    chunk = min(outstanding, number)
    loop.run_until_complete(_start(timer, second))
    try:
        for contender in contenders.values():
            contender.fill(delays)
        with frozen():
            gc.disable()
            yield from _measured(scale, outstanding, contenders, some, chunk)
    finally:
        gc.enable()
        for contender in contenders.values():
            contender.close()
        for each in (timer, second):
            loop.run_until_complete(each.aclose())
        loop.close()


async def _start(*timers: SystemTimer) -> None:
    for timer in timers:
        timer.start()
    await asyncio.sleep(0)


def _measured(
    scale: Scale, outstanding: int, contenders: dict[str, _Contender], delays: list[float], chunk: int
) -> Iterator[Row]:
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    turnover = (delays * (outstanding // len(delays) + 1))[: max(outstanding, len(delays))]
    random.Random(11).shuffle(turnover)

    def both(name: str) -> Callable[[], float]:
        def sample() -> float:
            contender = contenders[name]
            parts = [contender.add_and_cancel(delays[start : start + chunk]) for start in range(0, len(delays), chunk)]
            add, cancel = (statistics.fmean(part[index] for part in parts) * 1e9 for index in (0, 1))
            costs[name].append((add, cancel))
            return add + cancel

        return sample

    def churn(name: str) -> Callable[[], float]:
        return lambda: contenders[name].churn(turnover) * 1e9

    at = f"{grouped(outstanding)} outstanding"
    repeats = scale.pick(9, 3)
    rounds({name: both(name) for name in contenders}, repeats)
    theirs = next(name for name in contenders if name in ("asyncio call_later", "uvloop call_later"))
    # The rows with this peer are those of the asyncio loop; on uvloop it is needed only for the last row.
    shown = [name for name in contenders if theirs.startswith("asyncio") or name != "purgatory call_later"]
    for index, word in enumerate(("add", "cancel")):
        part = {name: [pair[index] for pair in costs[name][1:]] for name in shown}  # the first is a warm-up
        yield from compare(SECTION, f"{word}, {at}", "ns", part)
    samples = rounds({name: churn(name) for name in contenders}, 3 if outstanding > 100_000 else repeats)
    yield from compare(SECTION, f"add + cancel, {at}", "ns", {name: samples[name] for name in shown})
    same_call = {OURS: samples["purgatory call_later"], theirs: samples[theirs]}
    yield from compare(SECTION, f"call_later + cancel, {at}", "ns", same_call, budgets=_BUDGETS.get(outstanding))
