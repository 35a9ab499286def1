"""Watching: park and ``check_and_complete``, with callbacks only: no task waits, and the loop makes no turn.

FIFO: park a new operation and complete the oldest through its first key, at a constant number outstanding; operation
number ``i`` waits on the keys ``(7 i + j) % 100 000``, ``j`` below the number of keys.  Each has a deadline of 30 s.
The lists of keys are made beforehand; the operations are made in the loop.  ``jvm`` does the same to Kafka's purgatory.
"""

import asyncio
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from purgatory import DelayedOperation, Purgatory

from .measure import cpu, frozen, rounds
from .model import Row, Scale, grouped
from .subjects import Request

__all__ = ["Fifo", "rows"]

SECTION = "watching"
KEY_SPACE = 100_000
TIMEOUT = 30.0


class Fifo:
    """A purgatory with a constant number outstanding; every step parks one and completes the oldest."""

    def __init__(
        self,
        outstanding: int,
        keys: int,
        make: Callable[[float, Any], DelayedOperation[Any]] = Request,
        observers: Sequence[Any] = (),
    ) -> None:
        self.make = make
        self.keys = [[(7 * number + j) % KEY_SPACE for j in range(keys)] for number in range(KEY_SPACE)]
        self.purgatory: Purgatory[Any] = Purgatory("watching", observers=observers)
        self.line: deque[Any] = deque()
        self.number = 0
        for _ in range(outstanding):
            self._park()
        self.steps(max(outstanding, 1_000))  # once round, so that what is measured is the steady state

    def _park(self) -> None:
        keys = self.keys[self.number % KEY_SPACE]
        operation = self.make(TIMEOUT, keys[0])
        self.purgatory.try_complete_else_watch(operation, keys)
        self.line.append(operation)
        self.number += 1

    def steps(self, number: int) -> float:
        """Do so many; return nanoseconds of CPU time per step."""
        make, line, number_now = self.make, self.line, self.number
        watch, check = self.purgatory.try_complete_else_watch, self.purgatory.check_and_complete
        all_keys = self.keys
        done = 0
        start = cpu()
        for index in range(number_now, number_now + number):
            keys = all_keys[index % KEY_SPACE]
            operation = make(TIMEOUT, keys[0])
            watch(operation, keys)
            line.append(operation)
            oldest = line.popleft()
            oldest.ready = True
            done += check(oldest.key)
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
    line = deque(_Bare(TIMEOUT, 0) for _ in range(1000))
    start = cpu()
    for index in range(number):
        operation = _Bare(TIMEOUT, index)
        operation.try_complete()
        line.append(operation)
        oldest = line.popleft()
        oldest.ready = True
        if oldest.try_complete():
            oldest.on_complete()
    return (cpu() - start) / number * 1e9


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    return iter(asyncio.run(_rows(scale)))


async def _rows(scale: Scale) -> list[Row]:
    # A loop runs, as in a server, so that the purgatories' reapers are there; it does not go round meanwhile.
    return list(_shapes(scale))


def _shapes(scale: Scale) -> Iterator[Row]:
    shapes = [(outstanding, keys) for outstanding in (1_000, 100_000) for keys in (1, 3, 16)]
    with frozen():
        lines = {shape: Fifo(*shape) for shape in shapes}
    number = scale.pick(50_000, 10_000)

    def sampler(line: Fifo) -> Callable[[], float]:
        return lambda: line.steps(number)

    with frozen():
        samples = rounds({str(shape): sampler(line) for shape, line in lines.items()}, scale.pick(15, 5))
        bare = statistics.median(_bare_steps(number) for _ in range(5))
    yield Row(SECTION, "the user's own Python in each of the next rows", "ns", bare)
    for shape in shapes:
        outstanding, keys = shape
        costs = samples[str(shape)]
        what = f"park + check, {grouped(outstanding)} outstanding, {keys} key{'s' * (keys > 1)}"
        yield Row(SECTION, what, "ns", statistics.median(costs))
