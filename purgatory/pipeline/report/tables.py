"""The tables of a report: functions from DataFrame to DataFrame, to be chained with ``transform``.

The journal is read a few times and never held in memory.  Counts, waits and lateness come from one pass, which counts
the occurrences of each wait; the quantiles of these counts are exact.  To limit the number of different waits, waits
above 65.536 s are rounded down to 16 significant bits, an error of less than 1 in 32 000.

The last ``select`` of each function defines the columns of its table.  Durations are in seconds.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.journal.schema import CANCELLED, COMPLETED, DROPPED, EXPIRED, FAILED, PENDING

from .occupancy import occupancy

__all__ = [
    "QUANTILES",
    "dropped",
    "endings",
    "hot_keys",
    "lateness",
    "occupancy",
    "operations",
    "outcomes",
    "wait_histogram",
    "waits",
]

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
_EXACT_BITS: Final = 16
_STEPS_PER_DECADE: Final = 8


def operations(journal: DataFrame) -> DataFrame:
    """The rows that are operations, with what the tables need: times in milliseconds, whether it ever waited."""
    parked, finished, deadline = (F.unix_millis(name) for name in ("parked_at", "finished_at", "deadline"))
    return journal.where(F.col("outcome") != DROPPED).select(
        "source",
        "purgatory",
        "kind",
        "keys",
        "outcome",
        (F.size("keys") == 0).alias("immediate"),
        parked.alias("parked_ms"),
        finished.alias("finished_ms"),
        (finished - parked).alias("wait_ms"),
        F.when((F.col("outcome") == EXPIRED) & (finished >= deadline), finished - deadline).alias("late_ms"),
    )


def endings(operations: DataFrame) -> DataFrame:
    """Count the operations by purgatory, kind, outcome, wait, and lateness, in one pass over the rows."""
    grouped = operations.groupBy(
        "purgatory",
        "kind",
        "outcome",
        "immediate",
        _step(F.col("wait_ms")).alias("step"),  # of the exact wait: rounding down could move it to another step
        _rounded(F.col("wait_ms")).alias("wait_ms"),
        _rounded(F.col("late_ms")).alias("late_ms"),
    )
    return grouped.agg(
        F.count("*").alias("number"),
        F.sum("wait_ms").alias("total_ms"),
        F.max("wait_ms").alias("longest_ms"),
        F.max("late_ms").alias("latest_ms"),
    )


def outcomes(endings: DataFrame) -> DataFrame:
    """Per purgatory and kind: the number of operations with each outcome, and their share of that kind."""
    counted = endings.groupBy("purgatory", "kind", "outcome").agg(
        F.sum("number").alias("operations"),
        F.sum(F.when(F.col("immediate"), F.col("number")).otherwise(0)).alias("immediate"),
    )
    of_its_kind = Window.partitionBy("purgatory", "kind")
    share = F.col("operations") / F.sum("operations").over(of_its_kind)
    return counted.select("purgatory", "kind", "outcome", "operations", share.alias("share"), "immediate").orderBy(
        "purgatory", "kind", "outcome"
    )


def waits(endings: DataFrame) -> DataFrame:
    """Per purgatory, and per purgatory and kind: the waits of operations that had to wait and have ended.

    ``kind`` is null in the row of a whole purgatory.
    """
    waited = endings.where(~F.col("immediate") & F.col("wait_ms").isNotNull())
    whole = waited.withColumn("kind", F.lit(None).cast("string"))
    summed = (
        waited.unionByName(whole)
        .groupBy("purgatory", "kind")
        .agg(
            F.sum("number").alias("operations"),
            (F.sum("total_ms") / F.sum("number") / 1000).alias("mean"),
            _quantiles("wait_ms"),
            (F.max("longest_ms") / 1000).alias("max"),
        )
    )
    return summed.select("purgatory", "kind", "operations", "mean", *_spread(), "max").orderBy(
        "purgatory", F.col("kind").asc_nulls_first()
    )


def lateness(endings: DataFrame) -> DataFrame:
    """Per purgatory: the time from the deadline of an expired operation to its answer.

    ``closed``: operations that were expired before their deadline because the purgatory closed; they are not late.
    """
    expired = endings.where(F.col("outcome") == EXPIRED)
    on_deadline = F.col("late_ms").isNotNull()
    summed = expired.groupBy("purgatory").agg(
        F.sum(F.when(on_deadline, F.col("number")).otherwise(0)).alias("expired"),
        F.sum(F.when(on_deadline, 0).otherwise(F.col("number"))).alias("closed"),
        _quantiles("late_ms"),
        (F.max("latest_ms") / 1000).alias("max"),
    )
    return summed.select("purgatory", "expired", "closed", *_spread(), "max").orderBy("purgatory")


def wait_histogram(endings: DataFrame) -> DataFrame:
    """Per purgatory and outcome: the number of waits in each step, with eight steps per factor of ten, from 1 ms up.

    ``from`` is the lower end of a step in seconds; the step below 1 ms begins at 0.
    """
    waited = endings.where(~F.col("immediate") & F.col("wait_ms").isNotNull())
    lower = F.coalesce(F.pow(F.lit(10.0), F.col("step") / _STEPS_PER_DECADE - 3), F.lit(0.0))
    counted = waited.groupBy("purgatory", "outcome", lower.alias("from")).agg(F.sum("number").alias("operations"))
    return counted.select("purgatory", "outcome", "from", "operations").orderBy("purgatory", "outcome", "from")


def hot_keys(number: int) -> Callable[[DataFrame], DataFrame]:
    """The ``number`` keys with the most operations, over all purgatories: the outcomes and waits of these operations.

    Needs two passes: the first counts, and the second reads only the rows of the selected keys.  Keys with equal counts
    are in the order of their names.
    """

    def of(operations: DataFrame) -> DataFrame:
        each = operations.where(~F.col("immediate")).withColumn("key", F.explode("keys"))
        counted = each.groupBy("purgatory", "key").agg(F.count("*").alias("operations"))
        hottest = counted.orderBy(F.col("operations").desc(), "purgatory", "key").limit(number)
        theirs = each.join(F.broadcast(hottest.select("purgatory", "key")), ["purgatory", "key"], how="inner")
        reduced = theirs.groupBy("purgatory", "key", "outcome", _rounded(F.col("wait_ms")).alias("wait_ms")).agg(
            F.count("*").alias("number"), F.max("wait_ms").alias("longest_ms")
        )
        ended = [COMPLETED, EXPIRED, CANCELLED, FAILED, PENDING]
        counts = [F.sum(F.when(F.col("outcome") == o, F.col("number")).otherwise(0)).alias(o) for o in ended]
        summed = reduced.groupBy("purgatory", "key").agg(
            F.sum("number").alias("operations"),
            *counts,
            _quantiles("wait_ms"),
            (F.max("longest_ms") / 1000).alias("max"),
        )
        return summed.select("purgatory", "key", "operations", *ended, *_spread(), "max").orderBy(
            F.col("operations").desc(), "purgatory", "key"
        )

    return of


def dropped(journal: DataFrame) -> DataFrame:
    """Per source (a run of a server): the number of rows written, their first and last time, and the rows dropped."""
    summed = journal.groupBy("source").agg(
        F.count(F.when(F.col("outcome") != DROPPED, 1)).alias("operations"),
        F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
        F.min("parked_at").alias("first_at"),
        F.max(F.coalesce("finished_at", "parked_at")).alias("last_at"),
    )
    return summed.select("source", "operations", "dropped", "first_at", "last_at").orderBy("source")


def _step(ms: Column) -> Column:
    """Return the number of the histogram step of a wait; null below 1 ms."""
    return F.when(ms >= 1, F.floor(F.log10(ms) * _STEPS_PER_DECADE))


def _rounded(ms: Column) -> Column:
    """Return whole milliseconds, with values of more than 16 bits rounded down to 16 significant bits."""
    length = F.length(F.bin(ms))
    excess = F.greatest(length - _EXACT_BITS, F.lit(0))
    unit = F.pow(F.lit(2), excess).cast("long")
    return F.when(ms < (1 << _EXACT_BITS), ms).otherwise(ms - ms % unit)


def _quantiles(value: str) -> Column:
    """Return exact quantiles, in seconds, of values that occur ``number`` times each."""
    asked = F.array(*[F.lit(quantile) for _, quantile in QUANTILES])
    return F.transform(F.percentile(value, asked, F.col("number")), lambda ms: ms / 1000).alias("quantiles")


def _spread() -> list[Column]:
    return [F.col("quantiles")[i].alias(name) for i, (name, _) in enumerate(QUANTILES)]
