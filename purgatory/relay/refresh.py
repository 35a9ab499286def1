"""Reading the shared state again: which keys are stale, and one read at a time.

A notice says that a key has changed, not how.  Conditions are synchronous while the state is in a database, so the
relay reads the state of all stale keys that are watched in one call of ``refresh``, and then checks them.

1. A key that becomes stale while it is being read is read again: the read may have seen the state before the change.
2. A key without watchers is not read; :meth:`Relay.park` reads it when an operation is parked on it.
3. There is one read at a time, so its cost under load is bounded: keys gather while a read runs.
4. A read that fails is reported, and its keys stay stale.  It is tried again after a pause that grows.

Without ``refresh`` a stale key is checked at once.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

from purgatory import Clock, Purgatory

from .codec import Entry, is_key
from .pending import PendingKeys
from .timing import backoff_ms, new_jitter, sleep_ms

__all__ = ["Refresh", "Refresher"]

Refresh = Callable[[list[Any]], Awaitable[Mapping[Any, object] | None]]
"""Read the state of the keys and store it; return what was read, by key."""

_SLICE: Final = 200  # keys that are handled in one turn of the loop


class Refresher:
    """Keeps the watched keys of one purgatory fresh.

    ``limit_ms``: a read that takes longer is cancelled and counts as failed.
    """

    def __init__(
        self, purgatory: Purgatory[Any], refresh: Refresh | None, max_keys: int, clock: Clock, limit_ms: int
    ) -> None:
        self.stale: PendingKeys = PendingKeys(max_keys)
        self.jitter: random.Random = new_jitter("")
        self.refreshed: int = 0
        self.reads: int = 0
        self.failed_reads: int = 0
        self.resyncs: int = 0
        self._purgatory = purgatory
        self._refresh = refresh
        self._clock = clock
        self._limit_ms = limit_ms
        self._walk: Iterator[Hashable] | None = None  # over all watched keys, where all are stale
        self._walk_again = False
        self._wake = asyncio.Event()

    def mark(self, key: Hashable, value: float | None) -> None:
        """The key may have changed, up to ``value``."""
        if not self._purgatory.is_watched(key):
            return
        if self._refresh is None:
            self._purgatory.check_soon(key, value)
        else:
            self.stale.add(key, value)
            self._wake.set()

    def mark_parked(self, keys: Iterable[Hashable]) -> None:
        """An operation is about to be parked on the keys: read them, whether or not they are watched already."""
        for key in keys:
            self.stale.add(key, None)
        self._wake.set()

    def mark_everything(self) -> None:
        """Every key may have changed."""
        self.resyncs += 1
        if self._refresh is None:
            self._purgatory.check_all()
        else:
            self.stale.add_everything()
            self._wake.set()

    async def run(self) -> None:
        """Read and check stale keys, until cancelled."""
        failures = 0
        while True:
            batch = await self._next_batch()
            if not batch:
                if self._walk is not None:
                    continue
                await self._wake.wait()
                self._wake.clear()
                continue
            try:
                found = await self._read([key for key, _ in batch])
                await self._check(batch, found)
            except Exception as error:
                failures += 1
                self.failed_reads += 1
                for key, value in batch:
                    self.stale.add(key, value)
                self._report(error)
                await sleep_ms(self._clock, backoff_ms(failures, self.jitter))
            else:
                failures = 0

    # One read

    async def _next_batch(self) -> list[Entry]:
        """At most ``max_keys`` stale keys that are watched now."""
        purgatory = self._purgatory
        batch: dict[Hashable, float | None] = {}
        if self.stale.take_everything():
            if self._walk is None:
                self._walk = purgatory.keys()
            else:
                self._walk_again = True  # after this walk, lest the keys at its end are never reached
        for number, (key, value) in enumerate(self.stale.take(), 1):
            if purgatory.is_watched(key):
                batch[key] = value
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        if self._walk is not None:
            looked_at = 0
            while len(batch) < self.stale.max_keys:
                try:
                    key = next(self._walk)
                except StopIteration:
                    self._walk = purgatory.keys() if self._walk_again else None
                    self._walk_again = False
                    break
                if not is_key(key):
                    purgatory.check_soon(key)  # it cannot travel, so its state is in this process
                elif purgatory.is_watched(key):
                    batch[key] = None
                looked_at += 1
                if looked_at % _SLICE == 0:
                    await asyncio.sleep(0)
        return list(batch.items())

    async def _read(self, keys: list[Hashable]) -> Mapping[Any, object]:
        """Call ``refresh`` in a task of its own, so that it can be cancelled when it takes too long."""
        reading = asyncio.get_running_loop().create_task(self._call(keys), context=contextvars.Context())
        late = False

        def stop() -> None:
            nonlocal late
            late = True
            reading.cancel()

        alarm = self._clock.call_at(self._clock.ceil_ms() + self._limit_ms, stop)
        try:
            await asyncio.wait([reading])
        except asyncio.CancelledError:
            reading.cancel()
            await asyncio.wait([reading])
            raise
        finally:
            alarm.cancel()
        if reading.cancelled():
            reason = f"has not returned within {self._limit_ms / 1000:g} s" if late else "was cancelled"
            raise TimeoutError(f"refresh of {len(keys)} keys {reason}")
        error = reading.exception()
        if error is not None and not isinstance(error, Exception):
            raise RuntimeError(f"refresh of {len(keys)} keys was interrupted") from error  # the loop has raised it
        return reading.result()

    async def _call(self, keys: list[Hashable]) -> Mapping[Any, object]:
        assert self._refresh is not None
        found = await self._refresh(keys)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            raise TypeError(f"refresh must return a mapping of keys to values, or None, got {found!r}")
        return found

    async def _check(self, batch: list[Entry], found: Mapping[Any, object]) -> None:
        """Check the keys that were read, each with its value if that is a number."""
        for number, (key, _) in enumerate(batch, 1):
            value = found.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
                self._purgatory.check_soon(key, value)
            else:
                self._purgatory.check_soon(key)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        self.reads += 1
        self.refreshed += len(batch)

    def _report(self, error: BaseException) -> None:
        message = f"refresh for purgatory {self._purgatory.name!r} failed and is tried again"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
