"""Compare two reports: the hot keys of both, the changes, and the files."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory.pipeline.journal_reader import read_journal
from purgatory.pipeline.locations import Location, file_at
from purgatory.pipeline.output.directory import write_files
from purgatory.pipeline.output.figures import write_pictures
from purgatory.pipeline.output.table_files import write_table
from purgatory.pipeline.report import Report, find_key_shares
from purgatory.pipeline.report.incident import worst_of
from purgatory.pipeline.report.one_pass import hot_keys
from purgatory.pipeline.report.unusual_intervals import TIMES, find_times
from purgatory.pipeline.report.verdicts import KeyShares

from .changes import VERDICTS, Figures, find_changes
from .page import comparison_page, comparison_plots, lead

__all__ = ["Comparison", "compare", "write_comparison"]

_SHORTEST_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports and the changes between them.

    ``changes``: one row for each figure, as :func:`~purgatory.pipeline.compare.find_changes` returns them.
    ``threshold``: the smallest relative change that is judged.  ``times``: the intervals of the journal that differ
    from the baseline, as :func:`~purgatory.pipeline.report.unusual_intervals.find_times` returns them.
    ``key_shares``: the keys of the worst interval, if any.
    """

    baseline: Report
    report: Report
    changes: pa.Table
    threshold: float
    made_at: datetime
    times: pa.Table = field(default_factory=TIMES.empty_table)
    key_shares: KeyShares | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of changes with each verdict."""
        found = self.changes["verdict"].to_pylist()
        return {verdict: found.count(verdict) for verdict in VERDICTS}

    def rows(self, *verdicts: str) -> list[dict[str, Any]]:
        """Return the changes with these verdicts, in the order of the verdicts."""
        rows = self.changes.to_pylist()
        return [row for verdict in verdicts for row in rows if row["verdict"] == verdict]

    def as_json(self) -> str:
        """Return the comparison as a JSON object."""
        both = {"baseline": self.baseline, "journal": self.report}
        found: dict[str, Any] = {name: _about(report) for name, report in both.items()}
        stamps = ("since", "until", "extreme_at")
        times = [row | {name: row[name].isoformat() for name in stamps} for row in self.times.to_pylist()]
        found |= {"threshold": self.threshold, "verdicts": self.counts, "changes": self.changes.to_pylist()}
        found["times"] = times
        found["summary"] = lead(self)
        return json.dumps(found, indent=2)  # in ASCII, which every terminal and every file supports


def compare(
    spark: SparkSession, baseline: Report, report: Report, *, threshold: float = 0.1, skip_corrupt: bool = False
) -> Comparison:
    """Compare a report with the report on a baseline.

    A key that is hot in only one of the journals needs a pass over the other journal.  ``threshold``: the smallest
    relative change that is judged.  Raises ValueError if the threshold is not positive, and JournalError if a journal
    can no longer be read.
    """
    if not 0 < threshold < float("inf"):
        raise ValueError(f"threshold must be more than 0 and finite, got {threshold}")
    before, after = (
        Figures(_with_keys(spark, one, other, skip_corrupt), _duration(one), not one.selection.kinds)
        for one, other in ((baseline, report), (report, baseline))
    )
    times = find_times(baseline.steps, report.steps, threshold)
    worst = worst_of(times, report.steps, baseline.steps, threshold)
    keys, _ = read_journal(
        spark,
        report.journal,
        lambda opened: find_key_shares(spark, opened, worst, report.selection),
        skip_corrupt=skip_corrupt,
    )
    changes = find_changes(before, after, threshold)
    return Comparison(baseline, report, changes, threshold, datetime.now(UTC), times, keys)


def write_comparison(comparison: Comparison, out: Location, spark: SparkSession | None = None) -> Location:
    """Write the changes (as Parquet, CSV, and JSON), the pictures, and the page; return the location of the page.

    The files replace earlier ones only when all of them are complete.  Raises BadOutput if ``out`` is a file.
    ``spark``: the session that writes to a URI; by default, the active one.
    """
    with write_files(out, spark) as directory:
        write_table(comparison.changes, directory, "changes")
        write_table(comparison.times, directory, "times")
        (directory / "changes.json").write_text(comparison.as_json() + "\n", encoding="utf-8")
        plots = comparison_plots(comparison)
        write_pictures(plots, directory)
        (directory / "compare.html").write_text(comparison_page(comparison, plots), encoding="utf-8")
    return file_at(out, "compare.html")


def _with_keys(spark: SparkSession, one: Report, other: Report, skip_corrupt: bool) -> dict[str, pa.Table]:
    """Return the tables of ``one``, including the keys that are hot only in the other report."""
    names = ("purgatory", "key")
    mine = {tuple(row.values()) for row in one.tables["hot_keys"].select(names).to_pylist()}
    keys = other.tables["hot_keys"].select(names).to_pylist()
    missing = [row for row in keys if tuple(row.values()) not in mine]
    if not missing:
        return one.tables
    wanted = pa.Table.from_pylist(missing, pa.schema({name: pa.string() for name in names}))
    found, _ = read_journal(
        spark, one.journal, lambda opened: hot_keys(spark, opened, wanted, one.selection), skip_corrupt=skip_corrupt
    )
    return one.tables | {"hot_keys": pa.concat_tables([one.tables["hot_keys"], found])}


def _duration(report: Report) -> float:
    """Return the number of seconds that a report covers: the selected time, as far as the journal covers it.

    The selected rows do not show the time: without traffic, there are no rows.
    """
    first, last = report.span or (report.first_at, report.last_at)
    since_ms, until_ms = report.selection.since_ms, report.selection.until_ms
    if since_ms is not None:
        first = max(first, datetime.fromtimestamp(since_ms / 1000, UTC))
    if until_ms is not None:
        last = min(last, datetime.fromtimestamp(until_ms / 1000, UTC))
    return max(_SHORTEST_S, (last - first).total_seconds())


def _about(report: Report) -> dict[str, Any]:
    return {
        "journal": report.journal,
        "selection": str(report.selection),
        "first_at": report.first_at.isoformat(),
        "last_at": report.last_at.isoformat(),
        "operations": report.operations,
        "dropped": report.dropped,
        "skipped": list(report.skipped),
    }
