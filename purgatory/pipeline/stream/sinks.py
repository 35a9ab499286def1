"""The targets for records: a directory of Parquet files, with one part per batch, or Kafka topics."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.pipeline.locations import Location, location_for_spark, location_to_read

from .dataframes import dead_letter_columns, outcome_columns
from .output_records import DEAD_LETTER, OUTCOME, OUTPUT, PARKED

__all__ = ["BatchCounts", "DirectorySink", "KafkaSink", "Sink", "read_records"]


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The counts of one batch: outcomes, dead letters, and the change in the number of waiting operations."""

    outcomes: int
    dead_letters: int
    live: int


class Sink(Protocol):
    """Writes the records of a batch.  Where the target allows it, writing a batch again must not duplicate records."""

    def write(self, records: DataFrame, batch_id: int) -> BatchCounts:
        """Write the records of a batch, and return their counts."""


def _count_columns() -> list[Column]:
    ended, dead_letters = F.count_if(F.col("record") == OUTCOME), F.count_if(F.col("record") == DEAD_LETTER)
    return [ended.alias("ended"), dead_letters.alias("dead_letters"), F.sum("parked").alias("parked")]


def _batch_counts(counted: Mapping[str, Any]) -> BatchCounts:
    return BatchCounts(counted["ended"], counted["dead_letters"], (counted["parked"] or 0) - counted["ended"])


class DirectorySink:
    """``DIR/batch=N/record=outcome/*.parquet`` and ``.../record=dead/*.parquet``.

    A batch that is repeated after a crash replaces its directory, so every reader finds each record once.
    """

    def __init__(self, directory: Location) -> None:
        self.directory = directory

    def write(self, records: DataFrame, batch_id: int) -> BatchCounts:
        path = f"{location_for_spark(self.directory).rstrip('/')}/batch={batch_id:09}"
        observation = Observation()
        counted = records.observe(observation, *_count_columns())
        kept = counted.filter(F.col("record") != PARKED).drop("parked")
        kept.write.partitionBy("record").mode("overwrite").parquet(path)
        return _batch_counts(observation.get)

    def __repr__(self) -> str:
        return str(self.directory)


class KafkaSink:
    """Kafka topics.  The key of a message is the group, and its value is a JSON object.  The sink delivers each record
    at least once.

    ``options`` are passed to Spark's Kafka sink, except ``topic`` for outcomes and ``dead_topic`` for dead letters (by
    default, ``topic`` with the suffix ``.dead``).

    The records are stored, counted, and then written: Spark's Kafka sink reports no observed metrics, and an
    observation would wait for them forever.  Nothing is written until all records of the batch have been computed.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        if not options.get("topic") or not options.get("kafka.bootstrap.servers"):
            raise ValueError("the kafka sink needs --sink-option kafka.bootstrap.servers=... and topic=...")
        self.options: dict[str, str] = dict(options)
        self.topic: str = self.options.pop("topic")
        self.dead_topic: str = self.options.pop("dead_topic", f"{self.topic}.dead")

    def write(self, records: DataFrame, batch_id: int) -> BatchCounts:
        kept = records.persist()
        try:
            (counted,) = kept.agg(*_count_columns()).collect()
            self.messages(kept).write.format("kafka").options(**self.options).save()
        finally:
            kept.unpersist()
        return _batch_counts(counted.asDict())

    def messages(self, records: DataFrame) -> DataFrame:
        """Return ``topic``, ``key``, and ``value`` of each message, in one pass over the records."""
        is_outcome = F.col("record") == OUTCOME
        outcome = F.to_json(F.struct("group", *outcome_columns()))
        dead_letter = F.to_json(F.struct("group", *dead_letter_columns()))
        return records.filter(F.col("record") != PARKED).select(
            F.when(is_outcome, F.lit(self.topic)).otherwise(F.lit(self.dead_topic)).alias("topic"),
            F.col("group").alias("key"),
            F.when(is_outcome, outcome).otherwise(dead_letter).alias("value"),
        )

    def __repr__(self) -> str:
        return f"kafka {json.dumps([self.topic, self.dead_topic])}"


def read_records(spark: SparkSession, directory: Location) -> DataFrame:
    """Read the records that a :class:`DirectorySink` has written, as input for ``outcomes`` and ``dead_letters``."""
    schema = ", ".join(column for column in OUTPUT.split(", ") if not column.startswith("parked "))
    return spark.read.schema(f"{schema}, batch LONG").parquet(location_to_read(directory))
