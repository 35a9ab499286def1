"""Labels and fonts of figures."""

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from purgatory.pipeline.output.figures import fonts, label


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
