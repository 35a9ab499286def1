"""The cost of optional features, and what they save."""

import asyncio
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from purgatory import Event, Observer, Purgatory, SystemTimer

from .fifo import Fifo
from .measure import OURS, compare, cpu, frozen, rounds
from .operations import NoopTask, Request, RequestWithDict, noop
from .row import Budget, Row, Scale, grouped

__all__ = ["rows"]

SECTION = "features"
FAR = 600.0
NO_OBSERVER = "park + complete, no observer"
JOURNAL = "a journal attached"
JOURNAL_THREAD = "a journal attached, with its thread"
NO_OBSERVER_NOTE = "no observer: the ratio is the cost with the observer divided by the cost without it"


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    return iter(asyncio.run(_rows(scale)))


async def _rows(scale: Scale) -> list[Row]:
    return [
        *_hot_key(scale),
        *_observers(scale),
        *await _journal(scale),
        *_subclasses(scale),
        *_extend(scale),
        *await _timeouts(scale),
        await _whole_key(scale),
    ]


# One hot key


def _hot_key(scale: Scale) -> Iterator[Row]:
    watchers = 10_000

    def checker(hot: "_HotKey") -> Callable[[], float]:
        return lambda: hot.check(hot.repeats) * 1e9

    with frozen():
        contenders = {
            OURS: _HotKey(watchers, thresholds=True, repeats=scale.pick(500, 100)),
            "trying all": _HotKey(watchers, thresholds=False, repeats=scale.pick(5, 2)),
        }
    with frozen():
        samples = rounds({name: checker(hot) for name, hot in contenders.items()}, scale.pick(9, 5))
    what = f"one check of a key with {grouped(watchers)} threshold watchers, 1 ready"
    yield from compare(SECTION, what, "ns", samples, budgets={"trying all": Budget.ratio_at_least(100)})


class _HotKey:
    """Watchers on one key, each with its own threshold; every check completes exactly one of them."""

    def __init__(self, watchers: int, *, thresholds: bool, repeats: int) -> None:
        self.repeats = repeats
        self.thresholds = thresholds
        self.purgatory: Purgatory[Any] = Purgatory("hot")
        self.waiting: list[Request] = []
        self.value = 0
        self.end = 0
        for _ in range(watchers):
            self._park()

    def _park(self) -> None:
        self.end += 1
        request = Request(FAR, "hot")
        self.purgatory.try_complete_else_watch(request, {"hot": self.end} if self.thresholds else ["hot"])
        self.waiting.append(request)

    def check(self, number: int) -> float:
        """Return the seconds per check.  Parking 100 more operations after every 100 checks is not measured."""
        spent = 0.0
        for first in range(0, number, 100):
            some = range(min(100, number - first))
            start = cpu()
            for _ in some:
                self.waiting[self.value].ready = True
                self.value += 1
                done = self.purgatory.check_and_complete("hot", self.value)
                assert done == 1, f"a check completed {done} operations instead of 1"
            spent += cpu() - start
            for _ in some:
                self._park()
        return spent / number


# Observers


class _CountingObserver(Observer):
    def __init__(self) -> None:
        self.events = 0

    def parked(self, event: Event) -> None:
        self.events += 1

    def completed(self, event: Event) -> None:
        self.events += 1


def _observers(scale: Scale) -> Iterator[Row]:
    observed = "an observer of park and complete"
    with frozen():
        fifos = {OURS: Fifo(1_000, 1), observed: Fifo(1_000, 1, Request, (_CountingObserver(),))}
    with frozen():
        samples = rounds(_steps(fifos, scale.pick(50_000, 10_000)), scale.pick(15, 5))
    for row in compare(SECTION, NO_OBSERVER, "ns", samples):
        row.note = NO_OBSERVER_NOTE
        yield row


async def _journal(scale: Scale) -> list[Row]:
    """Measure with a journal in a temporary folder; return no rows if the journal is not installed."""
    if importlib.util.find_spec("purgatory.journal") is None or importlib.util.find_spec("pyarrow") is None:
        return []
    journal_class = importlib.import_module("purgatory.journal").Journal
    number = scale.pick(50_000, 10_000)
    by_loop: dict[str, list[float]] = {OURS: [], JOURNAL: []}
    by_process: dict[str, list[float]] = {OURS: [], JOURNAL_THREAD: []}
    with tempfile.TemporaryDirectory() as folder:
        async with journal_class(folder) as journal:
            alone, written = Fifo(1_000, 1), Fifo(1_000, 1, Request, (journal,))
            with frozen():
                for index in range(scale.pick(16, 6)):
                    begun = time.process_time()
                    without = alone.steps(number)
                    between = time.process_time()
                    with_it = written.steps(number)
                    await journal.flush()
                    ended = time.process_time()
                    if index:
                        by_loop[OURS].append(without)
                        by_loop[JOURNAL].append(with_it)
                        by_process[OURS].append((between - begun) / number * 1e9)
                        by_process[JOURNAL_THREAD].append((ended - between) / number * 1e9)
            assert journal.statistics().dropped == 0, "the journal dropped rows, so the cost is too low"
            await written.purgatory.aclose()
    rows = [
        *compare(SECTION, NO_OBSERVER, "ns", by_loop, budgets={JOURNAL: Budget.ratio_at_most(1.5)}),
        *compare(SECTION, f"{NO_OBSERVER}, all threads", "ns", by_process),
    ]
    for row in rows:
        row.note = NO_OBSERVER_NOTE
    return rows


def _steps(fifos: dict[str, Fifo], number: int) -> dict[str, Callable[[], float]]:
    def sampler(fifo: Fifo) -> Callable[[], float]:
        return lambda: fifo.steps(number)

    return {name: sampler(fifo) for name, fifo in fifos.items()}


# Subclasses with and without __slots__


def _subclasses(scale: Scale) -> Iterator[Row]:
    with frozen():
        fifos = {OURS: Fifo(1_000, 1), "a subclass without __slots__": Fifo(1_000, 1, RequestWithDict)}
    with frozen():
        samples = rounds(_steps(fifos, scale.pick(50_000, 10_000)), scale.pick(15, 5))
    yield from compare(SECTION, "park + complete, a subclass with __slots__", "ns", samples)


# Deadlines that move


def _extend(scale: Scale) -> Iterator[Row]:
    number = scale.pick(50_000, 10_000)
    loop = asyncio.get_running_loop()
    purgatory: Purgatory[Any] = Purgatory("extend")
    timer = SystemTimer()
    request = Request(FAR, "key")
    purgatory.try_complete_else_watch(request, ["key"])

    def extend() -> float:
        start = cpu()
        for _ in range(number):
            request.extend(FAR)
        return (cpu() - start) / number * 1e9

    def again() -> float:
        task = NoopTask(round(FAR * 1000))
        timer.add(task)
        start = cpu()
        for _ in range(number):
            task.cancel()
            task = NoopTask(round(FAR * 1000))
            timer.add(task)
        return (cpu() - start) / number * 1e9

    def park_again() -> float:
        watch = purgatory.try_complete_else_watch
        operation = Request(FAR, "other")
        watch(operation, ["other"])
        start = cpu()
        for _ in range(number):
            operation.cancel()
            operation = Request(FAR, "other")
            watch(operation, ["other"])
        cost = cpu() - start
        operation.cancel()
        return cost / number * 1e9

    def call_later() -> float:
        handle = loop.call_later(FAR, noop)
        start = cpu()
        for _ in range(number):
            handle.cancel()
            handle = loop.call_later(FAR, noop)
        cost = cpu() - start
        handle.cancel()
        return cost / number * 1e9

    contenders = {
        OURS: extend,
        "cancel + add of a TimerTask": again,
        "cancel + park of an operation": park_again,
        "asyncio cancel + call_later": call_later,
    }
    with frozen():
        yield from compare(SECTION, "extend a parked operation", "ns", rounds(contenders, scale.pick(9, 5)))


# Timeouts


async def _timeouts(scale: Scale) -> list[Row]:
    outstanding = scale.pick(100_000, 20_000)
    timer = SystemTimer()
    if not hasattr(timer, "timeout"):
        return []
    loop = asyncio.get_running_loop()
    number = scale.pick(20_000, 5_000)

    async def entered(make: Callable[[float], Any]) -> float:
        start = cpu()
        for _ in range(number):
            async with make(FAR):
                pass
        return (cpu() - start) / number * 1e9

    async with timer:
        tasks = [timer.call_later(FAR + index / 1000, noop) for index in range(outstanding)]
        handles = [loop.call_later(FAR + index / 1000, noop) for index in range(outstanding)]
        ours, theirs = [], []
        with frozen():
            for index in range(scale.pick(10, 4)):
                pair = await entered(timer.timeout), await entered(asyncio.timeout)
                await asyncio.sleep(0)
                if index:
                    ours.append(pair[0])
                    theirs.append(pair[1])
        for task in tasks:
            task.cancel()
        for handle in handles:
            handle.cancel()
    what = f"async with timer.timeout(), {grouped(outstanding)} timers outstanding"
    return compare(SECTION, what, "ns", {OURS: ours, "asyncio.timeout": theirs})


# One call for a whole key


async def _whole_key(scale: Scale) -> Row:
    number = scale.pick(100_000, 10_000)
    costs = []
    for _ in range(3):
        purgatory: Purgatory[Any] = Purgatory("whole")
        for _ in range(number):
            purgatory.try_complete_else_watch(Request(FAR, "key"), ["key"])
        with frozen():
            start = cpu()
            withdrawn = purgatory.cancel_for_key("key")
            costs.append((cpu() - start) * 1e3)
        assert len(withdrawn) == number
        await purgatory.aclose()
    what = f"cancel_for_key of a key with {grouped(number)} watchers, one call"
    return Row(
        SECTION,
        what,
        "ms",
        statistics.median(costs),
        note="one synchronous call: acancel_for_key is sliced",
    )
