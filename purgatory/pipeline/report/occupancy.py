"""The number of parked operations over time, the only table that needs every change in order.

A row of the journal is two changes, an arrival and an end.  A peak that is exact to the millisecond needs them in
order.  As rows of Spark, there would be twice as many of them as rows in the journal, and Spark would group, shuffle,
and sort each one.  Each task therefore packs the changes of a bucket into one sorted array of integers, which is a row
with one binary cell, and Spark shuffles only these rows.  Each bucket is then computed separately, and the levels are
added up over the buckets.

A packed change is ``2 * offset_ms + is_end``, where the offset is relative to the start of the bucket.  In the order of
these numbers, all arrivals of a millisecond are before all ends of the same millisecond.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.pipeline.selection import EVERYTHING, Selection

__all__ = ["occupancy", "packed_changes", "summed"]

_PACKED: Final = "purgatory string, bucket_ms bigint, parked bigint, ended bigint, changes binary"
_SUMMED: Final = "purgatory string, bucket_ms bigint, parked bigint, ended bigint, high bigint, area bigint"
_AT_ONCE: Final = 250_000  # rows that a task packs together; a larger number makes fewer and longer arrays


def occupancy(
    bucket_ms: int, last: DataFrame | None = None, selection: Selection = EVERYTHING
) -> Callable[[DataFrame], DataFrame]:
    """Count arrivals, ends and waiting operations per purgatory and ``bucket_ms`` of time.

    ``parked`` and ``ended`` are counts; ``mean`` is the average over the bucket; ``peak`` is exact to the millisecond;
    ``at_end`` is the number at the start of the next bucket.  Buckets without any change are included.

    A ``pending`` operation has no end time.  It counts as waiting until the last record of its source, including that
    millisecond, and as ended in the next millisecond.  ``last`` contains the times of these records, as ``source`` and
    ``last_ms``; by default, a separate pass over the operations computes it.

    ``selection``: only its time is used.  Changes before and after it have no bucket.  Operations that parked before it
    count from its start, so the operations must be those of :func:`~purgatory.pipeline.selected_rows.overlapping`, and
    ``last`` that of all rows.  The mean of a bucket is that of its selected part.
    """
    since_ms, until_ms = selection.since_ms, selection.until_ms

    def of(operations: DataFrame) -> DataFrame:
        records = _last_records(operations) if last is None else last
        waited = operations.where(~F.col("immediate")).transform(_until_the_last_record(records))
        before = None
        if since_ms is not None:
            waited = waited.where(F.col("finished_ms") >= since_ms)
            before = waited.where(F.col("parked_ms") < since_ms).groupBy("purgatory").agg(F.count("*").alias("before"))
            parked_ms = F.when(F.col("parked_ms") >= since_ms, F.col("parked_ms"))
            waited = waited.withColumn("parked_ms", parked_ms)
        if until_ms is not None:
            waited = waited.where(F.col("parked_ms").isNull() | (F.col("parked_ms") < until_ms))
            waited = waited.withColumn("finished_ms", F.when(F.col("finished_ms") < until_ms, F.col("finished_ms")))
        packed = waited.mapInArrow(_pack(bucket_ms), _PACKED)
        buckets = packed.groupBy("purgatory", "bucket_ms").applyInArrow(_sum(bucket_ms, since_ms), _SUMMED)
        buckets = buckets.withColumn("before", F.lit(0).cast("long"))
        if before is not None:
            buckets = buckets.transform(_with_earlier(before, bucket_ms, since_ms))
        if until_ms is not None:
            buckets = buckets.transform(_until_the_end(bucket_ms, until_ms))
        return buckets.transform(_without_holes(bucket_ms)).transform(_levels(bucket_ms, selection))

    return of


def _with_earlier(before: DataFrame, bucket_ms: int, since_ms: int | None) -> Callable[[DataFrame], DataFrame]:
    """Add rows for the operations that wait at ``since_ms``: the level ``before`` the first change."""

    def of(buckets: DataFrame) -> DataFrame:
        first = F.lit(since_ms // bucket_ms * bucket_ms if since_ms is not None else 0).cast("long")
        more = before.select("purgatory", first.alias("bucket_ms"), F.col("before").alias("more"))
        joined = buckets.join(more, ["purgatory", "bucket_ms"], how="full").na.fill(0)
        return joined.withColumn("before", F.col("before") + F.col("more")).drop("more")

    return of


def _until_the_end(bucket_ms: int, until_ms: int) -> Callable[[DataFrame], DataFrame]:
    """Add a bucket at the end of the selected time for each purgatory in which operations wait at that time."""

    def of(buckets: DataFrame) -> DataFrame:
        waiting = F.sum(F.col("before") + F.col("parked") - F.col("ended"))
        last = F.lit((until_ms - 1) // bucket_ms * bucket_ms).cast("long").alias("bucket_ms")
        open_ones = buckets.groupBy("purgatory").agg(waiting.alias("waiting")).where(F.col("waiting") > 0)
        ends = open_ones.select("purgatory", last)
        return buckets.join(ends, ["purgatory", "bucket_ms"], how="full").na.fill(0)

    return of


def _last_records(operations: DataFrame) -> DataFrame:
    at_ms = F.coalesce("finished_ms", "parked_ms")
    return operations.groupBy("source").agg(F.max(at_ms).alias("last_ms")).select("source", "last_ms")


def _until_the_last_record(records: DataFrame) -> Callable[[DataFrame], DataFrame]:
    def of(waited: DataFrame) -> DataFrame:
        # The key is null for an operation that has ended, so the join finds no row for it.
        run = F.when(F.col("finished_ms").isNull(), F.col("source"))
        ends = F.broadcast(records.select(F.col("source").alias("run"), "last_ms"))
        joined = waited.withColumn("run", run).join(ends, "run", how="left")
        finished_ms = F.coalesce("finished_ms", F.col("last_ms") + 1).alias("finished_ms")
        return joined.select("purgatory", "parked_ms", finished_ms)

    return of


def packed_changes(rows: pa.Table, bucket_ms: int) -> Iterator[dict[str, Any]]:
    """Yield, for each purgatory and bucket of the rows, the arrivals and ends, and the sorted packed changes."""
    named = pc.dictionary_encode(rows["purgatory"].combine_chunks())
    codes = named.indices.to_numpy(zero_copy_only=False)
    for code, purgatory in enumerate(named.dictionary.to_pylist()):
        here = pa.array(codes == code)
        parked_ms, finished_ms = (
            rows[name].filter(here).drop_null().to_numpy() for name in ("parked_ms", "finished_ms")
        )
        changes = np.concatenate([parked_ms * 2, finished_ms * 2 + 1])
        if not len(changes):  # all of them began and ended outside the selected time
            continue
        changes.sort()
        buckets = changes // (2 * bucket_ms)
        starts = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
        for part in np.split(changes, starts[1:]):
            begin_ms = int(part[0]) // (2 * bucket_ms) * bucket_ms
            ended = int(np.count_nonzero(part & 1))
            yield {
                "purgatory": purgatory,
                "bucket_ms": begin_ms,
                "parked": len(part) - ended,
                "ended": ended,
                "changes": (part - 2 * begin_ms).astype(_number(bucket_ms)).tobytes(),
            }


def summed(rows: pa.Table, bucket_ms: int, since_ms: int | None = None) -> dict[str, Any]:
    """Return one bucket of one purgatory, from all its packed rows.

    ``high``: the highest number of waiting operations at the end of any millisecond of the bucket.  ``area``: the sum
    of the waiting times in milliseconds.  Both assume that no operation waits at the start of the bucket.  The level at
    the start counts for ``high`` only if the first millisecond, or that of ``since_ms``, does not change it.
    """
    number = _number(bucket_ms)
    changes = np.concatenate([np.frombuffer(cell.as_buffer(), number) for cell in rows["changes"]])
    changes.sort()
    offsets = changes >> 1
    steps = (1 - 2 * (changes & 1)).astype(np.int64)
    last_of_its_ms = np.append(offsets[1:] != offsets[:-1], True)
    high = int(np.cumsum(steps)[last_of_its_ms].max())
    begin_ms = 0 if since_ms is None else max(0, since_ms - rows["bucket_ms"][0].as_py())
    return {
        "purgatory": rows["purgatory"][0].as_py(),
        "bucket_ms": rows["bucket_ms"][0].as_py(),
        "parked": pc.sum(rows["parked"]).as_py(),
        "ended": pc.sum(rows["ended"]).as_py(),
        "high": high if offsets[0] == begin_ms else max(high, 0),
        "area": int(np.dot(steps, bucket_ms - offsets.astype(np.int64))),
    }


def _number(bucket_ms: int) -> str:
    return "<i4" if 2 * bucket_ms < 2**31 else "<i8"


def _pack(bucket_ms: int) -> Any:
    numbers = [(name, pa.int64()) for name in ("bucket_ms", "parked", "ended")]
    schema = pa.schema([("purgatory", pa.string()), *numbers, ("changes", pa.binary())])

    def of(batches):  # type: ignore[no-untyped-def]  # Spark evaluates type hints, and fails for some
        for rows in _together(batches):
            yield pa.RecordBatch.from_pylist(list(packed_changes(rows, bucket_ms)), schema=schema)

    return of


def _sum(bucket_ms: int, since_ms: int | None) -> Any:
    names = ("bucket_ms", "parked", "ended", "high", "area")
    schema = pa.schema([("purgatory", pa.string()), *((name, pa.int64()) for name in names)])

    def of(rows):  # type: ignore[no-untyped-def]  # as above
        return pa.Table.from_pylist([summed(rows, bucket_ms, since_ms)], schema=schema)

    return of


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the same rows in larger pieces."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            some.append(batch)
        if sum(part.num_rows for part in some) >= _AT_ONCE:
            yield pa.Table.from_batches(some)
            some = []
    if some:
        yield pa.Table.from_batches(some)


def _without_holes(bucket_ms: int) -> Callable[[DataFrame], DataFrame]:
    def of(buckets: DataFrame) -> DataFrame:
        span = buckets.groupBy("purgatory").agg(F.min("bucket_ms").alias("first"), F.max("bucket_ms").alias("last"))
        every = span.select("purgatory", F.explode(F.sequence("first", "last", F.lit(bucket_ms))).alias("bucket_ms"))
        return every.join(buckets, ["purgatory", "bucket_ms"], how="left").na.fill(0)

    return of


def _levels(bucket_ms: int, selection: Selection) -> Callable[[DataFrame], DataFrame]:
    def of(buckets: DataFrame) -> DataFrame:
        upto = Window.partitionBy("purgatory").orderBy("bucket_ms").rowsBetween(Window.unboundedPreceding, 0)
        change = F.col("parked") - F.col("ended")
        at_end = F.sum(F.col("before") + change).over(upto)
        area, length = F.col("at_start") * bucket_ms + F.col("area"), F.lit(bucket_ms)
        if selection.since_ms is not None:
            outside = F.greatest(F.lit(0), F.lit(selection.since_ms) - F.col("bucket_ms"))
            area, length = area - F.col("at_start") * outside, length - outside
        if selection.until_ms is not None:
            outside = F.greatest(F.lit(0), F.col("bucket_ms") + bucket_ms - F.lit(selection.until_ms))
            area, length = area - F.col("at_end") * outside, length - outside
        return (
            buckets.withColumn("at_end", at_end)
            .withColumn("at_start", F.col("at_end") - change)
            .select(
                "purgatory",
                F.timestamp_millis("bucket_ms").alias("bucket"),
                "parked",
                "ended",
                (area / length).alias("mean"),
                (F.col("at_start") + F.col("high")).alias("peak"),
                "at_end",
            )
            .orderBy("purgatory", "bucket")
        )

    return of
