"""The targets for records: a directory of Parquet files, with one part per batch, or Kafka topics."""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.pipeline.locations import Location, location_for_spark, location_to_read
from purgatory.pipeline.output.directory import BadOutput
from purgatory.pipeline.spark.directories import Directory, StoreError, directory_at
from purgatory.pipeline.spark.session import is_connect

from .dataframes import dead_letter_columns, outcome_columns
from .output_records import DEAD_LETTER, OUTCOME, OUTPUT, PARKED

__all__ = ["BatchCounts", "DirectorySink", "KafkaSink", "Sink", "read_records"]

_UNFINISHED: Final = ".unfinished"  # in the directory; its name hides it from Spark and pyarrow


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

    A new batch appears in one step, except in an object store, where its files appear one after another and
    ``_SUCCESS`` is the last.  A batch that is repeated after a crash replaces its files, so every reader finds each
    record once.

    **Two jobs may write the same batch** if a job is started again while the earlier one still runs: Spark stops one of
    them only when the batch ends.  Each job therefore writes to a folder of its own, ``DIR/.unfinished/N-*``, and then
    gives its files names that are the same in both jobs.  Both jobs read the same rows, continue from the same state,
    and have the same partitions, so a file that replaces another one has the same records.

    ``checkpoint``: the checkpoint of the stream; None if there is only one batch, which must not exist yet.
    """

    def __init__(self, directory: Location, checkpoint: Location | None = None) -> None:
        self.directory = directory
        self.checkpoint = checkpoint

    def write(self, records: DataFrame, batch_id: int) -> BatchCounts:
        spark = records.sparkSession
        if is_connect(spark):  # which has no file system
            return self._write(records, f"batch={batch_id:09}")
        unfinished, complete = f"{_UNFINISHED}/{batch_id:09}-{uuid.uuid4().hex}", f"batch={batch_id:09}"
        directory = directory_at(self.directory, spark)
        try:
            counts = self._write(records, unfinished)
            files = _new_names(directory, unfinished)  # before the check: see _clean_up
            self._check(spark, batch_id)
            _publish(directory, files, unfinished, complete)
        finally:
            with suppress(OSError, StoreError):
                directory.remove(unfinished)
        if not files and (counts.outcomes or counts.dead_letters):
            raise BadOutput(f"out must be a URI or a directory that Spark shares with this machine, got {self}")
        self._clean_up(directory, batch_id)
        return counts

    def _write(self, records: DataFrame, folder: str) -> BatchCounts:
        observation = Observation()
        counted = records.observe(observation, *_count_columns())
        kept = counted.filter(F.col("record") != PARKED).drop("parked")
        path = f"{location_for_spark(self.directory).rstrip('/')}/{folder}"
        kept.write.partitionBy("record").mode("overwrite").parquet(path)
        return _batch_counts(observation.get)

    def _check(self, spark: SparkSession, batch_id: int) -> None:
        """Raise BadOutput if another job has finished this batch in the meantime."""
        if self.checkpoint is None:
            names = [name.removeprefix("batch=") for name in directory_at(self.directory, spark).names()]
        else:
            names = directory_at(self.checkpoint, spark).names("commits")
        if any(name.isdecimal() and int(name) >= batch_id for name in names):
            raise BadOutput(f"{self} already has the batch {batch_id} of another job, which runs at the same time")

    def _clean_up(self, directory: Directory, batch_id: int) -> None:
        """Remove what killed jobs have left of earlier batches, which are committed.

        If such a job still runs, the check stops it.
        """
        for name in directory.names(_UNFINISHED):
            number = name.partition("-")[0]
            if number.isdecimal() and int(number) < batch_id:
                directory.remove(f"{_UNFINISHED}/{name}")

    def __repr__(self) -> str:
        return str(self.directory)


def _new_names(directory: Directory, batch: str) -> dict[str, str]:
    """Return the files of an unfinished batch, with their final names, which are in the order of the partitions."""
    found: dict[str, str] = {}
    for folder in _folders(directory, batch):
        names = sorted(name for name in directory.names(f"{batch}/{folder}") if not name.startswith("."))
        found |= {f"{folder}/{name}": f"{folder}/part-{number:05}.parquet" for number, name in enumerate(names)}
    return found


def _publish(directory: Directory, files: Mapping[str, str], unfinished: str, complete: str) -> None:
    """Move the files of a batch to their place: in one step if the batch is new and if the store has such a step."""
    if directory.renames_folders and not directory.names(complete):
        ready = f"{unfinished}/ready"
        _move_files(directory, files, unfinished, ready)
        if not directory.names(ready) or directory.rename_folder(ready, complete):
            return
        files, unfinished = {final: final for final in files.values()}, ready  # another job was faster
    _move_files(directory, files, unfinished, complete)


def _move_files(directory: Directory, files: Mapping[str, str], unfinished: str, complete: str) -> None:
    """Move the files of a batch, and remove files that a batch with the same number has left."""
    for name, final in files.items():
        directory.replace(f"{unfinished}/{name}", f"{complete}/{final}")
    kept = set(files.values())
    for folder in _folders(directory, complete):
        for name in directory.names(f"{complete}/{folder}"):
            if f"{folder}/{name}" not in kept:
                directory.remove(f"{complete}/{folder}/{name}")
    if "_SUCCESS" in directory.names(unfinished):
        directory.replace(f"{unfinished}/_SUCCESS", f"{complete}/_SUCCESS")


def _folders(directory: Directory, batch: str) -> list[str]:
    return [name for name in directory.names(batch) if name.startswith("record=")]


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
