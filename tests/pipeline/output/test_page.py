"""The HTML page: its tables, rows, and first sentences."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from purgatory.pipeline.output.page import PageTable, render
from tests.browser import WHOLE, browser, open_context, said

__all__ = ["browser", "open_context", "said"]

ENDED = ("completed", "expired", "expired_by_closing", "cancelled", "failed", "pending")
QUANTILES = ("p50", "p90", "p99", "p999", "max")


def page_of(*tables: PageTable, **more: Any) -> str:
    return render("title", "subtitle", [], [], [], tables, "footer.", **more)


def test_columns_without_a_figure_are_left_out_and_named() -> None:
    """Only optional ones: a purgatory whose operations all completed still has that column."""
    table = pa.table(
        {"key": ["a", "b"], "completed": [3, 0], "failed": [0, 0], "late_p99": [None, 0.0], "pending": [0, 0]}
    )
    page = page_of(PageTable("keys", table, "Some keys.", optional=("completed", "failed", "late_p99")))
    assert "Some keys. Without the columns in which every figure is 0 or missing: failed, late p99." in page
    assert [head in page for head in (">completed<", ">pending<", ">failed<", ">late p99<")] == [
        True,
        True,
        False,
        False,
    ]


def test_rows_show_their_verdict_and_the_page_begins_with_its_sentences() -> None:
    """A class for the style; the text of the verdict remains.  Texts are escaped, also in the names of files."""
    table = pa.table({"verdict": ["worse", "unclear"], "of": ["p", "q"]})
    page = page_of(PageTable("t", table, "", verdicts=True), lead=["<b>first", "second"], files=["a.csv", "b&.csv"])
    assert "<tr class=worse>" in page
    assert "<tr class=unclear>" in page
    assert page.index("subtitle") < page.index("<p>&lt;b&gt;first</p><p>second</p>") < page.index("<table>")
    assert '<a href="a.csv">a.csv</a>, <a href="b&amp;.csv">b&amp;.csv</a>.' in page
    assert "<tr class=" not in page_of(PageTable("t", table, ""))


@pytest.mark.slow
@pytest.mark.parametrize("figure", [7, 1_234_567])
def test_a_table_with_every_column_fits_a_laptop(
    tmp_path: Path, open_context: Any, said: list[str], figure: int
) -> None:
    """The widest tables of a report, with large numbers, at 1280 pixels."""
    rows = [{"purgatory": "produce", "key": "customer-00042", "operations": figure}]
    rows[0] |= dict.fromkeys(ENDED, figure) | {"total_wait": 12_345.0} | dict.fromkeys(QUANTILES, 0.123)
    times = {
        "purgatory": "produce",
        "kind": "DelayedProduce",
        "bucket": "2026-11-24 14:20:00",
        "operations": figure // 100,
    }
    times |= dict.fromkeys((*ENDED, "refused", "immediate"), figure // 100)
    times |= dict.fromkeys(("wait_p50", "wait_p99", "late_p50", "late_p99"), 0.123)
    tables = [PageTable(name, pa.Table.from_pylist([row]), "") for name, row in (("keys", rows[0]), ("times", times))]
    (tmp_path / "page.html").write_text(page_of(*tables), encoding="utf-8")
    page = open_context((tmp_path / "page.html").as_uri(), viewport={"width": 1280, "height": 900})
    cut = "() => [...document.querySelectorAll('.scroll')].map(each => each.scrollWidth - each.clientWidth)"
    assert page.evaluate(cut) == [0, 0]
    assert page.evaluate(WHOLE)
    assert not said
