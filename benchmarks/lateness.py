"""How late operations expire, under a steady load of 50,000 per second.

Operations are parked ahead of time with deadlines spread evenly, 50 for each millisecond, and each records when it
is answered: lateness is that time minus its deadline (parked + timeout, on the monotonic clock).  Timeouts are whole
milliseconds.  Peer: the same number of ``call_later`` timers on the same loop, in a separate run.  An operation must
not expire early; a ``call_later`` timer may run early.  The loop does nothing else in the meantime, but the numbers are
wall-clock times, so other programs on the machine affect them.  The last rows show the same load on a simulated,
dedicated core (see :mod:`.simulated_core`), which other programs do not affect; their peer is the same timer without
early cascades.

The garbage collector is off while the operations are parked, because a collection between the reading of the clock and
the parking would count as lateness.  When the operations fall due, the collector is on, but ``gc.freeze()`` excludes
the parked operations.  In the rows "with the collector", nothing is excluded, and each operation that is answered parks
another one with a distant deadline, as a server with a steady load does.
"""

import asyncio
import contextlib
import gc
import math
import statistics
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from purgatory import Purgatory

from .measure import frozen, loops, new_loop
from .operations import Request
from .row import Budget, Row, Scale, quantile
from .simulated_core import lateness

__all__ = ["RATE", "operations_late", "rows", "run"]

SECTION = "lateness"
RATE = 50_000
FAR = 3600.0
PARKING_TIMES = (2e-5, 1e-4, 5e-4)  # seconds to park each operation, tried in this order until all are parked in time


class _Late(Request):
    """Record, in seconds, how late the operation is answered; then park another one if ``purgatory`` is not None."""

    __slots__ = ("found", "purgatory", "wanted")

    def __init__(
        self, timeout: float, key: int, found: "array[float]", wanted: float, purgatory: Purgatory[Any] | None
    ) -> None:
        super().__init__(timeout, key)
        self.found = found
        self.wanted = wanted
        self.purgatory = purgatory

    def on_complete(self) -> bool:
        self.found.append(time.monotonic() - self.wanted)
        if self.purgatory is not None:
            self.purgatory.try_complete_else_watch(Request(FAR, self.key), (self.key,))
        return False


class _Divided(Request):
    """Record when the deadline was, when the first answer of the turn came, and when this one did, all in seconds."""

    __slots__ = ("found", "turn", "wanted")

    def __init__(self, timeout: float, key: int, found: "array[float]", turn: list[float], wanted: float) -> None:
        super().__init__(timeout, key)
        self.found = found
        self.turn = turn
        self.wanted = wanted

    def on_complete(self) -> bool:
        now = time.monotonic()
        if not self.turn:
            self.turn.append(now)
            asyncio.get_running_loop().call_soon(self.turn.clear)
        self.found.extend((self.wanted, self.turn[0], now))
        return False


async def operations_late(number: int, collector: bool) -> "array[float]":
    def make(timeout: float, index: int, found: "array[float]", wanted: float, purgatory: Purgatory[Any]) -> Request:
        return _Late(timeout, index, found, wanted, purgatory if collector else None)

    return await _parked(number, collector, make, 1)


async def _divided(number: int, collector: bool) -> "array[float]":
    turn: list[float] = []

    def make(timeout: float, index: int, found: "array[float]", wanted: float, _: Purgatory[Any]) -> Request:
        return _Divided(timeout, index, found, turn, wanted)

    return await _parked(number, collector, make, 3)


async def _parked(number: int, collector: bool, make: Callable[..., Request], values: int) -> "array[float]":
    """Park operations, each of which records this number of values, and return all values."""
    for parking_time in PARKING_TIMES:
        found = array("d")
        async with Purgatory[Any]("lateness") as purgatory:
            begin = time.monotonic() + 1.0 + number * parking_time
            with _collector_off():
                for index in range(number):
                    now = time.monotonic()
                    timeout = round(max(0.0, begin + index / RATE - now), 3)
                    purgatory.try_complete_else_watch(make(timeout, index, found, now + timeout, purgatory), (index,))
            if await _until(found, values * number, begin, collector):
                return found
    raise RuntimeError("the machine is too busy to park them all before the first deadline")


async def _loop(number: int, collector: bool) -> "array[float]":
    loop = asyncio.get_running_loop()
    for parking_time in PARKING_TIMES:
        found = array("d")

        def note(wanted: float, into: "array[float]" = found) -> None:
            into.append(time.monotonic() - wanted)
            if collector:
                loop.call_later(FAR, note, 0.0)

        begin = time.monotonic() + 1.0 + number * parking_time
        handles = []
        with _collector_off():
            for index in range(number):
                now = time.monotonic()
                delay = round(max(0.0, begin + index / RATE - now), 3)
                handles.append(loop.call_later(delay, note, now + delay))
        if time.monotonic() < begin:
            handles.clear()  # a list of handles would keep the timers alive after they have run
        if await _until(found, number, begin, collector):
            return found
        for handle in handles:
            handle.cancel()
    raise RuntimeError("the machine is too busy to set all timers before the first deadline")


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def _until(found: "array[float]", number: int, begin: float, collector: bool) -> bool:
    """Wait for all operations.  Return False at once if the first deadline passed before all were parked."""
    if collector:
        gc.collect()
    with contextlib.nullcontext() if collector else frozen():
        if time.monotonic() >= begin:
            return False
        while len(found) < number:
            await asyncio.sleep(0.05)
    return True


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    number = RATE * scale.pick(5, 1)
    for kind in loops():
        ours, theirs = [], []
        for _ in range(scale.pick(3, 1)):
            ours.append(run(kind, operations_late, number))
            theirs.append(run(kind, _loop, number))
        yield from _rows_of(kind, ours, theirs)
        yield from _parts(kind, [run(kind, _divided, number) for _ in range(scale.pick(3, 1))])
        yield from _rows_with_the_collector(kind, number, scale.pick(3, 1))
    yield from _simulated(scale.pick(5, 2))


def _rows_of(kind: str, ours: list["array[float]"], theirs: list["array[float]"]) -> Iterator[Row]:
    at = f"at 50,000 expiries/s, {kind}"
    budgets = {"p99": Budget.at_most_value(2.0), "p99.9": Budget.at_most_value(3.0)}
    for name, fraction in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0)):
        own = [quantile(found, fraction) * 1e3 for found in ours]
        peers = [quantile(found, fraction) * 1e3 for found in theirs]
        row = Row(SECTION, f"lateness {name} {at}", "ms", statistics.median(own), f"{kind} call_later")
        row.theirs = statistics.median(peers)
        row.ratio = statistics.median(peer / mine for mine, peer in zip(own, peers, strict=True))
        row.budget = budgets.get(name)
        yield row
    early = sum(late < 0 for found in ours for late in found)
    of_theirs = sum(late < 0 for found in theirs for late in found)
    row = Row(SECTION, f"early {at}", "count", early, f"{kind} call_later", of_theirs)
    row.budget = Budget.at_most_value(0.0)
    yield row


def _parts(kind: str, runs: list["array[float]"]) -> Iterator[Row]:
    parts: dict[str, list[list[float]]] = {"until the tick": [], "until the turn": [], "in the turn": []}
    for found in runs:
        wanted, first, answered = found[0::3], found[1::3], found[2::3]
        ticks = [math.ceil(seconds * 1e3) / 1e3 for seconds in wanted]
        parts["until the tick"].append([tick - late for tick, late in zip(ticks, wanted, strict=True)])
        parts["until the turn"].append([turn - tick for turn, tick in zip(first, ticks, strict=True)])
        parts["in the turn"].append([end - turn for end, turn in zip(answered, first, strict=True)])
    for name, samples in parts.items():
        for text, fraction in (("p50", 0.5), ("p99", 0.99)):
            value = statistics.median(quantile(sample, fraction) for sample in samples) * 1e3
            yield Row(SECTION, f"lateness at 50,000 expiries/s, {kind}: {name}, {text}", "ms", value, "")


def _rows_with_the_collector(kind: str, number: int, repeats: int) -> Iterator[Row]:
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(run(kind, operations_late, number, collector=True))
        theirs.append(run(kind, _loop, number, collector=True))
    for name, fraction in (("p99", 0.99), ("longest", 1.0)):
        own = [quantile(found, fraction) * 1e3 for found in ours]
        peers = [quantile(found, fraction) * 1e3 for found in theirs]
        what = f"lateness {name} at 50,000 expiries/s, {kind}, with the collector"
        row = Row(SECTION, what, "ms", statistics.median(own), f"{kind} call_later", statistics.median(peers))
        row.ratio = statistics.median(peer / mine for mine, peer in zip(own, peers, strict=True))
        row.budget = Budget.ratio_at_least(2.0) if name == "p99" else None
        yield row


def _simulated(seconds: int) -> Iterator[Row]:
    ours = lateness(RATE, seconds, early=True)
    theirs = lateness(RATE, seconds, early=False)
    quantiles = (
        ("p50", 0.5, None),
        ("p99", 0.99, Budget.at_most_value(1.5, interpreted=2.5)),
        ("p99.9", 0.999, Budget.at_most_value(3.0, interpreted=5.0)),
        ("longest", 1.0, None),
    )
    for name, fraction, budget in quantiles:
        what = f"lateness {name} at 50,000 expiries/s, simulated core"
        row = Row(SECTION, what, "ms", quantile(ours, fraction) * 1e3, "no early cascades")
        row.theirs = quantile(theirs, fraction) * 1e3
        row.ratio = row.theirs / row.ours
        row.budget = budget
        yield row
    early, of_theirs = sum(late < 0 for late in ours), sum(late < 0 for late in theirs)
    row = Row(SECTION, "early at 50,000 expiries/s, simulated core", "count", early, "no early cascades", of_theirs)
    row.budget = Budget.at_most_value(0.0)
    yield row


def run(
    kind: str, scenario: Callable[[int, bool], Awaitable["array[float]"]], number: int, *, collector: bool = False
) -> "array[float]":
    async def run() -> "array[float]":
        return await scenario(number, collector)

    loop = new_loop(kind)
    try:
        with frozen():
            return loop.run_until_complete(run())
    finally:
        loop.close()
