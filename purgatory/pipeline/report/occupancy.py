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

__all__ = ["occupancy", "packed_changes", "summed"]

_PACKED: Final = "purgatory string, bucket_ms bigint, parked bigint, ended bigint, changes binary"
_SUMMED: Final = "purgatory string, bucket_ms bigint, parked bigint, ended bigint, high bigint, area bigint"
_AT_ONCE: Final = 250_000  # rows that a task packs together; a larger number makes fewer and longer arrays


def occupancy(bucket_ms: int, last: DataFrame | None = None) -> Callable[[DataFrame], DataFrame]:
    """Count arrivals, ends and waiting operations per purgatory and ``bucket_ms`` of time.

    ``parked`` and ``ended`` are counts; ``mean`` is the average over the bucket; ``peak`` is exact to the millisecond;
    ``at_end`` is the number at the start of the next bucket.  Buckets without any change are included.

    A ``pending`` operation has no end time.  It counts as waiting until the last record of its source, including that
    millisecond, and as ended in the next millisecond.  ``last`` contains the times of these records, as ``source`` and
    ``last_ms``; by default, a separate pass over the operations computes it.
    """

    def of(operations: DataFrame) -> DataFrame:
        records = _last_records(operations) if last is None else last
        waited = operations.where(~F.col("immediate")).transform(_until_the_last_record(records))
        packed = waited.mapInArrow(_pack(bucket_ms), _PACKED)
        buckets = packed.groupBy("purgatory", "bucket_ms").applyInArrow(_sum(bucket_ms), _SUMMED)
        return buckets.transform(_without_holes(bucket_ms)).transform(_levels(bucket_ms))

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


def summed(rows: pa.Table, bucket_ms: int) -> dict[str, Any]:
    """Return one bucket of one purgatory, from all its packed rows.

    ``high``: the highest number of waiting operations at the end of any millisecond of the bucket.  ``area``: the sum
    of the waiting times in milliseconds.  Both assume that no operation waits at the start of the bucket.  The level at
    the start counts for ``high`` only if the first millisecond does not change it.
    """
    number = _number(bucket_ms)
    changes = np.concatenate([np.frombuffer(cell.as_buffer(), number) for cell in rows["changes"]])
    changes.sort()
    offsets = changes >> 1
    steps = (1 - 2 * (changes & 1)).astype(np.int64)
    last_of_its_ms = np.append(offsets[1:] != offsets[:-1], True)
    high = int(np.cumsum(steps)[last_of_its_ms].max())
    return {
        "purgatory": rows["purgatory"][0].as_py(),
        "bucket_ms": rows["bucket_ms"][0].as_py(),
        "parked": pc.sum(rows["parked"]).as_py(),
        "ended": pc.sum(rows["ended"]).as_py(),
        "high": high if offsets[0] == 0 else max(high, 0),
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


def _sum(bucket_ms: int) -> Any:
    names = ("bucket_ms", "parked", "ended", "high", "area")
    schema = pa.schema([("purgatory", pa.string()), *((name, pa.int64()) for name in names)])

    def of(rows):  # type: ignore[no-untyped-def]  # as above
        return pa.Table.from_pylist([summed(rows, bucket_ms)], schema=schema)

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


def _levels(bucket_ms: int) -> Callable[[DataFrame], DataFrame]:
    def of(buckets: DataFrame) -> DataFrame:
        before = Window.partitionBy("purgatory").orderBy("bucket_ms").rowsBetween(Window.unboundedPreceding, -1)
        at_start = F.coalesce(F.sum(F.col("parked") - F.col("ended")).over(before), F.lit(0))
        return (
            buckets.withColumn("at_start", at_start)
            .select(
                "purgatory",
                F.timestamp_millis("bucket_ms").alias("bucket"),
                "parked",
                "ended",
                (F.col("at_start") + F.col("area") / bucket_ms).alias("mean"),
                (F.col("at_start") + F.col("high")).alias("peak"),
                (F.col("at_start") + F.col("parked") - F.col("ended")).alias("at_end"),
            )
            .orderBy("purgatory", "bucket")
        )

    return of
