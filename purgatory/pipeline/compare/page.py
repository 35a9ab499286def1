"""The HTML page of a comparison, and its rows as text."""

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from purgatory.pipeline.output.figures import Picture, label, seconds
from purgatory.pipeline.output.page import Card, Note, PageTable, render
from purgatory.pipeline.report.time_span import deploys_of

if TYPE_CHECKING:
    from .comparison import Comparison

__all__ = ["COLUMNS", "about", "cells", "comparison_page", "deploys", "headline", "interval"]

COLUMNS: Final = ("verdict", "measure", "of", "baseline", "journal", "change")
_JUDGED: Final = ("worse", "better")
_NEUTRAL: Final = ("more", "fewer", "new", "gone", "unclear")
_MOST_LINES: Final = 8
_FILES: Final = "changes.json, and in changes and times as Parquet and CSV"


def headline(comparison: "Comparison") -> str:
    """Return one sentence with the number of figures that got worse and better."""
    worse, better = (comparison.counts[verdict] for verdict in _JUDGED)
    if not worse + better:
        return f"No figure got better or worse by {comparison.threshold:.3g} or more of its baseline."
    return f"{_figures(worse)} got worse, {_figures(better).lower()} got better."


def comparison_page(comparison: "Comparison", pictures: dict[str, Picture]) -> str:
    """Return the page of a comparison as HTML."""
    counts = comparison.counts
    baseline, report = comparison.baseline, comparison.report
    cards = [
        Card(verdict, f"{counts[verdict]:,}", bad=verdict == "worse" and counts[verdict] > 0) for verdict in _JUDGED
    ]
    cards += [Card(verdict, f"{counts[verdict]:,}") for verdict in (*_NEUTRAL, "same") if counts[verdict]]
    cards += [Card("operations, baseline", f"{baseline.operations:,}"), Card("operations", f"{report.operations:,}")]
    notes = []
    for verdict, head in (("worse", "Worse"), ("better", "Better")):
        rows = comparison.rows(verdict)
        lines = [line(row) for row in rows[:_MOST_LINES]]
        if len(rows) > _MOST_LINES:
            lines.append(f"and {len(rows) - _MOST_LINES} more, in the table below")
        if rows:
            notes.append(Note(head, lines, good=verdict == "better"))
    intervals = [row for row in comparison.times.to_pylist() if row["verdict"] == "worse"]
    if intervals:
        lines = [interval(row) for row in intervals[:_MOST_LINES]]
        if len(intervals) > _MOST_LINES:
            lines.append(f"and {len(intervals) - _MOST_LINES} more, in the table below")
        notes.append(Note("When it was worse than the whole baseline", [*lines, *deploys(comparison)]))
    skipped = [*baseline.skipped, *report.skipped]
    if skipped:
        notes.append(Note(f"{len(skipped)} files were skipped", skipped))
    threshold = f"{comparison.threshold:.3g}"
    steps = f"{seconds(report.step_ms / 1000)}"
    tables = [
        PageTable(
            "When",
            _times(comparison),
            f"Intervals of the journal, in steps of {steps}, that differ from the whole baseline by more than chance."
            " The figure is the extreme one of the interval.",
        ),
        PageTable(
            "Changes",
            _table(comparison, *_JUDGED),
            f"Figures that changed by at least {threshold} of the baseline, by more than chance.",
        ),
        PageTable(
            "Other changes",
            _table(comparison, *_NEUTRAL),
            "Neither good nor bad, only in one journal, or of too few operations.",
        ),
        PageTable("Same", _table(comparison, "same"), "Figures whose change is below the threshold or within chance."),
    ]
    return render(
        title="Two journals side by side",
        subtitle=f"Baseline: {about(baseline)}. Journal: {about(report)}.",
        cards=cards,
        notes=notes,
        pictures=pictures.values(),
        tables=tables,
        footer=f"Created {comparison.made_at:%Y-%m-%d %H:%M} UTC. All figures are in {_FILES}.",
    )


def about(report: Any) -> str:
    """Return journal and selection of a report in one line."""
    selected = "" if report.selection.is_everything else f" ({report.selection})"
    return f"{report.journal}{selected}, {report.first_at:%Y-%m-%d %H:%M:%S} to {report.last_at:%Y-%m-%d %H:%M:%S} UTC"


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a change as texts, in the order of :data:`COLUMNS`."""
    names = [label(row[name]) for name in ("purgatory", "kind", "key") if row[name] is not None]
    of = " · ".join([*names, *([row["outcome"]] if row["outcome"] else [])])
    values = [_value(row["unit"], row[side]) for side in ("baseline", "journal")]
    return row["verdict"], row["measure"], of or "the journal", *values, _change(row)


def line(row: dict[str, Any]) -> str:
    """Return a change as one line."""
    _, measure, of, before, after, change = cells(row)
    return f"{of}: {measure} from {before} to {after} ({change})"


def interval(row: dict[str, Any]) -> str:
    """Return an interval of :func:`~purgatory.pipeline.compare.find_times` as one line."""
    names = " · ".join(label(row[name]) for name in ("purgatory", "kind") if row[name] is not None)
    what = f"{row['outcome']} share" if row["outcome"] else row["measure"]
    values = (_value(row["unit"], row[side]) for side in ("baseline", "journal"))
    before, here = values
    return (
        f"{row['since']:%Y-%m-%d %H:%M:%S} to {row['until']:%H:%M:%S} UTC, {names}: {what} {here} instead of {before}"
    )


def deploys(comparison: "Comparison") -> list[str]:
    """Return when new runs of servers began in the journal, in one line or none."""
    begun = deploys_of(comparison.report.tables["dropped"], comparison.report.step_ms)
    times = [f"{at:%Y-%m-%d %H:%M:%S}" for at in begun[:_MOST_LINES]]
    if not times:
        return []
    more = f" and {len(begun) - len(times)} more" if len(begun) > len(times) else ""
    return [f"A new run of a server began, as with a deploy: {', '.join(times)} UTC{more}"]


def _times(comparison: "Comparison") -> pa.Table:
    names = ("verdict", "since", "until", "measure", "of", "baseline", "journal", "operations")
    rows = []
    for row in comparison.times.to_pylist():
        of = " · ".join(label(row[name]) for name in ("purgatory", "kind", "outcome") if row[name] is not None)
        values = [_value(row["unit"], row[side]) for side in ("baseline", "journal")]
        times = [f"{row[name]:%Y-%m-%d %H:%M:%S}" for name in ("since", "until")]
        cells = (row["verdict"], *times, row["measure"], of, *values, f"{row['operations']:,}")
        rows.append(dict(zip(names, cells, strict=True)))
    return pa.Table.from_pylist(rows, pa.schema({name: pa.string() for name in names}))


def _table(comparison: "Comparison", *verdicts: str) -> pa.Table:
    rows = [dict(zip(COLUMNS, cells(row), strict=True)) for row in comparison.rows(*verdicts)]
    return pa.Table.from_pylist(rows, pa.schema({name: pa.string() for name in COLUMNS}))


def _change(row: dict[str, Any]) -> str:
    if row["difference"] is None:
        return "–"
    if row["unit"] == "share":
        return f"{row['difference'] * 100:+.2f} points"
    if row["ratio"] is None:
        return f"{row['difference']:+.3g}"
    return f"{row['ratio'] - 1:+.1%}" if row["ratio"] < 2 else f"{row['ratio']:.3g} times"


def _value(unit: str, value: float | None) -> str:
    if value is None:
        return "–"
    if unit == "seconds":
        return seconds(value)
    if unit == "share":
        return f"{value:.2%}"
    return f"{value:,.0f}" if unit == "operations" else f"{value:,.4g}/s"


def _figures(number: int) -> str:
    return f"{number} figure{'s' if number != 1 else ''}" if number else "No figure"
