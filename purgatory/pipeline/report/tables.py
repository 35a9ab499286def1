"""What the reports say: functions from DataFrame to DataFrame, to be chained with ``transform``.

The journal is read a handful of times and never held in memory.  Counts, waits and lateness come from one pass, which
reduces the rows to how often each wait occurred; quantiles of that are exact.  So that there cannot be too many
different waits, those above 65.536 s are rounded down to 16 significant bits, an error of less than 1 in 32 000.

Every closing ``select`` is the contract of its table.  Durations are seconds.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name that everyone gives it

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
    """How often each kind of operation ended how, after which wait, how late: what is left of the rows in one pass."""
    grouped = operations.groupBy(
        "purgatory",
        "kind",
        "outcome",
        "immediate",
        _step(F.col("wait_ms")).alias("step"),  # of the wait as it was: rounding down moves it over a border
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
    """Per purgatory and kind: how many operations ended how, and which share of that kind."""
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
    """Per purgatory, and per purgatory and kind: how long those waited that had to wait and have ended.

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
    """Per purgatory: how long after its deadline an expired operation was answered.

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
    """Per purgatory and outcome: how many waits fell into each of eight steps per factor of ten, from 1 ms up.

    ``from`` is the lower end of a step in seconds; the step below 1 ms begins at 0.
    """
    waited = endings.where(~F.col("immediate") & F.col("wait_ms").isNotNull())
    lower = F.coalesce(F.pow(F.lit(10.0), F.col("step") / _STEPS_PER_DECADE - 3), F.lit(0.0))
    counted = waited.groupBy("purgatory", "outcome", lower.alias("from")).agg(F.sum("number").alias("operations"))
    return counted.select("purgatory", "outcome", "from", "operations").orderBy("purgatory", "outcome", "from")


def hot_keys(number: int) -> Callable[[DataFrame], DataFrame]:
    """The ``number`` keys with the most operations, over all purgatories: how these ended and how long they waited.

    Two passes: the first counts, the second reads only what belongs to the keys that won.  Keys of equal counts come in
    the order of their names.
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
    """Per source (a run of a server): what it wrote, from when to when, and how many rows it had to drop."""
    summed = journal.groupBy("source").agg(
        F.count(F.when(F.col("outcome") != DROPPED, 1)).alias("operations"),
        F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
        F.min("parked_at").alias("first_at"),
        F.max(F.coalesce("finished_at", "parked_at")).alias("last_at"),
    )
    return summed.select("source", "operations", "dropped", "first_at", "last_at").orderBy("source")


def _step(ms: Column) -> Column:
    """The number of the step of the histogram that a wait is in; null below 1 ms."""
    return F.when(ms >= 1, F.floor(F.log10(ms) * _STEPS_PER_DECADE))


def _rounded(ms: Column) -> Column:
    """Whole milliseconds, above 16 bits rounded down to 16 significant bits."""
    length = F.length(F.bin(ms))
    excess = F.greatest(length - _EXACT_BITS, F.lit(0))
    unit = F.pow(F.lit(2), excess).cast("long")
    return F.when(ms < (1 << _EXACT_BITS), ms).otherwise(ms - ms % unit)


def _quantiles(value: str) -> Column:
    """Exact quantiles, in seconds, of values that occur ``number`` times each."""
    asked = F.array(*[F.lit(quantile) for _, quantile in QUANTILES])
    return F.transform(F.percentile(value, asked, F.col("number")), lambda ms: ms / 1000).alias("quantiles")


def _spread() -> list[Column]:
    return [F.col("quantiles")[i].alias(name) for i, (name, _) in enumerate(QUANTILES)]
