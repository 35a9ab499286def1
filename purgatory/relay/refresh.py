"""Reread the shared state: find the stale keys, and read their state, one read at a time.

A notice says that a key has changed, but not how.  Conditions are synchronous, and the state is in a database, so the
relay reads the state of all stale watched keys in one call to ``refresh``, and then checks the keys.

1. If a key becomes stale during its read, it is read again, because the read may have seen the old state.
2. A key without watchers is not read (except as stated in 6); :meth:`Relay.park` reads it when an operation is parked
   on it.
3. There is one read at a time, so the cost under load is bounded: stale keys accumulate while a read runs.
4. If a read fails, the error is reported, and the keys stay stale.  The read of the same keys is repeated, each time
   after a longer pause.  The loop's exception handler receives the first error of each type; every further failure
   writes one line to the log.
5. If one key cannot be read, the other keys are still read.  If a read has been repeated three times and fails again,
   its keys are divided into two parts: those that have been read before and those that have not, or, if all are alike,
   two halves.  The parts are read separately, alternating with newly stale keys; a part whose keys have been read
   before is the next one, and after five successful reads of parts in a row, small parts are read together.  If the
   read of a part fails, the part is divided at once; if the read of a single key fails, the key is set apart: that read
   is repeated after a separate pause.  If several of these pauses are over, a key that has failed less often comes
   first, but every fourth key is the one that has been due for the longest time; after two of these reads have
   succeeded in a row, each success doubles the number of keys in the next one, because many keys may become readable
   together.  A key of a part that becomes stale again is read with the newly stale keys, without waiting for the part.
   While there are such keys, failed reads are divided without being repeated first.  After a failed read that is
   divided, the next read begins without a pause, because new waits on keys that cannot be read may begin all the time,
   and each of them causes such reads.  It also halves the number of keys in the next read of the same kind, and each
   successful read doubles it.  The kinds are new keys and keys that have been read before; until both numbers have
   reached ``max_keys`` again, new keys are read separately.  A key counts as read before if it has been read since an
   operation waits on it, or if it is among the 10,000 keys that were read last, because a client that waits again must
   not wait with the new keys.
6. If many reads in a row have failed, the store is probably down: the parts rejoin the other keys, and keys are tried
   one at a time, after growing pauses, starting with those that have failed least often; a key that has never been read
   counts as one that has failed.  Every other read is of a key whose read has succeeded before, whether or not an
   operation still waits on it: if it succeeds again, the store is up, and the others are keys that cannot be read.  The
   first successful read ends the pauses, and each doubles the size of the next one.  If the first of these reads has
   failed, too, the keys that were set apart after the last successful read rejoin the others then, because they may
   have failed only because the store was down.  A short failure therefore causes few additional reads, and an outage
   does not multiply them.
7. A read succeeds if ``refresh`` returns.  If it finds a smaller value than a notice has announced, the read used a
   lagging replica or ran before the commit.  If it finds an exception as the value of a key, the key could not be
   read.  In both cases, the key stays stale and is read again after a pause, until the value is found or no operation
   waits on the key.  Keys whose pauses have the same length are due at the same times, so the number of reads does not
   depend on the number of keys.
8. If the value that a read finds is below a wait's threshold, the check skips the wait.  But if the wait found the
   key unknown, the wait is tried at least once after the next read of the key that begins after the wait has begun,
   even if the value is below the threshold; see :mod:`.state`.

Without ``refresh``, a stale key is checked at once.
"""

import asyncio
import contextvars
import logging
import math
import random
from collections import deque
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

from purgatory import Clock, Purgatory
from purgatory.aio.turn_budget import TurnBudget
from purgatory.core.stats.histogram import Histogram
from purgatory.core.timer.units import to_seconds
from purgatory.texts import safe_repr

from .codec import Entry, is_key, is_value
from .not_found import NotFound
from .parts import Parts
from .pending import PendingKeys
from .reading import Refresh, read
from .state import RelayState, RelayWait
from .timing import backoff_ms, new_jitter, sleep_ms, wake
from .unreadable import Errors, UnreadableKey, UnreadableKeys

__all__ = ["Refresher"]

_LOGGER = logging.getLogger("purgatory.relay")
_SLICE: Final = 200  # keys handled in one turn of the loop
_REPEATED: Final = 3  # the number of times that a read is repeated before it is divided
_OUTAGE: Final = 12  # after this many failed reads in a row, no further read is divided
_PROOFS: Final = 8  # the number of readable keys of which one is read to find out whether the store is down
_TRANSIENT: Final = 3  # if repetition cured this many failures within _TRANSIENT_MS, reads fail at random
_TRANSIENT_MS: Final = 10_000
_RANDOM: Final = 8  # more failed reads in a row than this are not random
_OFTEN: Final = 8  # keys whose reads have failed at least this often during an outage are read in turn


class Refresher:
    """Keeps the watched keys of one purgatory fresh.

    ``limit_ms``: a read that takes longer is cancelled and counts as failed.
    """

    def __init__(
        self, purgatory: Purgatory[Any], refresh: Refresh | None, max_keys: int, clock: Clock, limit_ms: int
    ) -> None:
        self.stale: PendingKeys = PendingKeys(max_keys)
        self.refreshed: int = 0
        self.reads: int = 0
        self.failed_reads: int = 0
        self.resyncs: int = 0
        self.read_times: Histogram = Histogram()
        self.state: RelayState[Any, Any] = RelayState(purgatory)
        self._purgatory = purgatory
        self._refresh = refresh
        self._clock = clock
        self._limit_ms = limit_ms
        self._all_keys: Iterator[Hashable] | None = None  # over all watched keys, if all are stale
        self._all_keys_again = False
        self._first_read = 0  # the number of the first read of this pass over all keys
        self._wake = asyncio.Event()
        # For the next read of keys that have been read before, and of new ones: halved after a failure that divides the
        # keys, doubled after a success.
        self._most_keys = [max_keys, max_keys]
        self._are_new = False  # whether the stale keys read last are new, if the two are read separately
        self._reading: set[Hashable] = set()  # the keys of the current read
        self._kinds: set[bool] = set()  # whether the keys read last were new: {True}, {False}, or both
        self._limits: set[bool] = set()  # which of _most_keys has limited them, if any
        self._failures = 0  # failures of any reads since the last success
        self._failures_together = 0  # the same, except for reads of unreadable keys
        self._to_repeat: list[Entry] = []  # the keys of a failed read that is repeated
        self._repeated: list[Entry] = []  # the keys of the read that is a repetition, until it ends
        self._complete = True  # whether these are all keys of the read that failed first
        self._failures_of: dict[Hashable, int] = {}  # how many reads of a key failed while the store seemed down
        self._readable: deque[Hashable] = deque(maxlen=_PROOFS)  # one key of each of the last reads that succeeded
        self._mended_ms: deque[int] = deque(maxlen=_TRANSIENT)  # when repetitions succeeded
        self._reported: Errors = set()  # the types of errors reported since the last successful read
        self._parts = Parts(self.state.has_read)
        self._is_part = False  # whether the keys read last are a part
        self._jitter = new_jitter("")
        self._unreadable = UnreadableKeys(max_keys, clock, self._jitter, purgatory.is_watched, self._forget)
        self._not_found = NotFound(max_keys, clock, purgatory.is_watched)
        self._reported_of_keys: Errors = set()  # the types of the errors that were values of keys

    def spread(self, jitter: random.Random, phase_ms: int) -> None:
        """Read at other times than other processes: shorten pauses at random, and shift those that end together."""
        self._jitter = self._unreadable.jitter = jitter
        self._not_found.phase_ms = phase_ms

    @property
    def waiting(self) -> int:
        """The number of keys that are waiting to be read."""
        others = len(self._to_repeat) + len(self._parts) + len(self._unreadable) + self._not_found.waiting
        return len(self.stale) + others

    def mark(self, key: Hashable, value: float | None) -> None:
        """Record that the key may have changed, up to ``value``.

        If nothing waits on the key, its value is dropped, because the key may be watched again before it is read again.
        """
        if not self._purgatory.is_watched(key):
            # A wait that is ending still shows the old value, and the current read may have seen it.
            if not self.state.forget(key) or key in self._reading:
                self.stale.add(key, None)
                self._wake.set()
            return
        if self._refresh is None:
            self._purgatory.check_soon(key, value)
        else:
            if value is not None and math.isfinite(value):
                self._not_found.announce(key, value)
            self.stale.add(key, value)
            self._wake.set()

    def mark_parked(self, keys: Iterable[Hashable]) -> None:
        """Request a read of the keys of an operation that is about to be parked, even if they are not watched yet."""
        for key in keys:
            self.stale.add(key, None)
        self._wake.set()

    def end(self, wait: RelayWait) -> None:
        """After the wait has ended, forget the state of each of its keys on which no other operation waits."""
        self.state.end(wait)
        self._not_found.forget_unwatched(wait.keys)

    def mark_everything(self) -> None:
        """Record that every key may have changed."""
        self.resyncs += 1
        if self._refresh is None:
            self._purgatory.check_all()
        else:
            self.stale.add_everything()
            self._wake.set()

    async def run(self) -> None:
        """Read and check stale keys until the task is cancelled."""
        while True:
            batch: list[Entry] = []
            unreadable: list[UnreadableKey] = []
            try:
                if self.state.has_due:
                    await self._try_due()
                await self._mark_due()
                self._limits = set()
                unreadable = self._unreadable.take()
                batch = [one.entry for one in unreadable] or await self._next_keys()
                if batch:
                    self._kinds = {not self.state.has_read(key) for key, _ in batch}
                    done = await self._read_and_check(batch)
                    self._note_repeated(done)
                    self._succeeded(done)
                    if unreadable:
                        self._unreadable.succeeded()
                    elif self._is_part:
                        self._parts.succeeded()
                elif not self._has_keys():  # the last batch may leave keys
                    await self._wait()
            except Exception as error:
                self.failed_reads += 1
                self._failures += 1
                if unreadable:
                    pause_ms = self._unreadable.failed(unreadable)
                    failures = max(self._failures, unreadable[0].failures)
                    self._report(error, unreadable[0].reported, failures, pause_ms)
                else:
                    await self._failed(batch, error)

    def _has_keys(self) -> bool:
        """Return whether there are keys to be read now, apart from those that fail alone."""
        return bool(self._all_keys is not None or self.stale or self._to_repeat or self._parts)

    # Failed reads

    def _succeeded(self, done: list[Entry]) -> None:
        """Record that ``refresh`` has returned; ``done``: the keys that it could read, if any.

        Unreadable keys rejoin the others if they may have been set apart only because the store was down.
        """
        if self._failures_of:
            for key, _ in done:
                self._failures_of.pop(key, None)
        if self._failures_together > _OUTAGE:
            self._put_back(self._unreadable.take_lately_added())
        self._unreadable.any_read_succeeded()
        if done and done[0][0] not in self._readable:
            self._readable.append(done[0][0])
        self._failures = self._failures_together = 0
        for new in self._kinds | self._limits:
            self._most_keys[new] = min(2 * self._most_keys[new], self.stale.max_keys)
        if not self._parts:
            self._reported.clear()

    async def _failed(self, batch: list[Entry], error: Exception) -> None:
        """Keep the keys stale, report the error, and pause, unless the keys are divided.

        A divided read needs no pause: each division brings its keys closer to being read one at a time, and after
        ``_OUTAGE`` failures in a row, there are pauses until a read succeeds.
        """
        self._failures_together += 1
        if self._is_part:
            self._parts.failed()
        was_repeated, self._repeated = bool(self._repeated), []
        new = True in self._kinds
        at_random = self._fail_at_random() and not self._is_part
        pauses = 1 if at_random else self._failures_together
        if not batch:  # it is no longer known which keys were taken
            self._to_repeat = []
            self._parts.take_all()
            self._unreadable.clear()
            self.stale.add_everything()
        elif self._failures_together >= _OUTAGE:
            self._put_back(self._parts.take_all())
            self._most_keys = [1, 1]
            self._put_back(batch)
            for key, _ in batch:
                self._failures_of[key] = self._failures_of.get(key, 0) + 1
            pauses -= _OUTAGE
        elif at_random or not (
            self._failures_together > _REPEATED
            or self._most_keys[new] < self.stale.max_keys
            or self._is_part
            or self._parts
            or self._unreadable
        ):
            self._to_repeat = batch
            self._complete = self._complete or not was_repeated
        else:
            self._most_keys[new] = max(1, min(self._most_keys[new], len(batch)) // 2)
            if self._divide(batch, {type(error)}):
                pauses = 0
        pause_ms = backoff_ms(pauses, self._jitter) if pauses else 0
        self._report(error, self._reported, self._failures, pause_ms)
        await sleep_ms(self._clock, pause_ms)

    def _note_repeated(self, batch: list[Entry]) -> None:
        """Record whether the read was a repetition of a failed read, and could read all of its keys.

        If nothing waits on one of the keys any longer, it may have been the one that cannot be read.
        """
        if self._repeated:
            if self._complete and len(batch) == len(self._repeated):
                self._mended_ms.append(self._clock.now_ms())
            self._repeated = []

    def _fail_at_random(self) -> bool:
        """Return whether failed reads have recently succeeded when they were repeated."""
        mended = self._mended_ms
        lately = len(mended) == _TRANSIENT and self._clock.now_ms() - mended[0] <= _TRANSIENT_MS
        return lately and self._failures_together <= _RANDOM

    def _divide(self, batch: list[Entry], reported: Errors) -> bool:
        """Schedule separate reads of two parts, or of a single key after a pause, unless too many keys are waiting.

        Return False if too many are waiting.

        Keys of which one is in a part already are not divided.  Otherwise, keys that change again and again would add
        parts faster than parts are read.
        """
        keys = [key for key, _ in batch]
        if len(self._parts) + len(self._unreadable) >= self.stale.max_keys:
            self._put_back(batch)
            return False
        if len(batch) == 1:
            self.state.forget_read(keys[0])
            self._unreadable.add(batch[0], reported)
        elif self._parts.have_any(keys):
            self._put_back(batch)
        else:
            self._parts.divide(batch)
        return True

    def _put_back(self, batch: list[Entry]) -> None:
        for key, value in batch:
            self.stale.add(key, value)

    def _report(self, error: Exception, reported: Errors, failures: int, pause_ms: int) -> None:
        """Report the first error of each type with its traceback, and log one line for each further error."""
        name = self._purgatory.name
        if type(error) in reported:
            _LOGGER.warning(
                "refresh for purgatory %r failed %d times in a row and is tried again in %g s: %s",
                name,
                failures,
                to_seconds(pause_ms),
                safe_repr(error),
            )
        else:
            reported.add(type(error))
            message = f"refresh for purgatory {name!r} failed and is tried again"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    # Which keys are next

    async def _wait(self) -> None:
        """Wait until there are stale keys or a key is due to be read again."""
        alarm = None
        due_ms = [due for due in (self._unreadable.next_due_ms(), self._not_found.next_due_ms) if due is not None]
        if due_ms:
            alarm = self._clock.call_at(min(due_ms), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._wake.clear()

    async def _mark_due(self) -> None:
        """Mark keys as stale if the last read has not found their state and their pauses have passed."""
        while self._not_found.has_due() and (room := self.stale.max_keys - len(self.stale)) > 0:
            for key in self._not_found.take_due(room, _SLICE):
                if self._purgatory.is_watched(key):
                    self.stale.add(key, None)
                else:
                    self._forget(key)
            if self._not_found.has_due() and len(self.stale) < self.stale.max_keys:
                await asyncio.sleep(0)

    async def _next_keys(self) -> list[Entry]:
        """Return either stale keys or a part of a failed read; the two alternate.

        A read that is repeated has the same keys, and comes before other stale keys.  Otherwise, successful reads of
        these could hide for ever that the read fails again and again.

        While the store seems down, stale keys alternate with one key whose read has succeeded before.
        """
        failures = self._failures_together
        if failures >= _OUTAGE and failures % 2 == 0 and self.stale and self._readable:
            self._readable.rotate()
            return [(self._readable[0], None)]
        self._is_part = bool(self._parts) and not self._is_part
        if not self._is_part and self._to_repeat:
            entries, self._to_repeat = self._to_repeat, []
            self._repeated = await self._still_watched(entries)
            if len(self._repeated) < len(entries):
                self._complete = False
            return self._repeated
        if not self._is_part:
            return await self._next_batch()
        part = self._parts.take(self._most_keys)
        return await self._still_watched(part)

    def _is_wanted(self, key: Hashable) -> bool:
        """Return whether the stale key is to be read with others: it is still watched, and does not fail alone.

        Forget a key that is no longer watched.
        """
        if not self._purgatory.is_watched(key):
            self._forget(key)
            return False
        if key in self._unreadable:
            self._failures_of.pop(key, None)
            return False
        return True

    def _forget(self, key: Hashable) -> None:
        """Forget a stale key that is not read, because nothing waits on it: also its value, which may be old."""
        self._failures_of.pop(key, None)
        self._not_found.forget(key)
        self.state.forget(key)

    async def _still_watched(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries whose keys are still watched, except those that fail alone."""
        watched: list[Entry] = []
        for number, entry in enumerate(entries, 1):
            if self._is_wanted(entry[0]):
                watched.append(entry)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return watched

    async def _next_batch(self) -> list[Entry]:
        """Return at most ``max_keys`` stale keys that are watched now, except those that fail alone.

        If not all keys fit into the batch, those that have failed least often come first, and a key that has never been
        read counts as one that has failed: a key that has just been checked must not wait for keys that cannot be read.

        A key of a part is included if it has become stale again: it must not wait until its part is read.

        While all keys are to be read, keys that were marked one by one fill at most half of the batch, or, if new keys
        are read separately, only their batches.  Otherwise, keys that change during every read could prevent the other
        keys from ever being read.
        """
        purgatory = self._purgatory
        batch: dict[Hashable, float | None] = {}
        failures_of = self._failures_of
        if self.stale.take_everything():
            failures_of.clear()
            await self._forget_unwatched()
            if self._all_keys is None:
                self._begin_pass()
            else:
                self._all_keys_again = True  # start again after this pass, so that the keys at its end are also reached
        stale, most_keys = self._take()
        self._limits = {self._are_new}
        reads_all = self._all_keys is not None and not self._are_new
        most = most_keys // 2 if reads_all else most_keys
        if len(stale) > most:
            known = self.state.has_read
            stale.sort(key=lambda entry: min(failures_of.get(entry[0], 0) + (not known(entry[0])), _OFTEN))
        for number, (key, value) in enumerate(stale, 1):
            if self._is_wanted(key):
                if len(batch) < most:
                    batch[key] = value
                else:
                    self.stale.add(key, value)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        if self._all_keys is not None and reads_all:
            examined = 0
            while len(batch) < most_keys:
                try:
                    key = next(self._all_keys)
                except StopIteration:
                    self._all_keys = None
                    if self._all_keys_again:
                        self._begin_pass()
                    else:
                        await self._forget_skipped(batch)
                    break
                if not is_key(key):
                    purgatory.check_soon(key)  # the key cannot be relayed, so its state is in this process
                elif purgatory.is_watched(key) and key not in self._parts and key not in self._unreadable:
                    batch[key] = None
                examined += 1
                if examined % _SLICE == 0:
                    await asyncio.sleep(0)
        return list(batch.items())

    def _begin_pass(self) -> None:
        """Begin a pass over all watched keys."""
        self._all_keys = self._purgatory.keys()
        self._all_keys_again = False
        self._first_read = self.state.next_read

    async def _forget_skipped(self, batch: Container[Hashable]) -> None:
        """Forget the values of keys that the pass has not reached, because nothing waited on them for a while.

        ``batch``: the keys of the next read.
        """
        for number, key in enumerate(self.state.keys_read(), 1):
            if self.state.is_older(key, self._first_read) and not (
                key in batch
                or key in self.stale
                or key in self._parts
                or key in self._unreadable
                or self._not_found.is_postponed(key)
            ):
                self.state.forget(key)
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    def _take(self) -> tuple[list[Entry], int]:
        """Remove and return stale keys, and how many keys the next read may have.

        If reads of one kind have been divided lately, new keys are read separately from the others, and the two kinds
        alternate.
        """
        stale = self.stale.take()
        divided = min(self._most_keys) < self.stale.max_keys
        if divided and self._failures_together < _OUTAGE and not self._fail_at_random():
            kinds: tuple[list[Entry], list[Entry]] = [], []
            for entry in stale:
                kinds[not self.state.has_read(entry[0])].append(entry)
            others = bool(kinds[False]) or self._all_keys is not None
            self._are_new = bool(kinds[True]) and not (self._are_new and others)
            self._put_back(kinds[not self._are_new])
            stale = kinds[self._are_new]
        else:
            self._are_new = False
        return stale, self._most_keys[self._are_new]

    async def _forget_unwatched(self) -> None:
        """Forget what is known about keys on which no operation waits any longer."""
        for number, key in enumerate(self._not_found.keys(), 1):
            self._not_found.forget_unwatched([key])
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        for _ in range(0, self.state.kept, _SLICE):
            self.state.examine(_SLICE)
            await asyncio.sleep(0)

    # One read

    async def _read_and_check(self, batch: list[Entry]) -> list[Entry]:
        """Read the keys, and return those whose state was read."""
        # Only this frame refers to the values, so that they are freed when the last watcher of their key has left.
        number = self.state.begin_read()
        began_ms = self._clock.now_ms()
        keys = [key for key, _ in batch]
        self._reading = set(keys)
        try:
            try:
                assert self._refresh is not None
                found = await read(self._refresh, keys, self._clock, self._limit_ms)
            finally:
                self.read_times.record(self._clock.now_ms() - began_ms)
            return await self._check(batch, found, number)
        finally:
            self._reading = set()

    async def _check(self, batch: list[Entry], found: Mapping[Any, object] | None, number: int) -> list[Entry]:
        """Store what was read, and check the keys, each with its value if the value is a number.

        Return the keys whose state was read; the others are read again.
        """
        done: list[Entry] = []
        errors: list[BaseException] = []
        for count, entry in enumerate(batch, 1):
            key = entry[0]
            value: Any = None if found is None else found.get(key)
            if isinstance(value, BaseException):
                errors.append(value)
                self._not_found.postpone(key)
            else:
                done.append(entry)
                self.state.store(key, {} if found is None else found, number)
                if found is not None and self._not_found.lags(key, found):
                    self._not_found.postpone(key)
                else:
                    self._not_found.forget(key)
                value = value if is_value(value) else None
                self.state.checked(key, value, number)
                self._purgatory.check_soon(key, value)
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        self.reads += 1
        self.refreshed += len(done)
        if not self._not_found:
            self._reported_of_keys.clear()
        if errors:
            self._report_keys(errors, len(batch))
        return done

    def _report_keys(self, errors: list[BaseException], number: int) -> None:
        """Report the first error of each type with its traceback, and log one line for each further read."""
        name = self._purgatory.name
        new = {type(error): error for error in reversed(errors) if type(error) not in self._reported_of_keys}
        self._reported_of_keys.update(new)
        message = f"refresh for purgatory {name!r} could not read {len(errors)} of {number} keys, which are read again"
        for error in new.values():
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
        if not new:
            _LOGGER.warning("%s: %s", message, safe_repr(errors[0]))

    async def _try_due(self) -> None:
        """Try the waits that the checks of the last read may have skipped, after these checks and in slices.

        As in a check, the conditions run in a callback of the loop, not in this task: a condition that cancels the
        current task must not end the reads.
        """
        loop = asyncio.get_running_loop()
        slices: TurnBudget | None = None

        def work() -> None:
            nonlocal slices
            if slices is None:
                timer = self._purgatory.timer
                slices = TurnBudget(timer.clock, timer.turn_budget_ms)
            else:
                slices.resume()
            try:
                while self.state.has_due:
                    self.state.try_due(slices.portion())
                    if slices.over():
                        break
            finally:
                wake(turn)

        while self.state.has_due:
            turn = loop.create_future()
            loop.call_soon(work, context=contextvars.Context())  # the checks of the read run first
            await turn
