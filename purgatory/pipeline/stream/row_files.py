"""The types of the columns in row files; they are checked before Spark reads the rows.

Spark reads all files of a source with one schema.  It reads an int64 column only as LONG, and a double column only as
DOUBLE.  The ``value`` column can have either type: pandas and pyarrow write int64 if all numbers in a file are whole.
The footers show which of the two to use.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import is_uri

__all__ = ["BadRowFile", "RowFiles", "check_row_files", "reading_error", "value_is_whole", "value_is_whole_in_store"]

_THREADS: Final = 8


class BadRowFile(PurgatoryError):
    """A row file cannot be read.  The message contains the file and, if only a column is bad, the column's name."""


@dataclass(frozen=True, slots=True)
class RowFiles:
    """The row files of a directory, by the type of their ``value`` column.

    ``either``: files that Spark can read as either type (for example, because they have no such column).
    """

    whole: tuple[str, ...]
    real: tuple[str, ...]
    either: tuple[str, ...]


def check_row_files(directory: Path) -> RowFiles:
    """Read the footer of every file.  Raises BadRowFile if a column has a type that cannot be read."""
    files = list(_listed(directory))
    with ThreadPoolExecutor(_THREADS) as pool:
        kinds = list(pool.map(_value_type, files))
    whole, real, either = (
        tuple(str(file) for file, kind in zip(files, kinds, strict=True) if kind == wanted)
        for wanted in (_WHOLE, _REAL, None)
    )
    return RowFiles(whole, real, either)


def value_is_whole(directory: Path, *, new: bool) -> bool:
    """Return whether a stream must read ``value`` as LONG.

    ``new``: the stream has not processed any file yet, so all of them are checked; raises BadRowFile if they need both
    types.  Otherwise, the newest file determines the answer, because earlier runs may have processed the others.
    """
    if new:
        files = check_row_files(directory)
        if files.whole and files.real:
            raise BadRowFile(
                "the column value must have the same type in all files of a stream,"
                f" got whole numbers in {files.whole[0]} and double in {files.real[0]}"
            )
        return bool(files.whole)
    newest = sorted(_listed(directory), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    return next((kind == _WHOLE for kind in map(_value_type, newest) if kind is not None), False)


def value_is_whole_in_store(spark: SparkSession, location: str) -> bool:
    """Return whether Spark reads ``value`` as LONG in the first file of a store, or False if it can read no footer."""
    try:
        schema = spark.read.parquet(location).schema
    except (PySparkException, Py4JJavaError):
        return False  # the error when rows are first read contains the reason
    return any(field.name.lower() == "value" and field.dataType == LongType() for field in schema)


def reading_error(error: BaseException) -> str | None:
    """Return one line about the file that Spark could not read, or None if the error has another cause."""
    text = str(error)
    column = _MISTYPED.search(text)
    if column is not None:
        return (
            f"{_path(column['file'])} cannot be read: the column {column['name']} must be {column['expected']},"
            f" got {column['found']}"
        )
    file = _FAILED.search(text)
    return None if file is None else f"{_path(file['file'])} cannot be read"


_FAILED: Final = re.compile(r"\[FAILED_READ_FILE[^\]]*\] Encountered error while reading file (?P<file>\S+?)\.\s")
_MISTYPED: Final = re.compile(
    r"PARQUET_COLUMN_DATA_TYPE_MISMATCH\] Encountered error while reading file (?P<file>\S+)\. Data type mismatches"
    r" when reading Parquet column \[(?P<name>[^\]]*)\]\. Expected Spark type (?P<expected>.+?),"
    r" actual Parquet type (?P<found>.+?)\. SQLSTATE"
)


def _path(location: str) -> str:
    return unquote(location if is_uri(location) else urlparse(location).path)


def _listed(directory: Path) -> Iterator[Path]:
    """Yield the files that Spark reads, including those in folders such as ``day=1``, except hidden and empty files.

    As in Spark, links to folders are followed.
    """
    seen: set[str] = set()
    for folder, folders, names in os.walk(directory, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if "=" in name and not name.startswith(".")]
        for name in sorted(names):
            hidden = name.startswith(".") or (name.startswith("_") and "=" not in name)
            file = Path(folder, name)
            if not hidden and file.is_file() and file.stat().st_size:
                yield file


_WHOLE: Final = "whole"
_REAL: Final = "real"


def _value_type(file: Path) -> str | None:
    """Return the type of the ``value`` column in a file, or None if Spark can read it as either.

    Raises BadRowFile if a column has a type that cannot be read.
    """
    try:
        schema = pq.read_schema(file)
    except FileNotFoundError:
        return None  # it has been removed in the meantime
    except (OSError, pa.ArrowException) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is not a Parquet file"
        raise BadRowFile(f"{file} cannot be read: {reason}") from error
    found = None
    for field in schema:
        name = field.name.lower()  # Spark ignores the case of column names
        expected = _COLUMNS.get(name)
        if expected is None:
            continue
        kind = _plain(field.type)
        if not _READABLE[expected](kind):
            raise BadRowFile(f"{file} cannot be read: the column {field.name} must be {expected}, got {field.type}")
        if name == "value" and kind in (pa.int64(), pa.uint32()):
            found = _WHOLE
        elif name == "value" and pa.types.is_floating(kind):
            found = _REAL
    return found


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()))


def _is_ms(kind: pa.DataType) -> bool:
    return bool((pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and kind.unit == "ms")


def _is_text(kind: pa.DataType) -> bool:
    kind = _plain(kind)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in (*texts, pa.types.is_binary, pa.types.is_large_binary))


def _is_texts(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(check(kind) for check in lists) and _is_text(kind.value_type)


_READABLE: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "string": _is_text,
    "a list of strings": _is_texts,
    "int64": lambda kind: _is_whole(kind) or _is_ms(kind),
    "a number": lambda kind: _is_whole(kind) or kind in (pa.float32(), pa.float64()),
}
_COLUMNS: Final = {
    **dict.fromkeys(("kind", "group", "op_id", "condition", "key", "error"), "string"),
    **dict.fromkeys(("ts_ms", "seq", "timeout_ms", "deadline_ms"), "int64"),
    "keys": "a list of strings",
    "value": "a number",
}
