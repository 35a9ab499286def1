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
from xml.sax.saxutils import escape

import matplotlib as mpl
import matplotlib.font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.transforms import Bbox

__all__ = [
    "Picture",
    "column_tooltip",
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
_LONGEST_CODES: Final = 100  # the maximum length of a text in which codes replace characters
_LONGEST_TOOLTIP: Final = 200
_MARGIN_INCHES: Final = 0.1
_GAP_INCHES: Final = 0.42
_TOOLTIP: Final = "tooltip:"  # the id of an element with a tooltip consists of this and the text of the tooltip
_COLUMNS: Final = "purgatory_columns"  # the name of an attribute of a figure
_Column = tuple[Axes, float, float, str]  # the axes, the start, the end, and the text
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
    "text.parse_math": False,  # names and keys are data: a dollar sign in one of them does not start a formula
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
    """Apply the style that all figures share, within the block.

    Text in an SVG stays text, so the browser chooses the font.  A PNG shows the code of any character that no
    installed font contains.
    """
    installed = matplotlib.font_manager.get_font_names()
    with mpl.rc_context(_STYLE | {"font.family": fonts(installed)}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")  # scripts that need shaping
        yield


def fonts(installed: Collection[str]) -> list[str]:
    """Return the font families to draw with: the default one, and then those in ``installed`` for other scripts."""
    return ["sans-serif", *(name for name in _MORE_FONTS if name in installed)]


def label(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Return a name or key as one short line.  Unprintable characters are escaped, and long text is cut.

    Joiners are left as they are, because emoji and Indic scripts need them.
    """
    start = text[: longest + 1]
    line = "".join(
        each if each.isprintable() or each in _JOINERS else each.encode("unicode_escape").decode() for each in start
    )
    return line if len(line) <= longest else line[: longest - 3] + "..."


def in_glyphs(text: str, glyphs: Collection[int]) -> str:
    """Return the text with codes for the characters that are not in ``glyphs``: ``<U+1F680>-basket``.

    Consecutive characters share one pair of brackets: ``<U+8BA2 5355>``.  A long result is cut in the middle, because
    names that begin in the same way often end differently.
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
    """Show codes instead of the identical boxes that are drawn for characters without a glyph.

    Return whether any text changed.
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
    """Return, in inches, the box that the figure covers with all its labels and a margin."""
    return figure.get_tightbbox().padded(_MARGIN_INCHES)


def empty(axes: Axes, text: str) -> None:
    """Write the reason into empty axes, and hide their scales, which would measure nothing."""
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#666666")


def stacked(figure: Figure, rows: int) -> None:
    """Leave room for a title and ticks between rows of axes.

    The borders of a picture follow its labels anyway, and matplotlib's own layouts would draw all labels once more.
    """
    height = figure.get_figheight()
    each = (height - 0.7 - _GAP_INCHES * (rows - 1)) / max(1, rows)
    figure.subplots_adjust(
        left=0.08, right=0.98, bottom=0.35 / height, top=1 - 0.35 / height, hspace=_GAP_INCHES / each
    )


def tooltips(artists: Iterable[Any], names: Iterable[str | None], texts: Iterable[str]) -> None:
    """Give each artist a tooltip in the SVG: its names, in full unless they are very long, and an exact figure.

    A browser shows the tooltip while the pointer is over the artist; no script is needed.
    """
    names = list(names)
    for artist, text in zip(artists, texts, strict=True):
        artist.set_gid(_TOOLTIP + _told(names, text))


def column_tooltip(axes: Axes, left: float, right: float, names: Iterable[str | None], text: str) -> None:
    """Give a span of the x axis a tooltip in the SVG: an invisible column as high as the axes.

    The columns are not artists, because matplotlib would take longer to draw a few hundred of them than to draw the
    plot.
    """
    columns: list[_Column] = axes.figure.__dict__.setdefault(_COLUMNS, [])
    columns.append((axes, left, right, _told(names, text)))


def _told(names: Iterable[str | None], text: str) -> str:
    head = " · ".join(label(name, _LONGEST_TOOLTIP) for name in names if name is not None)
    return f"{head}: {text}" if head else text


def _svg_of_columns(figure: Figure, box: Bbox) -> str:
    """Return the columns with tooltips as SVG elements.  An SVG has 72 units per inch, and its y axis points down."""
    units = 72 / figure.dpi
    parts = []
    for axes, left, right, text in figure.__dict__.get(_COLUMNS, []):
        ends = axes.transData.transform([(left, 1), (right, 1)])[:, 0]
        x0, x1 = (units * x - 72 * box.x0 for x in ends)
        y0, y1 = (72 * box.y1 - units * y for y in axes.bbox.intervaly)
        path = f"M {x0:.2f} {y0:.2f} H {x1:.2f} V {y1:.2f} H {x0:.2f} z"
        told = f"<title>{escape(text)}</title>"
        parts.append(f'<g class="tip" pointer-events="all">{told}<path d="{path}" style="fill: none"/></g>\n')
    return "".join(parts)


def picture(figure: Figure, title: str, caption: str) -> Picture:
    """Render a figure.  The same figure always gives the same bytes."""
    svg, png = io.BytesIO(), io.BytesIO()
    # Each call to savefig() would draw the figure twice if the figure had a layout engine (tight_layout() leaves one
    # behind), or if bbox_inches were "tight".
    figure.set_layout_engine(None)
    box = _box(figure)
    figure.savefig(svg, format="svg", metadata={"Date": None}, bbox_inches=box)
    if _replace_missing_glyphs(figure):
        box = _box(figure)
    figure.savefig(png, format="png", dpi=130, metadata={"Software": None}, bbox_inches=box)
    columns = _svg_of_columns(figure, box)
    with_titles = _TIPPED.sub(r'<g class="tip" pointer-events="all"><title>\1</title>', svg.getvalue().decode())
    drawn, _, end = with_titles.rpartition("</g>")  # the group of the figure
    return Picture(title, caption, f"{drawn}{columns}</g>{end}".encode(), png.getvalue())


def write_pictures(pictures: dict[str, Picture], directory: Path) -> None:
    """Write each picture as ``NAME.svg`` and ``NAME.png``."""
    for name, drawn in pictures.items():
        (directory / f"{name}.svg").write_bytes(drawn.svg)
        (directory / f"{name}.png").write_bytes(drawn.png)


def seconds(value: float, digits: int = 3) -> str:
    """Return a duration with a unit that suits it: 340 ms, 2.5 s, 90 s, 3 min, 2 h.

    ``digits``: the number of significant digits.  The rounded duration determines the unit.
    """
    value = float(f"{value:.{digits}g}")
    for unit, least, length in (("h", 7200.0, 3600.0), ("min", 120.0, 60.0), ("s", 1.0, 1.0)):
        if value >= least:
            return f"{float(f'{value / length:.{digits}g}'):g} {unit}"
    return f"{float(f'{value * 1000:.{digits}g}'):g} ms"
