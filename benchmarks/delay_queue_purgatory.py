"""The design of Kafka's first purgatory, for comparison: one delay queue, and watcher lists with a purge pass.

The delay queue is one heap of all operations by deadline.  A completed operation is only marked: it stays in the heap
until its deadline, and on the lists of its other keys until a check reaches it.  After every ``purge_interval`` new
requests, a purge pass rebuilds the heap and all lists without the marked operations.  A coroutine sleeps until the
earliest deadline.

The class implements the part of the :class:`purgatory.Purgatory` interface that the experiment needs, and accepts the
same operations.  To be a fair peer, it is optimized too: it uses ``__slots__``, and tries an operation once before
watching.
"""

import asyncio
import contextlib
import heapq
import time
from collections.abc import Hashable, Iterable
from types import TracebackType
from typing import Any, Self

from purgatory import DelayedOperation

__all__ = ["DelayQueuePurgatory"]

Entry = tuple[float, int, "DelayedOperation[Any]"]


class DelayQueuePurgatory:
    """A purgatory with a delay queue, watcher lists, and a purge pass.

    ``purge_interval``: the number of new requests between two purge passes.  ``clock``: returns seconds; for tests.
    """

    def __init__(self, name: str, *, purge_interval: int = 1_000, clock: Any = time.monotonic) -> None:
        if purge_interval < 1:
            raise ValueError(f"purge_interval must be at least 1, got {purge_interval}")
        self.name = name
        self.purge_interval = purge_interval
        self.purges = 0
        self._clock = clock
        self._heap: list[Entry] = []
        self._watchers: dict[Hashable, list[DelayedOperation[Any]]] = {}
        self._number = 0
        self._since_purge = 0
        self._reaper: asyncio.Task[None] | None = None
        self._earlier: asyncio.Event = asyncio.Event()

    def try_complete_else_watch(self, operation: DelayedOperation[Any], keys: Iterable[Hashable]) -> bool:
        """Try the operation; if it has to wait, add it to the list of each key and to the heap."""
        if operation.try_complete():
            return operation.force_complete()
        for key in keys:
            self._watchers.setdefault(key, []).append(operation)
        if operation.timeout is not None:
            self._number += 1
            entry = (self._clock() + operation.timeout, self._number, operation)
            heapq.heappush(self._heap, entry)
            if self._heap[0] is entry:
                self._earlier.set()
        self._since_purge += 1
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Try every operation on the key; those that end leave this list, but stay on the lists of their other keys."""
        watching = self._watchers.get(key)
        if watching is None:
            return 0
        done = 0
        waiting = []
        for operation in watching:
            if operation.is_completed:
                continue
            if operation.try_complete() and operation.force_complete():
                done += 1
            else:
                waiting.append(operation)
        if waiting:
            self._watchers[key] = waiting
        else:
            del self._watchers[key]
        return done

    @property
    def watched(self) -> int:
        """The number of (operation, key) pairs on the lists, including operations that have ended."""
        return sum(len(watching) for watching in self._watchers.values())

    @property
    def num_delayed(self) -> int:
        """The number of entries in the heap, including operations that have ended."""
        return len(self._heap)

    def expire_due(self) -> int:
        """Expire the operations that are due, and drop those that have already ended; return how many expired."""
        now = self._clock()
        expired = 0
        while self._heap and self._heap[0][0] <= now:
            _, _, operation = heapq.heappop(self._heap)
            if not operation.is_completed:
                operation.run()
                expired += 1
        if self._since_purge >= self.purge_interval:
            self._since_purge = 0
            self.purge()
        return expired

    def purge(self) -> int:
        """Remove finished operations from the heap and from every list; return how many entries were removed."""
        before = len(self._heap) + self.watched
        self._heap = [entry for entry in self._heap if not entry[2].is_completed]
        heapq.heapify(self._heap)
        lists = {key: [op for op in watching if not op.is_completed] for key, watching in self._watchers.items()}
        self._watchers = {key: watching for key, watching in lists.items() if watching}
        self.purges += 1
        return before - len(self._heap) - self.watched

    async def __aenter__(self) -> Self:
        self._reaper = asyncio.create_task(self._reap(), name="first-purgatory-reaper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reaper

    async def _reap(self) -> None:
        # As in Kafka, the reaper polls at least every 200 ms; this is also how it notices that a purge is due.
        while True:
            self.expire_due()
            self._earlier.clear()
            timeout = 0.2 if not self._heap else min(0.2, max(0.0, self._heap[0][0] - self._clock()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._earlier.wait(), timeout)
