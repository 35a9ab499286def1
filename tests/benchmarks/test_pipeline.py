"""The figures of the pipeline's page are what the benchmark prints."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from benchmarks.pipeline import markdown

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
