"""Where pictures are drawn: the same few shapes as SVG, or as PNG through matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol
from xml.sax.saxutils import escape

__all__ = ["GENERATIONS", "INKS", "Canvas", "PngCanvas", "SvgCanvas"]

INKS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        # what is drawn: its colour on a light ground, and on a dark one
        "ground": ("#ffffff", "#14181d"),
        "strong": ("#1f2328", "#e6e9ed"),
        "faint": ("#656d76", "#9aa4af"),
        "grid": ("#e3e6ea", "#272d35"),
        "barrier": ("#1f2328", "#e6e9ed"),
        "waiting": ("#f5a623", "#f5b041"),
        "ghost": ("#e5484d", "#f2555a"),
        "removed": ("#8f1d22", "#a8323a"),
        "gone": ("#c4cad1", "#434b55"),
    }
)
"""Colours that have a meaning."""

GENERATIONS: Final = ("#4c78a8", "#3fa796", "#7d6fc2", "#5aa9d6", "#2f7f86", "#9a86d8", "#5b83c7", "#63bfa9")
"""Colours of generations, in turn: cool ones, so that waiting and failing stand out on either ground."""


class Canvas(Protocol):
    """Takes shapes; units are pixels, y grows downwards.  ``ink`` is a name in INKS or a colour."""

    def rect(self, x: float, y: float, width: float, height: float, ink: str) -> None: ...

    def line(self, x: float, y: float, to_x: float, to_y: float, ink: str, width: float = 1.0) -> None: ...

    def text(self, x: float, y: float, what: str, ink: str, size: float = 11.0, anchor: str = "start") -> None: ...

    def save(self, path: Path) -> None: ...


class SvgCanvas:
    """Writes SVG, which takes the reader's light or dark preference."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._width = width
        self._height = height
        self._title = title
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, ink: str) -> None:
        self._shapes.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" {_svg_ink("fill", ink)}/>'
        )

    def line(self, x: float, y: float, to_x: float, to_y: float, ink: str, width: float = 1.0) -> None:
        self._shapes.append(
            f'<path d="M{x:.2f} {y:.2f}L{to_x:.2f} {to_y:.2f}" stroke-width="{width:g}" {_svg_ink("stroke", ink)}/>'
        )

    def text(self, x: float, y: float, what: str, ink: str, size: float = 11.0, anchor: str = "start") -> None:
        self._shapes.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" text-anchor="{anchor}" {_svg_ink("fill", ink)}>'
            f"{escape(what)}</text>"
        )

    def save(self, path: Path) -> None:
        light = "".join(f".f-{name}{{fill:{ink}}}.s-{name}{{stroke:{ink}}}" for name, (ink, _) in INKS.items())
        dark = "".join(f".f-{name}{{fill:{ink}}}.s-{name}{{stroke:{ink}}}" for name, (_, ink) in INKS.items())
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width:g} {self._height:g}"'
            f' width="{self._width:g}" height="{self._height:g}" role="img"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
        )
        style = f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"
        lines = [head, f"<title>{escape(self._title)}</title>", style, *self._shapes, "</svg>", ""]
        path.write_text("\n".join(lines), encoding="utf-8")


def _svg_ink(what: str, ink: str) -> str:
    return f'class="{what[0]}-{ink}"' if ink in INKS else f'{what}="{ink}"'


class PngCanvas:
    """Draws with matplotlib, on a light ground, at twice the size."""

    def __init__(self, width: float, height: float, title: str) -> None:
        from matplotlib.figure import Figure  # only needed for PNG, and not part of the extra

        self._title = title
        self._shapes = 0
        self._figure: Any = Figure(figsize=(width / 100, height / 100), dpi=200)
        self._axes: Any = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, width), ylim=(height, 0))
        self._axes.axis("off")

    def rect(self, x: float, y: float, width: float, height: float, ink: str) -> None:
        from matplotlib.patches import Rectangle

        patch = Rectangle((x, y), width, height, color=_light(ink), linewidth=0, zorder=self._next())
        self._axes.add_patch(patch)

    def line(self, x: float, y: float, to_x: float, to_y: float, ink: str, width: float = 1.0) -> None:
        # matplotlib counts points, 72 to the inch, of which a pixel here is a hundredth
        style = {"color": _light(ink), "linewidth": width * 0.72, "solid_capstyle": "butt"}
        self._axes.plot((x, to_x), (y, to_y), **style, zorder=self._next())

    def text(self, x: float, y: float, what: str, ink: str, size: float = 11.0, anchor: str = "start") -> None:
        align = {"start": "left", "middle": "center", "end": "right"}[anchor]
        style = {"color": _light(ink), "fontsize": size * 0.72, "ha": align, "va": "baseline"}
        self._axes.text(x, y, what, **style, zorder=self._next())

    def _next(self) -> int:
        # matplotlib draws by kind unless told otherwise: what comes later lies above
        self._shapes += 1
        return self._shapes

    def save(self, path: Path) -> None:
        self._figure.savefig(path, facecolor=_light("ground"), metadata={"Title": self._title})


def _light(ink: str) -> str:
    return INKS[ink][0] if ink in INKS else ink
