"""The style of all figures, and their form as SVG and PNG."""

import io
import re
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

__all__ = [
    "Picture",
    "drawing",
    "empty",
    "fonts",
    "in_glyphs",
    "label",
    "picture",
    "seconds",
    "tooltips",
    "write_pictures",
]

_LONGEST_LABEL: Final = 40
_LONGEST_CODES: Final = 100  # of a text in which codes replace characters
_LONGEST_TOOLTIP: Final = 200
_MARGIN_INCHES: Final = 0.1
_TOOLTIP: Final = "tooltip:"  # the id of an element with a tooltip begins with this, and continues with its text
_TIPPED: Final = re.compile(f'<g id="{_TOOLTIP}([^"]*)">')
# Fonts with characters that matplotlib's own font lacks.
_MORE_FONTS: Final = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Source Han Sans SC",
    "Source Han Sans",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "SimHei",
    "Arial Unicode MS",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Thai",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Georgian",
    "Noto Sans Armenian",
    "Noto Emoji",
    "Segoe UI Symbol",
    "Segoe UI Emoji",
)
_JOINERS: Final = "\u200c\u200d"
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "purgatory",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "text.parse_math": False,  # names and keys are data: a dollar sign in one of them starts no formula
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as SVG and as PNG, with a caption of one sentence."""

    title: str
    caption: str
    svg: bytes
    png: bytes


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the style of all figures.

    An SVG contains text as text, so the browser chooses a font.  A PNG shows the code of a character that no installed
    font contains.
    """
    installed = matplotlib.font_manager.get_font_names()
    with mpl.rc_context(_STYLE | {"font.family": fonts(installed)}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")  # scripts that need shaping
        yield


def fonts(installed: Collection[str]) -> list[str]:
    """Return the font families to draw with: the default one, then those of ``installed`` with other scripts."""
    return ["sans-serif", *(name for name in _MORE_FONTS if name in installed)]


def label(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Return a name or key as one short line.  Unprintable characters are escaped, and a long text is cut.

    Joiners are left as they are, because emoji and Indic scripts consist of them.
    """
    start = text[: longest + 1]
    line = "".join(
        each if each.isprintable() or each in _JOINERS else each.encode("unicode_escape").decode() for each in start
    )
    return line if len(line) <= longest else line[: longest - 3] + "..."


def in_glyphs(text: str, glyphs: Collection[int]) -> str:
    """Return the text with the code of each character that is not in ``glyphs``: ``<U+1F680>-basket``.

    Characters in a row share one pair of brackets: ``<U+8BA2 5355>``.  A long result is cut in the middle, because
    names that begin alike often end differently.
    """
    runs = ((known, "".join(run)) for known, run in groupby(text, lambda each: ord(each) in glyphs))
    line = "".join(run if known else f"<U+{' '.join(f'{ord(each):04X}' for each in run)}>" for known, run in runs)
    if line == text or len(line) <= _LONGEST_CODES:
        return line
    half = (_LONGEST_CODES - 3) // 2
    return f"{line[:half]}...{line[-half:]}"


@cache
def _glyphs(families: tuple[str, ...]) -> frozenset[int]:
    paths = [matplotlib.font_manager.findfont(FontProperties(family=[family])) for family in families]
    return frozenset().union(*(matplotlib.font_manager.get_font(path).get_charmap() for path in paths), b"\n")


def _replace_missing_glyphs(figure: Figure) -> bool:
    """Show codes instead of the boxes that are drawn for characters without a glyph, and that all look alike.

    Return whether a text changed.
    """
    glyphs = _glyphs(tuple(mpl.rcParams["font.family"]))
    changed = False
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [tick.get_text() for tick in axis.get_ticklabels()]
            coded = [in_glyphs(each, glyphs) for each in labels]
            if coded != labels:
                axis.set_ticklabels(coded)
                changed = True
    for text in figure.findobj(Text):
        before = text.get_text()
        after = in_glyphs(before, glyphs)
        if after != before:
            text.set_text(after)
            changed = True
    return changed


def _box(figure: Figure) -> Bbox:
    """Return what the figure covers with all its labels, in inches, and a margin."""
    return figure.get_tightbbox().padded(_MARGIN_INCHES)


def empty(axes: Axes, text: str) -> None:
    """Write into axes that have nothing to show why they are empty, instead of scales that measure nothing."""
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#666666")


def tooltips(artists: Iterable[Any], names: Iterable[str | None], texts: Iterable[str]) -> None:
    """Give each artist a tooltip in the SVG: its names, whole unless they are very long, and an exact figure.

    A browser shows it while the pointer is over the artist; this needs no script.
    """
    head = " · ".join(label(name, _LONGEST_TOOLTIP) for name in names if name is not None)
    for artist, text in zip(artists, texts, strict=True):
        artist.set_gid(_TOOLTIP + (f"{head}: {text}" if head else text))


def picture(figure: Figure, title: str, caption: str) -> Picture:
    """Render a figure.  The same figure gives the same bytes."""
    svg, png = io.BytesIO(), io.BytesIO()
    # With a layout engine, which tight_layout() leaves behind, or with "tight" instead of a box, each of the two files
    # would draw the figure twice.
    figure.set_layout_engine(None)
    box = _box(figure)
    figure.savefig(svg, format="svg", metadata={"Date": None}, bbox_inches=box)
    for artist in figure.findobj(Rectangle):  # a PNG has no tooltips
        if (artist.get_gid() or "").startswith(_TOOLTIP) and not artist.get_fill():
            artist.set_visible(False)
    if _replace_missing_glyphs(figure):
        box = _box(figure)
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None}, bbox_inches=box)
    with_titles = _TIPPED.sub(r'<g class="tip" pointer-events="all"><title>\1</title>', svg.getvalue().decode())
    return Picture(title, caption, with_titles.encode(), png.getvalue())


def write_pictures(pictures: dict[str, Picture], directory: Path) -> None:
    """Write each picture as ``NAME.svg`` and ``NAME.png``."""
    for name, drawn in pictures.items():
        (directory / f"{name}.svg").write_bytes(drawn.svg)
        (directory / f"{name}.png").write_bytes(drawn.png)


def seconds(value: float) -> str:
    """Return a duration with a unit that suits it: 340 ms, 2.5 s, 90 s, 3 min, 2 h."""
    for unit, least, length in (("h", 7200.0, 3600.0), ("min", 120.0, 60.0), ("s", 1.0, 1.0)):
        if value >= least:
            return f"{value / length:.3g} {unit}"
    return f"{value * 1000:.3g} ms"
