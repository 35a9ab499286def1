"""What the garbage collector costs with a million operations parked, and what ``gc.freeze`` saves.

A full collection visits every object that may be part of a cycle.  Its time is proportional to the number of parked
operations, and it blocks the loop.  CPython starts a full collection when the number of objects that have survived
since the last one exceeds a quarter of the number of old objects.  This happens while a purgatory fills and, in a
server, whenever enough of its other state has been replaced.  ``gc.freeze()`` excludes all objects that exist at that
moment from later collections.
"""

import asyncio
import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from purgatory import Purgatory

from .measure import cpu
from .operations import Request
from .row import Budget, Row, Scale, grouped

__all__ = ["rows"]

SECTION = "collector"
FAR = 3600.0


class _Pauses:
    """A ``gc`` callback that measures the pauses."""

    def __init__(self) -> None:
        self.full = 0
        self.longest_ms = 0.0
        self.total_ms = 0.0
        self._start = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._start = cpu()
            return
        pause_ms = (cpu() - self._start) * 1e3
        self.full += info["generation"] == 2
        self.longest_ms = max(self.longest_ms, pause_ms)
        self.total_ms += pause_ms


@contextmanager
def _measured_pauses() -> Iterator[_Pauses]:
    pauses = _Pauses()
    gc.callbacks.append(pauses)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(pauses)


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    return iter(asyncio.run(_rows(scale)))


async def _rows(scale: Scale) -> list[Row]:
    number = scale.pick(1_000_000, 100_000)
    repeats = 3
    found: list[Row] = []
    at = f"{grouped(number)} parked"
    filling: dict[str, list[tuple[float, _Pauses]]] = {"on": [], "off": []}
    full: dict[str, list[float]] = {"before": [], "after": []}
    churning: dict[str, list[_Pauses]] = {"before": [], "after": []}
    for _ in range(repeats):
        for setting in ("off", "on"):
            (gc.disable if setting == "off" else gc.enable)()
            purgatory: Purgatory[Any] = Purgatory("collector")
            with _measured_pauses() as pauses:
                filling[setting].append((_fill(purgatory, number), pauses))
            gc.enable()
            if setting == "off":
                await _empty(purgatory)
        full["before"].append(_timed(gc.collect))
        churning["before"].append(_churn(number))
        gc.freeze()
        full["after"].append(_timed(gc.collect))
        churning["after"].append(_churn(number))
        gc.unfreeze()
        await _empty(purgatory)
    on, off = (statistics.median(cost for cost, _ in filling[setting]) for setting in ("on", "off"))
    found.append(Row(SECTION, f"park, {at} at the end, collector on", "ns", on, "collector off", off, off / on))
    collections = statistics.median(pauses.full for _, pauses in filling["on"])
    longest = statistics.median(pauses.longest_ms for _, pauses in filling["on"])
    found.append(Row(SECTION, f"full collections while they are parked, {at}", "count", collections))
    found.append(Row(SECTION, f"the longest pause of those, {at}", "ms", longest))
    before, after = statistics.median(full["before"]), statistics.median(full["after"])
    whole = Row(SECTION, f"a full collection, {at}", "ms", before)
    if number == 1_000_000:
        whole.budget = Budget.at_most_value(220, compiled_only=True)
    found.append(whole)
    found.append(Row(SECTION, f"the same with {grouped(number)} plain objects in a dict", "ms", _of_plain(number)))
    found.append(_frozen(f"a full collection, {at}", before, after))
    before, after = (statistics.median(each.longest_ms for each in churning[when]) for when in ("before", "after"))
    found.append(
        _frozen(f"longest pause while a server's other state grows by {grouped(number)} objects, {at}", before, after)
    )
    before, after = (statistics.median(each.total_ms for each in churning[when]) for when in ("before", "after"))
    found.append(_frozen("all pauses of that together", before, after))
    return found


class _Plain:
    __slots__ = ("after", "before", "key", "value")

    def __init__(self, key: int) -> None:
        self.key = key
        self.after = self.before = self.value = None


def _of_plain(number: int) -> float:
    """Return the milliseconds of a full collection with so many objects that do nothing."""
    objects = {key: _Plain(key) for key in range(number)}
    found = statistics.median(_timed(gc.collect) for _ in range(3))
    assert len(objects) == number
    return found


def _frozen(what: str, before: float, after: float) -> Row:
    """Return a row that compares the cost after ``gc.freeze`` with the cost before."""
    return Row(SECTION, f"{what}, after gc.freeze()", "ms", after, "without gc.freeze()", before, before / after)


def _fill(purgatory: Purgatory[Any], number: int) -> float:
    """Park the operations; return the nanoseconds per operation."""
    watch = purgatory.try_complete_else_watch
    start = cpu()
    for key in range(number):
        watch(Request(FAR, key), (key,))
    return (cpu() - start) / number * 1e9


def _churn(number: int) -> _Pauses:
    """Create containers that live for a while, as the other code in a server does."""
    with _measured_pauses() as pauses:
        state: list[Any] = [[index] for index in range(number)]
        state.clear()
    return pauses


async def _empty(purgatory: Purgatory[Any]) -> None:
    gc.disable()
    await purgatory.aclose()
    gc.enable()
    gc.collect()


def _timed(work: Callable[[], object]) -> float:
    """Return the CPU time of the work in milliseconds."""
    start = cpu()
    work()
    return (cpu() - start) * 1e3
