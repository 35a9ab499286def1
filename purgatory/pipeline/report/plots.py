"""The pictures of a report.  Each outcome has the same colour in all of them; the colours suit colour-blind readers."""

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
from matplotlib.ticker import FuncFormatter, LogFormatter, PercentFormatter

from purgatory.journal.schema import CANCELLED, COMPLETED, EXPIRED, FAILED, PENDING
from purgatory.pipeline.output.figures import Picture, drawing, empty, label, picture, seconds, tooltips

__all__ = ["COLOURS", "label_shares", "report_plots"]

COLOURS: Final = {
    COMPLETED: "#0072B2",
    EXPIRED: "#E69F00",
    CANCELLED: "#8C8C8C",
    FAILED: "#D55E00",
    PENDING: "#CC79A7",
}
_DARK: Final = (COMPLETED, FAILED)  # white text is readable on these
_MOST_PURGATORIES: Final = 8
_MOST_COLUMNS: Final = 120  # with a tooltip, in the plot of a purgatory over time
_STEP: Final = 10 ** (1 / 8)  # from the lower to the upper end of a step of the wait histogram
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_DATES: Final[Any] = matplotlib.dates  # it has no types


def report_plots(tables: dict[str, pa.Table], bucket_ms: int) -> dict[str, Picture]:
    """Draw the pictures of a report.  Keys are file names, in reading order."""
    with drawing():
        return {
            "outcomes": _outcomes(tables["outcomes"]),
            "occupancy": _occupancy(tables["occupancy"], bucket_ms),
            "waits": _waits(tables["wait_histogram"]),
            "hot_keys": _hot_keys(tables["hot_keys"]),
        }


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
        bars = axes.barh(range(len(kinds)), widths, left=starts, color=colour, label=outcome, height=0.62)
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
        bars = axes.bar(starts, heights, widths, bottom=under, align="edge", color=colour, label=outcome)
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
        widths = [row[outcome] for row in rows]
        if any(widths):
            bars = axes.barh(range(len(rows)), widths, left=left, color=colour, label=outcome, height=0.7)
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


def _by_purgatory(table: pa.Table) -> list[tuple[str, pa.Table]]:
    names = sorted(set(table["purgatory"].to_pylist()))[:_MOST_PURGATORIES]
    return [(name, table.filter(pc.equal(table["purgatory"], name))) for name in names]


def _thousands(value: float, _: Any) -> str:
    return f"{value:,.0f}"
