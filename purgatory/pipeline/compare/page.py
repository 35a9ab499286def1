"""The HTML page of a comparison, its rows as text, and its pictures.

In the pictures, the baseline is above or hollow, and the journal is below or filled.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from purgatory.pipeline.output.figures import Picture, drawing, empty, label, picture, seconds, tooltips
from purgatory.pipeline.output.page import Card, Note, PageTable, render
from purgatory.pipeline.report.incident import TO_END, figure, not_judged, summary, time_of, timeline
from purgatory.pipeline.report.page import COLOURS, EXPIRING, duration_scale, label_shares
from purgatory.pipeline.report.unusual_intervals import REFUSED

if TYPE_CHECKING:
    from .comparison import Comparison

__all__ = [
    "COLUMNS",
    "FILES",
    "about",
    "comparison_page",
    "comparison_plots",
    "headline",
    "lead",
    "row_texts",
    "when",
]

COLUMNS: Final = ("verdict", "measure", "of", "baseline", "journal", "change", "note")
FILES: Final = ("changes.json", "changes.parquet", "changes.csv", "times.parquet", "times.csv")
_JUDGED: Final = ("worse", "better")
_NEUTRAL: Final = ("more", "fewer", "new", "gone")
_MOST_LINES: Final = 8
_MOST_ROWS: Final = 24
_INK: Final = {"worse": "#D55E00", "better": "#0072B2"}
_LEAST_S: Final = 0.0005  # a wait of 0 cannot be shown on a logarithmic axis


def headline(comparison: "Comparison") -> str:
    """Return one sentence with the number of figures that got worse and better."""
    worse, better = (comparison.counts[verdict] for verdict in _JUDGED)
    if not worse + better:
        return f"No figure got better or worse by {comparison.threshold:.3g} or more of its baseline."
    return f"{_figures(worse)} got worse, and {_figures(better).lower()} got better."


def comparison_page(comparison: "Comparison", pictures: dict[str, Picture]) -> str:
    """Return the page of a comparison as HTML."""
    counts = comparison.counts
    baseline, report = comparison.baseline, comparison.report
    notes = []
    if events := when(comparison):
        notes.append(Note("When, in the order of time", events))
    for verdict, head in (("worse", "Worse in the journal as a whole"), ("better", "Better in the journal as a whole")):
        rows = comparison.rows(verdict)
        lines = [_line(row) for row in rows[:_MOST_LINES]]
        if len(rows) > _MOST_LINES:
            lines.append(f"and {len(rows) - _MOST_LINES} more, in the table below")
        if rows:
            notes.append(Note(head, lines, good=verdict == "better"))
    cards = [
        Card(verdict, f"{counts[verdict]:,}", bad=verdict == "worse" and counts[verdict] > 0) for verdict in _JUDGED
    ]
    cards += [Card(verdict, f"{counts[verdict]:,}") for verdict in (*_NEUTRAL, "unclear", "same") if counts[verdict]]
    cards += [Card("operations, baseline", f"{baseline.operations:,}"), Card("operations", f"{report.operations:,}")]
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
            " The extreme is the figure of the most unusual step.",
            verdicts=True,
        ),
        PageTable(
            "Changes",
            _table(comparison, *_JUDGED),
            f"Figures of the journal as a whole that changed by at least {threshold} of the baseline, by more than"
            " chance.",
            verdicts=True,
        ),
        PageTable(
            "Other changes",
            _table(comparison, *_NEUTRAL),
            "Neither good nor bad, or only in one journal.",
            verdicts=True,
        ),
        PageTable(
            "Unclear",
            _table(comparison, "unclear"),
            "Quantiles that changed but have too few operations: fewer than ten are above the quantile. An unclear"
            " figure is neither worse nor the same.",
            verdicts=True,
        ),
        PageTable(
            "Same",
            _table(comparison, "same"),
            "Figures of the journal as a whole whose change is below the threshold or may be due to chance. An interval"
            " can still differ; the note names it.",
            verdicts=True,
        ),
    ]
    return render(
        title="Two journals side by side",
        subtitle=f"Baseline: {about(baseline)}. Journal: {about(report)}.",
        cards=cards,
        notes=notes,
        pictures=pictures.values(),
        tables=tables,
        footer=f"Created {comparison.made_at:%Y-%m-%d %H:%M} UTC.",
        lead=lead(comparison),
        files=FILES,
    )


def lead(comparison: "Comparison") -> list[str]:
    """Return the sentences that a page begins with: when the journal was worse, what was worse, and for which keys."""
    report = comparison.report
    refused = not_judged(report.steps) if report.selection.kinds else []
    if not any(verdict == "worse" for verdict in comparison.times["verdict"].to_pylist()):
        return [
            "No step of the journal is worse than the whole baseline by more than chance.",
            (
                "A step is judged only if a change concerns at least ten of its operations."
                f" Here, a step lasts {seconds(report.step_ms / 1000)}; a longer part of the journal has longer steps."
            ),
            *refused,
        ]
    about = (comparison.times, report.steps, comparison.key_shares, report.deploys)
    return [*summary(*about, comparison.baseline.steps, comparison.threshold), *refused]


def when(comparison: "Comparison") -> list[str]:
    """Return the intervals that are worse, and new runs of servers, in chronological order."""
    report = comparison.report
    return timeline(comparison.times, report.steps, report.deploys, comparison.baseline.steps, comparison.threshold)


def about(report: Any) -> str:
    """Return the journal and the selection of a report as one line."""
    selected = "" if report.selection.is_everything else f" ({report.selection})"
    return f"{report.journal}{selected}, {report.first_at:%Y-%m-%d %H:%M:%S} to {report.last_at:%Y-%m-%d %H:%M:%S} UTC"


def row_texts(comparison: "Comparison", *verdicts: str) -> list[dict[str, str]]:
    """Return the changes that have one of these verdicts, each as a dict of strings by column name."""
    intervals: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in comparison.times.to_pylist():
        intervals.setdefault(_subject(row), []).append(row)
    kinds: dict[str, set[str | None]] = {}
    for row in comparison.changes.to_pylist():
        kinds.setdefault(row["purgatory"], set()).add(row["kind"])
    found = []
    for row in comparison.rows(*verdicts):
        alone = len(kinds[row["purgatory"]] - {None}) == 1  # the purgatory has the intervals of its only kind
        own = intervals.get(_subject(row | ({"kind": None} if alone else {})), []) if row["key"] is None else []
        found.append(dict(zip(COLUMNS, (*_cells(row), _note(row, own, comparison.report.first_at)), strict=True)))
    return found


def _subject(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["measure"], row["purgatory"], row["kind"], row["outcome"]


def _note(row: dict[str, Any], intervals: list[dict[str, Any]], begin: datetime) -> str:
    """Return why a figure has its verdict, or what the figure of the whole journal hides.

    ``begin``: when the journal begins.
    """
    if row["verdict"] == "new":
        if row["measure"].startswith("lateness"):
            return "no operation of the baseline expired, so there is no lateness to compare with"
        return "the baseline has no such operation"
    if row["verdict"] == "gone":
        return "no operation of the journal expired" if row["measure"].startswith("lateness") else "no such operation"
    if row["verdict"] == "unclear":
        return f"{row['baseline_operations']:,} and {row['journal_operations']:,} operations"
    differing = [each for each in intervals if each["verdict"] != row["verdict"]]
    if row["verdict"] == "same" and differing:
        first = differing[0]
        more = f", and {len(differing) - 1} more intervals" if len(differing) > 1 else ""
        since = first["since"]
        end = TO_END if first["to_end"] else f"to {time_of(first['until'], since)}"
        return f"but {first['verdict']} from {time_of(since, begin)} {end}: {figure(first, 'journal')}{more}"
    return ""


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = [label(row[name]) for name in ("purgatory", "kind", "key") if row[name] is not None]
    of = " · ".join([*names, *([row["outcome"]] if row["outcome"] else [])])
    values = [_value(row["unit"], row[side]) for side in ("baseline", "journal")]
    return row["verdict"], row["measure"], of or "the journal", *values, _change(row)


def _line(row: dict[str, Any]) -> str:
    _, measure, of, before, after, change = _cells(row)
    return f"{of}: {measure} from {before} to {after} ({change})"


def _times(comparison: "Comparison") -> pa.Table:
    names = ("verdict", "since", "until", "measure", "of", "baseline", "journal", "extreme", "operations")
    rows = []
    for row in comparison.times.to_pylist():
        of = " · ".join(label(row[name]) for name in ("purgatory", "kind", "outcome") if row[name] is not None)
        values = [figure(row, name) for name in ("baseline", "journal", "extreme")]
        values[-1] += f" at {time_of(row['extreme_at'], row['since'])}"
        times = [f"{row[name]:%Y-%m-%d %H:%M:%S}" for name in ("since", "until")]
        if row["to_end"]:
            times[1] = "the end of the journal"
        texts = (row["verdict"], *times, row["measure"], of, *values, f"{row['operations']:,}")
        rows.append(dict(zip(names, texts, strict=True)))
    return pa.Table.from_pylist(rows, pa.schema({name: pa.string() for name in names}))


def _table(comparison: "Comparison", *verdicts: str) -> pa.Table:
    schema = pa.schema({name: pa.string() for name in COLUMNS})
    table = pa.Table.from_pylist(row_texts(comparison, *verdicts), schema)
    return table if any(table["note"].to_pylist()) else table.drop_columns(["note"])


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


# The pictures


def comparison_plots(comparison: "Comparison") -> dict[str, Picture]:
    """Draw the pictures of a comparison.  The keys are file names, in reading order."""
    rows = comparison.changes.to_pylist()
    times = comparison.times.to_pylist()
    with drawing():
        return {
            "compare_outcomes": _outcomes(rows),
            "compare_waits": _waits(rows, times),
            "compare_hot_keys": _hot_keys(rows),
        }


def _outcomes(rows: list[dict[str, Any]]) -> Picture:
    shares = [row for row in rows if row["measure"] == "share" and row["outcome"] != REFUSED]
    kinds = list(dict.fromkeys((row["purgatory"], row["kind"]) for row in shares))[:_MOST_ROWS][::-1]
    figure = Figure(figsize=(9, 0.9 + 0.62 * len(kinds)))
    axes = figure.subplots()
    at = {kind: number for number, kind in enumerate(kinds)}
    for side, offset, alpha in (("baseline", 0.19, 0.55), ("journal", -0.19, 1.0)):
        left = dict.fromkeys(kinds, 0.0)
        for outcome, colour in COLOURS.items():
            found = {(r["purgatory"], r["kind"]): r[side] or 0.0 for r in shares if r["outcome"] == outcome}
            widths = [found.get(kind, 0.0) for kind in kinds]
            if any(widths):
                places = [at[kind] + offset for kind in kinds]
                name = outcome.replace("_", " ") if side == "journal" else None
                starts = [left[kind] for kind in kinds]
                bars = axes.barh(places, widths, left=starts, color=colour, alpha=alpha, height=0.34, label=name)
                for bar, kind, width in zip(bars, kinds, widths, strict=True):
                    tooltips([bar], kind, [f"{outcome} {width:.2%} in the {side}"])
            for kind, width in zip(kinds, widths, strict=True):
                left[kind] += width
    axes.barh([0], [0], color="#8C8C8C", alpha=0.55, label="pale: the baseline")
    label_shares(axes, kinds)
    caption = f"Share of each outcome. Upper, pale bar: the baseline. Lower bar: the journal. {EXPIRING}"
    return picture(figure, "Outcomes", caption)


def _waits(rows: list[dict[str, Any]], times: list[dict[str, Any]]) -> Picture:
    waits = [row for row in rows if row["measure"] in ("wait p50", "wait p99")]
    whole = [row for row in waits if row["baseline"] is not None and row["journal"] is not None]
    shown = []
    for row in whole:
        own = [each for each in times if all(each[name] == row[name] for name in ("measure", "purgatory", "kind"))]
        shown += [row, *own]
    shown = shown[:_MOST_ROWS][::-1]
    figure = Figure(figsize=(9, 0.9 + 0.34 * max(1, len(shown))))
    axes = figure.subplots()
    for number, row in enumerate(shown):
        ends = [max(_LEAST_S, row[side]) for side in ("baseline", "journal")]
        ink = _INK.get(row["verdict"], "#666666")
        before, here = (seconds(row[side], 2 if "since" in row else 3) for side in ("baseline", "journal"))
        text = before if before == here else f"{before} to {here}"
        lines = [
            *axes.plot(ends, [number, number], color=ink, linewidth=1.6),
            *axes.plot(ends[:1], [number], "o", markerfacecolor="white", color=ink, markersize=6),
            *axes.plot(ends[1:], [number], "o", color=ink, markersize=6),
        ]
        numbers = (
            f"of {row['operations']:,} operations, {row['since']:%Y-%m-%d}, {_times_of(row)}: {row['verdict']}"
            if "since" in row
            else f"of {row['baseline_operations']:,} and {row['journal_operations']:,} operations: {row['verdict']}"
        )
        told = [f"{row['measure']} {text}, {numbers}"] * len(lines)
        tooltips(lines, (row["purgatory"], row["kind"]), told)
        axes.annotate(
            text, (max(ends), number), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8, color=ink
        )
    names = [
        f"{_name(row)}{f' · {_times_of(row)}' if 'since' in row else ''} · {row['measure'].split()[1]}" for row in shown
    ]
    axes.set_yticks(range(len(shown)), names)
    axes.set_xscale("log")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.2, y=0.08)
    duration_scale(axes.xaxis)
    if not shown:
        empty(axes, "No waits to compare.")
    caption = (
        "Of the whole journal, and of the intervals that differ from the whole baseline. Hollow: the baseline. Filled:"
        " the journal. Orange is worse, blue is better, and grey is the same or unclear. The scale is logarithmic."
    )
    return picture(figure, "Waits", caption)


def _hot_keys(rows: list[dict[str, Any]]) -> Picture:
    keys = [row for row in rows if row["measure"] == "operations of a key"][:20][::-1]
    figure = Figure(figsize=(9, 0.9 + 0.36 * max(1, len(keys))))
    axes = figure.subplots()
    for side, offset, colour in (("baseline", 0.19, "#9CC9E3"), ("journal", -0.19, "#0072B2")):
        widths = [row[side] or 0.0 for row in keys]
        places = [number + offset for number in range(len(keys))]
        bars = axes.barh(places, widths, color=colour, height=0.36, label=f"the {side}")
        for bar, row, width in zip(bars, keys, widths, strict=True):
            text = f"{width:,.4g} operations per second in the {side}, {row[f'{side}_operations']:,} in total"
            tooltips([bar], (row["purgatory"], row["key"]), [text])
    axes.set_yticks(range(len(keys)), [f"{label(row['purgatory'])} · {label(row['key'])}" for row in keys])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_xlabel("operations per second")
    axes.grid(visible=False, axis="y")
    if keys:
        axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.0)
    else:
        empty(axes, "No operation waited on a key.")
    return picture(figure, "Hot keys", "Operations per second of the keys with the most operations in either journal.")


def _times_of(row: dict[str, Any]) -> str:
    form = "%H:%M:%S" if row["since"].second or row["until"].second else "%H:%M"
    return f"{row['since'].strftime(form)} to {'the end' if row['to_end'] else row['until'].strftime(form)}"


def _name(row: dict[str, Any]) -> str:
    return label(row["purgatory"]) + (f" · {label(row['kind'])}" if row["kind"] is not None else "")
