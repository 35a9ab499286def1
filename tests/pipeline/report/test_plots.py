"""The pictures, of names and keys that come from outside."""

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from purgatory.pipeline.output.figures import label
from purgatory.pipeline.report.plots import report_plots

NAMES = {
    "mathtext that does not parse": "$x^$",
    "mathtext that parses": "$x^2$",
    "one dollar": "cost in $",
    "TeX": r"\frac{1}{2} $\frac{1}{",
    "Chinese": "订单-北京",
    "Japanese": "注文の受付",
    "Korean": "주문",
    "Thai": "คำสั่งซื้อ",
    "emoji": "🚀 launch",
    "markup": "<b>&amp;</b>",
    "underscore": "_hidden",
    "control characters": "a\x00b\nc\td\x1b[0m",
    "long": "k" * 100_000,
    "empty": "",
    "lone surrogate": "s\udc80",
}
OUTCOMES = ("completed", "expired", "cancelled", "failed", "pending")


def tables_of(name: str) -> dict[str, Any]:
    """The tables of a report in which every purgatory, kind and key is called ``name``."""
    at = datetime(2024, 1, 1, tzinfo=UTC)
    hot: dict[str, Any] = {"purgatory": name, "key": name, "operations": 3, "p50": 0.1, "p99": 2.0}
    return {
        "outcomes": pa.Table.from_pylist([{"purgatory": name, "kind": name, "outcome": "completed", "share": 1.0}]),
        "occupancy": pa.Table.from_pylist([{"purgatory": name, "bucket": at, "peak": 3, "mean": 1.5}]),
        "wait_histogram": pa.Table.from_pylist(
            [{"purgatory": name, "outcome": "completed", "from": wait, "operations": 3} for wait in (0.1, 0.2)]
        ),
        "hot_keys": pa.Table.from_pylist([hot | dict.fromkeys(OUTCOMES, 0) | {"completed": 3}]),
    }


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_any_text_can_be_drawn(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """No name or key ends the report, none is taken for a formula, and no missing glyph or font is warned of."""
    name = name.encode("utf-8", "backslashreplace").decode()  # as the journal writes it
    with caplog.at_level(logging.WARNING):
        pictures = report_plots(tables_of(name), 1_000)
    assert not caplog.records
    shown = label(name).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for kind in ("outcomes", "hot_keys"):
        assert f"{shown} · {shown}".strip() in pictures[kind].svg.decode()
    for kind in ("occupancy", "waits"):
        assert shown in pictures[kind].svg.decode()
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures.values())


def test_steps_of_a_scale_are_durations() -> None:
    """Within one factor of ten, too, the axis of the waits has durations, and no formula as written."""
    svg = report_plots(tables_of("p"), 1_000)["waits"].svg.decode()
    assert "200 ms" in svg
    assert "mathdefault" not in svg
