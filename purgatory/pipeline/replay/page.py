"""The HTML page of a replay, and its picture: the cost and the lateness of each setting."""

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from purgatory.pipeline.output.figures import Picture, drawing, picture, tooltips
from purgatory.pipeline.output.page import Card, Note, PageTable, render

from .recommendation import NEAR

if TYPE_CHECKING:
    from .what_if import WhatIf

__all__ = [
    "replay_page",
    "replay_plots",
]

_FIRST = ("tick_ms", "wheel_size", "cpu_us", "late_p99_ms", "late_max_ms", "stall_p99_ms", "stall_max_ms", "changed")
_SHADES = ("#56B4E9", "#0072B2", "#004A77", "#009E73", "#CC79A7", "#8C8C8C")


def replay_page(found: "WhatIf", pictures: dict[str, Picture]) -> str:
    """Return the page of a replay as HTML."""
    best = found.recommended
    cards = [
        Card("operations replayed", f"{found.operations:,}"),
        Card("settings", f"{found.table.num_rows}"),
        Card("recommended tick", f"{best['tick_ms']} ms"),
        Card("recommended wheel size", f"{best['wheel_size']}"),
        Card("changed outcomes", f"{found.changed:,}", bad=found.changed > 0),
    ]
    return render(
        title="The cost of other timer settings",
        subtitle=found.subtitle,
        cards=cards,
        notes=[Note(found.headline, found.reasons, good=True)],
        pictures=pictures.values(),
        tables=[
            PageTable(
                "settings",
                found.table.select(_first(found.table.column_names)),
                "One row per setting. The recommended one is marked.",
                best,
            )
        ],
        footer=f"Created {found.made_at:%Y-%m-%d %H:%M} UTC. The table is beside this page as Parquet and CSV.",
    )


def _first(names: list[str]) -> list[str]:
    """Return the column names, the most important ones first."""
    return [*_FIRST, *(name for name in names if name not in _FIRST)]


# The picture


def replay_plots(found: "WhatIf") -> dict[str, Picture]:
    """Draw the CPU time, lateness, cascades, and heap operations of each setting."""
    rows = found.table.to_pylist()
    with drawing():
        return {"settings": _settings(rows, found.recommended, found.budget_ms)}


def _settings(rows: list[dict[str, Any]], best: dict[str, int], budget_ms: float) -> Picture:
    ticks = sorted({row["tick_ms"] for row in rows})
    sizes = sorted({row["wheel_size"] for row in rows})
    panels = (
        ("cpu_us", "CPU per operation (us)"),
        ("late_p99_ms", "lateness p99 (ms)"),
        ("cascades", "cascades per operation"),
        ("heap_operations", "heap operations per operation"),
    )
    figure = Figure(figsize=(9, 5.6))
    grid = figure.subplots(2, 2).ravel()
    width = 0.8 / len(sizes)
    chosen: list[Any] = []
    least_us = min(row["cpu_us"] for row in rows)
    for axes, (column, title) in zip(grid, panels, strict=True):
        for number, size in enumerate(sizes):
            values = {row["tick_ms"]: row[column] for row in rows if row["wheel_size"] == size}
            places = [place + (number - (len(sizes) - 1) / 2) * width for place in range(len(ticks))]
            heights = [values.get(tick, 0.0) for tick in ticks]
            colour = _SHADES[number % len(_SHADES)]
            bars = axes.bar(places, heights, width * 0.92, color=colour, label=f"wheel of {size}")
            texts = [
                f"tick {tick} ms, wheel of {size}: {height:.4g}" for tick, height in zip(ticks, heights, strict=True)
            ]
            tooltips(bars, [title], texts)
            if column == "cpu_us":
                for bar, height in zip(bars, heights, strict=True):
                    if height <= least_us * NEAR:
                        bar.set_hatch("//")
                        bar.set_edgecolor("white")
            if size == best["wheel_size"]:
                chosen.append(bars[ticks.index(best["tick_ms"])])
        axes.set_title(title)
        axes.set_xticks(range(len(ticks)), [f"{tick} ms" for tick in ticks])
        axes.grid(visible=False, axis="x")
        if column == "late_p99_ms":
            axes.axhline(budget_ms, color="#D55E00", linewidth=1, linestyle="--")
            axes.margins(y=0.12)
            place = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
            axes.annotate("acceptable", (1, budget_ms), va="center", color="#D55E00", fontsize=8.5, **place)
    grid[0].legend(ncols=len(sizes), loc="lower left", bbox_to_anchor=(0, 1.12), handlelength=1.0)
    for bar in chosen:
        bar.set_edgecolor("#D55E00")
        bar.set_linewidth(2)
    for axes in grid[2:]:
        axes.set_xlabel("tick")
    figure.tight_layout()
    caption = (
        "By tick, then by wheel size. The recommended setting is outlined. Hatched: CPU times within 5% of the lowest."
        " Two runs of one setting differ by as much, so do not choose between them by CPU time. Lateness is the tick's"
        " lateness."
    )
    return picture(figure, "Cost of each setting", caption)
