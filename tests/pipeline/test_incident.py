"""An incident made on purpose: a service that is slow for ten minutes, and then a deploy."""

import html
import pathlib
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow.parquet as pq

from purgatory.pipeline.__main__ import main
from tests.browser import WHOLE, browser, open_context, said

__all__ = ["browser", "open_context", "said"]

pytestmark = pytest.mark.timeout(170)
ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "incident.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
SAID = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory with the journals of the page's first command."""
    folder = tmp_path_factory.mktemp("incident")
    (first, *_) = COMMANDS
    assert first[:2] == ["python", "-m"]
    names = [str(folder / name) for name in first[3:]]
    subprocess.run([sys.executable, "-m", first[2], *names], cwd=ROOT, check=True, timeout=120)
    return folder


def run(folder: pathlib.Path, command: str) -> None:
    """Run the command of the page that has this name, with absolute paths: Spark's workers have another directory."""
    ((_, *words),) = [words for words in COMMANDS if words[1] == command]
    paths = {"monday", "tuesday", words[words.index("--out") + 1]}
    arguments = [str(folder / word) if at and word in paths else word for at, word in enumerate(words)]
    assert main([*arguments, "--quiet"]) == 0


def test_the_comparison_names_the_interval_the_kind_and_the_deploy(
    spark: Any, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command and the page that it writes have the lines that the documentation shows, and no other interval."""
    run(folder, "compare")
    assert capsys.readouterr().out.splitlines()[-len(SAID) - 1 : -1] == SAID
    times = pq.read_table(folder / "comparison" / "times.parquet").to_pylist()
    worse = [row for row in times if row["verdict"] == "worse"]
    assert {(row["purgatory"], row["kind"]) for row in worse} == {("shop", None), ("shop", "Payment")}
    begin, end = (datetime(2026, 11, 24, 14, minute, tzinfo=UTC) for minute in (20, 30))
    assert {(row["since"], row["until"]) for row in worse} == {(begin, end)}
    page = html.unescape((folder / "comparison" / "compare.html").read_text(encoding="utf-8"))
    assert all(line.strip() in page for line in SAID)
    assert page.index(SAID[0]) < page.index("<figure"), "the page begins with the sentence that answers the question"
    assert "but worse from 14:20:00 to 14:30:00: 5 s" in page, "the median of the whole hour is the same"
    assert "no operation of the baseline expired" in page, "why the lateness is new"
    assert "<tr class=unclear>" in page
    linked(folder / "comparison", page)


def linked(directory: pathlib.Path, page: str) -> None:
    """Every file that the page refers to exists."""
    names = re.findall(r'<a href="([^"]+)"', page)
    assert names
    assert [name for name in names if not (directory / name).is_file()] == []


def test_the_report_shows_the_minutes_the_limit_and_the_deploy(spark: Any, folder: pathlib.Path) -> None:
    """Operations expired in the ten minutes and in no other, and the closing of the first server is apart."""
    run(folder, "report")
    rows = pq.read_table(folder / "report" / "over_time.parquet").to_pylist()
    whole = [row for row in rows if row["kind"] is None]
    assert [row["bucket"].minute for row in whole if row["expired"] > 20] == list(range(20, 30))
    assert sum(row["expired"] for row in whole if not 20 <= row["bucket"].minute < 30) <= 5
    assert max(row["bucket"].minute for row in whole if row["expired_by_closing"]) > 30
    (peak,) = pq.read_table(folder / "report" / "peaks.parquet").to_pylist()
    assert peak["peak"] == 30
    assert len(pq.read_table(folder / "report" / "dropped.parquet")) == 2
    page = html.unescape((folder / "report" / "index.html").read_text(encoding="utf-8"))
    first, *others = re.findall(r"<p>(.*?)</p>", page[page.index('class="lead"') : page.index('class="cards"')])
    assert first.startswith(
        "On 2026-11-24, from 14:20 to 14:30 UTC, shop · Payment was worse: 85.40% of the operations"
    )
    assert others == SAID[1:4], "the keys are those of the interval, however many hot keys the report has"
    assert "4.99 s" not in page, "a wait of 5 s is 5 s everywhere"
    linked(folder / "report", page)
    assert "new run of a server" in page
    assert page.count('tabindex="0"') == page.count("<table") + page.count("<figure")


def test_the_estimate_bounds_other_timeouts(spark: Any, folder: pathlib.Path) -> None:
    """A shorter timeout is certain; with a longer one, between none and all of the expired operations expire."""
    run(folder, "estimate")
    rows = pq.read_table(folder / "estimate" / "estimates.parquet").to_pylist()
    recorded, shorter, longer = rows
    assert recorded["expired_low"] == recorded["expired_high"] > 1_000
    assert shorter["expired_low"] == shorter["expired_high"] > recorded["expired_high"]
    assert (longer["expired_low"], longer["expired_high"]) == (0, recorded["expired_high"])


CUT = """() => [...document.querySelectorAll(".scroll")].filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => each.getAttribute("aria-label"))"""


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command"), [("report/index.html", "report"), ("comparison/compare.html", "compare")])
def test_no_table_is_cut_on_a_laptop(
    spark: Any, folder: pathlib.Path, open_context: Any, said: list[str], page: str, command: str
) -> None:
    """At 1280 pixels, each table shows all its columns; on a phone, tables scroll and the page itself does not."""
    if not (folder / page).exists():
        run(folder, command)
    url = (folder / page).as_uri()
    for scheme in ("light", "dark"):
        laptop = open_context(url, viewport={"width": 1280, "height": 900}, color_scheme=scheme)
        assert laptop.evaluate(CUT) == []
        assert laptop.evaluate(WHOLE)
    phone = open_context(url, viewport={"width": 390, "height": 844})
    assert phone.evaluate(WHOLE)
    assert (
        phone.locator(".lead p").first.inner_text().startswith("On 2026-11-24, from 14:20 to 14:30 UTC, shop · Payment")
    )
    assert not said
