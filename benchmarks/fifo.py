"""A load that parks an operation and completes the oldest one in each step."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from purgatory import DelayedOperation, Purgatory

from .measure import cpu
from .operations import Request

__all__ = ["KEY_SPACE", "TIMEOUT", "Fifo"]

KEY_SPACE = 100_000
TIMEOUT = 30.0


class Fifo:
    """A purgatory with a constant number of outstanding operations; every step parks one and completes the oldest."""

    def __init__(
        self,
        outstanding: int,
        keys: int,
        make: Callable[[float, Any], DelayedOperation[Any]] = Request,
        observers: Sequence[Any] = (),
    ) -> None:
        self.make = make
        self.keys: list[list[Any]] = [
            [(7 * number + j) % KEY_SPACE for j in range(keys)] for number in range(KEY_SPACE)
        ]
        self.purgatory: Purgatory[Any] = Purgatory("watching", observers=observers)
        self.oldest_first: deque[Any] = deque()
        self.number = 0
        for _ in range(outstanding):
            self._park()
        self.steps(max(outstanding, 1_000))  # replace each once, so that the steady state is measured

    def _park(self) -> None:
        keys = self.keys[self.number % KEY_SPACE]
        operation = self.make(TIMEOUT, keys[0])
        self.purgatory.try_complete_else_watch(operation, keys)
        self.oldest_first.append(operation)
        self.number += 1

    def steps(self, number: int) -> float:
        """Run ``number`` steps; return the nanoseconds of CPU time per step."""
        make, oldest_first, number_now = self.make, self.oldest_first, self.number
        watch, check = self.purgatory.try_complete_else_watch, self.purgatory.check_and_complete
        all_keys = self.keys
        done = 0
        start = cpu()
        for index in range(number_now, number_now + number):
            keys = all_keys[index % KEY_SPACE]
            operation = make(TIMEOUT, keys[0])
            watch(operation, keys)
            oldest_first.append(operation)
            oldest = oldest_first.popleft()
            oldest.ready = True
            done += check(oldest.key)
        cost = cpu() - start
        assert done == number, f"{done} of {number} operations were completed through their first key"
        self.number += number
        return cost / number * 1e9
