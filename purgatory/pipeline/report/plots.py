"""The pictures of a report.  Each outcome has the same colour in all of them; the colours suit colour-blind readers."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import matplotlib.dates
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter, PercentFormatter

from purgatory.journal.schema import CANCELLED, COMPLETED, EXPIRED, FAILED, PENDING
from purgatory.pipeline.output.figures import Picture, drawing, empty, label, picture, seconds, tooltips

from .aggregates import BY_CLOSING
from .time_span import deploys_of

__all__ = ["COLOURS", "MOST_PURGATORIES", "drawn_purgatories", "label_shares", "report_plots"]

COLOURS: Final = {
    COMPLETED: "#0072B2",
    EXPIRED: "#E69F00",
    BY_CLOSING: "#009E73",
    CANCELLED: "#8C8C8C",
    FAILED: "#D55E00",
    PENDING: "#CC79A7",
}
_DARK: Final = (COMPLETED, FAILED)  # white text is readable on these
_REFUSED: Final = "#444444"
_DEPLOY: Final = "#7B4B94"
MOST_PURGATORIES: Final = 8
_MOST_RANKED: Final = 12
_MOST_STEPS: Final = 400  # of a plot over time
_LEAST_S: Final = 0.0005  # a wait of 0 has no place on a logarithmic axis
_MOST_COLUMNS: Final = 120  # with a tooltip, in the plot of a purgatory over time
_STEP: Final = 10 ** (1 / 8)  # from the lower to the upper end of a step of the wait histogram
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_DATES: Final[Any] = matplotlib.dates  # it has no types


def report_plots(
    tables: Mapping[str, pa.Table], bucket_ms: int, step_ms: int = 60_000, chosen: Sequence[str] = ()
) -> dict[str, Picture]:
    """Draw a picture of each table that has one.  Keys are file names, in reading order.

    ``chosen``: see :func:`drawn_purgatories`.
    """
    names = drawn_purgatories(tables["outcomes"], chosen)
    deploys = deploys_of(tables["dropped"], step_ms) if "dropped" in tables else []
    pictures: dict[str, tuple[str, Callable[[pa.Table], Picture]]] = {
        "outcomes": ("outcomes", _outcomes),
        "outcomes_over_time": ("over_time", lambda table: _outcomes_over_time(table, names, step_ms, deploys)),
        "waits_over_time": ("over_time", lambda table: _waits_over_time(table, names, step_ms, deploys)),
        "occupancy": ("occupancy", lambda table: _occupancy(_of(table, names), bucket_ms)),
        "waits": ("wait_histogram", lambda table: _waits(_of(table, names))),
        "hot_keys": ("hot_keys", _hot_keys),
        "hot_keys_by_wait": ("hot_keys_by_wait", _by_wait),
        "hot_keys_by_expired": ("hot_keys_by_expired", _by_expired),
    }
    with drawing():
        return {name: draw(tables[table]) for name, (table, draw) in pictures.items() if table in tables}


def _by_wait(table: pa.Table) -> Picture:
    return _ranked(
        table,
        "Keys by total wait",
        "The sum of the waits of all operations of a key: where requests spend their time.",
        lambda row: row["total_wait"],
        seconds,
        lambda row: f"{row['operations']:,} operations, p99 {seconds(row['p99'])}",
    )


def _by_expired(table: pa.Table) -> Picture:
    return _ranked(
        table,
        "Keys by expired share",
        "The share of operations that expired at their deadline, of keys with at least 20 operations.",
        lambda row: row[EXPIRED] / row["operations"],
        lambda share: f"{share:.0%}",
        lambda row: f"{row[EXPIRED]:,} of {row['operations']:,} expired",
    )


def drawn_purgatories(outcomes: pa.Table, chosen: Sequence[str] = ()) -> list[str]:
    """Return the purgatories that have plots of their own: those of ``chosen``, or those with the most operations."""
    operations: dict[str, int] = {}
    for row in outcomes.select(["purgatory", "operations"]).to_pylist():
        operations[row["purgatory"]] = operations.get(row["purgatory"], 0) + row["operations"]
    if chosen:
        return [name for name in dict.fromkeys(chosen) if name in operations]
    return sorted(sorted(operations, key=lambda name: (-operations[name], name))[:MOST_PURGATORIES])


def _outcomes(table: pa.Table) -> Picture:
    rows = table.to_pylist()
    kinds = sorted({(row["purgatory"], row["kind"]) for row in rows}, reverse=True)
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
    return picture(figure, "How operations ended", "Share of each outcome, by purgatory and kind.")


def label_shares(axes: Axes, kinds: list[tuple[str, str]]) -> None:
    """Label bars of shares: the purgatory and kind of each bar, a scale in percent, and the colours of the outcomes."""
    axes.set_yticks(range(len(kinds)), [f"{label(purgatory)} · {label(kind)}" for purgatory, kind in kinds])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(visible=False, axis="y")
    handles, labels = axes.get_legend_handles_labels()  # without any, legend() warns unless it is given them
    axes.legend(handles, labels, ncols=len(COLOURS), loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.0)


def _occupancy(table: pa.Table, bucket_ms: int) -> Picture:
    purgatories = _by_purgatory(table)
    figure = Figure(figsize=(9, 2.3 * max(1, len(purgatories)) + 0.4))
    grid = figure.subplots(max(1, len(purgatories)), 1, sharex=True, squeeze=False)
    for axes, (name, rows) in zip(grid[:, 0], purgatories, strict=False):
        begin = rows["bucket"].to_pylist()
        # A step lasts until the end of its bucket.  An axis of less than some seconds has no useful ticks.
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
        axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
        # With the default of 5, no step gives at most 9 ticks for 4 to 5 days, hours or minutes, and matplotlib warns.
        locator = _DATES.AutoDateLocator(minticks=4, maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator))
    if purgatories:
        grid[0, 0].legend(ncols=2, loc="lower right", bbox_to_anchor=(1, 1.0))
    else:
        empty(grid[0, 0], "No operation waited.")
    figure.tight_layout()
    each = seconds(bucket_ms / 1000)
    return picture(
        figure,
        "Parked operations over time",
        f"Number of parked operations, mean and peak in steps of {each}. Times are UTC.",
    )


def _outcomes_over_time(table: pa.Table, names: list[str], step_ms: int, deploys: list[datetime]) -> Picture:
    figure, each = _time_axes(table, names, step_ms, deploys, 1.9)
    for axes, times, rows in each:
        bottom = np.zeros(len(times))
        # One shape for all steps of an outcome: a bar for each takes matplotlib as long as the rest of the report.
        edges = _DATES.date2num([*times, _later(times[-1], step_ms)])
        for outcome, colour in COLOURS.items():
            top = bottom + np.array([row[outcome] for row in rows])
            if (top > bottom).any():
                axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, label=outcome.replace("_", " "))
                bottom = top
        refused = np.array([row["refused"] for row in rows])
        if refused.any():
            axes.stairs(bottom + refused, edges, baseline=bottom, fill=True, facecolor="none", edgecolor=_REFUSED,
                        hatch="////", linewidth=0.4, label="refused")  # fmt: skip
            bottom = bottom + refused
        texts = []
        for row in rows:
            counts = [f"{name.replace('_', ' ')} {row[name]:,}" for name in (*COLOURS, "refused") if row[name]]
            texts.append(f"{_span(row, step_ms)}: {', '.join(counts)}")
        _columns(axes, rows[0]["purgatory"], times, step_ms, texts)
        axes.set_ylim(0, max(1, bottom.max()) * 1.12)
        axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
    return _finish(
        figure,
        each,
        "Outcomes over time",
        f"Operations by the time at which they parked, in steps of {seconds(step_ms / 1000)}.",
        deploys,
    )


def _waits_over_time(table: pa.Table, names: list[str], step_ms: int, deploys: list[datetime]) -> Picture:
    figure, each = _time_axes(table, names, step_ms, deploys, 1.9)
    lines = (
        ("wait_p50", "wait p50", "#0072B2", "-"),
        ("wait_p99", "wait p99", "#D55E00", "-"),
        ("late_p99", "lateness p99", "#8C8C8C", ":"),
    )
    for axes, times, rows in each:
        for column, name, colour, style in lines:
            values = [max(_LEAST_S, row[column]) if row[column] is not None else None for row in rows]
            if any(value is not None for value in values):
                end: list[Any] = [*times, _later(times[-1], step_ms)]
                heights = np.array([*values, values[-1]], dtype=float)
                axes.step(end, heights, where="post", color=colour, linestyle=style, linewidth=1.4, label=name)
        texts = []
        for row in rows:
            found = [f"{name} {seconds(row[column])}" for column, name, *_ in lines if row[column] is not None]
            texts.append(f"{_span(row, step_ms)}: {', '.join(found) or 'no operation that waited has ended'}")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _columns(axes, rows[0]["purgatory"], times, step_ms, texts)
    return _finish(
        figure,
        each,
        "Waits and lateness over time",
        f"By the time at which the operations parked, in steps of {seconds(step_ms / 1000)}; the scale is logarithmic.",
        deploys,
    )


_Axes = list[tuple[Axes, list[Any], list[dict[str, Any]]]]


def _time_axes(
    table: pa.Table, names: list[str], step_ms: int, deploys: list[datetime], height: float
) -> tuple[Figure, _Axes]:
    """Return a figure with an axis for each purgatory, its steps of time without a gap, and their rows."""
    whole = table.filter(pc.is_null(table["kind"]))
    of_name = {name: whole.filter(pc.equal(whole["purgatory"], name)).to_pylist() for name in names}
    of_name = {name: rows for name, rows in of_name.items() if rows}
    figure = Figure(figsize=(9, max(height * max(1, len(of_name)), 2.6) + 0.6))
    grid = figure.subplots(max(1, len(of_name)), 1, sharex=True, squeeze=False)
    if not of_name:
        empty(grid[0, 0], "No operation is in the journal.")
    first = min((rows[0]["bucket"] for rows in of_name.values()), default=_LAST)
    last = max((rows[-1]["bucket"] for rows in of_name.values()), default=_LAST)
    each: _Axes = []
    for axes, (name, rows) in zip(grid[:, 0], of_name.items(), strict=False):
        known = {row["bucket"]: row for row in rows}
        nothing = dict.fromkeys(rows[0], 0) | dict.fromkeys(("wait_p50", "wait_p99", "late_p50", "late_p99"))
        filled = [
            known.get(at, nothing | {"bucket": at, "purgatory": name})
            for at in _steps(rows[0]["bucket"], rows[-1]["bucket"], step_ms)
        ]
        axes.set_title(label(name))
        end = max(_later(last, step_ms), _later(first, 10_000))
        axes.set_xlim(min(first, end - timedelta(seconds=10)), end)
        locator = _DATES.AutoDateLocator(minticks=4, maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator))
        for at in deploys:
            if first <= at <= _later(last, step_ms):
                axes.axvline(at, color=_DEPLOY, linewidth=1.1, linestyle=(0, (4, 2)), label="new run of a server")
        each.append((axes, [row["bucket"] for row in filled], filled))
    return figure, each


def _steps(first: datetime, last: datetime, step_ms: int) -> list[datetime]:
    number = round((last - first) / timedelta(milliseconds=step_ms))
    if number > _MOST_STEPS:  # rare operations over a long time: only the steps that have some
        return sorted({first, last})
    return [first + timedelta(milliseconds=step_ms * n) for n in range(number + 1)]


def _finish(figure: Figure, each: _Axes, title: str, caption: str, deploys: list[datetime]) -> Picture:
    handles: dict[str, Any] = {}
    for axes, _, _ in each:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if each:
        each[0][0].legend(
            handles.values(), handles.keys(), ncols=4, loc="lower left", bbox_to_anchor=(0, 1.14), handlelength=1.2
        )
    figure.tight_layout()
    marked = " Dashed: a new run of a server began, as with a deploy." if deploys and each else ""
    return picture(figure, title, f"{caption} Times are UTC.{marked}")


def _span(row: dict[str, Any], step_ms: int) -> str:
    return f"{row['bucket']:%Y-%m-%d %H:%M:%S} to {_later(row['bucket'], step_ms):%H:%M:%S} UTC"


def _columns(axes: Axes, name: str, times: list[datetime], step_ms: int, texts: list[str]) -> None:
    """Cover the plot with invisible columns, one for each step, that have tooltips."""
    width = step_ms / 86_400_000
    for at, text in zip(times, texts, strict=True):
        column = Rectangle((_DATES.date2num(at), 0), width, 1, transform=axes.get_xaxis_transform(), fill=False,
                           linewidth=0)  # fmt: skip
        axes.add_artist(column)
        tooltips([column], [name], [text])


def _later(at: datetime, ms: int) -> datetime:
    """Return the time ``ms`` later, at the latest the last millisecond of the year 9999.

    There the calendars of Python and matplotlib end.  Matplotlib rounds a later microsecond up.
    """
    return at + min(timedelta(milliseconds=ms), _LAST - at)


def _occupancy_tooltips(axes: Axes, name: str, times: list[Any], peak: Any, mean: Any) -> None:
    """Cover the plot with invisible columns, each of one bucket or of several, that have tooltips."""
    buckets = len(times) - 1
    columns = min(buckets, _MOST_COLUMNS)
    borders = [round(number * buckets / columns) for number in range(columns + 1)]
    highest = max(1, peak.max()) * 1.15
    for begin, end in pairwise(borders):
        left, right = times[begin], times[end]
        column = Rectangle(
            (_DATES.date2num(left), 0), _DATES.date2num(right) - _DATES.date2num(left), highest, fill=False, linewidth=0
        )
        axes.add_artist(column)  # add_patch would also extend the limits of the axes, which are set
        text = f"{left:%Y-%m-%d %H:%M:%S} to {right:%H:%M:%S} UTC, peak {peak[begin:end].max():,}"
        tooltips([column], [name], [f"{text}, mean {mean[begin:end].mean():,.2f}"])


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
    figure.tight_layout()
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
        # Waits of less than a millisecond are one step below it.
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
    axes.yaxis.set_major_formatter(FuncFormatter(_thousands))


class _Durations(LogFormatter):
    """Labels the same ticks between powers of ten as :class:`LogFormatter`, with durations."""

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
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
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
) -> Picture:
    """Draw the first keys of a ranking as bars."""
    rows = table.slice(0, _MOST_RANKED).to_pylist()[::-1]
    figure = Figure(figsize=(9, 0.9 + 0.27 * max(1, len(rows))))
    axes = figure.subplots()
    values = [figure_of(row) for row in rows]
    bars = axes.barh(range(len(rows)), values, color=COLOURS[EXPIRED], height=0.7)
    for number, (bar, row, value) in enumerate(zip(bars, rows, values, strict=True)):
        text = f"{text_of(value)}: {note_of(row)}"
        tooltips([bar], (row["purgatory"], row["key"]), [text])
        axes.annotate(
            text, (value, number), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, color="#444444"
        )
    axes.set_yticks(range(len(rows)), [f"{label(row['purgatory'])} · {label(row['key'])}" for row in rows])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value)))
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, max(values, default=1) * 1.4 or 1)
    if not rows:
        empty(axes, "No key is in this ranking.")
    return picture(figure, title, caption)


def _of(table: pa.Table, names: list[str]) -> pa.Table:
    """Return the rows of these purgatories."""
    return table.filter(pc.is_in(table["purgatory"], value_set=pa.array(names, pa.string())))


def _by_purgatory(table: pa.Table) -> list[tuple[str, pa.Table]]:
    names = sorted(set(table["purgatory"].to_pylist()))
    return [(name, table.filter(pc.equal(table["purgatory"], name))) for name in names]


def _thousands(value: float, _: Any) -> str:
    return f"{value:,.0f}"
