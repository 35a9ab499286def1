"""The journal: an observer that writes the end of every operation to a directory of Parquet files.

Cost in the event loop
======================

When an operation ends, eight values are appended to a list; nothing else happens in the event loop's thread.  Every
``rows_per_file`` rows, and at least every ``interval`` seconds while there are rows, the list is handed to the
journal's own thread, which converts it to columns and writes a file.

What can be lost
================

*   If the process is killed, the operations that ended within the last ``interval`` are lost, and so is the file that
    is being written.  Every visible file is complete.
*   If the disk cannot be written to, up to ``max_buffered`` rows wait; further rows are dropped and counted, in
    :meth:`Journal.statistics` and in a ``dropped`` row of the journal itself.  Writing resumes when the disk can be
    written to again.
"""

import asyncio
import contextlib
import logging
import math
import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from purgatory.core.operation.lifecycle import CANCELLED, COMPLETED, EXPIRED, EXPIRED_BY_CLOSING, FAILED
from purgatory.core.stats.record_buffer import RecordBuffer, append_record
from purgatory.core.timer.clock import Clock
from purgatory.core.timer.units import duration_ms
from purgatory.events import Event, Observer

from .batch import OP_ID, PURGATORY, WIDTH, Batch, Gap, Refused, key_text, warm_up
from .files import new_source, prepare
from .writer import Writer

__all__ = ["Journal", "JournalStatistics"]

_LOGGER = logging.getLogger("purgatory.journal")
_STEP_MS = 2  # two files have different anchors only if the wall clock was set in between


class _Parked(Protocol):
    """The part of an observed purgatory that the journal needs: its parked operations."""

    def parked_events(self) -> list[Event]: ...

    @property
    def name(self) -> str: ...


class _RefusedUntil(NamedTuple):
    """The number of operations that a purgatory had refused by a given time on its clock."""

    number: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A snapshot of a journal.  ``recorded == written + buffered + dropped``, in rows.

    ``files``: files written; ``failures``: failed attempts; ``last_error``: the latest failure, or None.
    """

    recorded: int
    written: int
    buffered: int
    dropped: int
    files: int
    failures: int
    last_error: str | None


class _Rows(RecordBuffer):
    """The rows that purgatories append for a journal."""

    __slots__ = ("_journal",)

    def __init__(self, journal: "Journal") -> None:
        super().__init__()
        self._journal = journal

    def flush(self) -> None:
        self._journal._flush_due()


class Journal(Observer):
    """An :class:`~purgatory.events.Observer` that writes the ends of operations to Parquet files in a directory.

    **Usage.**  ::

        async with Journal("/var/lib/server/journal") as journal:
            async with Purgatory("fetch", observers=[journal]) as purgatory:
                ...

    One journal serves any number of purgatories on one event loop.  A server may create the journal before it forks its
    workers; each worker then enters the journal and counts as a separate run.  In a process that is forked after the
    journal was entered, the journal is closed.  If the event loop ends before the journal is closed, the journal
    continues in the next loop, but its rows may wait in memory until :meth:`flush` or :meth:`aclose` is called or a
    file is full.

    When the journal closes, operations that are still waiting are written as ``pending``.  The schema is in
    :mod:`purgatory.journal.schema`.

    **Cancellation safety.**  When :meth:`aclose` is cancelled, the thread already has every row and finishes its work;
    call :meth:`aclose` again to wait for the thread.

    ``path``: the directory, created if it does not exist; a relative path is made absolute at once.  Entering the
    journal raises :class:`JournalError` if the directory cannot be written to.  ``rows_per_file``, ``interval``
    (seconds): a file is written when either is reached.  ``max_buffered``: rows that may wait for the disk.
    ``key_text``: converts a key to text; called in the journal's thread.  ``clock``: the purgatories' clock, if
    it is not the default one; its anchor is measured once.  ``epoch_ms``: the anchor, that is, the epoch time of the
    clock's zero, in milliseconds; by default, it is measured.  ``partition_by``: with ``"date"``, each file is in a
    folder such as ``date=2026-11-22``, the UTC date on which its operations were parked.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rows_per_file: int = 5_000,
        interval: float = 5.0,
        max_buffered: int = 250_000,
        key_text: Callable[[Any], str] = key_text,
        clock: Clock | None = None,
        epoch_ms: int | None = None,
        partition_by: Literal["date"] | None = None,
    ) -> None:
        self.record_buffer: RecordBuffer = _Rows(self)
        if not os.fspath(path):  # for example, from a variable that is not set; pathlib would use the current directory
            raise ValueError(f"path must be the path of a directory, got {path!r}")
        self.path: Path = Path(os.fspath(path)).absolute()  # the process may change its directory later
        _validate_int("rows_per_file", rows_per_file, 1)
        _validate_int("max_buffered", max_buffered, rows_per_file)
        if duration_ms(interval, "interval") == 0:
            raise ValueError(f"interval must be more than 0 seconds, got {interval!r}")
        if clock is not None and not isinstance(clock, Clock):
            raise TypeError(f"clock must be a purgatory.types.Clock, got {clock!r}")
        if not callable(key_text):
            raise TypeError(f"key_text must be a function that returns the text of a key, got {key_text!r}")
        if epoch_ms is not None:
            _validate_int("epoch_ms", epoch_ms, 0)
        if partition_by not in (None, "date"):
            raise ValueError(f"partition_by must be 'date' or None, got {partition_by!r}")
        self.rows_per_file = rows_per_file
        self.interval = interval
        self.max_buffered = max_buffered
        self.partition_by = partition_by
        self._key_text = key_text
        self._clock = clock
        self._fixed_anchor_ms = epoch_ms
        self._anchor_ms = 0
        self._closed = False
        self._inherited = False  # whether this process was forked from the one that uses the journal
        self._begin()
        self._observed: weakref.WeakValueDictionary[int, _Parked] = weakref.WeakValueDictionary()  # by id()
        self._kept: dict[int, _Parked] = {}  # by id(): those that do not support weak references
        self._refused: dict[int, _RefusedUntil] = {}  # by id() of the purgatory: the refusals already in the journal
        self._pending: dict[Any, int] = {}  # by purgatory: the id of the last operation written as pending
        _journals.add(self)

    def _begin(self) -> None:
        """Start without rows and without a thread, initially and in a forked process."""
        self._writer = Writer(self.path, self._key_text, self._retry_later, partitioned=self.partition_by is not None)
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: Future[None] | None = None
        self._taken = 0  # rows that have left the record buffer
        self._dropped = 0
        self._gap: Gap | None = None

    # Life

    async def __aenter__(self) -> Self:
        if self._loop is not None or self._closed:
            raise RuntimeError(
                f"{self!r} has already been entered: create a new journal, which may use the same directory"
            )
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, prepare, self.path)
        await loop.run_in_executor(None, warm_up)
        self._writer.source = new_source()  # not earlier: the process may have been forked since ``__init__``
        self._anchor_ms = self._measure()
        self._loop = loop
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write all rows, and a ``pending`` row for every operation that is still waiting.

        This method does not raise: rows that cannot be written are dropped, counted, and logged.  The method is
        idempotent: a second call waits for the first, even if the task that made the first call is cancelled.
        """
        if not self._closed:
            if self._loop is not None:
                self._record_pending()
                self._hand_over()
                self._hand_over()  # if the rows did not fit: a batch without rows, which contains their number
            self._closed = True
            self._stop_timer()
        if self._loop is not None:
            if self._closing is None:
                self._closing = self._writer.close(self._dropped)
            await asyncio.shield(asyncio.wrap_future(self._closing))

    async def flush(self) -> None:
        """Hand all rows to the thread, and return when they are written or the attempt has failed.

        A journal that is closing writes the rows anyway, and this method waits until the journal is closed.  A journal
        that has not been entered has no rows.
        """
        if self._loop is None:
            return
        attempt = self._closing
        if attempt is None:
            self._hand_over()
            attempt = self._writer.retry()
        if attempt is None:
            attempt = self._writer.finish()
        await asyncio.shield(asyncio.wrap_future(attempt))

    # The methods of an observer.  A purgatory fills the record buffer instead; call the methods to record events by
    # hand.

    def completed(self, event: Event) -> None:
        """Record that the operation completed."""
        self._record(COMPLETED, event)

    def expired(self, event: Event) -> None:
        """Record that the operation expired: its deadline passed, or its purgatory closed."""
        self._record(EXPIRED_BY_CLOSING if event.expired_by_closing else EXPIRED, event)

    def cancelled(self, event: Event) -> None:
        """Record that the operation was withdrawn."""
        self._record(CANCELLED, event)

    def failed(self, event: Event) -> None:
        """Record that the operation failed."""
        self._record(FAILED, event)

    def attached(self, purgatory: _Parked) -> None:
        """Observe this purgatory from now on."""
        self._refused[id(purgatory)] = _RefusedUntil(_count_of_refused(purgatory), self._now_ms())
        try:
            self._observed[id(purgatory)] = purgatory
        except TypeError:
            self._kept[id(purgatory)] = purgatory

    # Introspection

    def statistics(self) -> JournalStatistics:
        """Return a snapshot of the counters."""
        writer = self._writer
        recorded = self._taken + len(self.record_buffer.values) // WIDTH
        written, unwritable = writer.written, writer.unwritable
        dropped = self._dropped + unwritable
        return JournalStatistics(
            recorded=recorded,
            written=written,
            buffered=recorded - written - dropped,
            dropped=dropped,
            files=writer.files,
            failures=writer.failures,
            last_error=writer.last_error,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._loop is None else "open"
        s = self.statistics()
        return f"<Journal {state} {str(self.path)!r} written={s.written} buffered={s.buffered} dropped={s.dropped}>"

    # Implementation

    def _record(self, state: int, event: Event) -> None:
        append_record(
            self.record_buffer,
            state,
            (event.purgatory, event.instance),
            type(event.operation) if event._kind is None else event._kind,
            event.op_id,
            event.keys,
            event.parked_ms,
            event.deadline_ms,
            event.finished_ms,
        )

    def _flush_due(self) -> None:
        """Start the timer at the first row of a file; hand the rows over at the last row."""
        full = self.rows_per_file * WIDTH
        if self._closed or self._loop is None:
            self._drop_rows()
        elif len(self.record_buffer.values) >= full:
            self._hand_over()
        else:
            self._end_idle_time()
            self._start_timer()
            if self._timer is not None:
                self.record_buffer.flush_at = full

    def _end_idle_time(self) -> None:
        """At the first row of a file, begin the range of the next note of each purgatory that has refused no operation
        since the last file: the journal may have been idle for hours.
        """
        now_ms = self._now_ms()
        for number, purgatory in self._purgatories():
            if _count_of_refused(purgatory) == self._refused[number].number:
                self._refused[number] = self._refused[number]._replace(at_ms=now_ms)

    def _interval_over(self) -> None:
        self._timer = None
        self._hand_over()
        self._writer.retry()
        if self._writer.failing:
            self._start_timer()

    def _retry_later(self) -> None:
        """Start the timer after a failed attempt, even if no row follows.  Any thread may call this method."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._start_timer, context=Context())

    def _start_timer(self) -> None:
        if self._loop is None or self._closed:
            return
        if self._loop.is_closed():
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:  # a later row may be recorded in a loop
                return
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.interval, self._interval_over, context=Context())

    def _hand_over(self) -> None:
        if self._loop is None or self._closed:
            return
        refused, until = self._new_refused()
        if not self.record_buffer.values and self._gap is None and not refused:
            self._refused = until
            return
        self._anchor_ms = self._measure()
        batch = Batch(self._clear(), self._anchor_ms)
        if self._writer.waiting + batch.rows > self.max_buffered:
            self._drop(batch.as_gap())
            return
        batch.gap, self._gap = self._gap, None
        batch.refused = refused
        self._refused = until
        self._writer.put(batch)

    def _new_refused(self) -> tuple[tuple[Refused, ...], dict[int, _RefusedUntil]]:
        """Return notes on the operations refused since the last notes, and the counters that these notes cover.

        A refused operation has no row and costs nothing: the counters of the purgatories are read with each file.
        """
        until = {}
        notes = []
        for number, purgatory in self._purgatories():
            now = until[number] = _RefusedUntil(_count_of_refused(purgatory), self._now_ms())
            before = self._refused[number]
            if now.number > before.number:
                name = str(purgatory.name)
                notes.append(Refused(name, now.number - before.number, before.at_ms, now.at_ms))
        return tuple(notes), until

    def _purgatories(self) -> list[tuple[int, Any]]:
        return [*self._observed.items(), *self._kept.items()]

    def _now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 if self._clock is None else self._clock.now_ms()

    def _clear(self) -> list[Any]:
        values = self.record_buffer.values
        self.record_buffer.values = []
        self._taken += len(values) // WIDTH
        self.record_buffer.flush_at = 1
        return values

    def _drop_rows(self) -> None:
        """Count the recorded rows as dropped because the journal has not been entered or is closed.

        An operation that was parked when the journal closed already has a row, ``pending``, and is not counted.
        """
        if self._inherited:
            self._inherited = False
            _LOGGER.warning(
                "the journal %s was entered before this process was forked and records nothing here:"
                " enter a journal after the fork",
                self.path,
            )
        values, self.record_buffer.values = self.record_buffer.values, []
        start = 0
        while start < len(values):
            row = values[start : start + WIDTH]
            if row[OP_ID] > self._pending.get(row[PURGATORY], 0):
                self._taken += 1
                self._drop(Batch(row, self._anchor_ms).as_gap())
            start += WIDTH

    def _drop(self, gap: Gap) -> None:
        self._dropped += gap.count
        if self._gap is None:
            self._gap = gap
        else:
            self._gap.merge(gap)

    def _record_pending(self) -> None:
        for purgatory in [*self._observed.values(), *self._kept.values()]:
            for event in purgatory.parked_events():
                purgatory_id = (event.purgatory, event.instance)
                self._pending[purgatory_id] = max(event.op_id, self._pending.get(purgatory_id, 0))
                self._record(0, event)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self) -> int:
        """Return the epoch time of the clock's zero, in milliseconds, according to the wall clock."""
        if self._fixed_anchor_ms is not None:
            return self._fixed_anchor_ms
        if self._clock is not None:
            self._fixed_anchor_ms = time.time_ns() // 1_000_000 - self._clock.now_ms()
            return self._fixed_anchor_ms
        anchor_ms = math.floor((time.time_ns() - time.monotonic_ns()) / 1_000_000)
        return self._anchor_ms if abs(anchor_ms - self._anchor_ms) <= _STEP_MS else anchor_ms


def _count_of_refused(purgatory: Any) -> int:
    statistics = getattr(purgatory, "statistics", None)
    return 0 if statistics is None else int(statistics().refused)


def _validate_int(name: str, value: int, least: int) -> None:
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


# Forked processes

_journals: Final["weakref.WeakSet[Journal]"] = weakref.WeakSet()


def _begin_in_child() -> None:
    """Close the copies of the parent's open journals: their rows, loops, and threads belong to the parent."""
    for journal in list(_journals):
        if journal._loop is not None:
            journal._begin()
            journal._inherited = not journal._closed
            journal._closed = True
            journal._pending.clear()
            journal.record_buffer.values = []
            journal.record_buffer.flush_at = 1


if hasattr(os, "register_at_fork"):  # Windows has no fork()
    os.register_at_fork(after_in_child=_begin_in_child)
