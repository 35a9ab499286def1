"""The batch equivalent of the stream: the same groups in one batch, for replays and backfills.

Rows are sorted by group, and each task reads them in that order, a few thousand at a time.  The cost of a row does not
depend on the size of its group, and memory holds no more than the largest group.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.pipeline.spark.workers import freeze_modules

from .dataframes import without_heartbeats
from .group import Groups, pending_of
from .output_records import OUTPUT, OUTPUT_NAMES, dead_letter_record, outcome_record, parse_dead_letter

__all__ = ["last_ms", "process_batch", "process_groups", "whole_groups"]

Record = tuple[Any, ...]
_ROWS_AT_ONCE: Final = 4_096


def last_ms(rows: DataFrame) -> int:
    """Return the time of the last row, including heartbeats: the time at which a trace ends.  This takes one pass."""
    last = rows.agg(F.max(F.unix_millis("event_time"))).first()
    return 0 if last is None or last[0] is None else int(last[0])


def process_batch(
    rows: DataFrame, until_ms: int | None = None, *, pending: bool = False, modules: tuple[str, ...] = ()
) -> DataFrame:
    """Convert a batch from ``parse_rows`` to the records that the stream writes when its watermark is ``until_ms``.

    ``until_ms``: the time at which processing ends; by default, the time of the last row.  Later rows have no effect.
    ``pending``: also return a record, with the outcome ``pending``, for each operation that waits at that time.
    """
    if until_ms is None:
        until_ms = last_ms(rows)
    ordered = (
        rows.transform(without_heartbeats).select("group", "line").repartition("group").sortWithinPartitions("group")
    )
    return ordered.mapInArrow(_function(until_ms, pending, modules), OUTPUT)


def _function(until_ms: int, pending: bool, modules: tuple[str, ...]) -> Callable[..., Any]:
    # This function has no annotations, because Spark would interpret them as its own type hints.
    def in_arrow(batches):  # type: ignore[no-untyped-def]
        for module in modules:
            importlib.import_module(module)
        freeze_modules()
        for lines_by_group in whole_groups(batches, _ROWS_AT_ONCE):
            records = process_groups(lines_by_group, until_ms, pending)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, kind) for column, kind in zip(_columns(records), _TYPES, strict=True)],
                names=list(OUTPUT_NAMES),
            )

    return in_arrow


def whole_groups(batches: Iterable[pa.RecordBatch], min_rows: int) -> Iterator[dict[str, list[str]]]:
    """Yield the lines of sorted batches by group: several whole groups at a time, with at least ``min_rows`` rows in
    total.
    """
    portion: dict[str, list[str]] = {}
    held = 0
    for batch in batches:
        names, lines = (batch.column(name).to_pylist() for name in ("group", "line"))
        for name, line in zip(names, lines, strict=True):
            lines_of_group = portion.get(name)
            if lines_of_group is None:
                if held >= min_rows:
                    yield portion
                    portion, held = {}, 0
                lines_of_group = portion[name] = []
            lines_of_group.append(line)
            held += 1
    if portion:
        yield portion


def _columns(records: list[Record]) -> Iterable[Any]:
    return zip(*records, strict=True) if records else [[] for _ in OUTPUT_NAMES]


_ARROW: Final = {"STRING": pa.string(), "LONG": pa.int64(), "INT": pa.int32()}
_TYPES: Final = [_ARROW[column.split()[1]] for column in OUTPUT.split(", ")]


def process_groups(lines_by_group: Mapping[str, list[str]], until_ms: int, pending: bool = False) -> list[Record]:
    """Return the records of groups.  ``lines_by_group``: all rows of each group, as lines."""
    records: list[Record] = []
    groups = Groups()
    for name, lines in lines_by_group.items():
        valid: list[str] = []
        for line in lines:
            dead_letter = parse_dead_letter(line)
            if dead_letter is None:
                valid.append(line)
            else:
                records.append(dead_letter_record(name, dead_letter))
        groups.add_group(name, 0, "", valid)
    records += [outcome_record(name, operation) for name, operation in groups.advance(until_ms)]
    records += [dead_letter_record(name, dead_letter) for name, dead_letter in groups.dead_letters]
    if pending:
        for group in groups:
            records += [outcome_record(group.name, operation) for operation in pending_of(group.live.values())]
    return records
