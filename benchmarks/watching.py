"""Park and ``check_and_complete``, with callbacks only: no task waits, and the event loop does not run a turn.

Each step parks a new operation and completes the oldest one through its first key, so the number outstanding is
constant.  Operation number ``i`` waits on the keys ``(7 i + j) % 100,000``, for each ``j`` from 0 up to, but not
including, the number of keys per operation.  Each has a deadline of 30 s.  The lists of keys are made in advance; the
operations are made in each step.  ``jvm`` measures the same load on Kafka's purgatory.
"""

import asyncio
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from purgatory import DelayedOperation
from purgatory.core.operation.wait_until import MISSING, value_wait

from .fifo import KEY_SPACE, TIMEOUT, Fifo
from .measure import cpu, frozen, rounds
from .row import Row, Scale, grouped

__all__ = ["LibraryFifo", "rows"]

SECTION = "watching"


class LibraryFifo(Fifo):
    """The same with the library's own operation, that of ``wait_value``: no step calls interpreted code of a user.

    A step publishes a value under the operation's number; ``get`` is a ``dict.get`` with that number.
    """

    def __init__(self, outstanding: int, keys: int) -> None:
        self.values: dict[int, bool] = {}
        super().__init__(outstanding, keys, self._make)

    def _make(self, timeout: float, _: Any) -> DelayedOperation[Any]:
        timer: Any = self.purgatory.timer
        get = partial(self.values.get, self.number)
        wait: DelayedOperation[Any] = value_wait(timer, get, timeout, MISSING, None, None)
        return wait

    def steps(self, number: int) -> float:
        """Run ``number`` steps; return the nanoseconds of CPU time per step."""
        oldest_first, first, values, all_keys = self.oldest_first, self.number, self.values, self.keys
        watch, check = self.purgatory.try_complete_else_watch, self.purgatory.check_and_complete
        timer: Any = self.purgatory.timer
        outstanding = len(oldest_first)
        done = 0
        start = cpu()
        for index in range(first, first + number):
            keys = all_keys[index % KEY_SPACE]
            operation = value_wait(timer, partial(values.get, index), TIMEOUT, MISSING, None, None)
            watch(operation, keys)
            oldest_first.append(operation)
            oldest_first.popleft()
            oldest = index - outstanding
            values[oldest] = True
            done += check(all_keys[oldest % KEY_SPACE][0])
            del values[oldest]
        cost = cpu() - start
        assert done == number, f"{done} of {number} operations were completed through their first key"
        self.number += number
        return cost / number * 1e9


class _Bare:
    """The user's own part of an operation, without a purgatory."""

    __slots__ = ("key", "ready")

    def __init__(self, timeout: float, key: Any) -> None:
        self.key = key
        self.ready = False

    def try_complete(self) -> bool:
        return self.ready

    def on_complete(self) -> bool:
        return self.ready


def _bare_steps(number: int) -> float:
    oldest_first = deque(_Bare(TIMEOUT, 0) for _ in range(1000))
    start = cpu()
    for index in range(number):
        operation = _Bare(TIMEOUT, index)
        operation.try_complete()
        oldest_first.append(operation)
        oldest = oldest_first.popleft()
        oldest.ready = True
        if oldest.try_complete():
            oldest.on_complete()
    return (cpu() - start) / number * 1e9


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    return iter(asyncio.run(_rows(scale)))


async def _rows(scale: Scale) -> list[Row]:
    # A loop runs, as in a server, so that the purgatories have reapers; it makes no turn during the measurement.
    return list(_shapes(scale))


def _shapes(scale: Scale) -> Iterator[Row]:
    shapes = [(outstanding, keys) for outstanding in (1_000, 100_000) for keys in (1, 3, 16)]
    with frozen():
        fifos: dict[tuple[str, int, int], Fifo] = {("check", *shape): Fifo(*shape) for shape in shapes}
        fifos |= {("check of wait_value", *shape): LibraryFifo(*shape) for shape in shapes}
    number = scale.pick(50_000, 10_000)

    def sampler(fifo: Fifo) -> Callable[[], float]:
        return lambda: fifo.steps(number)

    with frozen():
        samples = rounds({str(shape): sampler(fifo) for shape, fifo in fifos.items()}, scale.pick(15, 5))
        bare = statistics.median(_bare_steps(number) for _ in range(5))
    yield Row(SECTION, "the user's own Python in each of the next rows", "ns", bare)
    for shape in fifos:
        kind, outstanding, keys = shape
        costs = samples[str(shape)]
        what = f"park + {kind}, {grouped(outstanding)} outstanding, {keys} key{'s' * (keys > 1)}"
        yield Row(SECTION, what, "ns", statistics.median(costs))
