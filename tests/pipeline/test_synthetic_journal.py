"""Made-up journals are what their recipe says."""

import math
import os
import pathlib
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA, check_footer, data_files, prepare, read_footer
from purgatory.pipeline.recipe import Recipe
from purgatory.pipeline.synthetic_journal import generate

RECIPE = Recipe(3_000, seed=11, rate=100.0, keys=50, rows_per_file=1_000)


def read(path: pathlib.Path) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(file).read() for file in data_files(path)])


def test_the_same_recipe_makes_the_same_rows(tmp_path: pathlib.Path) -> None:
    """Bit for bit; another seed makes others."""
    for name, recipe in (("a", RECIPE), ("b", RECIPE), ("c", replace(RECIPE, seed=12))):
        generate(tmp_path / name, recipe)
    assert read(tmp_path / "a").equals(read(tmp_path / "b"))
    assert not read(tmp_path / "a").equals(read(tmp_path / "c"))


@pytest.mark.parametrize("step", [(pq, "write_table"), (os, "fsync"), (os, "replace")], ids=lambda step: step[1])
def test_a_killed_run_leaves_no_part_of_a_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    """A file gets its name when it is complete, and a later run does not take a part of it for a journal."""
    do = getattr(*step)

    def interrupted(*arguments: Any, **options: Any) -> None:
        if step[1] != "replace":
            do(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "unlink", lambda *_, **__: None)  # a killed process removes nothing
    prepare(tmp_path)
    monkeypatch.setattr("purgatory.pipeline.synthetic_journal.prepare", lambda _: None)
    monkeypatch.setattr(*step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, RECIPE)
    monkeypatch.undo()
    assert data_files(tmp_path) == []
    assert generate(tmp_path, RECIPE)["files"] == len(data_files(tmp_path)) == 3


def test_the_files_are_a_journal(tmp_path: pathlib.Path) -> None:
    """They have the schema and the version, each operation once, ends in order, and keys without doubles."""
    answers = generate(tmp_path, RECIPE)
    files = data_files(tmp_path)
    assert len(files) == answers["files"] == 3
    assert [check_footer(read_footer(str(file))) for file in files] == [None] * 3
    table = read(tmp_path)
    assert table.schema.equals(ARROW_SCHEMA)
    assert sorted(table["op_id"].to_pylist()) == list(range(1, 3_001))
    assert all(len(set(keys)) == len(keys) for keys in table["keys"].to_pylist())
    for file in files:
        ends = [end for end in pq.ParquetFile(file).read()["finished_at"].to_pylist() if end is not None]
        assert ends == sorted(ends)
    waits = pc.subtract(table["finished_at"].cast(pa.int64()), table["parked_at"].cast(pa.int64()))
    assert pc.min(waits).as_py() >= 0


def test_the_answers_are_those_of_the_rows(tmp_path: pathlib.Path) -> None:
    """Counted again from the files, they are the same."""
    answers = generate(tmp_path, replace(RECIPE, dropped=4))
    rows = [row for row in read(tmp_path).to_pylist() if row["outcome"] != "dropped"]
    for known in answers["outcomes"]:
        same = [row for row in rows if all(row[name] == known[name] for name in ("purgatory", "kind", "outcome"))]
        assert len(same) == known["operations"]
    assert sum(known["operations"] for known in answers["outcomes"]) == len(rows) == answers["rows"]
    waits = [
        round((row["finished_at"] - row["parked_at"]).total_seconds() * 1000)
        for row in rows
        if row["keys"] and row["finished_at"] is not None
    ]
    assert (sum(waits), max(waits)) == (answers["total_wait_ms"], answers["longest_wait_ms"])
    late = [row["lateness"] for row in rows if row["lateness"] is not None]
    assert max(late) * 1000 == pytest.approx(answers["latest_ms"])
    assert answers["dropped"] == 12


def test_recipes_that_cannot_be_meant_are_refused(tmp_path: pathlib.Path) -> None:
    """Each is told by name, and nothing is made."""
    for wrong in (
        {"rows": 0},
        {"rate": 0.0},
        {"immediate": 0.7, "failed": 0.4},
        {"skew": -1.0},
        {"spread": float("inf")},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            replace(RECIPE, **wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "greatest", "said"),
    [
        ("rows", 10**10, "from 1 to 10,000,000,000"),
        ("seed", 2**63 - 1, "from 0 to 9,223,372,036,854,775,807"),
        ("rate", 1e9, "more than 0 and at most 1,000,000,000"),
        ("keys", 10**7, "from 1 to 10,000,000"),
        ("skew", 10.0, "from 0 to 10"),
        ("median_wait", 31_536_000.0, "more than 0 and at most 31,536,000"),
        ("spread", 10.0, "more than 0 and at most 10"),
        ("dropped", 10**8, "from 0 to 100,000,000"),
        ("rows_per_file", 10**7, "from 1 to 10,000,000"),
    ],
)
def test_every_number_of_a_recipe_has_bounds(name: str, greatest: float, said: str) -> None:
    """The error has them.  NaN is refused, and so is infinity."""
    assert getattr(replace(RECIPE, **{"rate": 1e9, name: greatest}), name) == greatest  # type: ignore[arg-type]
    for wrong in (math.nextafter(greatest, math.inf) if isinstance(greatest, float) else greatest + 1,
                  10**400, math.inf, math.nan, -1):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name} must be {said}, got {re.escape(str(wrong))}$"):
            replace(RECIPE, **{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["immediate", "cancelled", "failed"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1, 1.1])
def test_shares_are_from_0_to_1(name: str, wrong: float) -> None:
    """Each of them, also if it is NaN."""
    with pytest.raises(ValueError, match=r"^immediate, cancelled, and failed must be shares, together at most 1, got "):
        replace(RECIPE, **{name: wrong})  # type: ignore[arg-type]


def test_the_operations_must_park_within_a_hundred_years() -> None:
    """The dates of a longer journal cannot be drawn, or not even written."""
    assert replace(RECIPE, rows=1, rate=1e-9).rate == 1e-9
    for rate in (1e-10, 1e-300, 5e-324):
        said = f"rows / rate must be at most 3,153,600,000 seconds, a hundred years, got {3_000 / rate:g}"
        with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
            replace(RECIPE, rate=rate)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "extremes",
    [
        {"rate": 1e9, "keys": 1, "skew": 10.0, "median_wait": 5e-324, "spread": 5e-324, "immediate": 1.0},
        {"rate": 1e-6, "skew": 0.0, "median_wait": 31_536_000.0, "spread": 10.0, "immediate": 0.0, "cancelled": 1.0},
    ],
)
def test_a_recipe_at_its_bounds_makes_a_journal(extremes: dict[str, float], tmp_path: pathlib.Path) -> None:
    """No number overflows."""
    extremes = {"failed": 0.0, "cancelled": 0.0, "dropped": 10**8, "seed": 2**63 - 1} | extremes
    answers = generate(tmp_path, replace(RECIPE, **extremes))  # type: ignore[arg-type]
    rows = [row for row in read(tmp_path).to_pylist() if row["outcome"] != "dropped"]
    assert len(rows) == answers["rows"] == 3_000
    assert all(row["finished_at"] is None or row["finished_at"] >= row["parked_at"] for row in rows)
    assert answers["total_wait_ms"] >= 0


@pytest.mark.parametrize("folder", [".", "date=2026-11-22"])
def test_a_directory_with_a_journal_is_refused(tmp_path: pathlib.Path, folder: str) -> None:
    """Also if its files are in folders of dates; nothing is written there."""
    (tmp_path / folder).mkdir(exist_ok=True)
    file = tmp_path / folder / "part-web-1-a-000000.parquet"
    file.write_bytes(b"a journal")
    with pytest.raises(ValueError, match=r"^journal must be a directory without a journal, got "):
        generate(tmp_path, RECIPE)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_a_share_of_the_operations_has_keys_of_their_own(tmp_path: pathlib.Path) -> None:
    """Each of these keys has one operation; the answers count them, and the other columns are as without."""
    answers = generate(tmp_path / "own", Recipe(4_000, keys=3, unique=0.5, rows_per_file=1_500))
    rows = [row for file in sorted((tmp_path / "own").glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    counted = Counter(key for row in rows for key in row["keys"])
    own = [key for key in counted if key.startswith("request-")]
    assert len(own) == answers["unique_keys"] == sum(counted[key] for key in own)
    assert 0.45 < len(own) / sum(bool(row["keys"]) for row in rows) < 0.55
    assert all(len(set(row["keys"])) == len(row["keys"]) for row in rows)
    by_purgatory = Counter((row["purgatory"], key) for row in rows for key in row["keys"])
    hottest = sorted(by_purgatory, key=lambda pair: (-by_purgatory[pair], *pair))[:10]
    assert [(row["purgatory"], row["key"]) for row in answers["hot_keys"]] == hottest
    without = generate(tmp_path / "shared", Recipe(4_000, keys=3, rows_per_file=1_500))
    assert without["outcomes"] == answers["outcomes"]
    assert without["unique_keys"] == 0


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_few_keys_are_all_used_and_distinct(tmp_path: pathlib.Path, keys: int) -> None:
    """No operation has more keys than there are, or one key twice."""
    generate(tmp_path / "few", Recipe(2_000, keys=keys, skew=0.0))
    rows = [pq.read_table(file)["keys"].to_pylist() for file in data_files(tmp_path / "few")]
    lists = [each for some in rows for each in some]
    assert all(len(set(each)) == len(each) for each in lists)
    assert {key for each in lists for key in each} == {f"key-{number:05d}" for number in range(keys)}
    assert max(map(len, lists)) == keys
