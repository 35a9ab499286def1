"""The figures of the pipeline's page are what the benchmark prints, and its journals are what its options describe."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from benchmarks.pipeline import _journal, _make, _with_duckdb, markdown

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_that_the_command_prints() -> None:
    """The same columns, and each row rounded in the same way."""
    figure = {"rows": 10_000_000, "bytes_per_row": 14.31, "spark_s": 15.96, "spark_cpu_s": 20.35, "spark_mb": 1_299.6}
    figure |= {"duckdb_s": 13.7, "duckdb_cpu_s": 24.3, "duckdb_mb": 1_990.2}
    lines = markdown([figure]).splitlines()
    table = [line for line in PAGE.splitlines() if line.startswith("|")]
    begin = table.index(lines[0])
    assert table[begin + 1] == lines[1]
    assert lines[2] == ("| 10,000,000 | 14.3 | 16 | 20 | 491,000 | 1.30 GB | 14 | 24 | 412,000 | 1.99 GB |")
    assert lines[2] in table, "the figures of the page are those of a run"


def test_a_share_of_the_keys_can_be_unique(tmp_path: Path) -> None:
    """The journal has that share of keys that occur once, and DuckDB computes its tables."""
    pytest.importorskip("duckdb", reason="the extra 'test' is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    journal = _journal(tmp_path, 2_000, 0.5, tmp_path / "kept")
    assert journal != _journal(tmp_path, 2_000, 0.0, tmp_path / "kept"), "a kept journal has its own directory"
    _make(journal, 2_000, 1_000, 0.5)
    answers = json.loads((journal / "_answers.json").read_text())
    assert answers["rows"] == 2_000
    assert 900 < answers["unique_keys"] < 1_000
    (tmp_path / "out").mkdir()
    _with_duckdb(journal, tmp_path / "out")
    hot = pq.read_table(tmp_path / "out" / "hot_keys.parquet")
    assert hot.num_rows == 50
    assert max(hot["operations"].to_pylist()) > 1
