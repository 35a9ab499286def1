"""All tables of a report from one pass over the rows, and a second pass over the rows of the hot keys.

The tasks reduce rows to :mod:`~purgatory.pipeline.report.aggregates`.  If the tasks run on this machine, they read the
files of the journal with pyarrow, at a fraction of the cost of Spark's own reader.  Otherwise, Spark reads the rows and
passes them to the same functions in Arrow batches.  The tests compare the tables with tables from DuckDB.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.pipeline.journal_reader import OpenJournal
from purgatory.pipeline.selected_rows import needed_columns, overlapping, read_batches, row_groups
from purgatory.pipeline.selection import EVERYTHING, Selection
from purgatory.pipeline.spark.session import changed_settings, has_local_workers
from purgatory.pipeline.spark.workers import freeze_modules

from .aggregates import (
    BY_CLOSING,
    COLUMNS,
    ENDS,
    HOT_COLUMNS,
    HOT_OUTCOMES,
    LEAST_OF_A_SHARE,
    QUANTILES,
    RANKINGS,
    Aggregate,
    Aggregates,
    Span,
    add_hot_rows,
    add_key_rows,
    add_rows,
    added,
    durations_by_step,
    lower_bound,
    quantiles,
)
from .time_span import TimeSpan
from .verdicts import KeyShares

__all__ = [
    "first_pass",
    "hot_keys",
    "hot_tables",
    "key_shares",
    "notes_of_refused",
    "reads_files",
    "span_of_rows",
    "tables_of",
    "waits_by_step",
]

_ROWS_PER_TASK: Final = 2_500_000
_MERGED_ON_DRIVER: Final = 2_500_000  # up to this number of rows, the driver adds up the aggregates of the tasks
_MOST_PARTS: Final = 16
_MOST_KEYS_OF_INTERVAL: Final = 50
_CELL: Final = "part int, cell binary"
_SHARES: Final = tuple(share for _, share in QUANTILES)
_NAMES: Final = tuple(name for name, _ in QUANTILES)

Add = Callable[[Aggregates, pa.RecordBatch], None]


def reads_files(spark: SparkSession, opened: OpenJournal) -> bool:
    """Return whether the tasks can read the journal's files themselves.

    They can if the files are listed in ``opened`` and the workers run on this machine.
    """
    return opened.files is not None and has_local_workers(spark)


def span_of_rows(rows: DataFrame) -> TimeSpan:
    """Return the time that the rows of a DataFrame cover."""
    last = F.coalesce("finished_at", "parked_at")
    summed = rows.groupBy("source", "anchor_ms").agg(F.unix_millis(F.min("parked_at")), F.unix_millis(F.max(last)))
    span = TimeSpan()
    for source, anchor_ms, first_ms, last_ms in summed.collect():
        span.add(source, first_ms, last_ms, anchor_ms)
    return span


def first_pass(spark: SparkSession, opened: OpenJournal, span: Span, top: int) -> Aggregates:
    """Return the aggregates of the selected rows, with only the first ``top`` keys of each ranking."""
    selection = span.selection
    levels = _Finish(span.bucket_ms, top, selection.since_ms)
    return _aggregate(spark, opened, COLUMNS, partial(add_rows, span=span), levels, selection)


def hot_tables(
    spark: SparkSession, opened: OpenJournal, aggregates: Aggregates, top: int, selection: Selection
) -> dict[str, pa.Table]:
    """Return the first ``top`` keys by operations, by total wait, and by the share that expired at their deadline."""
    tops = {ranking: aggregates.keys.top(top, ranking) for ranking in RANKINGS}
    pairs = ["purgatory", "key"]
    every = hot_keys(spark, opened, pa.concat_tables(tops.values()).group_by(pairs).aggregate([]), selection)
    row_of = {(row["purgatory"], row["key"]): row for row in every.to_pylist()}
    tables = {}
    for ranking, table in tops.items():
        rows = [row_of[row["purgatory"], row["key"]] for row in table.select(pairs).to_pylist()]
        name = "hot_keys" if ranking == RANKINGS[0] else f"hot_keys_by_{ranking}"
        tables[name] = pa.Table.from_pylist(rows, schema=every.schema)
    return tables


def hot_keys(
    spark: SparkSession, opened: OpenJournal, top_keys: pa.Table, selection: Selection = EVERYTHING
) -> pa.Table:
    """Return a row for each of ``top_keys``: how its operations ended, and how long they waited."""
    pairs = list(zip(top_keys["purgatory"].to_pylist(), top_keys["key"].to_pylist(), strict=True))
    hot: dict[tuple[str, ...], int] = {pair: number for number, pair in enumerate(pairs)}
    add = partial(add_hot_rows, hot=hot, selection=selection)
    found = _aggregate(spark, opened, HOT_COLUMNS, add, _Finish(1, 1), selection) if hot else Aggregates()
    rows = {}
    for names, one in found.of("hot"):
        *numbers, total_ms = one.sums.tolist()
        by_outcome = dict(zip(HOT_OUTCOMES, numbers, strict=True))
        ends = {name: by_outcome[name] for name in ENDS}
        spread = dict(zip(_NAMES, quantiles(one, _SHARES), strict=True))
        longest = one.maxima[0] / 1000 if len(one.values) else None
        total = {"total_wait": total_ms / 1000}
        rows[names] = {"operations": sum(ends.values()), **ends, **total, **spread, "max": longest}
    none = {"operations": 0, **dict.fromkeys(ENDS, 0), "total_wait": 0.0, **dict.fromkeys(_SPREAD)}
    table = [{"purgatory": pair[0], "key": pair[1], **rows.get(pair, none)} for pair in pairs]
    counts = {"operations": pa.int64(), **dict.fromkeys(ENDS, pa.int64())}
    texts = {"purgatory": pa.string(), "key": pa.string()}
    return pa.Table.from_pylist(table, pa.schema({**texts, **counts, "total_wait": pa.float64(), **_SPREAD}))


def key_shares(spark: SparkSession, opened: OpenJournal, selection: Selection, outcome: str) -> KeyShares:
    """Return, for the busiest keys of the selected operations, how many operations ended with the outcome.

    Keys with fewer than :data:`LEAST_OF_A_SHARE` operations are left out.
    """
    add = partial(add_key_rows, selection=selection, outcome=outcome)
    counted = _aggregate(spark, opened, HOT_COLUMNS, add, _Finish(1, _MOST_KEYS_OF_INTERVAL), selection)
    rows = counted.keys.top(_MOST_KEYS_OF_INTERVAL).to_pylist()
    keys = {row["key"]: (row["expired"], row["operations"]) for row in rows if row["operations"] >= LEAST_OF_A_SHARE}
    waited, found, at_once = next((one.sums.tolist() for _, one in counted.of("ended")), (0, 0, 0))
    return KeyShares(keys, found, waited, at_once)


_SPREAD: Final = {**dict.fromkeys(_NAMES, pa.float64()), "max": pa.float64()}


def tables_of(aggregates: Aggregates, span: Span) -> dict[str, pa.Table]:
    """Return all tables except the table of the hot keys."""
    return {
        "dropped": _dropped(aggregates),
        "outcomes": _outcomes(aggregates),
        "waits": _waits(aggregates),
        "lateness": _lateness(aggregates),
        "wait_histogram": _wait_histogram(aggregates),
        "occupancy": _occupancy(aggregates, span),
        "over_time": _over_time(aggregates, span),
    }


def waits_by_step(aggregates: Aggregates) -> dict[tuple[str, str | None], Aggregate]:
    """Return, for each kind and for each purgatory as a whole, the histogram of steps of time and waits."""
    found: dict[tuple[str, str | None], list[Aggregate]] = {}
    for (purgatory, kind), one in aggregates.of("time wait"):
        for of_kind in (None, kind):
            found.setdefault((purgatory, of_kind), []).append(one)
    return {names: added(some) for names, some in found.items()}


def notes_of_refused(aggregates: Aggregates) -> dict[str, Aggregate]:
    """Return, for each purgatory, the histogram of the steps that its notes of refused operations cover."""
    return {purgatory: one for (purgatory,), one in aggregates.of("notes")}


# The passes


class _Finish(NamedTuple):
    """The arguments of :meth:`Aggregates.finish`."""

    bucket_ms: int
    top: int
    since_ms: int | None = None


def _aggregate(
    spark: SparkSession, opened: OpenJournal, columns: Sequence[str], add: Add, last: "_Finish", selection: Selection
) -> Aggregates:
    finish = partial(_merge, last=last)
    columns = needed_columns(columns, selection)
    if reads_files(spark, opened):
        assert opened.files is not None
        scan = partial(_scan_files, columns, add, selection)
        cells = _over_files(spark, opened.files, opened.rows or 0, scan, finish)
    else:
        rows = overlapping(opened.dataframe, selection).select(*columns)
        cells = _over_rows(spark, rows, partial(_scan_rows, add), finish)
    total = Aggregates()
    total.add_cells(cells)
    total.finish(*last)
    return total


def _over_files(spark: SparkSession, files: Sequence[str], rows: int, scan: Any, finish: Any) -> Iterable[bytes]:
    context = spark.sparkContext
    tasks = max(context.defaultParallelism, -(-rows // _ROWS_PER_TASK))
    slices = [list(part) for part in np.array_split(np.array(files, dtype=object), min(tasks, len(files)))]
    parts = 1 if rows <= _MERGED_ON_DRIVER else min(len(slices), _MOST_PARTS)
    cells = context.parallelize(slices, len(slices)).mapPartitions(partial(scan, parts))
    if parts > 1:
        cells = cells.partitionBy(parts, int).values().mapPartitions(finish)
        return [cell for _, cell in cells.collect()]
    return [cell for _, cell in cells.collect()]


def _over_rows(spark: SparkSession, rows: DataFrame, scan: Any, finish: Any) -> Iterable[bytes]:
    def in_arrow(batches):  # type: ignore[no-untyped-def]  # Spark evaluates type hints, and fails for some
        yield from _as_batches(scan(_MOST_PARTS, batches))

    def finish_in_arrow(batches):  # type: ignore[no-untyped-def]
        yield from _as_batches(finish(cell for batch in batches for cell in batch.column("cell").to_pylist()))

    with changed_settings(spark, {"spark.sql.adaptive.enabled": "false"}):
        cells = rows.mapInArrow(in_arrow, _CELL).repartition(_MOST_PARTS, "part").mapInArrow(finish_in_arrow, _CELL)
        return [cell.as_py() for cell in cells.select("cell").toArrow()["cell"]]


def _scan_files(columns: Sequence[str], add: Add, selection: Selection, parts: int, slices: Iterable[list[str]]) -> Any:
    freeze_modules()
    aggregates = Aggregates()
    for name in (name for part in slices for name in part):
        for batch in read_batches(name, columns, partial(row_groups, selection=selection)):
            add(aggregates, batch)
    return aggregates.cells(parts)


def _scan_rows(add: Add, parts: int, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    freeze_modules()
    aggregates = Aggregates()
    for batch in batches:
        if batch.num_rows:
            add(aggregates, batch)
    return aggregates.cells(parts)


def _merge(cells: Iterable[bytes], last: _Finish) -> Iterator[tuple[int, bytes]]:
    aggregates = Aggregates()
    aggregates.add_cells(cells)
    aggregates.finish(*last)
    return aggregates.cells()


def _as_batches(cells: Iterable[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
    for part, cell in cells:
        yield pa.RecordBatch.from_arrays(
            [pa.array([part], pa.int32()), pa.array([cell], pa.binary())], ["part", "cell"]
        )


# The tables


def _dropped(aggregates: Aggregates) -> pa.Table:
    stamp = pa.timestamp("us", tz="UTC")
    rows = [
        {"source": name, "operations": one.sums[0], "dropped": one.sums[1], "first_at": -one.maxima[0]}
        | {"last_at": one.maxima[1]}
        for (name,), one in aggregates.of("source")
    ]
    numbers = dict.fromkeys(("operations", "dropped", "first_at", "last_at"), pa.int64())
    table = pa.Table.from_pylist(rows, pa.schema({"source": pa.string(), **numbers}))
    return table.cast(pa.schema([*[table.schema.field(n) for n in range(3)], ("first_at", stamp), ("last_at", stamp)]))


def _outcomes(aggregates: Aggregates) -> pa.Table:
    rows = [(*names, *one.sums.tolist()) for names, one in aggregates.of("outcome")]
    total: dict[tuple[str, str], int] = {}
    for purgatory, kind, _, operations, _ in rows:
        total[purgatory, kind] = total.get((purgatory, kind), 0) + operations
    table = [
        {"purgatory": p, "kind": k, "outcome": o, "operations": n, "share": n / total[p, k], "immediate": i}
        for p, k, o, n, i in rows
    ]
    texts = dict.fromkeys(("purgatory", "kind", "outcome"), pa.string())
    numbers = {"operations": pa.int64(), "share": pa.float64(), "immediate": pa.int64()}
    return pa.Table.from_pylist(table, pa.schema({**texts, **numbers}))


def _waits(aggregates: Aggregates) -> pa.Table:
    whole = Aggregates()
    by_kind = list(aggregates.of("wait"))
    for (purgatory, _), one in by_kind:
        whole.add(("wait", purgatory), one.sums, one.maxima, one.values, one.counts)
    groups = [((purgatory, None), one) for (purgatory,), one in whole.of("wait")] + by_kind
    rows = []
    for (purgatory, kind), one in sorted(groups, key=lambda group: (group[0][0], group[0][1] or "")):
        operations, total = int(one.counts.sum()), int(one.sums[0])
        row = {"purgatory": purgatory, "kind": kind, "operations": operations, "mean": total / operations / 1000}
        rows.append(row | dict(zip(_NAMES, quantiles(one, _SHARES), strict=True)) | {"max": int(one.maxima[0]) / 1000})
    texts = dict.fromkeys(("purgatory", "kind"), pa.string())
    return pa.Table.from_pylist(rows, pa.schema({**texts, "operations": pa.int64(), "mean": pa.float64(), **_SPREAD}))


def _lateness(aggregates: Aggregates) -> pa.Table:
    rows = []
    for (purgatory,), one in aggregates.of("late"):
        row = {"purgatory": purgatory, "expired": int(one.counts.sum()), BY_CLOSING: one.sums[0]}
        latest = int(one.maxima[0]) / 1000 if len(one.values) else None
        rows.append(row | dict(zip(_NAMES, quantiles(one, _SHARES), strict=True)) | {"max": latest})
    return pa.Table.from_pylist(
        rows, pa.schema({"purgatory": pa.string(), "expired": pa.int64(), BY_CLOSING: pa.int64(), **_SPREAD})
    )


def _wait_histogram(aggregates: Aggregates) -> pa.Table:
    rows = [
        {"purgatory": purgatory, "outcome": outcome, "from": lower_bound(step), "operations": number}
        for (purgatory, outcome), one in aggregates.of("step")
        for step, number in zip(one.values.tolist(), one.counts.tolist(), strict=True)
    ]
    texts = dict.fromkeys(("purgatory", "outcome"), pa.string())
    return pa.Table.from_pylist(rows, pa.schema({**texts, "from": pa.float64(), "operations": pa.int64()}))


def _occupancy(aggregates: Aggregates, span: Span) -> pa.Table:
    columns: dict[str, dict[str, Any]] = {}
    for subject in ("before", "parked", "ended", "high", "area"):
        for (purgatory,), one in aggregates.of(subject):
            columns.setdefault(purgatory, {})[subject] = one
    made = [_occupancy_of(purgatory, columns[purgatory], span) for purgatory in sorted(columns)]
    return pa.concat_tables(made) if made else _OCCUPANCY.empty_table()


_TIME_COUNTS: Final = ("operations", *ENDS, "refused", "immediate")
_TIME_QUANTILES: Final = (("p50", 0.5), ("p99", 0.99))
_TIME_SPREAD: Final = tuple(f"{what}_{name}" for what in ("wait", "late") for name, _ in _TIME_QUANTILES)


def _over_time(aggregates: Aggregates, span: Span) -> pa.Table:
    """Return one row per purgatory, kind, and time step in which operations parked or were refused."""
    rows: dict[tuple[str, str | None, int], dict[str, Any]] = {}
    durations: dict[tuple[str, str, str | None, int], list[Aggregate]] = {}

    def count(purgatory: str, kind: str | None, one: Aggregate, *columns: str) -> None:
        for step, number in zip(one.values.tolist(), one.counts.tolist(), strict=True):
            row = rows.setdefault((purgatory, kind, step), dict.fromkeys(_TIME_COUNTS, 0))
            for column in columns:
                row[column] += number

    for (purgatory, kind, outcome), one in aggregates.of("time"):
        for of_kind in (None, kind):
            count(purgatory, of_kind, one, "operations", outcome)
    for (purgatory, kind), one in aggregates.of("at once"):
        for of_kind in (None, kind):
            count(purgatory, of_kind, one, "immediate")
    for (purgatory,), one in aggregates.of("refused"):
        count(purgatory, None, one, "refused")  # the kinds of refused operations are not known
    for what in ("wait", "late"):
        for (purgatory, kind), one in aggregates.of(f"time {what}"):
            for step, histogram in durations_by_step(one):
                for of_kind in (None, kind):
                    durations.setdefault((what, purgatory, of_kind, step), []).append(histogram)
    found: dict[str, list[Any]] = {name: [] for name in _OVER_TIME.names}
    shares = [share for _, share in _TIME_QUANTILES]
    for names, row in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] or "", item[0][2])):
        spread = [
            value
            for what in ("wait", "late")
            for value in quantiles(added(durations.get((what, *names), [Aggregate()])), shares)
        ]
        values = [*names[:2], names[2] * span.step_ms * 1000, *row.values(), *spread]
        for name, value in zip(_OVER_TIME.names, values, strict=True):
            found[name].append(value)
    columns = [pa.array(found[field.name], field.type) for field in _OVER_TIME]
    return pa.Table.from_arrays(columns, schema=_OVER_TIME)


_OVER_TIME: Final = pa.schema(
    {
        "purgatory": pa.string(),
        "kind": pa.string(),
        "bucket": pa.timestamp("us", tz="UTC"),
        **dict.fromkeys(_TIME_COUNTS, pa.int64()),
        **dict.fromkeys(_TIME_SPREAD, pa.float64()),
    }
)
_OCCUPANCY: Final = pa.schema(
    {
        "purgatory": pa.string(),
        "bucket": pa.timestamp("us", tz="UTC"),
        "parked": pa.int64(),
        "ended": pa.int64(),
        "mean": pa.float64(),
        "peak": pa.int64(),
        "at_end": pa.int64(),
    }
)


def _occupancy_of(purgatory: str, by_subject: dict[str, Any], span: Span) -> pa.Table:
    bucket_ms, since_ms, until_ms = span.bucket_ms, span.selection.since_ms, span.selection.until_ms
    before = int(by_subject["before"].sums[0]) if "before" in by_subject else 0
    changed = [by_subject[name] for name in ("parked", "ended") if name in by_subject]
    first = min((int(one.values[0]) for one in changed), default=_FAR)
    last = max((int(one.values[-1]) for one in changed), default=-_FAR)
    if before:
        assert since_ms is not None
        first, last = since_ms // bucket_ms, max(last, since_ms // bucket_ms)
    waiting = before + sum(int(by_subject[n].counts.sum()) * s for n, s in _SIGNS if n in by_subject)
    if waiting:
        assert until_ms is not None, "all operations end at the latest after the last record"
        last = (until_ms - 1) // bucket_ms
    dense = {name: np.zeros(last - first + 1, dtype=np.int64) for name in ("parked", "ended", "high", "area")}
    for name, row in dense.items():
        if name in by_subject:
            row[by_subject[name].values - first] = by_subject[name].counts
    at_end = before + np.cumsum(dense["parked"] - dense["ended"])
    at_start = at_end - dense["parked"] + dense["ended"]
    area, length = at_start * bucket_ms + dense["area"], np.full(last - first + 1, bucket_ms)
    # The mean covers the selected part of a bucket.
    if since_ms is not None and (outside := since_ms - first * bucket_ms) > 0:
        area[0] -= at_start[0] * outside
        length[0] -= outside
    if until_ms is not None and (outside := (last + 1) * bucket_ms - until_ms) > 0:
        area[-1] -= at_end[-1] * outside
        length[-1] -= outside
    bucket = pa.array(np.arange(first, last + 1) * bucket_ms * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    names = pa.array([purgatory], pa.string()).take(pa.array(np.zeros(len(bucket), dtype=np.int64)))
    columns = [names, bucket, dense["parked"], dense["ended"], area / length, at_start + dense["high"], at_end]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=_OCCUPANCY)


_SIGNS: Final = (("parked", 1), ("ended", -1))
_FAR: Final = 1 << 62
