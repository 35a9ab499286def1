"""The picture of a replay: the cost and the lateness of each setting."""

from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from purgatory.pipeline.output.figures import Picture, drawing, picture, tooltips

from .recommendation import NEAR

if TYPE_CHECKING:
    from .what_if import WhatIf

__all__ = ["replay_plots"]

_SHADES = ("#56B4E9", "#0072B2", "#004A77", "#009E73", "#CC79A7", "#8C8C8C")


def replay_plots(found: "WhatIf") -> dict[str, Picture]:
    """Draw CPU time, lateness, cascades, and heap operations of each setting."""
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
        "By tick, then by wheel size. The recommended setting is outlined. Hatched: CPU times within 5% of the least,"
        " by which two runs differ too: do not choose between them by CPU time. Lateness is that of the tick."
    )
    return picture(figure, "Cost of each setting", caption)
