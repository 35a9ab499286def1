"""Functions from DataFrame to DataFrame, for ``.transform``: from input rows to output records."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from .input_rows import LAST_MS
from .output_records import DEAD_LETTER, DEAD_LETTER_MARK, OUTCOME, OUTPUT
from .processor import ShardProcessor

__all__ = [
    "ROW_COLUMNS",
    "dead_letter_columns",
    "dead_letters",
    "outcome_columns",
    "outcomes",
    "parse_rows",
    "process_stream",
    "rows_to_json",
    "without_heartbeats",
]

ROW_COLUMNS: Final = (
    "kind STRING, ts_ms LONG, seq LONG, `group` STRING, op_id STRING, keys ARRAY<STRING>, condition STRING,"
    " timeout_ms LONG, deadline_ms LONG, key STRING, value DOUBLE, error STRING"
)
_HEAD: Final = "kind STRING, ts_ms LONG, `group` STRING"


def rows_to_json(rows: DataFrame) -> DataFrame:
    """Convert columns to JSON strings in a ``value`` column; see :mod:`purgatory.pipeline.stream.input_rows`."""
    return rows.select(F.to_json(F.struct(*rows.columns)).alias("value"))


def parse_rows(texts: DataFrame, max_ahead: float | None = None) -> DataFrame:
    """Parse rows (JSON strings in a column ``value``) into columns ``kind``, ``group``, ``event_time``, and ``line``.

    A row that is not valid UTF-8, that has no group or no time, or that is more than ``max_ahead`` seconds ahead of the
    wall clock, gets no ``event_time`` and becomes a dead letter.  A single row from the far future would move the
    watermark past all other rows.
    """
    sent = F.col("value").cast("string")  # the bytes as they are: Python could not decode every one of them
    parsed = texts.select(F.make_valid_utf8(sent).alias("text"), F.is_valid_utf8(sent).alias("is_text")).select(
        "text", "is_text", F.from_json(F.col("text"), _HEAD).alias("head")
    )
    kind, group, ts_ms = F.col("head.kind"), F.col("head.group"), F.col("head.ts_ms")
    reason = (
        F.when(~F.col("is_text"), F.lit("the row must be valid UTF-8"))
        .when(ts_ms.isNull(), F.lit("the row must be a JSON object with an int ts_ms"))
        .when(
            (ts_ms < 1) | (ts_ms > LAST_MS),
            F.lit("ts_ms must be in milliseconds since 1970, before the year 10000"),
        )
        .when((kind.isNull() | (kind != "heartbeat")) & (F.coalesce(group, F.lit("")) == ""), F.lit("group is missing"))
    )
    if max_ahead is not None:
        ahead = ts_ms > F.unix_millis(F.current_timestamp()) + F.lit(int(max_ahead * 1000))
        reason = reason.when(ahead, F.lit(f"ts_ms is more than {max_ahead:g} s ahead of the clock"))
    # A line break in JSON can occur only between tokens, where a space has the same meaning.  The two other characters
    # separate the stored fields of a group (see shard); JSON cannot contain them.
    one_line = F.translate(F.col("text"), "\r\n\x1e\x1f", "    ")
    good = F.concat(ts_ms.cast("string"), F.lit(" "), one_line)
    bad = F.concat(F.lit(DEAD_LETTER_MARK), F.col("reason"), F.lit("\n"), F.coalesce(F.col("text"), F.lit("")))
    return parsed.withColumn("reason", reason).select(
        kind.alias("kind"),
        F.coalesce(group, F.lit("")).alias("group"),
        F.when(F.col("reason").isNull(), F.timestamp_millis(ts_ms)).alias("event_time"),
        F.when(F.col("reason").isNull(), good).otherwise(bad).alias("line"),
    )


def without_heartbeats(rows: DataFrame) -> DataFrame:
    """Remove the heartbeats from the result of :func:`parse_rows`.

    A heartbeat moves the watermark when it is read.  The filter uses ``event_time`` so that the optimizer keeps the
    filter after the watermark operator; ahead of that operator, the filter would remove the heartbeats before they move
    the watermark.
    """
    heartbeat = F.coalesce(F.col("kind"), F.lit("")) == "heartbeat"
    return rows.filter(~heartbeat | F.col("event_time").isNull()).select("group", "event_time", "line")


def process_stream(rows: DataFrame, delay: float, modules: tuple[str, ...] = (), shards: int = 64) -> DataFrame:
    """Convert a stream from :func:`parse_rows` to a stream of records (see ``output_records``).

    ``delay``: the number of seconds by which a row may arrive later than a row with a newer time.  ``shards``: the
    number of shards that hold the groups; it is fixed for the life of a checkpoint.
    """
    shard = F.pmod(F.xxhash64("group"), F.lit(shards)).cast("int")
    return (
        rows.withWatermark("event_time", f"{int(delay * 1000)} milliseconds")
        .transform(without_heartbeats)
        .withColumn("shard", shard)
        .groupBy("shard")
        .transformWithState(
            statefulProcessor=ShardProcessor(modules),
            outputStructType=OUTPUT,
            outputMode="Append",
            timeMode="EventTime",
        )
    )


def outcomes(records: DataFrame) -> DataFrame:
    """Return the outcomes among the records, with times as timestamps."""
    return records.filter(F.col("record") == OUTCOME).select("group", *outcome_columns())


def dead_letters(records: DataFrame) -> DataFrame:
    """Return the dead letters among the records: the rows that could not be processed."""
    return records.filter(F.col("record") == DEAD_LETTER).select("group", *dead_letter_columns())


def outcome_columns() -> list[Column]:
    """Return the columns of an outcome, from the columns of a record."""
    times = [_time("parked_ms", "parked_at"), _time("finished_ms", "finished_at"), _time("deadline_ms", "deadline")]
    return [F.col("op_id"), F.col("outcome"), *times, F.col("error")]


def dead_letter_columns() -> list[Column]:
    """Return the columns of a dead letter, from the columns of a record."""
    return [F.col("error").alias("reason"), F.col("text")]


def _time(name: str, alias: str) -> Column:
    return F.timestamp_millis(F.col(name)).alias(alias)
