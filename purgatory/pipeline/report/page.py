"""The HTML page of a report, and its pictures.

Each outcome has the same color in all pictures; the colors suit color-blind readers.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import matplotlib.dates
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from purgatory.journal.schema import CANCELLED, COMPLETED, EXPIRED, FAILED, PENDING
from purgatory.pipeline.output.figures import (
    Picture,
    column_tooltip,
    drawing,
    empty,
    label,
    picture,
    seconds,
    stacked,
    tooltips,
)
from purgatory.pipeline.output.page import Card, Note, PageTable, render

from .aggregates import BY_CLOSING, HOT_OUTCOMES
from .incident import not_judged, summary, timeline
from .unusual_intervals import OWN_THRESHOLD, find_own_times

if TYPE_CHECKING:
    from .report import Report

__all__ = [
    "COLOURS",
    "EXPIRING",
    "MOST_KINDS",
    "MOST_PURGATORIES",
    "drawn_purgatories",
    "duration_scale",
    "label_shares",
    "report_page",
    "report_plots",
]

_EXPLAINED: Final = {
    "outcomes": "How the operations of each kind ended. An immediate operation completed without waiting. Expired: the"
    " deadline passed. Expired by closing: the purgatory closed before the deadline, as when a server stops.",
    "waits": "Time from parking to the end, of operations that waited. A row without a kind is the whole purgatory.",
    "lateness": "The time from deadline to expiry, for operations that expired at their deadline; operations that"
    " expired by closing are not counted.",
    "peaks": "The highest number of operations that waited at once, and the first bucket that reached it.",
    "hot_keys": "The keys with the most operations.",
    "hot_keys_by_wait": "The keys whose operations waited the longest in total.",
    "hot_keys_by_expired": "The keys whose operations expired most often, among keys with at least 20. Chance is taken"
    " into account: keys are ordered by the least share that the numbers prove, so 4 of 30 come after 37 of 406.",
    "over_time": "By the step of time in which the operations parked or were refused. A row without a kind is the whole"
    " purgatory; the kinds of refused operations are not known.",
    "dropped": "Each run of a server that wrote to this journal, and the number of rows that it dropped.",
}
_OPTIONAL: Final = (*HOT_OUTCOMES, "refused", "immediate", "late_p50", "late_p99")
COLOURS: Final = {
    COMPLETED: "#0072B2",
    EXPIRED: "#E69F00",
    BY_CLOSING: "#009E73",
    CANCELLED: "#8C8C8C",
    FAILED: "#D55E00",
    PENDING: "#CC79A7",
}
EXPIRING: Final = "Expired: the deadline passed. Expired by closing: the purgatory closed before the deadline."
_DARK: Final = (COMPLETED, FAILED)  # white text is readable on these
_REFUSED: Final = "#444444"
_NEUTRAL: Final = "#56779A"  # for a figure that has no outcome
_DEPLOY: Final = "#7B4B94"
MOST_PURGATORIES: Final = 8
MOST_KINDS: Final = 40  # bars in the plot of outcomes
_MOST_PANELS: Final = 12  # in a plot over time
_MOST_DEPLOY_TIMES: Final = 6
_MOST_RANKED: Final = 12
_MOST_STEPS: Final = 400  # in a plot over time
_LEAST_S: Final = 0.0005  # a wait of 0 cannot be shown on a logarithmic axis
_MOST_COLUMNS: Final = 120  # columns with a tooltip, in the plot of a purgatory over time
_STEP: Final = 10 ** (1 / 8)  # from the lower to the upper end of a step of the wait histogram
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_DATES: Final[Any] = matplotlib.dates  # matplotlib has no types for this module


def report_page(report: "Report", pictures: dict[str, Picture], draw: Sequence[str] = ()) -> str:
    """Return the page of a report as HTML.  ``draw``: the purgatories that the reader has chosen for the plots."""
    tables = report.tables
    totals: dict[str, int] = {}
    for row in tables["outcomes"].to_pylist():
        totals[row["outcome"]] = totals.get(row["outcome"], 0) + row["operations"]
    late = [row["p99"] for row in tables["lateness"].to_pylist() if row["p99"] is not None]
    waits = [row for row in tables["waits"].to_pylist() if row["kind"] is None]
    cards = [Card("operations", f"{report.operations:,}")]
    in_order = sorted(totals.items(), key=lambda pair: -pair[1])
    cards += [Card(outcome.replace("_", " "), f"{number:,}") for outcome, number in in_order]
    over_time = tables["over_time"]
    refused = sum(over_time.filter(pc.is_null(over_time["kind"]))["refused"].to_pylist())
    if refused:
        cards.append(Card(_refused_name(every_kind=report.steps.every_kind), f"{refused:,}", bad=True))
    cards += [Card(f"wait p99 · {row['purgatory']}", seconds(row["p99"])) for row in waits[:3]]
    if late:
        cards.append(Card("worst lateness p99", seconds(max(late))))
    cards.append(Card("rows dropped", f"{report.dropped:,}", bad=report.dropped > 0))
    notes = []
    every, drawn = set(tables["outcomes"]["purgatory"].to_pylist()), drawn_purgatories(tables["outcomes"], draw)
    if len(drawn) < len(every):
        which = "that were chosen" if draw else "with the most operations"
        line = "Choose others with --draw NAME, which can be repeated. The tables have all of them."
        notes.append(Note(f"{len(drawn)} of {len(every)} purgatories have plots, those {which}", [line], good=True))
    if report.dropped:
        line = "The servers could not write these rows in time. The counts below do not include them."
        notes.append(Note(f"{report.dropped:,} rows were dropped", [line]))
    if report.skipped:
        notes.append(Note(f"{len(report.skipped)} files were skipped", report.skipped))
    times = find_own_times(report.steps, OWN_THRESHOLD)
    lead = summary(times, report.steps, report.key_shares, report.deploys)
    if lead:
        notes.insert(
            0,
            Note(
                "When, in the order of time, compared with the other steps",
                timeline(times, report.steps, report.deploys),
            ),
        )
    else:
        lead = ["No step of time is worse than the other steps of the journal by more than chance."]
    lead += not_judged(report.steps)
    sources = tables["dropped"].to_pylist()
    files = "" if report.files is None else f" in {report.files:,} file{'s' if report.files != 1 else ''}"
    runs = f"{len(sources)} run{'s' if len(sources) != 1 else ''} of servers"
    selected = "" if report.selection.is_everything else f"; only {report.selection}"
    covered = f"{report.first_at:%Y-%m-%d %H:%M:%S} to {report.last_at:%Y-%m-%d %H:%M:%S} UTC"
    return render(
        title="Parked operations",
        subtitle=f"{report.journal}: {covered}, {runs}{files}{selected}",
        cards=cards,
        notes=notes,
        pictures=pictures.values(),
        tables=[
            PageTable(name, tables[name], why, optional=_OPTIONAL if name == "over_time" else HOT_OUTCOMES)
            for name, why in _EXPLAINED.items()
        ],
        footer=f"Created {report.made_at:%Y-%m-%d %H:%M} UTC.",
        lead=lead,
        files=[f"{name}.{form}" for name in tables for form in ("parquet", "csv")],
    )


# The pictures


def report_plots(
    tables: Mapping[str, pa.Table],
    bucket_ms: int,
    step_ms: int = 60_000,
    chosen: Sequence[str] = (),
    deploys: Sequence[datetime] = (),
    *,
    every_kind: bool = True,
) -> dict[str, Picture]:
    """Draw a picture of each table that has one.  The keys are file names, in reading order.

    ``chosen``: see :func:`drawn_purgatories`.  ``deploys``: when new runs of servers began.  ``every_kind``: whether
    the tables have the operations of all kinds.
    """
    with drawing():
        plots = _plots(tables, bucket_ms, step_ms, chosen, deploys, every_kind=every_kind)
        return {name: draw() for name, draw in plots.items()}


def _plots(
    tables: Mapping[str, pa.Table],
    bucket_ms: int,
    step_ms: int = 60_000,
    chosen: Sequence[str] = (),
    deploys: Sequence[datetime] = (),
    *,
    every_kind: bool = True,
) -> dict[str, Callable[[], Picture]]:
    """Return the functions that draw the pictures."""
    names = drawn_purgatories(tables["outcomes"], chosen)
    refused = _refused_name(every_kind=every_kind)
    pictures: dict[str, tuple[str, Callable[[pa.Table], Picture]]] = {
        "outcomes": ("outcomes", lambda table: _outcomes(table, chosen)),
        "outcomes_over_time": (
            "over_time",
            lambda table: _outcomes_over_time(table, names, step_ms, deploys, refused),
        ),
        "waits_over_time": ("over_time", lambda table: _waits_over_time(table, names, step_ms, deploys)),
        "occupancy": ("occupancy", lambda table: _occupancy(_of(table, names), bucket_ms, deploys)),
        "waits": ("wait_histogram", lambda table: _waits(_of(table, names))),
        "hot_keys": ("hot_keys", _hot_keys),
        "hot_keys_by_wait": ("hot_keys_by_wait", _by_wait),
        "hot_keys_by_expired": ("hot_keys_by_expired", lambda table: _by_expired(table, tables["outcomes"])),
    }
    return {name: partial(draw, tables[table]) for name, (table, draw) in pictures.items() if table in tables}


def _by_wait(table: pa.Table) -> Picture:
    return _ranked(
        table,
        "Keys by total wait",
        "The sum of the waits of all operations of a key: where requests spend their time.",
        lambda row: row["total_wait"],
        seconds,
        lambda row: (
            f"{row['operations']:,} operations, mean {seconds(row['total_wait'] / row['operations'])},"
            f" p99 {seconds(row['p99'])}"
        ),
        _NEUTRAL,
    )


def _by_expired(table: pa.Table, outcomes: pa.Table) -> Picture:
    share = _expired_share(outcomes)
    return _ranked(
        table,
        "Keys by expired share",
        "The share of operations that expired at their deadline, of keys with at least 20 operations. Ordered by"
        f" the least share that the numbers prove. Of all operations, {share:.1%} expired (dotted line).",
        lambda row: row[EXPIRED] / row["operations"],
        lambda share: f"{share:.1%}",
        lambda row: f"{row[EXPIRED]:,} of {row['operations']:,} expired",
        COLOURS[EXPIRED],
        share,
    )


def _expired_share(outcomes: pa.Table) -> float:
    """Return the share of expired operations among those that waited."""
    rows = outcomes.to_pylist()
    waited = sum(row["operations"] - row.get("immediate", 0) for row in rows)
    return sum(row["operations"] for row in rows if row["outcome"] == EXPIRED) / waited if waited else 0.0


def drawn_purgatories(outcomes: pa.Table, chosen: Sequence[str] = ()) -> list[str]:
    """Return the purgatories that have their own plots: those in ``chosen``, or those with the most operations."""
    operations: dict[str, int] = {}
    for row in outcomes.select(["purgatory", "operations"]).to_pylist():
        operations[row["purgatory"]] = operations.get(row["purgatory"], 0) + row["operations"]
    if chosen:
        return [name for name in dict.fromkeys(chosen) if name in operations]
    return sorted(sorted(operations, key=lambda name: (-operations[name], name))[:MOST_PURGATORIES])


def _outcomes(table: pa.Table, chosen: Sequence[str] = ()) -> Picture:
    rows = table.to_pylist()
    operations: dict[tuple[str, str], int] = {}
    for row in rows:
        pair = row["purgatory"], row["kind"]
        operations[pair] = operations.get(pair, 0) + row["operations"]
    busiest = sorted(operations, key=lambda pair: (pair[0] not in chosen, -operations[pair], pair))
    kinds = sorted(busiest[:MOST_KINDS], reverse=True)
    figure = Figure(figsize=(9, 0.9 + 0.42 * len(kinds)))
    axes = figure.subplots()
    left = dict.fromkeys(kinds, 0.0)
    for outcome, colour in COLOURS.items():
        shares = {(row["purgatory"], row["kind"]): row["share"] for row in rows if row["outcome"] == outcome}
        if not shares:
            continue
        widths = [shares.get(kind, 0.0) for kind in kinds]
        starts = [left[k] for k in kinds]
        bars = axes.barh(
            range(len(kinds)), widths, left=starts, color=colour, label=outcome.replace("_", " "), height=0.62
        )
        counts = {(row["purgatory"], row["kind"]): row["operations"] for row in rows if row["outcome"] == outcome}
        for bar, kind, width in zip(bars, kinds, widths, strict=True):
            tooltips([bar], kind, [f"{outcome} {width:.2%}, {counts.get(kind, 0):,} operations"])
        for number, (kind, width) in enumerate(zip(kinds, widths, strict=True)):
            if width >= 0.05:
                middle = left[kind] + width / 2
                ink = "white" if outcome in _DARK else "black"
                axes.text(middle, number, f"{width:.1%}", ha="center", va="center", color=ink, fontsize=8.5)
            left[kind] += width
    label_shares(axes, kinds)
    caption = f"Share of each outcome, by purgatory and kind. {EXPIRING}"
    if len(kinds) < len(operations):
        first = "the kinds of the chosen purgatories, and then " if chosen else ""
        caption += f" Shown are {len(kinds)} of {len(operations):,} kinds: {first}those with the most operations."
    return picture(figure, "How operations ended", caption)


def label_shares(axes: Axes, kinds: list[tuple[str, str]]) -> None:
    """Label bars of shares: the purgatory and kind of each bar, a scale in percent, and the colors of the outcomes."""
    axes.set_yticks(range(len(kinds)), [f"{label(purgatory)} · {label(kind)}" for purgatory, kind in kinds])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(visible=False, axis="y")
    handles, labels = axes.get_legend_handles_labels()  # without bars, legend() warns unless it is given empty lists
    axes.legend(handles, labels, ncols=len(COLOURS), loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.0)


def _occupancy(table: pa.Table, bucket_ms: int, deploys: Sequence[datetime] = ()) -> Picture:
    purgatories = _by_purgatory(table)
    figure = Figure(figsize=(9, 2.3 * max(1, len(purgatories)) + 0.4))
    grid = figure.subplots(max(1, len(purgatories)), 1, sharex=True, squeeze=False)
    for axes, (name, rows) in zip(grid[:, 0], purgatories, strict=False):
        begin = rows["bucket"].to_pylist()
        # A step lasts until the end of its bucket.  An axis that spans less than a few seconds has no useful ticks.
        times = [*begin, _later(begin[-1], bucket_ms)]
        peak, mean = (np.append(column.to_numpy(), column[-1].as_py()) for column in (rows["peak"], rows["mean"]))
        axes.fill_between(times, peak, step="post", color="#0072B2", alpha=0.18, linewidth=0, label="peak")
        axes.step(times, mean, where="post", color="#0072B2", linewidth=1.2, label="mean")
        top = int(np.argmax(peak))
        axes.plot([times[top]], [peak[top]], "o", color="#D55E00", markersize=4)
        axes.annotate(
            f"{peak[top]:,}", (times[top], peak[top]), xytext=(5, 4), textcoords="offset points", color="#D55E00"
        )
        _occupancy_tooltips(axes, name, times, peak, mean)
        axes.set_title(label(name))
        axes.set_ylim(0, max(1, peak[top]) * 1.15)
        earliest, latest = min(table["bucket"].to_pylist()), max(table["bucket"].to_pylist())
        end = max(_later(latest, bucket_ms), _later(earliest, 10_000))
        axes.set_xlim(min(earliest, end - timedelta(seconds=10)), end)
        _counts(axes.yaxis)
        # With the default of 5, matplotlib finds no step that gives at most 9 ticks for 4 to 5 days, hours, or minutes,
        # and it warns.
        locator = _DATES.AutoDateLocator(minticks=4, maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator))
        _mark_deploys(axes, deploys, earliest, end)
    if purgatories:
        handles = dict(zip(*reversed(grid[0, 0].get_legend_handles_labels()), strict=True))
        grid[0, 0].legend(handles.values(), handles.keys(), ncols=3, loc="lower right", bbox_to_anchor=(1, 1.08))
    else:
        empty(grid[0, 0], "No operation waited.")
    stacked(figure, len(purgatories))
    caption = f"Number of parked operations, mean and peak in steps of {seconds(bucket_ms / 1000)}."
    shared = max((_buckets_per_tooltip(rows.num_rows) for _, rows in purgatories), default=1)
    if shared > 1:
        caption += f" Each tooltip covers up to {seconds(shared * bucket_ms / 1000)}."
    return picture(figure, "Parked operations over time", f"{caption} Times are UTC.{_marked(deploys)}")


def _refused_name(*, every_kind: bool) -> str:
    return "refused" if every_kind else "refused, all kinds"  # the kinds of refused operations are not known


def _outcomes_over_time(
    table: pa.Table, names: list[str], step_ms: int, deploys: Sequence[datetime], refused_name: str
) -> Picture:
    figure, each = _time_axes(table, names, step_ms, deploys, refused=True)
    for axes, times, rows in each:
        bottom = np.zeros(len(times))
        # Draw one shape for all steps of an outcome: a bar for each step would take as long as the rest of the report.
        edges = _DATES.date2num([*times, _later(times[-1], step_ms)])
        for outcome, colour in COLOURS.items():
            top = bottom + np.array([row[outcome] for row in rows])
            if (top > bottom).any():
                axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, label=outcome.replace("_", " "))
                bottom = top
        refused = np.array([row["refused"] for row in rows])
        if refused.any():
            axes.stairs(bottom + refused, edges, baseline=bottom, fill=True, facecolor="none", edgecolor=_REFUSED,
                        hatch="////", linewidth=0.4, label=refused_name)  # fmt: skip
            bottom = bottom + refused
        texts = []
        for row in rows:
            counts = [f"{name.replace('_', ' ')} {row[name]:,}" for name in COLOURS if row[name]]
            counts += [f"{refused_name} {row['refused']:,}"] if row["refused"] else []
            texts.append(f"{_span(row, step_ms)}: {', '.join(counts)}")
        _columns(axes, rows[0], times, step_ms, texts)
        axes.set_ylim(0, max(1, np.max(bottom)) * 1.12)
        _counts(axes.yaxis)
    return _finish(
        figure,
        each,
        "Outcomes over time",
        f"Operations by the time at which they parked, in steps of {seconds(step_ms / 1000)}. {EXPIRING}",
        deploys,
    )


def _waits_over_time(table: pa.Table, names: list[str], step_ms: int, deploys: Sequence[datetime]) -> Picture:
    figure, each = _time_axes(table, names, step_ms, deploys, refused=False)
    lines = (
        ("wait_p50", "wait p50", "#0072B2", "-"),
        ("wait_p99", "wait p99", "#D55E00", "-"),
        ("late_p99", "lateness p99", "#8C8C8C", ":"),
    )
    for axes, times, rows in each:
        for column, name, colour, style in lines:
            values = [max(_LEAST_S, row[column]) if row[column] is not None else None for row in rows]
            # A lateness below the resolution of the journal would only extend the scale.
            shown = [value for value in values if value is not None]
            if shown and (column != "late_p99" or max(shown) > _LEAST_S):
                end: list[Any] = [*times, _later(times[-1], step_ms)]
                heights = np.array([*values, values[-1]], dtype=float)
                axes.step(end, heights, where="post", color=colour, linestyle=style, linewidth=1.4, label=name)
        texts = []
        for row in rows:
            found = [f"{name} {seconds(row[column], 2)}" for column, name, *_ in lines if row[column] is not None]
            texts.append(f"{_span(row, step_ms)}: {', '.join(found) or 'no operation that waited has ended'}")
        axes.set_yscale("log")
        duration_scale(axes.yaxis)
        _columns(axes, rows[0], times, step_ms, texts)
    return _finish(
        figure,
        each,
        "Waits and lateness over time",
        f"By the time at which the operations parked, in steps of {seconds(step_ms / 1000)}; the scale is logarithmic.",
        deploys,
    )


_Axes = list[tuple[Axes, list[Any], list[dict[str, Any]]]]


def _time_axes(
    table: pa.Table, names: list[str], step_ms: int, deploys: Sequence[datetime], *, refused: bool
) -> tuple[Figure, _Axes]:
    """Return a figure with a plot for each purgatory or each of its kinds.

    For each plot, also return its axes, the steps of time, and the row for each step.  ``refused``: whether a purgatory
    that refused operations also has a plot of its own, because the kinds of refused operations are not known.
    """
    of_name = _panels(table, names, refused=refused)
    figure = Figure(figsize=(9, max(1.9 * max(1, len(of_name)), 2.6) + 0.6))
    grid = figure.subplots(max(1, len(of_name)), 1, sharex=True, squeeze=False)
    if not of_name:
        empty(grid[0, 0], "No operation is in the journal.")
    first = min((rows[0]["bucket"] for rows in of_name.values()), default=_LAST)
    last = max((rows[-1]["bucket"] for rows in of_name.values()), default=_LAST)
    each: _Axes = []
    for axes, ((name, kind), rows) in zip(grid[:, 0], of_name.items(), strict=False):
        known = {row["bucket"]: row for row in rows}
        nothing = dict.fromkeys(rows[0], 0) | dict.fromkeys(("wait_p50", "wait_p99", "late_p50", "late_p99"))
        filled = [
            known.get(at, nothing | {"bucket": at, "purgatory": name, "kind": kind})
            for at in _steps(rows[0]["bucket"], rows[-1]["bucket"], step_ms)
        ]
        axes.set_title(label(name) if kind is None else f"{label(name)} · {label(kind)}")
        end = max(_later(last, step_ms), _later(first, 10_000))
        axes.set_xlim(min(first, end - timedelta(seconds=10)), end)
        locator = _DATES.AutoDateLocator(minticks=4, maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator))
        _mark_deploys(axes, deploys, first, _later(last, step_ms))
        each.append((axes, [row["bucket"] for row in filled], filled))
    return figure, each


def _panels(table: pa.Table, names: list[str], *, refused: bool) -> dict[tuple[str, str | None], list[dict[str, Any]]]:
    """Return the rows of each purgatory, or of its kinds if it has several and there is room for them."""
    rows: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in table.filter(pc.is_in(table["purgatory"], value_set=pa.array(names, pa.string()))).to_pylist():
        rows.setdefault((row["purgatory"], row["kind"]), []).append(row)
    wholes = [(name, None) for name in names if (name, None) in rows]
    divided: list[tuple[str, str | None]] = []
    for whole in wholes:
        kinds = [key for key in rows if key[0] == whole[0] and key[1] is not None]
        several = len(kinds) > 1
        if not several or (refused and any(row["refused"] for row in rows[whole])):
            divided.append(whole)
        divided += sorted(kinds) if several else []
    return {key: rows[key] for key in (divided if len(divided) <= _MOST_PANELS else wholes)}


def _mark_deploys(axes: Axes, deploys: Sequence[datetime], first: datetime, last: datetime) -> None:
    """Draw a line where new runs of servers began, labeled with the time unless there are many."""
    within = [at for at in deploys if first <= at <= last]
    for at in within:
        place = _DATES.date2num(at)
        axes.axvline(place, color="white", linewidth=2.6)  # under the dashes, which would be invisible on a dark bar
        axes.axvline(place, color=_DEPLOY, linewidth=1.3, linestyle=(0, (4, 2)), label="new run of a server")
        if len(within) <= _MOST_DEPLOY_TIMES:
            axes.annotate(
                f"{at:%H:%M}", (place, 1), xycoords=axes.get_xaxis_transform(), xytext=(0, 2),
                textcoords="offset points", ha="center", va="bottom", fontsize=8, color=_DEPLOY,
            )  # fmt: skip


def _marked(deploys: Sequence[datetime]) -> str:
    return " Dashed: a new run of a server began, as with a deploy." if deploys else ""


def _steps(first: datetime, last: datetime, step_ms: int) -> list[datetime]:
    number = round((last - first) / timedelta(milliseconds=step_ms))
    if number > _MOST_STEPS:  # rare operations over a long time: do not fill in the steps that have no operations
        return sorted({first, last})
    return [first + timedelta(milliseconds=step_ms * n) for n in range(number + 1)]


def _finish(figure: Figure, each: _Axes, title: str, caption: str, deploys: Sequence[datetime]) -> Picture:
    handles: dict[str, Any] = {}
    for axes, _, _ in each:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if each:
        each[0][0].legend(
            handles.values(), handles.keys(), ncols=4, loc="lower left", bbox_to_anchor=(0, 1.18), handlelength=1.2
        )
    stacked(figure, len(each))
    return picture(figure, title, f"{caption} Times are UTC.{_marked(deploys) if each else ''}")


def _span(row: dict[str, Any], step_ms: int) -> str:
    return f"{row['bucket']:%Y-%m-%d %H:%M:%S} to {_later(row['bucket'], step_ms):%H:%M:%S} UTC"


def _columns(axes: Axes, of: dict[str, Any], times: list[datetime], step_ms: int, texts: list[str]) -> None:
    """Cover the plot with invisible columns that have tooltips, one column for each step."""
    width = step_ms / 86_400_000
    for at, text in zip(times, texts, strict=True):
        left = _DATES.date2num(at)
        column_tooltip(axes, left, left + width, [of["purgatory"], of["kind"]], text)


def _later(at: datetime, ms: int) -> datetime:
    """Return the time ``ms`` later, but at most the last millisecond of the year 9999.

    The calendars of Python and matplotlib end there.  Matplotlib rounds a later microsecond up.
    """
    return at + min(timedelta(milliseconds=ms), _LAST - at)


def _buckets_per_tooltip(buckets: int) -> int:
    return -(-buckets // _MOST_COLUMNS)


def _occupancy_tooltips(axes: Axes, name: str, times: list[Any], peak: Any, mean: Any) -> None:
    """Cover the plot with invisible columns that have tooltips; each column spans one bucket or several."""
    buckets = len(times) - 1
    columns = min(buckets, _MOST_COLUMNS)
    borders = [round(number * buckets / columns) for number in range(columns + 1)]
    for begin, end in pairwise(borders):
        left, right = times[begin], times[end]
        text = f"{left:%Y-%m-%d %H:%M:%S} to {right:%H:%M:%S} UTC, peak {peak[begin:end].max():,}"
        text += f", mean {mean[begin:end].mean():,.2f}"
        column_tooltip(axes, _DATES.date2num(left), _DATES.date2num(right), [name], text)


def _waits(table: pa.Table) -> Picture:
    purgatories = _by_purgatory(table)
    figure = Figure(figsize=(9, 2.2 * max(1, len(purgatories)) + 0.4))
    grid = figure.subplots(max(1, len(purgatories)), 1, sharex=True, squeeze=False)
    for axes, (name, rows) in zip(grid[:, 0], purgatories, strict=False):
        _wait_bars(axes, name, rows)
        axes.set_title(label(name))
    if not purgatories:
        empty(grid[0, 0], "No operation that waited has ended.")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    grid[0, 0].legend(handles, labels, ncols=4, loc="lower right", bbox_to_anchor=(1, 1.0), handlelength=1.0)
    stacked(figure, len(purgatories))
    return picture(figure, "Wait times", "Operations by wait time (logarithmic), stacked by outcome.")


def _wait_bars(axes: Axes, name: str, rows: pa.Table) -> None:
    bottom = dict.fromkeys(rows["from"].to_pylist(), 0.0)
    for outcome, colour in COLOURS.items():
        part = rows.filter(pc.equal(rows["outcome"], outcome))
        if not part.num_rows:
            continue
        counts = dict(zip(part["from"].to_pylist(), part["operations"].to_pylist(), strict=True))
        steps = sorted(counts)
        heights = [counts[step] for step in steps]
        # Waits of less than a millisecond are drawn one step below it.
        starts = [max(step, 0.00075) for step in steps]
        widths = [start * 0.3 for start in starts]
        under = [bottom[step] for step in steps]
        bars = axes.bar(
            starts, heights, widths, bottom=under, align="edge", color=colour, label=outcome.replace("_", " ")
        )
        ends = [seconds(step * _STEP) if step else seconds(0.001) for step in steps]
        texts = [
            f"{outcome}, {seconds(step)} to {end}: {height:,} operations"
            for step, end, height in zip(steps, ends, heights, strict=True)
        ]
        tooltips(bars, [name], texts)
        for step, height in zip(steps, heights, strict=True):
            bottom[step] += height
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axes.xaxis.set_minor_formatter(_Durations())
    _counts(axes.yaxis)


class _Durations(LogFormatter):
    """A :class:`LogFormatter` that writes the labels between powers of ten as durations."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return seconds(x) if super().__call__(x, pos) else ""


def _hot_keys(table: pa.Table) -> Picture:
    rows = table.slice(0, 20).to_pylist()[::-1]
    figure = Figure(figsize=(9, 0.9 + 0.27 * max(1, len(rows))))
    axes = figure.subplots()
    left = [0] * len(rows)
    for outcome, colour in COLOURS.items():
        widths = [row.get(outcome, 0) for row in rows]
        if any(widths):
            bars = axes.barh(
                range(len(rows)), widths, left=left, color=colour, label=outcome.replace("_", " "), height=0.7
            )
            for bar, row in zip(bars, rows, strict=True):
                text = f"{outcome} {row[outcome]:,} of {row['operations']:,} operations"
                tooltips([bar], (row["purgatory"], row["key"]), [text])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for number, row in enumerate(rows):
        text = "" if row["p99"] is None else f"p50 {seconds(row['p50'])}, p99 {seconds(row['p99'])}"
        place = (row["operations"], number)
        axes.annotate(text, place, xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, color="#444444")
    axes.set_yticks(range(len(rows)), [f"{label(row['purgatory'])} · {label(row['key'])}" for row in rows])
    _counts(axes.xaxis)
    axes.set_xlabel("operations")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.22, y=0.02)
    if not rows:
        empty(axes, "No operation waited on a key.")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles, labels, ncols=len(COLOURS), loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.0)
    return picture(figure, "Hot keys", "The keys with the most operations, and the wait times of these operations.")


def _ranked(
    table: pa.Table,
    title: str,
    caption: str,
    figure_of: Callable[[dict[str, Any]], float],
    text_of: Callable[[float], str],
    note_of: Callable[[dict[str, Any]], str],
    colour: str,
    usual: float | None = None,
) -> Picture:
    """Draw the first keys of a ranking as bars, and the usual figure as a line."""
    rows = table.slice(0, _MOST_RANKED).to_pylist()[::-1]
    figure = Figure(figsize=(9, 0.9 + 0.27 * max(1, len(rows))))
    axes = figure.subplots()
    values = [figure_of(row) for row in rows]
    bars = axes.barh(range(len(rows)), values, color=colour, height=0.7)
    for number, (bar, row, value) in enumerate(zip(bars, rows, values, strict=True)):
        text = f"{text_of(value)}: {note_of(row)}"
        tooltips([bar], (row["purgatory"], row["key"]), [text])
        axes.annotate(
            text, (value, number), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, color="#444444"
        )
    axes.set_yticks(range(len(rows)), [f"{label(row['purgatory'])} · {label(row['key'])}" for row in rows])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value) if value else "0"))
    axes.grid(visible=False, axis="y")
    most = max(values, default=1) * 1.4 or 1
    axes.set_xlim(0, most)
    if text_of is seconds:
        axes.set_xticks(duration_ticks(most))
    if usual is not None and rows:
        axes.axvline(usual, color="#444444", linewidth=1.0, linestyle=":")
    if not rows:
        empty(axes, "No key is in this ranking.")
    return picture(figure, title, caption)


def _of(table: pa.Table, names: list[str]) -> pa.Table:
    """Return the rows of these purgatories."""
    return table.filter(pc.is_in(table["purgatory"], value_set=pa.array(names, pa.string())))


def _by_purgatory(table: pa.Table) -> list[tuple[str, pa.Table]]:
    names = sorted(set(table["purgatory"].to_pylist()))
    return [(name, table.filter(pc.equal(table["purgatory"], name))) for name in names]


def duration_scale(axis: Any) -> None:
    """Label a logarithmic axis with durations: 1, 2, and 5 times each power of ten if there are few powers of ten."""
    low, high = axis.get_view_interval()
    few = high / max(low, _LEAST_S) < 2_000
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axis.set_minor_formatter(NullFormatter())


def duration_ticks(most_s: float) -> list[float]:
    """Return at most six ticks, from 0 on, at whole numbers of a unit."""
    step = next((each for each in _TICKS_S if most_s / each <= 6), most_s / 6)
    return [step * number for number in range(int(most_s / step) + 1)]


_TICKS_S: Final = (
    *(unit * number for unit in (0.001, 0.01, 0.1) for number in (1, 2, 5)),
    *(unit * number for unit in (1, 60) for number in (1, 2, 5, 10, 15, 30)),
    *(3_600 * number for number in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)),
)


def _counts(axis: Axis) -> None:
    """Label an axis with whole numbers."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(_thousands))


def _thousands(value: float, _: Any) -> str:
    return f"{value:,.0f}"
