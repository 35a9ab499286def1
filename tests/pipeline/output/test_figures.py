"""Labels and fonts of figures."""

import io

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from purgatory.pipeline.output.figures import drawing, fonts, in_glyphs, label, picture, seconds


def test_a_label_is_one_short_line() -> None:
    """What cannot be printed is escaped, and what is long is cut, so a name takes a line of the picture."""
    assert label("orders-0") == "orders-0"
    assert label("订单 🚀") == "订单 🚀"
    assert label("a\x00b\nc\u2028d") == r"a\x00b\nc\u2028d"
    assert label("k" * 40) == "k" * 40
    assert label("k" * 41) == "k" * 37 + "..."
    assert label("\x00" * 100_000) == r"\x00" * 9 + r"\..."


def test_fonts_for_other_scripts_are_used_where_they_are() -> None:
    """Of the fonts that have Chinese, Japanese and Korean, those installed stand behind the usual one."""
    assert fonts({"DejaVu Sans", "Comic Sans MS"}) == ["sans-serif"]
    assert fonts({"WenQuanYi Zen Hei", "DejaVu Sans", "Noto Sans CJK JP"}) == [
        "sans-serif",
        "Noto Sans CJK JP",
        "WenQuanYi Zen Hei",
    ]


def test_a_character_without_a_glyph_is_shown_as_its_code() -> None:
    """Neighbors share brackets, and what remains too long keeps its begin and its end."""
    glyphs = {ord(each) for each in "basket- 0123456789"}
    assert in_glyphs("basket-7", glyphs) == "basket-7"
    assert in_glyphs("🛒-basket", glyphs) == "<U+1F6D2>-basket"
    assert in_glyphs("订单-7", glyphs) == "<U+8BA2 5355>-7"
    assert in_glyphs("", glyphs) == ""
    long = in_glyphs("订" * 40 + "-7", glyphs)
    assert len(long) == 99
    assert long.startswith("<U+8BA2 8BA2 ")
    assert long.endswith("8BA2>-7")
    assert in_glyphs("basket" * 100, glyphs) == "basket" * 100


def _picture_of(name: str) -> tuple[str, bytes]:
    """The SVG and the PNG of a figure in which ``name`` is the name of a tick, a title, and a note."""
    with drawing():
        figure = Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.barh(range(2), [1, 2])
        axes.set_yticks(range(2), [name, "plain"])
        axes.set_title(name)
        axes.annotate(name, (1, 1))
        drawn = picture(figure, "title", "caption")
    return drawn.svg.decode(), drawn.png


def test_names_that_no_font_can_draw_differ_in_the_png() -> None:
    """A box for every missing character would make the names look alike.  The SVG keeps the characters."""
    # No font contains a character of a plane for private use; the emoji may be in an installed font.
    for one, other in (("\U000f0001", "\U000f0002"), ("\U0001f6d2", "\U0001f69a")):
        (svg, first), (_, second) = _picture_of(one), _picture_of(other)
        assert svg.count(f">{one}<") == 3
        assert first != second
    code = in_glyphs("\U000f0001", range(128))
    assert code == "<U+F0001>"
    assert _picture_of("\U000f0001")[1] == _picture_of(code)[1]


@pytest.mark.parametrize("laid_out", [False, True])
def test_a_picture_contains_all_labels(laid_out: bool) -> None:
    """The picture extends to labels outside of the figure, so its border is white."""
    with drawing():
        figure = Figure(figsize=(9, 4))
        axes = figure.subplots()
        axes.barh(range(2), [1, 2], label="a bar")
        axes.set_yticks(range(2), ["m" * 40, "w" * 40])
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.3))
        axes.annotate("right of all", (2, 1), xytext=(80, 0), textcoords="offset points")
        axes.set_xlabel("below all", labelpad=60)
        if laid_out:
            figure.tight_layout()
        drawn = picture(figure, "title", "caption")
    pixels = np.asarray(Image.open(io.BytesIO(drawn.png)).convert("L"))
    border = np.concatenate([pixels[:4].ravel(), pixels[-4:].ravel(), pixels[:, :4].ravel(), pixels[:, -4:].ravel()])
    assert border.min() == 255
    assert pixels.min() < 100


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (4.992, 2, "5 s"),
        (4.992, 3, "4.99 s"),
        (0.9999, 3, "1 s"),
        (119.96, 3, "2 min"),
        (0.256, 2, "260 ms"),
        (7_500.0, 3, "2.08 h"),
        (0.0, 2, "0 ms"),
    ],
)
def test_a_duration_has_the_digits_that_are_known(value: float, digits: int, text: str) -> None:
    """A duration that is rounded up to the next unit has that unit."""
    assert seconds(value, digits) == text
