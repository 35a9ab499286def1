"""Compute a report (every table of a journal), and write its tables, plots, and page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console

from purgatory.journal import JournalError
from purgatory.journal.schema import OUTCOMES
from purgatory.pipeline.journal_reader import OpenJournal, read_journal
from purgatory.pipeline.locations import Location, file_at
from purgatory.pipeline.output.directory import write_files
from purgatory.pipeline.output.table_files import write_table
from purgatory.pipeline.selection import EVERYTHING, Selection
from purgatory.pipeline.spark.progress import Steps, progress
from purgatory.pipeline.spark.workers import ship_package

from .aggregates import HOT_OUTCOMES, Aggregate, Aggregates, Span
from .one_pass import (
    first_pass,
    hot_tables,
    key_shares,
    notes_of_refused,
    reads_files,
    span_of_rows,
    tables_of,
    waits_by_step,
)
from .time_span import TimeSpan, at, deploys_of, span_of_files
from .unusual_intervals import OWN_THRESHOLD, Names, TimeSteps, find_own_times
from .verdicts import KeyShares

if TYPE_CHECKING:
    from .incident import Worst

__all__ = ["Report", "compute", "find_key_shares", "write_report"]

_STEPS: Final = 2
_MOST_BUCKETS: Final = 2_000
_MOST_STEPS: Final = 200
# Lengths of a bucket that are easy to read, in milliseconds.
_LENGTHS_MS: Final = (1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000)
_YEAR_ONE_MS: Final = -62_135_596_800_000


@dataclass(frozen=True, slots=True)
class Report:
    """The tables of a journal by name, and their origin.

    ``bucket_ms``: the length of a bucket of the occupancy.  ``step_ms``: the length of a step in the table
    ``over_time``.  ``files``: None if only Spark can list the journal.  ``waits_by_step``: see
    :class:`~purgatory.pipeline.report.unusual_intervals.TimeSteps`.  ``deploys``: when new runs of servers began.
    ``key_shares``: the keys of the worst interval, if any.  ``span``: the times of the first and the last record of the
    whole journal, whatever is selected.  ``notes``: see
    :class:`~purgatory.pipeline.report.unusual_intervals.TimeSteps`.
    """

    journal: str
    tables: dict[str, pa.Table]
    bucket_ms: int
    files: int | None
    skipped: tuple[str, ...]
    made_at: datetime
    selection: Selection = EVERYTHING
    step_ms: int = 60_000
    waits_by_step: Mapping[Names, Aggregate] = field(default_factory=dict)
    deploys: tuple[datetime, ...] = ()
    key_shares: KeyShares | None = None
    span: tuple[datetime, datetime] | None = None
    notes: Mapping[str, Aggregate] = field(default_factory=dict)

    @property
    def steps(self) -> TimeSteps:
        """The table over time, with the waits from which it is computed."""
        until_ms = self.selection.until_ms
        whole = until_ms is None or self.last_at.timestamp() * 1000 < until_ms
        every_kind = not self.selection.kinds
        return TimeSteps(self.tables["over_time"], self.waits_by_step, self.step_ms, whole, every_kind, self.notes)

    @property
    def operations(self) -> int:
        """The number of selected operations in the journal."""
        return sum(self.tables["dropped"]["operations"].to_pylist())

    @property
    def first_at(self) -> datetime:
        """The time of the first record of the selected operations, but not before the start of the selected time."""
        first: datetime = min(self.tables["dropped"]["first_at"].to_pylist())
        since_ms = self.selection.since_ms
        return first if since_ms is None else max(first, datetime.fromtimestamp(since_ms / 1000, UTC))

    @property
    def last_at(self) -> datetime:
        """The time of the last record of the selected operations."""
        last: datetime = max(self.tables["dropped"]["last_at"].to_pylist())
        return last

    @property
    def dropped(self) -> int:
        """The number of rows that the servers dropped."""
        return sum(self.tables["dropped"]["dropped"].to_pylist())


def compute(
    spark: SparkSession,
    journal: str,
    *,
    top: int = 50,
    bucket_ms: int | None = None,
    step_ms: int | None = None,
    selection: Selection = EVERYTHING,
    skip_corrupt: bool = False,
    console: Console | None = None,
    interval_keys: bool = True,
) -> Report:
    """Compute every table.

    ``top``: the number of hot keys.  ``bucket_ms``: the length of a bucket of the occupancy in milliseconds.
    ``step_ms``: the length of a step in the table ``over_time``, a multiple of ``bucket_ms``; None chooses a length.
    ``selection``: the operations that the tables contain.  ``interval_keys``: whether to read the keys of the interval
    that is worse than the other steps.
    Raises JournalError, with the name of the file, if the journal cannot be read.  Raises JournalError if no operation
    is selected, and ValueError if the bucket is too short for the journal.
    """
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if bucket_ms is not None and bucket_ms < 1:
        raise ValueError(f"bucket_ms must be at least 1, got {bucket_ms}")
    if step_ms is not None and step_ms < 1:
        raise ValueError(f"step_ms must be at least 1, got {step_ms}")
    ship_package(spark)

    def work(
        opened: OpenJournal,
    ) -> tuple[dict[str, pa.Table], Span, TimeSpan, TimeSteps, KeyShares | None]:
        with progress(spark, _STEPS, console) as steps:
            made, span, whole, own_steps = _tables(spark, journal, opened, top, bucket_ms, step_ms, selection, steps)
        if not interval_keys:
            return made, span, whole, own_steps, None
        from .incident import worst_of  # imported here for the reason that write_report states

        own = find_own_times(own_steps, OWN_THRESHOLD)
        return made, span, whole, own_steps, find_key_shares(spark, opened, worst_of(own, own_steps), selection)

    (made, span, whole, over_time, keys), opened = read_journal(spark, journal, work, skip_corrupt=skip_corrupt)
    files = None if opened.files is None else len(opened.files)
    now = datetime.now(UTC)
    deploys = deploys_of(whole, span.step_ms, selection, int(now.timestamp() * 1000))
    skipped, step_ms = opened.skipped, span.step_ms
    within = (at(whole.first_ms), at(whole.last_ms))
    waits, notes = over_time.waits, over_time.notes
    return Report(
        journal, made, span.bucket_ms, files, skipped, now, selection, step_ms, waits, deploys, keys, within, notes
    )


def find_key_shares(
    spark: SparkSession, opened: OpenJournal, worst: "Worst | None", selection: Selection
) -> KeyShares | None:
    """Return the busiest keys of the worst interval, and how many of their operations had its outcome.

    Returns None if no interval is worse, if only the waits of the worst one are worse, or if its operations were
    refused, because the keys of refused operations are not known.
    """
    if worst is None or worst.outcome is None:
        return None
    since_ms, until_ms = (round(at.timestamp() * 1000) for at in (worst.since, worst.until))
    if selection.since_ms is not None:
        since_ms = max(since_ms, selection.since_ms)
    if selection.until_ms is not None:
        until_ms = min(until_ms, selection.until_ms)
    purgatory, kind = worst.names
    within = Selection(since_ms, until_ms, (purgatory,), selection.kinds if kind is None else (kind,))
    return key_shares(spark, opened, within, worst.outcome)


def _tables(
    spark: SparkSession,
    journal: str,
    opened: OpenJournal,
    top: int,
    bucket_ms: int | None,
    step_ms: int | None,
    selection: Selection,
    steps: Steps,
) -> tuple[dict[str, pa.Table], Span, TimeSpan, TimeSteps]:
    with steps.step("all rows"):
        span = span_of_files(opened.files or ()) if reads_files(spark, opened) else None
        if span is None:
            span = span_of_rows(opened.dataframe)
        if not span.last_of_source:
            raise JournalError(EVERYTHING.nothing_in(journal))
        chosen_ms = _bucket_ms(span, selection, bucket_ms)
        chosen_step_ms = _step_ms(span, selection, chosen_ms, step_ms)
        last_ms = {source: last.clock_ms for source, last in span.last_of_source.items()}
        selected = Span(chosen_ms, last_ms, selection, chosen_step_ms)
        _check_times(journal, span, chosen_ms, chosen_step_ms)
        aggregates = first_pass(spark, opened, selected, top)
        _check_outcomes(journal, aggregates)
        made = tables_of(aggregates, selected)
        over_time = TimeSteps(
            made["over_time"],
            waits_by_step(aggregates),
            chosen_step_ms,
            every_kind=not selection.kinds,
            notes=notes_of_refused(aggregates),
        )
    if not made["outcomes"].num_rows:
        raise JournalError(selection.nothing_in(journal))
    with steps.step("hot keys"):
        made |= hot_tables(spark, opened, aggregates, top, selection)
    made["peaks"] = _peaks(made["occupancy"])
    return made, selected, span, over_time


def _check_times(journal: str, span: TimeSpan, *lengths_ms: int) -> None:
    """Raise JournalError if a bucket or a step that contains the first record begins before the year 1."""
    if any(span.first_ms // length_ms * length_ms < _YEAR_ONE_MS for length_ms in lengths_ms):
        raise JournalError(f"the journal {journal} has a time that is too close to the year 1: {span.first_ms} ms")


def _check_outcomes(journal: str, aggregates: Aggregates) -> None:
    """Raise JournalError if an operation has an outcome that is not in the schema."""
    unknown = {names[2] for names, _ in aggregates.of("outcome")}.difference(HOT_OUTCOMES)
    if unknown:
        known = ", ".join(OUTCOMES)
        raise JournalError(f"the journal {journal} has the outcome {min(unknown)!r}, which is none of {known}")


def write_report(
    report: Report, out: Location, spark: SparkSession | None = None, *, draw: Sequence[str] = ()
) -> Location:
    """Write the tables, the plots, and the page into the directory ``out``, and return the location of the page.

    The files replace an earlier report's files only when all of them are complete.  Raises BadOutput if ``out`` is a
    file, and ValueError if the report has no purgatory of a name in ``draw``.
    ``spark``: the session that writes to a URI; by default, the active one.  ``draw``: the purgatories that have their
    own plots; by default, the eight with the most operations.
    """
    unknown = set(draw).difference(report.tables["outcomes"]["purgatory"].to_pylist())
    if unknown:
        raise ValueError(f"draw must be purgatories of the report, got {min(unknown)!r}")
    # Imported here because the tasks also import this package, and they need none of the plotting libraries.
    from purgatory.pipeline.output.figures import write_pictures

    from .page import report_page, report_plots

    with write_files(out, spark) as directory:
        for name, table in report.tables.items():
            write_table(table, directory, name)
        every_kind = report.steps.every_kind
        plots = report_plots(
            report.tables, report.bucket_ms, report.step_ms, draw, report.deploys, every_kind=every_kind
        )
        write_pictures(plots, directory)
        (directory / "index.html").write_text(report_page(report, plots, draw), encoding="utf-8")
    return file_at(out, "index.html")


def _length_ms(span: TimeSpan, selection: Selection) -> int:
    first_ms, last_ms = span.first_ms, span.last_ms
    if selection.since_ms is not None:
        first_ms = max(first_ms, selection.since_ms)
    if selection.until_ms is not None:
        last_ms = min(last_ms, selection.until_ms - 1)
    return max(0, last_ms - first_ms)


def _step_ms(span: TimeSpan, selection: Selection, bucket_ms: int, asked_ms: int | None) -> int:
    span_ms = _length_ms(span, selection)
    if asked_ms is None:
        nice = (length for length in _LENGTHS_MS if length % bucket_ms == 0 and span_ms / length <= _MOST_STEPS)
        return next(nice, bucket_ms * max(1, math.ceil(span_ms / bucket_ms / _MOST_STEPS)))
    least_ms = math.ceil(span_ms / (100 * _MOST_STEPS))
    if asked_ms < least_ms:
        raise ValueError(_too_short("step", least_ms, asked_ms))
    return asked_ms


def _bucket_ms(span: TimeSpan, selection: Selection, asked_ms: int | None) -> int:
    span_ms = _length_ms(span, selection)
    if asked_ms is None:
        nice = (length for length in _LENGTHS_MS if span_ms / length <= _MOST_BUCKETS)
        longest_ms = _LENGTHS_MS[-1]
        return next(nice, longest_ms * math.ceil(span_ms / longest_ms / _MOST_BUCKETS))
    least_ms = math.ceil(span_ms / (100 * _MOST_BUCKETS))
    if asked_ms < least_ms:
        raise ValueError(_too_short("bucket", least_ms, asked_ms))
    return asked_ms


def _too_short(name: str, least_ms: int, asked_ms: int) -> str:
    least, asked = least_ms / 1000, asked_ms / 1000
    return f"{name} must be at least {least:,} seconds for this length of time, got {asked:,}"


def _peaks(occupancy: pa.Table) -> pa.Table:
    """Return the highest occupancy of each purgatory, and the first bucket that reached it."""
    best: dict[str, dict[str, Any]] = {}
    for row in occupancy.select(["purgatory", "bucket", "peak"]).to_pylist():
        if row["purgatory"] not in best or row["peak"] > best[row["purgatory"]]["peak"]:
            best[row["purgatory"]] = row
    schema = pa.schema([occupancy.schema.field(name) for name in ("purgatory", "bucket", "peak")])
    return pa.Table.from_pylist([best[name] for name in sorted(best)], schema=schema)
