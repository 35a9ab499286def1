"""Tables as files."""

import pathlib

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from purgatory.pipeline.output.table_files import write_table


def test_a_cell_that_a_spreadsheet_takes_for_a_formula_is_escaped(tmp_path: pathlib.Path) -> None:
    """Text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a return has a quote before it; numbers stay."""
    keys = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'=1", "a=1", "", None, "=1\n=2"]
    table = pa.table({"key": keys, "change": pa.array(range(-1, 10), pa.int64())})
    write_table(table, tmp_path, "t")
    written = pyarrow.csv.read_csv(
        tmp_path / "t.csv",
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
    )
    assert written["key"].to_pylist() == [
        "'=1+1", "'+1", "'-1", "'@x", "'\tx", "'\rx", "''=1", "a=1", "", None, "'=1\n=2"
    ]  # fmt: skip
    assert written["change"].to_pylist() == list(range(-1, 10))
    assert pq.read_table(tmp_path / "t.parquet").equals(table)
