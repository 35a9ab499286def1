"""How a number is made.

A sample is a function that does some work and returns what it cost.  The samples of all contenders are taken in turn
(A B C A B C ...), so that whatever else the machine does falls on all of them alike; the ratio is taken round by round,
and what is printed is the median.  The first round warms up and is not counted.

Costs are CPU time of the thread, not time on the wall: a neighbour who takes the core for some milliseconds is not our
cost, nor that of the peer who happened to run then.  What is about time itself (the longest turn of the loop,
lateness) is measured on the wall.

The collector is on, as it is in the programs of most people, but what lives when a measurement begins is frozen first:
a full collection in the middle of one contender's sample would be a matter of luck.  ``collector`` measures that cost.
"""

import gc
import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .model import Budget, Row, Unit, quantile

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
    """A row for each peer of ``ours``; where there is no peer, one row for ours alone."""
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
    """What lives now is no business of the collector until the end of the block."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def loops() -> list[str]:
    """The event loops at hand, by name."""
    try:
        importlib.import_module("uvloop")
    except ImportError:
        return ["asyncio"]
    return ["asyncio", "uvloop"]


def new_loop(name: str) -> "asyncio.AbstractEventLoop":
    """A new event loop of the kind."""
    loop: asyncio.AbstractEventLoop = importlib.import_module(name).new_event_loop()
    return loop
