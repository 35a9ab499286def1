"""The pictures of a comparison: the baseline above or hollow, the journal below or filled."""

from typing import TYPE_CHECKING, Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from purgatory.pipeline.output.figures import Picture, drawing, empty, label, picture, seconds, tooltips
from purgatory.pipeline.report.plots import COLOURS, label_shares

if TYPE_CHECKING:
    from .comparison import Comparison

__all__ = ["comparison_plots"]

_MOST_ROWS: Final = 24
_INK: Final = {"worse": "#D55E00", "better": "#0072B2"}
_LEAST_S: Final = 0.0005  # a wait of 0 has no place on a logarithmic axis


def comparison_plots(comparison: "Comparison") -> dict[str, Picture]:
    """Draw the pictures of a comparison.  Keys are file names, in reading order."""
    rows = comparison.changes.to_pylist()
    with drawing():
        return {
            "compare_outcomes": _outcomes(rows),
            "compare_waits": _waits(rows),
            "compare_hot_keys": _hot_keys(rows),
        }


def _outcomes(rows: list[dict[str, Any]]) -> Picture:
    shares = [row for row in rows if row["measure"] == "share"]
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
    label_shares(axes, kinds)
    return picture(figure, "Outcomes", "Share of each outcome. Upper, pale bar: the baseline. Lower bar: the journal.")


def _waits(rows: list[dict[str, Any]]) -> Picture:
    waits = [row for row in rows if row["measure"] in ("wait p50", "wait p99")]
    shown = [row for row in waits if row["baseline"] is not None and row["journal"] is not None][:_MOST_ROWS][::-1]
    figure = Figure(figsize=(9, 0.9 + 0.34 * max(1, len(shown))))
    axes = figure.subplots()
    for number, row in enumerate(shown):
        ends = [max(_LEAST_S, row[side]) for side in ("baseline", "journal")]
        ink = _INK.get(row["verdict"], "#666666")
        text = f"{seconds(row['baseline'])} to {seconds(row['journal'])}"
        lines = [
            *axes.plot(ends, [number, number], color=ink, linewidth=1.6),
            *axes.plot(ends[:1], [number], "o", markerfacecolor="white", color=ink, markersize=6),
            *axes.plot(ends[1:], [number], "o", color=ink, markersize=6),
        ]
        numbers = f"of {row['baseline_operations']:,} and {row['journal_operations']:,} operations: {row['verdict']}"
        told = [f"{row['measure']} {text}, {numbers}"] * len(lines)
        tooltips(lines, (row["purgatory"], row["kind"]), told)
        axes.annotate(
            text, (max(ends), number), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8, color=ink
        )
    axes.set_yticks(range(len(shown)), [f"{_name(row)} · {row['measure'].split()[1]}" for row in shown])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.2, y=0.08)
    if not shown:
        empty(axes, "No waits to compare.")
    return picture(
        figure, "Waits", "Hollow: the baseline. Filled: the journal. Orange is worse, blue is better, grey is the same."
    )


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
    axes.grid(visible=False, axis="y")
    if keys:
        axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.0)
    else:
        empty(axes, "No operation waited on a key.")
    return picture(figure, "Hot keys", "Operations per second of the keys with the most operations in either journal.")


def _name(row: dict[str, Any]) -> str:
    return label(row["purgatory"]) + (f" · {label(row['kind'])}" if row["kind"] is not None else "")
