"""The journal: an observer that writes what happened to a directory of Parquet files.

What it costs the loop
======================

An ending appends eight cells to a list; that is all that happens in the loop's thread.  Every ``rows_per_file`` rows,
and at least every ``interval`` seconds while there is anything to write, the list goes to a thread of the journal's
own, which makes columns of it and a file of those.

What can be lost
================

*   The process is killed: what ended within the last ``interval``, and whatever was just being written.  Every file
    that can be seen is whole.
*   The disk cannot be written: rows wait, ``max_buffered`` of them; what ends beyond that is dropped and counted, in
    :meth:`Journal.statistics` and as a ``dropped`` row of the journal itself.  Writing goes on by itself when it can.
"""

import asyncio
import logging
import math
import os
import time
import weakref
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from purgatory.core.stats.record_buffer import RecordBuffer, append_record
from purgatory.core.timer.clock import Clock
from purgatory.core.timer.units import duration_ms
from purgatory.events import Event, Observer

from .batch import OP_ID, PURGATORY, WIDTH, Batch, Gap, key_text, warm_up
from .files import new_source, prepare
from .writer import Writer

__all__ = ["Journal", "JournalStatistics"]

_LOGGER = logging.getLogger("purgatory.journal")
_STEP_MS = 2  # the anchor of a file differs from that of the file before only if the wall clock was set


class _Parked(Protocol):
    """What the journal reads from a purgatory that it observes: the operations that wait there now."""

    def parked_events(self) -> list[Event]: ...


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A snapshot of a journal.  ``recorded == written + buffered + dropped``, in rows.

    ``files`` that were written; ``failures``: attempts that failed; ``last_error``: why, or None.
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
        self._journal._rows_are_due()


class Journal(Observer):
    """Writes the endings of operations to Parquet files in a directory.  An :class:`~purgatory.events.Observer`.

    **Usage.**  ::

        async with Journal("/var/lib/server/journal") as journal:
            async with Purgatory("fetch", observers=[journal]) as purgatory:
                ...

    One journal serves any number of purgatories of one event loop.  When it closes, operations that still wait are
    written as ``pending``.  The schema is in :mod:`purgatory.journal.schema`.

    **Cancellation safety.**  A cancelled :meth:`aclose` has handed everything to the thread, which finishes its work.

    ``path``: the directory; made if it is not there.  Entering the journal raises :class:`JournalError` if it cannot be
    written.  ``rows_per_file``, ``interval`` (seconds): a file is written when either is reached.  ``max_buffered``:
    rows that may wait for the disk.  ``key_text``: how a key becomes text, called in the journal's thread.  ``clock``:
    the clock of the purgatories if it is not the usual one; its anchor is measured once.  ``epoch_ms``: the anchor, if
    it is to be given: epoch milliseconds at the clock's zero.
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
    ) -> None:
        self.record_buffer: RecordBuffer = _Rows(self)
        self.path: Path = Path(os.fspath(path))
        _check_whole("rows_per_file", rows_per_file, 1)
        _check_whole("max_buffered", max_buffered, rows_per_file)
        if duration_ms(interval, "interval") == 0:
            raise ValueError("interval is more than 0 seconds")
        if clock is not None and not isinstance(clock, Clock):
            raise TypeError(f"clock is a purgatory.clock.Clock, not {clock!r}")
        if not callable(key_text):
            raise TypeError(f"key_text is a function from a key to its text, not {key_text!r}")
        self.rows_per_file = rows_per_file
        self.interval = interval
        self.max_buffered = max_buffered
        self._writer = Writer(self.path, new_source(), key_text)
        self._clock = clock
        self._fixed_anchor_ms = epoch_ms
        self._anchor_ms = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._taken = 0  # rows that have left the list
        self._dropped = 0
        self._gap: Gap | None = None
        self._observed: list[Callable[[], _Parked | None]] = []
        self._pending: dict[Any, int] = {}  # by purgatory, the last operation of which the row says pending

    # Life

    async def __aenter__(self) -> Self:
        if self._loop is not None or self._closed:
            raise RuntimeError(f"{self!r} has been entered already: make a new journal, its files lie side by side")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, prepare, self.path)
        await loop.run_in_executor(None, warm_up)
        self._anchor_ms = self._measure()
        self._loop = loop
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write what there is, with a ``pending`` row for every operation that still waits.  Idempotent.

        It does not raise: rows that cannot be written now are dropped, counted and reported to the log.
        """
        if self._closed:
            return
        if self._loop is not None:
            self._note_pending()
            self._hand_over()
        self._closed = True
        self._silence()
        try:
            await asyncio.shield(asyncio.wrap_future(self._writer.finish()))
        finally:
            self._writer.let_go()
        for lost in self._writer.give_up():
            self._drop(lost)
        if self._dropped:
            _LOGGER.error("the journal %s has dropped %d rows", self.path, self._dropped)

    async def flush(self) -> None:
        """Hand over what there is, and return when it is written or could not be."""
        self._hand_over()
        attempt = self._writer.retry()
        if attempt is None:
            attempt = self._writer.finish()
        await asyncio.shield(asyncio.wrap_future(attempt))

    # The methods of an observer.  A purgatory fills the record buffer instead; callers that have only events use these.

    def completed(self, event: Event) -> None:
        """Its condition held."""
        self._hear(1, event)

    def expired(self, event: Event) -> None:
        """Its deadline passed."""
        self._hear(2, event)

    def cancelled(self, event: Event) -> None:
        """It was withdrawn."""
        self._hear(3, event)

    def failed(self, event: Event) -> None:
        """It raised, or was failed."""
        self._hear(4, event)

    def attached(self, purgatory: _Parked) -> None:
        """The journal observes this purgatory from now on."""
        try:
            self._observed.append(weakref.ref(purgatory))
        except TypeError:
            self._observed.append(lambda: purgatory)

    # How it stands

    def statistics(self) -> JournalStatistics:
        """A frozen snapshot."""
        writer = self._writer
        noted = len(self.record_buffer.values) // WIDTH
        written, unwritable = writer.written, writer.unwritable
        recorded = self._taken + noted
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

    # Inside

    def _hear(self, state: int, event: Event) -> None:
        append_record(
            self.record_buffer,
            state,
            (event.purgatory, event.instance),
            event.operation.__class__,
            event.op_id,
            event.keys,
            event.parked_ms,
            event.deadline_ms,
            event.finished_ms,
        )

    def _rows_are_due(self) -> None:
        """Set the alarm at the first row of a file; hand the rows over at the last one."""
        full = self.rows_per_file * WIDTH
        if self._closed or self._loop is None:
            self._miss()
        elif len(self.record_buffer.values) >= full:
            self._hand_over()
        else:
            if self._alarm is None:
                self._alarm = self._loop.call_later(self.interval, self._ring, context=Context())
            self.record_buffer.flush_at = full

    def _ring(self) -> None:
        self._alarm = None
        self._hand_over()
        self._writer.retry()
        if self._writer.failing and self._loop is not None:
            self._alarm = self._loop.call_later(self.interval, self._ring, context=Context())

    def _hand_over(self) -> None:
        if self._loop is None or self._closed or (not self.record_buffer.values and self._gap is None):
            return
        self._anchor_ms = self._measure()
        batch = Batch(self._clear(), self._anchor_ms)
        if self._writer.waiting + batch.rows > self.max_buffered:
            self._drop(batch.as_gap())
            return
        batch.gap, self._gap = self._gap, None
        self._writer.take(batch)

    def _clear(self) -> list[Any]:
        cells = self.record_buffer.values
        self.record_buffer.values = []
        self._taken += len(cells) // WIDTH
        self.record_buffer.flush_at = 1
        return cells

    def _miss(self) -> None:
        """The row of an ending that the journal does not write; it counts as dropped.

        After the closing that is the end of an operation parked since.  One parked before has its row: ``pending``.
        """
        cells, self.record_buffer.values = self.record_buffer.values, []
        start = 0
        while start < len(cells):
            row = cells[start : start + WIDTH]
            if row[OP_ID] > self._pending.get(row[PURGATORY], 0):
                self._taken += 1
                self._drop(Batch(row, self._anchor_ms).as_gap())
            start += WIDTH

    def _drop(self, gap: Gap) -> None:
        self._dropped += gap.count
        if self._gap is None:
            self._gap = gap
        else:
            self._gap.join(gap)

    def _note_pending(self) -> None:
        for observed in self._observed:
            purgatory = observed()
            if purgatory is not None:
                for event in purgatory.parked_events():
                    label = (event.purgatory, event.instance)
                    self._pending[label] = max(event.op_id, self._pending.get(label, 0))
                    self._hear(0, event)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _measure(self) -> int:
        """Epoch milliseconds at the clock's zero, now."""
        if self._fixed_anchor_ms is not None:
            return self._fixed_anchor_ms
        if self._clock is not None:
            self._fixed_anchor_ms = time.time_ns() // 1_000_000 - self._clock.now_ms()
            return self._fixed_anchor_ms
        anchor_ms = math.floor((time.time_ns() - time.monotonic_ns()) / 1_000_000)
        return self._anchor_ms if abs(anchor_ms - self._anchor_ms) <= _STEP_MS else anchor_ms


def _check_whole(name: str, value: int, least: int) -> None:
    if type(value) is not int:
        raise TypeError(f"{name} is a whole number (int), not {value!r}")
    if value < least:
        raise ValueError(f"{name} is at least {least}, not {value}")
