"""Canvases for pictures: SVG, or PNG with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol
from xml.sax.saxutils import escape

__all__ = ["GENERATIONS", "INKS", "Canvas", "PngCanvas", "SvgCanvas"]

INKS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        # name: color on a light background, color on a dark background
        "ground": ("#ffffff", "#14181d"),
        "strong": ("#1f2328", "#e6e9ed"),
        "faint": ("#656d76", "#9aa4af"),
        "grid": ("#e3e6ea", "#272d35"),
        "barrier": ("#1f2328", "#e6e9ed"),
        "waiting": ("#f5a623", "#f5b041"),
        "crashed": ("#e5484d", "#f2555a"),
        "removed": ("#8f1d22", "#a8323a"),
        "gone": ("#c4cad1", "#434b55"),
    }
)
"""Colors by meaning."""

GENERATIONS: Final = ("#4c78a8", "#3fa796", "#7d6fc2", "#5aa9d6", "#2f7f86", "#9a86d8", "#5b83c7", "#63bfa9")
"""Colors of consecutive generations.  They are cool, so that waiting and failed members stand out."""


class Canvas(Protocol):
    """A drawing surface in pixels; y increases downward.  ``ink``: a name in INKS or a color."""

    def rect(self, x: float, y: float, width: float, height: float, ink: str) -> None: ...

    def line(self, x: float, y: float, to_x: float, to_y: float, ink: str, width: float = 1.0) -> None: ...

    def text(self, x: float, y: float, what: str, ink: str, size: float = 11.0, anchor: str = "start") -> None: ...

    def save(self, path: Path) -> None: ...


class SvgCanvas:
    """A canvas for SVG files, which follow the viewer's light or dark mode."""

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
    """A canvas for PNG files: it uses matplotlib, a light background, and twice the resolution."""

    def __init__(self, width: float, height: float, title: str) -> None:
        from matplotlib.figure import Figure  # needed only for PNG, and not part of the extra

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
        # matplotlib uses points of 1/72 inch; a pixel is 1/100 inch here
        style = {"color": _light(ink), "linewidth": width * 0.72, "solid_capstyle": "butt"}
        self._axes.plot((x, to_x), (y, to_y), **style, zorder=self._next())

    def text(self, x: float, y: float, what: str, ink: str, size: float = 11.0, anchor: str = "start") -> None:
        align = {"start": "left", "middle": "center", "end": "right"}[anchor]
        style = {"color": _light(ink), "fontsize": size * 0.72, "ha": align, "va": "baseline"}
        self._axes.text(x, y, what, **style, zorder=self._next())

    def _next(self) -> int:
        # By default, matplotlib orders shapes by type; draw later shapes on top.
        self._shapes += 1
        return self._shapes

    def save(self, path: Path) -> None:
        self._figure.savefig(path, facecolor=_light("ground"), metadata={"Title": self._title})


def _light(ink: str) -> str:
    return INKS[ink][0] if ink in INKS else ink
