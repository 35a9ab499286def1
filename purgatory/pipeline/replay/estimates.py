"""Estimate other timeouts and limits for a journal, on Spark.  Each task handles one purgatory of one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from rich.console import Console

from purgatory.journal import JournalError
from purgatory.journal.schema import EXPIRED, OUTCOMES, PENDING
from purgatory.pipeline.journal_reader import OpenJournal, read_journal
from purgatory.pipeline.locations import Location, file_at
from purgatory.pipeline.output.directory import write_files
from purgatory.pipeline.output.page import Card, Note, PageTable, render
from purgatory.pipeline.output.table_files import write_table
from purgatory.pipeline.report.aggregates import refused_within
from purgatory.pipeline.report.one_pass import reads_files, span_of_rows
from purgatory.pipeline.report.time_span import LastRecord, TimeSpan, span_of_files
from purgatory.pipeline.selected_rows import batch_overlapping, needed_columns, overlapping, read_batches, row_groups
from purgatory.pipeline.selection import EVERYTHING, Selection
from purgatory.pipeline.spark.progress import progress
from purgatory.pipeline.spark.workers import ship_package

from .bounds import BYTES_PER_OPERATION, Bounds, Scenario, Waits, estimate, summed
from .pieces import COLUMNS, Piece, find_pieces, impossible, map_pieces, plain, trace_of

__all__ = ["Estimates", "estimate_journal", "readable", "write_estimates"]

_WHOLE: Final = 1 << 60  # rows of a piece: all rows of a purgatory, because a limit depends on what came before
_BEGINNING_MS: Final = -(1 << 62)
_COLUMNS: Final = (*COLUMNS, "kind", "expired_by_closing")
_FIGURES: Final = ("completed", "expired", "refused", "peak", "mean", "bytes")
_CAVEATS: Final = (
    "The effect of a shorter timeout is certain. With a longer one, expired operations may have completed instead.",
    "Operations that were refused in the recording have no row. With a higher limit, they might have been parked.",
    f"Memory counts parked operations: about {BYTES_PER_OPERATION} bytes each, with one key, in the compiled core.",
    "A journal does not show what clients would have done after a different outcome.",
)
_LIMITED: Final = (
    "With a limit, the two figures are those of two cases: everything ends as early as possible, or as late. They are"
    " not bounds: in a mixed case, a figure can be lower or higher than both."
)
_UNLIMITED: Final = (
    "No limit was applied, because a journal does not record the limits: no operation is refused here, and a peak can"
    " be higher than max_parked. Apply a limit with --max-parked."
)
_EARLIER: Final = (
    "Operations that parked before the selected time and still waited in it are among the waiting operations (peak,"
    " mean, memory, and limits), and nowhere else. Those that end before it are left out."
)
_OTHER_KINDS: Final = (
    "Operations of other kinds are left out, although they also wait in the purgatory: a limit does not count them."
)


@dataclass(frozen=True, slots=True)
class Estimates:
    """The result: a row for each scenario and each purgatory or part of one, with each figure as ``*_low`` and
    ``*_high``.

    ``mean`` is the mean number of waiting operations over the time of the journal, summed over all processes; ``peak``
    is the highest number in any one process.  Both include the operations that parked before the selected time and
    still waited in it; the other figures do not.  ``refused_recorded``: the number of operations that the purgatory
    refused in the recording.  ``refused``: the same for all purgatories, including those that have no row because every
    operation was refused.  ``limited``: whether a scenario has a limit.
    """

    journal: str
    table: pa.Table
    operations: int
    skipped: tuple[str, ...]
    made_at: datetime
    selection: Selection = EVERYTHING
    limited: bool = False
    refused: int = 0

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the estimates assume, and what a journal cannot tell."""
        since, kinds = self.selection.since_ms is not None, bool(self.selection.kinds)
        selected = [text for text, applies in ((_EARLIER, since), (_OTHER_KINDS, kinds)) if applies]
        return (_LIMITED if self.limited else _UNLIMITED, *selected, *_CAVEATS)


def estimate_journal(
    spark: SparkSession,
    journal: str,
    scenarios: Sequence[Scenario],
    *,
    selection: Selection = EVERYTHING,
    skip_corrupt: bool = False,
    console: Console | None = None,
) -> Estimates:
    """Estimate the recorded settings first, and then each scenario.

    Raises the errors of :func:`~purgatory.pipeline.report.compute`, and JournalError if an operation ends before it
    parks, or if no operation is of the kind that a scenario splits off.
    """
    ship_package(spark)
    every = list(dict.fromkeys([Scenario(), *scenarios]))
    read = _earlier(selection, every)

    def work(opened: OpenJournal) -> tuple[list[Any], dict[str, int]]:
        with progress(spark, 2, console) as steps:
            with steps.step("finding the purgatories"):
                found = find_pieces(spark, opened, read, _WHOLE, waiting=True).pieces
                span = _span(spark, opened) if found else TimeSpan()
                begin_ms = _BEGINNING_MS if selection.since_ms is None else selection.since_ms
                pieces = [piece for piece in found if not _has_ended(piece.owner[0], span, begin_ms)]
                if not pieces:
                    raise JournalError(selection.nothing_in(journal))
                refused = _refused(spark, opened, selection)
            with steps.step(f"estimating {len(every)} scenarios"):
                estimate_one = partial(
                    _estimate_piece,
                    scenarios=tuple(every),
                    begin_ms=begin_ms,
                    last_of_source={piece.owner[0]: span.last_of_source[piece.owner[0]] for piece in pieces},
                )
                return map_pieces(spark, opened, pieces, read, _COLUMNS, estimate_one, waiting=True), refused

    (found, refused), opened = read_journal(spark, journal, work, skip_corrupt=skip_corrupt)
    impossible = next((row["impossible"] for row in found if "impossible" in row), None)
    if impossible is not None:
        raise JournalError(f"the journal {journal} cannot be estimated: {impossible}")
    if not any(row["bounds"].operations for row in found):
        raise JournalError(selection.nothing_in(journal))
    for number, scenario in enumerate(every):
        if scenario.split not in (None, "key") and not _operations(found, number, part=1):
            raise JournalError(f"the journal {journal} has no operations of the kind {scenario.split!r}")
    first, last = min(row["first_ms"] for row in found), max(row["last_ms"] for row in found)
    table = _table(every, found, refused, max(1, last - first))
    recorded = [row for row in table.to_pylist() if row["scenario"] == str(Scenario())]
    operations = sum(row["operations"] for row in recorded)
    limited = any(scenario.max_parked or scenario.max_parked_per_key for scenario in scenarios)
    made_at, total = datetime.now(UTC), sum(refused.values())
    return Estimates(journal, table, operations, opened.skipped, made_at, selection, limited, total)


def _earlier(selection: Selection, scenarios: Sequence[Scenario]) -> Selection:
    """Return a selection whose time begins so early that no operation that would still wait has ended before it."""
    if selection.since_ms is None:
        return selection
    return replace(selection, since_ms=selection.since_ms - max(scenario.timeout_ms or 0 for scenario in scenarios))


def _span(spark: SparkSession, opened: OpenJournal) -> TimeSpan:
    """Return the time that all rows cover, even those that are not selected."""
    span = span_of_files(opened.files or ()) if reads_files(spark, opened) else None
    return span or span_of_rows(opened.dataframe)


def _has_ended(source: str, span: TimeSpan, begin_ms: int) -> bool:
    """Return whether the process ended before the selected time, according to each of its anchors.

    It then has only rows to leave out: pending operations, and those that a longer timeout would have kept waiting
    until its end.
    """
    return span.last_of_source[source].clock_ms + span.anchor_of_source_ms[source] < begin_ms


def _operations(found: list[Any], scenario: int, part: int) -> int:
    return sum(row["bounds"].operations for row in found if (row["scenario"], row["part"]) == (scenario, part))


def write_estimates(estimates: Estimates, out: Location, spark: SparkSession | None = None) -> Location:
    """Write the table and the page into the directory ``out``, and return the location of the page."""
    with write_files(out, spark) as directory:
        write_table(estimates.table, directory, "estimates")
        page = render(
            title="Other timeouts and limits",
            subtitle=f"{estimates.journal}: {estimates.operations:,} operations"
            + ("" if estimates.selection.is_everything else f"; only {estimates.selection}"),
            cards=[Card("operations", f"{estimates.operations:,}")],
            notes=[Note("What a journal can tell", estimates.caveats, good=True)],
            pictures=[],
            tables=[PageTable("estimates", readable(estimates.table), "Lower and upper figure.")],
            footer=f"Created {estimates.made_at:%Y-%m-%d %H:%M} UTC. The table is beside this page as Parquet and CSV.",
        )
        (directory / "estimate.html").write_text(page, encoding="utf-8")
    return file_at(out, "estimate.html")


def readable(table: pa.Table) -> pa.Table:
    """Return the table with both bounds of a figure in one string."""
    rows = []
    for row in table.to_pylist():
        texts = {name: row[name] for name in ("scenario", "purgatory", "part")}
        texts["operations"] = f"{row['operations']:,}"
        for name in _FIGURES:
            texts[name] = _range(name, row[f"{name}_low"], row[f"{name}_high"])
        rows.append(texts)
    return pa.Table.from_pylist(rows).rename_columns({"bytes": "memory"})


def _range(name: str, low: float, high: float) -> str:
    texts = []
    for value in (low, high):
        if name == "bytes":
            texts.append(f"{value / 1e6:,.2f} MB" if value >= 1e5 else f"{value / 1e3:,.1f} kB")
        else:
            texts.append(f"{value:,.1f}" if name == "mean" else f"{value:,.0f}")
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _estimate_piece(
    table: pa.Table,
    _: int,
    piece: Piece,
    *,
    scenarios: Sequence[Scenario],
    begin_ms: int,
    last_of_source: Mapping[str, LastRecord],
) -> list[Any]:
    last = last_of_source[piece.owner[0]]
    # What still waited when the process ended is left out if the process ended before the selected time.
    table = table.filter(pc.greater_equal(pc.add(table["anchor_ms"], last.clock_ms), begin_ms))
    if not table.num_rows:
        return []
    table = table.take(np.lexsort((table["op_id"].to_numpy(), trace_of(table).parked_ms)))
    trace = trace_of(table)
    reason = impossible(table, trace, piece)
    if reason is not None:
        return [{"impossible": reason}]
    purgatory = piece.owner[1]
    expired = (trace.outcomes == OUTCOMES.index(EXPIRED)) & (trace.deadline_ms >= 0)
    marked = table["expired_by_closing"].combine_chunks().cast(pa.bool_())
    known = marked.is_valid().to_numpy(zero_copy_only=False)
    closing = marked.fill_null(False).to_numpy(zero_copy_only=False)
    on_deadline = expired & np.where(known, ~closing, trace.finished_ms >= trace.deadline_ms)
    # All times are on the process's own clock.  The anchor differs between files if the wall clock was changed.
    begin = begin_ms - table["anchor_ms"].to_numpy()
    waits = Waits(
        trace.parked_ms,
        trace.deadline_ms,
        trace.finished_ms,
        trace.outcomes,
        on_deadline,
        plain(table["kind"]).fill_null("").to_pylist(),
        _keys(table),
        begin,
        last.clock_ms,
    )
    pending = trace.outcomes == OUTCOMES.index(PENDING)
    known = (trace.finished_ms >= begin) | pending  # the others have ended before
    ends = np.where(pending, last.clock_ms, np.maximum(trace.parked_ms, trace.finished_ms))
    # Without such operations, the piece does not extend the time of the mean.
    times = [np.maximum(trace.parked_ms, begin)[known].min(initial=_WHOLE), ends[known].max(initial=-_WHOLE)]
    first_ms, last_ms = (int(time) + last.anchor_ms for time in times)
    return [
        {"scenario": at, "purgatory": purgatory, "part": part, "bounds": bounds}
        | {"first_ms": first_ms, "last_ms": last_ms}
        for at, scenario in enumerate(scenarios)
        for part, bounds in enumerate(estimate(waits, scenario))
    ]


def _keys(table: pa.Table) -> list[list[str]]:
    keys = table["keys"].combine_chunks()
    texts = keys.flatten().to_pylist()
    ends = np.cumsum(pc.list_value_length(keys).fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    return [texts[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _table(scenarios: Sequence[Scenario], found: list[Any], refused: dict[str, int], span_ms: int) -> pa.Table:
    rows = []
    for at, scenario in enumerate(scenarios):
        mine = [(row["purgatory"], row["part"], row["bounds"]) for row in found if row["scenario"] == at]
        for purgatory, part, bounds in summed(mine):
            rows.append(_row(scenario, purgatory, part, bounds, refused.get(purgatory, 0), span_ms))
    return pa.Table.from_pylist(rows)


def _row(
    scenario: Scenario, purgatory: str, part: int, bounds: Bounds, refused: int, span_ms: int
) -> dict[str, str | int | float]:
    halves = ("first half", "second half") if scenario.split == "key" else ("others", str(scenario.split))
    row: dict[str, str | int | float] = {
        "scenario": str(scenario),
        "purgatory": purgatory,
        "part": "" if scenario.split is None else halves[part],
        "operations": bounds.operations,
    }
    for name in ("completed", "expired", "refused", "peak"):
        row[f"{name}_low"], row[f"{name}_high"] = getattr(bounds, name)
    for suffix, total_ms, peak in zip(("low", "high"), bounds.total_ms, bounds.peak, strict=True):
        row[f"mean_{suffix}"] = total_ms / span_ms
        row[f"bytes_{suffix}"] = peak * BYTES_PER_OPERATION
    return row | {"undivided": bounds.undivided, "refused_recorded": refused}


def _refused(spark: SparkSession, opened: OpenJournal, selection: Selection) -> dict[str, int]:
    """Return the number of operations that each purgatory refused in the recording.

    Of a range of time that extends beyond the selected time, only a part counts, as in a report.
    """
    if reads_files(spark, opened):
        assert opened.files is not None
        total: dict[str, int] = {}
        columns = needed_columns(("purgatory", "outcome", "refused", "parked_at", "finished_at"), selection)
        for name in opened.files:
            for batch in read_batches(name, columns, partial(row_groups, selection=selection)):
                if "refused" not in batch.schema.names:
                    break
                noted = batch.filter(pc.greater(batch["refused"], 0))
                _add(total, refused_within(batch_overlapping(noted, selection), selection))
        return total
    rows = overlapping(opened.dataframe, selection).where(F.col("refused") > 0)
    beyond = F.lit(False)
    if selection.since_ms is not None:
        beyond |= F.unix_millis("parked_at") < selection.since_ms
    if selection.until_ms is not None:
        beyond |= F.unix_millis("finished_at") > selection.until_ms
    whole = rows.where(~beyond).groupBy("purgatory").agg(F.sum("refused")).collect()
    total = {row[0]: row[1] for row in whole}
    parts = rows.where(beyond).select("purgatory", "refused", "parked_at", "finished_at").toArrow()
    for batch in parts.to_batches():
        _add(total, refused_within(batch, selection))
    return total


def _add(total: dict[str, int], numbers: dict[str, int]) -> None:
    for name, number in numbers.items():
        total[name] = total.get(name, 0) + number
