"""How a number is measured.

A sample is a function that does some work and returns its cost.  The samples of all contenders alternate (A B C A B C
...), so other load on the machine affects all of them equally.  The ratio is computed for each round, and the table
shows the median.  The first round is a warm-up and does not count.

A cost is the thread's CPU time, not wall-clock time: if another process takes the core for a few milliseconds, the
contender that was running is not charged for that time.  Only figures that are about time itself (the longest turn of
the loop, lateness) use the wall clock.

The garbage collector is on, as in most programs, but the objects that exist when a measurement begins are frozen first.
Otherwise, chance would decide which contender's sample contains a full collection.  ``collector`` measures that cost.
"""

import gc
import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .row import Budget, Row, Unit, quantile

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

__all__ = ["OURS", "compare", "cpu", "frozen", "loops", "new_loop", "rounds"]

OURS = "purgatory"

cpu = time.thread_time  # seconds

Samples = dict[str, list[float]]


def rounds(contenders: Mapping[str, Callable[[], float]], repeats: int) -> Samples:
    """Take ``repeats`` samples of each contender, in turn."""
    samples: Samples = {name: [] for name in contenders}
    for index in range(repeats + 1):
        for name, sample in contenders.items():
            cost = sample()
            if index:
                samples[name].append(cost)
    return samples


def compare(
    section: str,
    what: str,
    unit: Unit,
    samples: Mapping[str, Sequence[float]],
    *,
    ours: str = OURS,
    budgets: Mapping[str, Budget] | None = None,
    note: str = "",
) -> list[Row]:
    """Return a row for each peer of ``ours``, or one row for ``ours`` alone if there is no peer."""
    own = samples[ours]
    peers = [name for name in samples if name != ours]
    if not peers:
        return [Row(section, what, unit, statistics.median(own), note=note)]
    rows = []
    for peer in peers:
        ratios = [theirs / mine for mine, theirs in zip(own, samples[peer], strict=True)]
        row = Row(section, what, unit, statistics.median(own), peer, statistics.median(samples[peer]), note=note)
        row.ratio, row.low, row.high = statistics.median(ratios), quantile(ratios, 0.25), quantile(ratios, 0.75)
        row.budget = (budgets or {}).get(peer)
        rows.append(row)
    return rows


@contextmanager
def frozen() -> "Iterator[None]":
    """Exclude the objects that exist now from garbage collection until the end of the block."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def loops() -> list[str]:
    """Return the names of the event loops that are installed."""
    try:
        importlib.import_module("uvloop")
    except ImportError:
        return ["asyncio"]
    return ["asyncio", "uvloop"]


def new_loop(name: str) -> "asyncio.AbstractEventLoop":
    """Return a new event loop of this kind."""
    loop: asyncio.AbstractEventLoop = importlib.import_module(name).new_event_loop()
    return loop
