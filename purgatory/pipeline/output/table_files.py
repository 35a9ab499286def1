"""A table as a Parquet file and as a CSV file that is safe to open in a spreadsheet."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

__all__ = ["write_table"]

_FORMULA: Final = r"\A([=+\-@\t\r'])"


def write_table(table: pa.Table, directory: Path, name: str) -> None:
    """Write a table as Parquet and as CSV.

    Spreadsheets read a cell that begins with ``=``, ``+``, ``-``, ``@``, a tab, or a carriage return as a formula, even
    if it is quoted.  The CSV file has a ``'`` before such text, and also before text that begins with ``'``.  To get
    the original text, remove the first ``'``.
    """
    pq.write_table(table, directory / f"{name}.parquet")
    plain = table
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            escaped = pc.replace_substring_regex(table[field.name], _FORMULA, r"'\1")
            plain = plain.set_column(number, field.name, escaped)
    pc_csv.write_csv(plain, directory / f"{name}.csv")
