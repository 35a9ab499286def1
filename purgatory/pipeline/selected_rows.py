"""Apply a :class:`~purgatory.pipeline.selection.Selection` to rows: DataFrames, Arrow batches, and row groups of files.

``overlapping`` keeps the selected operations, and those that parked earlier and still waited at ``since_ms``; the
number of parked operations requires both.  ``parked_within`` keeps only the selected operations.  Both functions keep
``dropped`` rows that overlap the selected time.

Spark evaluates the conditions in its Parquet reader, and pyarrow skips row groups whose statistics exclude every row.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.journal.files import READ_ERRORS, checked_batches
from purgatory.journal.schema import DROPPED

from .selection import Selection

__all__ = [
    "batch_of_names",
    "batch_overlapping",
    "batch_parked_within",
    "needed_columns",
    "overlapping",
    "parked_row_groups",
    "parked_within",
    "read_batches",
    "row_groups",
    "time_like",
]

_BATCH_ROWS: Final = 262_144
_TEXTS: Final = frozenset({"source", "purgatory", "kind", "outcome"})  # not keys: pyarrow fails for some nested columns


def overlapping(rows: DataFrame, selection: Selection) -> DataFrame:
    """Keep the rows that have the selected names and overlap the selected time, including operations without an end."""
    for condition in _names(selection):
        rows = rows.where(condition)
    if selection.until_ms is not None:
        rows = rows.where(F.col("parked_at") < _timestamp(selection.until_ms))
    if selection.since_ms is not None:
        since = _timestamp(selection.since_ms)
        rows = rows.where((F.col("finished_at") >= since) | F.col("finished_at").isNull())
    return rows


def parked_within(rows: DataFrame, selection: Selection) -> DataFrame:
    """Keep the selected operations, and the ``dropped`` rows that overlap the selected time."""
    rows = overlapping(rows, selection)
    if selection.since_ms is None:
        return rows
    return rows.where((F.col("parked_at") >= _timestamp(selection.since_ms)) | (F.col("outcome") == DROPPED))


def needed_columns(columns: Sequence[str], selection: Selection) -> list[str]:
    """Return ``columns`` and the further columns that :func:`batch_of_names` needs."""
    return list(dict.fromkeys([*columns, *(column for column, _ in selection.names)]))


def batch_of_names(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """Keep the rows of the selected purgatories and kinds, and the ``dropped`` rows without a purgatory or a kind."""
    for column, names in selection.names:
        wanted = pc.is_in(_text(batch[column]), value_set=pa.array(names, pa.string()))
        unnamed = pc.and_(pc.equal(_text(batch["outcome"]), DROPPED), pc.is_null(batch[column]))
        batch = batch.filter(pc.or_(wanted, unnamed))
    return batch


def batch_parked_within(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """Keep the selected operations, without the ``dropped`` rows of an earlier time."""
    batch = _batch_parked_until(batch_of_names(batch, selection), selection)
    if selection.since_ms is None:
        return batch
    return batch.filter(pc.greater_equal(batch["parked_at"], time_like(batch["parked_at"], selection.since_ms)))


def batch_overlapping(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """Keep the rows that :func:`overlapping` keeps."""
    batch = _batch_parked_until(batch_of_names(batch, selection), selection)
    if selection.since_ms is None:
        return batch
    finished = batch["finished_at"]
    return batch.filter(
        pc.or_kleene(pc.greater_equal(finished, time_like(finished, selection.since_ms)), pc.is_null(finished))
    )


def _batch_parked_until(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    if selection.until_ms is None:
        return batch
    return batch.filter(pc.less(batch["parked_at"], time_like(batch["parked_at"], selection.until_ms)))


def time_like(times: pa.Array, ms: int) -> pa.Scalar:
    """Return a time of the same type as ``times``, for a comparison."""
    return pa.scalar(ms, pa.timestamp("ms", "UTC")).cast(times.type)


def read_batches(
    name: str, columns: Sequence[str], groups: Callable[[pq.FileMetaData], list[int]]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns that the file has, from the row groups that ``groups`` selects; texts are dictionaries.

    Raises OSError with a text in which the driver finds the file if its rows cannot be read, and the reason if the file
    is not to blame: for example, if the worker lacks memory.
    """
    try:
        metadata = pq.read_metadata(name)
        selected = groups(metadata)
        if not selected:  # PyArrow 18 raises an error for no row groups
            return
        paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        texts = [path for path in paths if path.split(".")[0] in _TEXTS]  # a str for each row would take much longer
        options = {"metadata": metadata, "read_dictionary": texts, "page_checksum_verification": True}
        with pq.ParquetFile(name, **options) as file:
            present = [column for column in columns if column in file.schema_arrow.names]
            batches = file.iter_batches(_BATCH_ROWS, row_groups=selected, columns=present, use_threads=False)
            yield from checked_batches(batches, sum(metadata.row_group(number).num_rows for number in selected))
    except (*READ_ERRORS, MemoryError) as error:
        # The driver looks for these texts; see corrupt_file, and _UNREAD beside it.
        text = "CANNOT_READ_FILE" if _is_of_system(error) else "FAILED_READ_FILE"
        raise OSError(f"{text} {quote(name)}: {(str(error).splitlines() or ['not enough memory'])[0]}") from error


def _is_of_system(error: Exception) -> bool:
    """Return whether the system could not read the file, or had no memory; pyarrow's OSErrors have no number."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return error.errno is not None
    return isinstance(error, MemoryError)  # pyarrow's ArrowMemoryError, too


def row_groups(metadata: pq.FileMetaData, selection: Selection) -> list[int]:
    """Return the row groups that, according to their statistics, can contain rows that :func:`overlapping` keeps."""
    columns = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    return [
        number
        for number in range(metadata.num_row_groups)
        if _may_overlap(metadata.row_group(number), columns, selection)
    ]


def parked_row_groups(metadata: pq.FileMetaData, selection: Selection) -> list[int]:
    """Return the row groups that can contain operations that parked within the selected time."""
    columns = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    return [
        number
        for number in range(metadata.num_row_groups)
        if _may_have_parked(metadata.row_group(number).column(columns["parked_at"]).statistics, selection)
    ]


def _may_have_parked(parked: Any, selection: Selection) -> bool:
    if not _has_bounds(parked):
        return True
    since_ms, until_ms = selection.since_ms, selection.until_ms
    too_late = until_ms is not None and _us(parked.min) >= until_ms * 1000
    return not too_late and (since_ms is None or _us(parked.max) >= since_ms * 1000)


def _may_overlap(group: Any, columns: dict[str, int], selection: Selection) -> bool:
    statistics = {
        name: group.column(columns[name]).statistics for name in ("parked_at", "finished_at", "purgatory", "kind")
    }
    parked, finished = statistics["parked_at"], statistics["finished_at"]
    if selection.until_ms is not None and _has_bounds(parked) and _us(parked.min) >= selection.until_ms * 1000:
        return False
    if (
        selection.since_ms is not None
        and _has_bounds(finished)
        and finished.has_null_count
        and not finished.null_count
        and _us(finished.max) < selection.since_ms * 1000
    ):
        return False
    for column, names in selection.names:
        one = statistics[column]
        if (
            _has_bounds(one)
            and one.has_null_count
            and not one.null_count
            and isinstance(one.min, str)
            and not any(one.min <= name <= one.max for name in names)
        ):
            return False
    return True


def _has_bounds(statistics: Any) -> bool:
    return statistics is not None and statistics.has_min_max


def _us(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def _text(column: pa.Array) -> pa.Array:
    return column if column.type == pa.string() else column.cast(pa.string())


def _names(selection: Selection) -> list[Column]:
    return [
        F.col(column).isin(list(names)) | ((F.col("outcome") == DROPPED) & F.col(column).isNull())
        for column, names in selection.names
    ]


def _timestamp(ms: int) -> Column:
    return F.timestamp_millis(F.lit(ms))
