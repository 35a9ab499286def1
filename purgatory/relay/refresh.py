"""Reading the shared state again: which keys are stale, and one read at a time.

A notice says that a key has changed, not how.  Conditions are synchronous while the state is in a database, so the
relay reads the state of all stale keys that are watched in one call of ``refresh``, and then checks them.

1. A key that becomes stale while it is being read is read again: the read may have seen the state before the change.
2. A key without watchers is not read; :meth:`Relay.park` reads it when an operation is parked on it.
3. There is one read at a time, so its cost under load is bounded: keys gather while a read runs.
4. A read that fails is reported, and its keys stay stale.  It is tried again after a pause that grows.  The loop's
   exception handler receives the first error of each type; every further attempt that fails writes one line to the log.

Without ``refresh`` a stale key is checked at once.
"""

import asyncio
import contextlib
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

from purgatory import Clock, Purgatory
from purgatory.texts import safe_repr

from .codec import Entry, is_key, is_value
from .pending import PendingKeys
from .timing import backoff_ms, end_tasks, new_jitter, sleep_ms, wait_until

__all__ = ["Refresh", "Refresher"]

Refresh = Callable[[list[Any]], Awaitable[Mapping[Any, object] | None]]
"""Read the state of the keys and store it; return what was read, by key."""

_LOGGER = logging.getLogger("purgatory.relay")
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
        self._all_keys: Iterator[Hashable] | None = None  # over all watched keys, where all are stale
        self._all_keys_again = False
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
        reported: set[type[Exception]] = set()  # since the last read that succeeded
        while True:
            batch: list[Entry] = []
            try:
                batch = await self._next_batch()
                if batch:
                    found = await self._read([key for key, _ in batch])
                    await self._check(batch, found)
                    failures = 0
                    reported.clear()
                elif self._all_keys is None and not self.stale:  # the last batch may have left keys
                    await self._wake.wait()
                    self._wake.clear()
            except Exception as error:
                failures += 1
                self.failed_reads += 1
                if not batch:
                    self.stale.add_everything()  # the keys that were taken are not known any more
                for key, value in batch:
                    self.stale.add(key, value)
                pause_ms = backoff_ms(failures, self.jitter)
                if type(error) in reported:
                    self._log_repeated(error, failures, pause_ms)
                else:
                    reported.add(type(error))
                    self._report(error)
                await sleep_ms(self._clock, pause_ms)

    # One read

    async def _next_batch(self) -> list[Entry]:
        """At most ``max_keys`` stale keys that are watched now.

        While all keys are to be read, those that were marked one by one fill half of it at most.  Otherwise keys that
        change during every read could keep the others from ever being read.
        """
        purgatory = self._purgatory
        batch: dict[Hashable, float | None] = {}
        if self.stale.take_everything():
            if self._all_keys is None:
                self._all_keys = purgatory.keys()
            else:
                self._all_keys_again = True  # after this pass, so that the keys at its end are reached too
        most = self.stale.max_keys if self._all_keys is None else self.stale.max_keys // 2
        for number, (key, value) in enumerate(self.stale.take(), 1):
            if purgatory.is_watched(key):
                if len(batch) < most:
                    batch[key] = value
                else:
                    self.stale.add(key, value)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        if self._all_keys is not None:
            examined = 0
            while len(batch) < self.stale.max_keys:
                try:
                    key = next(self._all_keys)
                except StopIteration:
                    self._all_keys = purgatory.keys() if self._all_keys_again else None
                    self._all_keys_again = False
                    break
                if not is_key(key):
                    purgatory.check_soon(key)  # it cannot be relayed, so its state is in this process
                elif purgatory.is_watched(key):
                    batch[key] = None
                examined += 1
                if examined % _SLICE == 0:
                    await asyncio.sleep(0)
        return list(batch.items())

    async def _read(self, keys: list[Hashable]) -> Mapping[Any, object]:
        """Call ``refresh`` in a task of its own, so that it can be cancelled when it takes too long.

        A call that swallows its cancellations is left behind after as long again.
        """
        reading = contextvars.Context().run(asyncio.get_running_loop().create_task, self._call(keys))
        try:
            if await wait_until({reading}, self._clock, self._clock.ceil_ms() + self._limit_ms):
                if await end_tasks([reading], self._clock, self._limit_ms):
                    _LOGGER.error("a call of refresh has not ended when cancelled, and is left behind: %s", reading)
                raise TimeoutError(f"refresh of {len(keys)} keys has not returned within {self._limit_ms / 1000:g} s")
        except asyncio.CancelledError:
            while not reading.done():
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):  # the relay cancels again what does not end
                    await asyncio.wait([reading])
            raise
        if reading.cancelled():
            raise TimeoutError(f"refresh of {len(keys)} keys was cancelled")
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
            self._purgatory.check_soon(key, value if is_value(value) else None)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        self.reads += 1
        self.refreshed += len(batch)

    def _log_repeated(self, error: Exception, failures: int, pause_ms: int) -> None:
        """Write one line, without the traceback, which the report of the first error contains."""
        _LOGGER.warning(
            "refresh for purgatory %r failed %d times in a row and is tried again in %g s: %s",
            self._purgatory.name,
            failures,
            pause_ms / 1000,
            safe_repr(error),
        )

    def _report(self, error: BaseException) -> None:
        message = f"refresh for purgatory {self._purgatory.name!r} failed and is tried again"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
