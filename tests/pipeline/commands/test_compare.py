"""The command ``compare``, and ``report --compare``."""

import json
import pathlib
import re
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.__main__ import main
from purgatory.pipeline.commands.compare import WORSE
from purgatory.pipeline.recipe import Recipe
from purgatory.pipeline.synthetic_journal import generate

pytestmark = pytest.mark.timeout(170)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """A journal whose operations wait twice as long, fail more often, and use fewer keys than those of ``made``."""
    path = tmp_path_factory.mktemp("slower") / "journal"
    recipe = Recipe(10_000, seed=8, rate=150.0, keys=40, skew=0.0, median_wait=0.8, failed=0.05)
    return str(path), generate(path, recipe)


def test_two_journals_are_compared(
    spark: Any, made: Any, slower: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON on standard output; changes, pictures and a page in the directory; exit status 3 if it is asked for."""
    before, after = str(made[0]), slower[0]
    arguments = ["compare", before, after, "--top", "5", "--quiet", "--out", str(tmp_path / "out"), "--json"]
    assert main([*arguments, "--fail-on-worse"]) == WORSE
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"]["journal"], found["journal"]["journal"]) == (before, after)
    assert (found["baseline"]["operations"], found["journal"]["operations"]) == (20_000, 10_000)
    changes = found["changes"]
    assert sum(found["verdicts"].values()) == len(changes)

    def verdict(measure: str, **where: str) -> str:
        (row,) = [r for r in changes if r["measure"] == measure and all(r[k] == v for k, v in where.items())]
        return str(row["verdict"])

    assert verdict("wait p50", purgatory="produce") == "worse"
    assert verdict("share", purgatory="produce", outcome="failed") == "worse"
    assert verdict("dropped rows") == "better"
    # A key that is hot in one journal only is counted in the other one too.
    counted = {
        (row["purgatory"], row["key"]): (row["baseline_operations"], row["journal_operations"])
        for row in changes
        if row["measure"] == "operations of a key"
    }
    assert len(counted) > 5
    for side, answers in enumerate((made[1], slower[1])):
        for key in answers["hot_keys"][:5]:
            assert counted[key["purgatory"], key["key"]][side] == key["operations"]
    for side, path in enumerate((before, after)):
        rows = pq.read_table(path, columns=["purgatory", "keys"]).to_pylist()
        held = Counter((row["purgatory"], key) for row in rows for key in set(row["keys"] or ()))
        assert {pair: numbers[side] for pair, numbers in counted.items()} == {pair: held[pair] for pair in counted}
    assert json.loads((tmp_path / "out" / "changes.json").read_text()) == found
    assert pq.read_table(tmp_path / "out" / "changes.parquet").num_rows == len(changes)
    page = (tmp_path / "out" / "compare.html").read_text()
    assert page.count("<svg") == 3
    assert f"{found['verdicts']['worse']}</b><span>worse" in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    tables = {f"{name}.{form}" for name in ("changes", "times") for form in ("parquet", "csv")}
    assert pq.read_table(tmp_path / "out" / "times.parquet").num_rows == len(found["times"]) > 0
    names = {file.name for file in (tmp_path / "out").iterdir()}
    pictures = {f"compare_{name}.{form}" for name in ("outcomes", "waits", "hot_keys") for form in ("png", "svg")}
    assert names == {"changes.json", "compare.html", *tables} | pictures


def test_a_report_can_include_a_comparison(
    spark: Any, made: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two halves of one journal, with other times for the baseline; the text names journals and times."""
    half = "2023-11-14T22:14:30"
    arguments = ["report", str(made[0]), "--out", str(tmp_path), "--top", "3", "--quiet", "--purgatory", "fetch"]
    assert main([*arguments, "--since", half, "--compare", str(made[0]), "--baseline-until", half]) == 0
    said = capsys.readouterr().out
    assert f"baseline: {made[0]} (parked until 2023-11-14 22:14:30 UTC, purgatory fetch), 2023-11-14 22:13:20" in said
    assert f"journal:  {made[0]} (parked since 2023-11-14 22:14:30 UTC, purgatory fetch), 2023-11-14 22:14:30" in said
    assert said.rstrip().endswith(str(tmp_path / "compare.html"))
    assert {"index.html", "compare.html"} <= {file.name for file in tmp_path.iterdir()}
    assert "produce" not in (tmp_path / "compare.html").read_text()


def test_operations_per_second_are_those_of_the_selected_time(
    spark: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traffic of one purgatory stops in the second minute; the journal goes on.  The time without traffic counts,
    and also if the times are those of the whole journal and only one purgatory is selected."""
    begin_ms = 1_790_000_000_000 // 60_000 * 60_000
    times = [("p", at) for at in range(0, 70_000, 100)] + [("q", at) for at in range(0, 180_000, 1_000)]
    rows = [
        dict.fromkeys(ARROW_SCHEMA.names)
        | {"source": "s", "purgatory": name, "kind": "K", "op_id": number, "keys": ["a"], "outcome": "completed"}
        | {"anchor_ms": begin_ms, "parked_at": begin_ms + at, "finished_at": begin_ms + at + 1}
        for number, (name, at) in enumerate(times)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), tmp_path / "part-1.parquet")

    def rates(*selected: str) -> tuple[float, float]:
        journal = str(tmp_path)
        assert main(["compare", journal, journal, "--purgatory", "p", *selected, "--quiet", "--json"]) == 0
        changes = json.loads(capsys.readouterr().out)["changes"]
        (row,) = [row for row in changes if row["measure"] == "operations" and row["purgatory"] == "p"]
        return row["baseline"], row["journal"]

    one, two, three = (str(begin_ms + minute * 60_000) for minute in (1, 2, 9))
    selected = rates("--baseline-until", one, "--since", one, "--until", two)
    assert selected == pytest.approx((10.0, 100 / 60), rel=0.01)
    assert rates("--baseline-until", three)[1] == pytest.approx(700 / 179, rel=0.01)


def test_options_that_cannot_be_are_refused(
    made: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts, with the name of the option."""
    journal = str(made[0])
    for arguments, why in (
        (["compare", journal, str(tmp_path / "none")], "there is no journal at"),
        (["compare", str(tmp_path / "none"), journal], "there is no journal at"),
        (["compare", journal, journal, "--threshold", "0"], "threshold must be more than 0 and finite, got 0"),
        (["compare", journal, journal, "--top", "0"], "top must be at least 1, got 0"),
        (["compare", journal, journal, "--baseline-since", "x"], "baseline-since must be a time such as"),
        (
            ["report", journal, "--out", str(tmp_path / "out"), "--baseline-until", "2026-11-22"],
            "compare must be a journal if baseline-since or baseline-until is set",
        ),
    ):
        assert main(arguments) == 1
        assert f"error: {why}" in capsys.readouterr().err, arguments
