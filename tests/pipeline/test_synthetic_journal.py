"""Made-up journals are what their recipe says."""

import pathlib
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA, check_footer, data_files, read_footer
from purgatory.pipeline.synthetic_journal import Recipe, generate

RECIPE = Recipe(3_000, seed=11, rate=100.0, keys=50, rows_per_file=1_000)


def read(path: pathlib.Path) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(file).read() for file in data_files(path)])


def test_the_same_recipe_makes_the_same_rows(tmp_path: pathlib.Path) -> None:
    """Bit for bit; another seed makes others."""
    for name, recipe in (("a", RECIPE), ("b", RECIPE), ("c", replace(RECIPE, seed=12))):
        generate(tmp_path / name, recipe)
    assert read(tmp_path / "a").equals(read(tmp_path / "b"))
    assert not read(tmp_path / "a").equals(read(tmp_path / "c"))


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


@pytest.mark.parametrize("folder", [".", "date=2026-11-22"])
def test_a_directory_with_a_journal_is_refused(tmp_path: pathlib.Path, folder: str) -> None:
    """Also if its files are in folders of dates; nothing is written there."""
    (tmp_path / folder).mkdir(exist_ok=True)
    file = tmp_path / folder / "part-web-1-a-000000.parquet"
    file.write_bytes(b"a journal")
    with pytest.raises(ValueError, match=r"^journal must be a directory without a journal, got "):
        generate(tmp_path, RECIPE)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
