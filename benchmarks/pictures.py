"""Plots of saved runs, for the README: ``python -m benchmarks.pictures`` writes them to ``docs/images/``.

``cost``     the cost of a timer by the number outstanding, on logarithmic axes
``stall``    the longest turn of the loop while a million operations end
``designs``  the first design and this one, in Kafka's experiment

Each plot is written as SVG and as PNG, for a light and for a dark background.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import RESULTS, Results, load
from .row import grouped

__all__ = ["draw"]

IMAGES = Path(__file__).parent.parent / "docs" / "images"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colors for one background."""

    name: str
    ground: str
    text: str
    faint: str
    ours: str
    ours_interpreted: str
    asyncio: str
    uvloop: str
    plain: str


THEMES = (
    Theme("light", "#ffffff", "#1f2328", "#d1d9e0", "#0550ae", "#54a0ff", "#bc4c00", "#8250df", "#6e7781"),
    Theme("dark", "#0d1117", "#e6edf3", "#30363d", "#58a6ff", "#a5d2ff", "#f0883e", "#d2a8ff", "#8b949e"),
)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw every plot for which the results have figures; return the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    pictures: dict[str, Callable[[Results, Theme], Any]] = {"cost": _cost, "stall": _stall, "designs": _designs}
    for theme in THEMES:
        settings: Any = {
            "svg.hashsalt": "purgatory",
            "font.family": "DejaVu Sans",
            "font.size": 11,
            "text.color": theme.text,
            "axes.labelcolor": theme.text,
            "axes.edgecolor": theme.faint,
            "axes.facecolor": theme.ground,
            "figure.facecolor": theme.ground,
            "xtick.color": theme.text,
            "ytick.color": theme.text,
            "grid.color": theme.faint,
            "grid.linewidth": 0.7,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
        with mpl.rc_context(settings):
            for name, picture in pictures.items():
                figure = picture(results, theme)
                if figure is None:
                    continue
                for kind in ("svg", "png"):
                    file = folder / f"{name}-{theme.name}.{kind}"
                    figure.savefig(file, dpi=144, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else {})
                    written.append(file)
    return written


def _figure(width: float, height: float, columns: int = 1, *, lines: int = 0) -> tuple[Any, Any]:
    """Return a figure with one set of axes, or with a grid of them if ``lines`` is given."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(lines, columns, squeeze=False) if lines else figure.subplots()


# Cost against outstanding


def _cost(results: Results, theme: Theme) -> Any:
    curves = {
        "asyncio call_later": (_theirs(results, "asyncio call_later"), theme.asyncio),
        "uvloop call_later": (_theirs(results, "uvloop call_later"), theme.uvloop),
        "heapq": (_theirs(results, "heapq"), theme.plain),
        "purgatory, interpreted": (_ours(results, "interpreted"), theme.ours_interpreted),
        "purgatory": (_ours(results, "compiled"), theme.ours),
    }
    points = [point for curve, _ in curves.values() for point in curve]
    if not points:
        return None
    figure, axes = _figure(8.4, 4.6)
    ends: list[tuple[float, float, str, str]] = []
    for name, (curve, colour) in curves.items():
        if curve:
            width = 2.6 if name == "purgatory" else 1.8
            axes.plot(*zip(*curve, strict=True), color=colour, marker="o", markersize=5, linewidth=width)
            ends.append((curve[-1][1], curve[-1][0], name, colour))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, which="major")
    axes.minorticks_off()
    sizes = sorted({x for x, _ in points})
    axes.set_xticks(sizes, [grouped(size) for size in sizes])
    ticks = (100, 200, 500, 1000, 2000, 5000, 10_000)
    axes.set_yticks(ticks, [_time(tick) for tick in ticks])
    axes.set_ylim(0.7 * min(y for _, y in points), 1.4 * max(y for _, y in points))
    axes.set_xlabel("timers outstanding")
    axes.set_title("Cost of adding one timer and cancelling the oldest", loc="left", fontweight="bold")
    _label_ends(axes, ends)
    return figure


def _theirs(results: Results, peer: str) -> list[tuple[int, float]]:
    return _points(results, "compiled", peer) or _points(results, "interpreted", peer)


def _points(results: Results, kind: str, peer: str, *, own: bool = False) -> list[tuple[int, float]]:
    points = []
    for row in results.rows.get(kind, []):
        match = re.fullmatch(r"add \+ cancel, ([\d,]+) outstanding", row.what)
        if match and row.peer == peer and row.theirs is not None:
            points.append((int(match[1].replace(",", "")), row.ours if own else row.theirs))
    return sorted(points)


def _ours(results: Results, kind: str) -> list[tuple[int, float]]:
    return _points(results, kind, "asyncio call_later", own=True)


def _label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Put a name at the end of each line; names that would touch are pushed apart."""
    last = 0.0
    for y, x, name, colour in sorted(ends):
        at = max(y, last * 1.22)
        weight = "bold" if name == "purgatory" else "normal"
        axes.annotate(
            f"  {name}",
            (x, y),
            xytext=(x * 1.08, at),
            color=colour,
            va="center",
            fontweight=weight,
            annotation_clip=False,
        )
        last = at


def _time(ns: float) -> str:
    if ns >= 1e9:
        return f"{ns / 1e9:g} s"
    if ns >= 1e6:
        return f"{ns / 1e6:g} ms"
    return f"{ns / 1e3:g} µs" if ns >= 1e3 else f"{ns:g} ns"


# The longest turn


def _stall(results: Results, theme: Theme) -> Any:
    bars: list[tuple[str, float, str, bool]] = []
    for words, title in (("expire in one instant", "expire at once"), ("cancelled, 1,000 a turn", "are cancelled")):
        found = {
            kind: next(
                (
                    row
                    for row in _rows(results)
                    if row.section == "stall"
                    and row.what.startswith("longest turn")
                    and words in row.what
                    and row.peer == f"{kind} timers"
                ),
                None,
            )
            for kind in ("asyncio", "uvloop")
        }
        for kind, row in found.items():
            if row is None or row.theirs is None:
                continue
            colour = theme.asyncio if kind == "asyncio" else theme.uvloop
            if kind == "asyncio":
                bars.append((f"purgatory: a million {title}", row.ours, theme.ours, True))
            bars.append((f"{kind} timers", row.theirs, colour, False))
    if not bars:
        return None
    figure, axes = _figure(8.4, 0.52 * len(bars) + 1.3)
    places = [-(index + 0.55 * (index // 3)) for index in range(len(bars))]
    for place, (_, value, colour, own) in zip(places, bars, strict=True):
        axes.barh(place, value, color=colour, height=0.62)
        weight = "bold" if own else "normal"
        axes.annotate(
            f" {_time(float(f'{value:.3g}') * 1e6)}", (value, place), va="center", color=theme.text, fontweight=weight
        )
    axes.set_yticks(places, [name for name, _, _, _ in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    axes.set_xlim(0.1, max(value for _, value, _, _ in bars) * 4)
    ticks = [0.1, 1, 10, 100, 1000, 10_000]
    ticks = [tick for tick in ticks if tick <= max(value for _, value, _, _ in bars) * 4]
    axes.set_xticks(ticks, [_time(tick * 1e6) for tick in ticks])
    axes.minorticks_off()
    axes.grid(visible=True, axis="x")
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.set_title("Longest turn of the event loop", loc="left", fontweight="bold")
    return figure


def _rows(results: Results) -> list[Any]:
    return results.rows.get("compiled") or results.rows.get("interpreted") or []


# Two designs


def _designs(results: Results, theme: Theme) -> Any:
    runs = [run for each in results.runs.values() for run in each]
    latencies = sorted({(run["parameters"]["pct75"], run["parameters"]["pct50"]) for run in runs})
    if not latencies:
        return None
    figure, grid = _figure(5.2 * len(latencies), 7.6, len(latencies), lines=2)
    ticks = sorted({run["parameters"]["rate"] for run in runs})
    labels = [f"{tick / 1000:g} k" for tick in ticks]
    for column, latency in enumerate(latencies):
        served, spent = grid[0][column], grid[1][column]
        for kind, design, name, colour in _lines_of(theme):
            chosen = [run for run in results.runs.get(kind, []) if _is(run, design, latency)]
            rates = [run["parameters"]["rate"] for run in chosen]
            if chosen:
                style: Any = {"color": colour, "marker": "o", "markersize": 5, "linewidth": 2, "label": name}
                served.plot(rates, [run["actual_rate"] for run in chosen], **style)
                spent.plot(rates, [run["cpu"] / run["parameters"]["num"] * 1e6 for run in chosen], **style)
        for axes in (served, spent):
            axes.set_xscale("log")
            axes.grid(visible=True)
            axes.minorticks_off()
            axes.set_xticks(ticks, labels)
        served.set_yscale("log")
        served.minorticks_off()
        served.set_yticks(ticks, labels)
        served.set_title(f"(pct75, pct50) = ({latency[0]:g}, {latency[1]:g}) ms", loc="left", fontweight="bold")
        spent.set_ylim(bottom=0)
        spent.set_xlabel("requests a second, target")
    grid[0][0].set_ylabel("requests a second, served")
    grid[1][0].set_ylabel("CPU time per request, µs")
    grid[0][0].legend(frameon=False, loc="upper left", labelcolor=theme.text)
    return figure


def _lines_of(theme: Theme) -> list[tuple[str, str, str, str]]:
    return [
        ("compiled", "first", "first design", theme.asyncio),
        ("interpreted", "new", "this design, interpreted", theme.ours_interpreted),
        ("compiled", "new", "this design", theme.ours),
        ("compiled", "none", "no purgatory", theme.plain),
    ]


def _is(run: dict[str, Any], design: str, latency: tuple[float, float]) -> bool:
    given = run["parameters"]
    return run["design"] == design and (given["pct75"], given["pct50"]) == latency


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the saved runs are (%(default)s)")
    parser.add_argument("--into", type=Path, default=IMAGES, help="where the pictures go (%(default)s)")
    options = parser.parse_args(arguments)
    results = load(options.results)
    written = draw(results, options.into)
    for file in written:
        print(file)
    if not written:
        print(f"there are no saved runs in {options.results}: measure first", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
