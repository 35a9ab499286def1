"""Helpers of the relay tests: processes that share a table, and operations that wait for it."""

import asyncio
from collections.abc import Hashable
from types import TracebackType
from typing import Any, Self

from purgatory import DelayedOperation, Purgatory
from purgatory.relay import MemoryTransport, Relay, Transport
from purgatory.testing import VirtualClock

__all__ = ["Reached", "Worker", "workers"]


class Reached(DelayedOperation[bool]):
    """An operation that waits until the worker has read a value of at least ``value`` for the key."""

    def __init__(self, worker: "Worker", key: Hashable, value: float, timeout: float | None) -> None:
        super().__init__(timeout)
        self.worker = worker
        self.key = key
        self.value = value
        self.completions = 0

    def try_complete(self) -> bool:
        return self.worker.state.get(self.key, 0) >= self.value

    def on_complete(self) -> bool:
        self.completions += 1
        return not self.expired


class Worker:
    """One process: a purgatory, a relay, and what it has read of the table that all share.

    ``clock``: None for real time.
    """

    def __init__(
        self,
        clock: VirtualClock | None,
        transport: Transport,
        table: dict[Hashable, float],
        *,
        refreshes: bool = True,
        **options: Any,
    ) -> None:
        self.clock = clock
        self.table = table
        self.state: dict[Hashable, float] = {}
        self.reads: list[list[Hashable]] = []
        self.read_takes = 0.0
        self.failures = 0  # of the next reads
        self.unreadable: set[Hashable] = set()  # a read of any of these keys fails
        self.purgatory = Purgatory[Any]("worker", clock=clock)
        if refreshes:
            options["refresh"] = self.load
        else:
            self.state = table
        self.relay = Relay(self.purgatory, transport, **options)

    async def load(self, keys: list[Hashable]) -> dict[Hashable, float]:
        """Read the keys: the values at the time of the query, which arrive ``read_takes`` seconds later."""
        self.reads.append(list(keys))
        found = {key: self.table.get(key, 0) for key in keys}
        if self.read_takes and self.clock is not None:
            await self.clock.sleep(self.read_takes)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the database is away")
        if not self.unreadable.isdisjoint(keys):
            raise ValueError("a key cannot be read")
        self.state.update(found)
        return found

    def waits(self, key: Hashable, value: float = 1, timeout: float | None = 30.0) -> "asyncio.Task[bool]":
        """Return a task that parks through the relay until the key has the value."""
        return asyncio.create_task(self.relay.park(Reached(self, key, value, timeout), [key]))

    def write(self, key: Hashable, value: float) -> None:
        """Change the shared state without a notice."""
        self.table[key] = value

    async def __aenter__(self) -> Self:
        await self.purgatory.__aenter__()
        await self.relay.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.relay.aclose()
        await self.purgatory.aclose()
        self.purgatory._check()


def workers(clock: VirtualClock, number: int = 2, **options: Any) -> tuple[list[Worker], list[MemoryTransport]]:
    """Return this number of processes on one in-memory engine, each with its own connection."""
    first = MemoryTransport(clock=clock)
    transports = [first, *(first.peer() for _ in range(number - 1))]
    table: dict[Hashable, float] = {}
    return [Worker(clock, transport, table, **options) for transport in transports], transports
