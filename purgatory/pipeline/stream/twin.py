"""The batch twin: processes the same groups in one batch, for replays and backfills.

Rows are sorted by their group, and each task reads them in that order, some thousands at a time.  The cost of a row
does not depend on the size of its group, and memory holds no more than the largest group.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from .frames import for_groups
from .group import Groups, pending_of
from .records import OUTPUT, OUTPUT_NAMES, dead_line, record_of_dead, record_of_end

__all__ = ["decide", "decided", "last_ms", "whole_groups"]

Record = tuple[Any, ...]
_ROWS_AT_ONCE: Final = 4_096


def last_ms(rows: DataFrame) -> int:
    """Return the time of the last row, including heartbeats: the time at which a trace ends.  Needs one pass."""
    last = rows.agg(F.max(F.unix_millis("event_time"))).first()
    return 0 if last is None or last[0] is None else int(last[0])


def decided(
    rows: DataFrame, until_ms: int | None = None, *, pending: bool = False, modules: tuple[str, ...] = ()
) -> DataFrame:
    """Convert a batch from ``prepared`` to the records that the stream writes when its watermark is ``until_ms``.

    ``until_ms``: the time at which processing ends; by default, the time of the last row.  Later rows have no effect.
    ``pending``: also return a record, with the outcome ``pending``, for each operation that waits at that time.
    """
    if until_ms is None:
        until_ms = last_ms(rows)
    ordered = rows.transform(for_groups).select("group", "line").repartition("group").sortWithinPartitions("group")
    return ordered.mapInArrow(_function(until_ms, pending, modules), OUTPUT)


def _function(until_ms: int, pending: bool, modules: tuple[str, ...]) -> Callable[..., Any]:
    # No annotations, because Spark would interpret them as its own type hints.
    def in_arrow(batches):  # type: ignore[no-untyped-def]
        for module in modules:
            importlib.import_module(module)
        for groups in whole_groups(batches, _ROWS_AT_ONCE):
            records = decide(groups, until_ms, pending)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, kind) for column, kind in zip(_columns(records), _TYPES, strict=True)],
                names=list(OUTPUT_NAMES),
            )

    return in_arrow


def whole_groups(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[dict[str, list[str]]]:
    """Yield the lines of sorted batches by group: some whole groups at a time, with ``rows`` or more rows in total."""
    some: dict[str, list[str]] = {}
    held = 0
    for batch in batches:
        names, lines = (batch.column(name).to_pylist() for name in ("group", "line"))
        for name, line in zip(names, lines, strict=True):
            own = some.get(name)
            if own is None:
                if held >= rows:
                    yield some
                    some, held = {}, 0
                own = some[name] = []
            own.append(line)
            held += 1
    if some:
        yield some


def _columns(records: list[Record]) -> Iterable[Any]:
    return zip(*records, strict=True) if records else [[] for _ in OUTPUT_NAMES]


_ARROW: Final = {"STRING": pa.string(), "LONG": pa.int64(), "INT": pa.int32()}
_TYPES: Final = [_ARROW[column.split()[1]] for column in OUTPUT.split(", ")]


def decide(rows: Mapping[str, list[str]], until_ms: int, pending: bool = False) -> list[Record]:
    """Return the records of groups whose rows, as lines by group, are complete.  Pure."""
    records: list[Record] = []
    groups = Groups()
    for name, lines in rows.items():
        good: list[str] = []
        for line in lines:
            bad = dead_line(line)
            if bad is None:
                good.append(line)
            else:
                records.append(record_of_dead(name, bad))
        groups.put(name, 0, "", good)
    records += [record_of_end(name, end) for name, end in groups.advance(until_ms)]
    records += [record_of_dead(name, dead) for name, dead in groups.dead]
    if pending:
        for member in groups.members():
            records += [record_of_end(member.name, end) for end in pending_of(member.live.values())]
    return records
