"""The streaming job: a source, the groups, a sink, and a line of progress per batch."""

import importlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery

from purgatory.errors import PurgatoryError
from purgatory.pipeline.locations import Location, local_path, location_for_spark, location_to_read
from purgatory.pipeline.output.directory import BadOutput, check_apart
from purgatory.pipeline.spark.directories import directory_at
from purgatory.pipeline.spark.reason import reason_of
from purgatory.pipeline.spark.session import is_connect, silence_state_server
from purgatory.pipeline.spark.workers import ship_package

from .dataframes import ROW_COLUMNS, parse_rows, process_stream, rows_to_json
from .processor import STATE_NAME
from .row_files import check_row_files, reading_error, value_is_whole, value_is_whole_in_store
from .sinks import BatchCounts, DirectorySink, KafkaSink, Sink

__all__ = [
    "BatchProgress",
    "LateRows",
    "Settings",
    "StreamFailed",
    "check_checkpoint",
    "check_output",
    "check_stream_files",
    "load_conditions",
    "make_sink",
    "number_of_shards",
    "read_batch",
    "read_stream",
    "run",
]

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ENCODED = re.compile(r"""[\s%"<>\\^`|#?{}\[\]]""")  # in a URI
_SHARDS_A_PARTITION = 16  # enough for the sizes of the partitions to even out
_SHARDS_FILE = "shards"  # in the checkpoint
_OUT_FILE = "out"  # in the checkpoint: where the job's outcomes go
# By default, Spark silently ignores a file that is a week older than the newest one, to forget the names of such files.
_ANY_AGE = f"{2**63 - 1}ms"
_POLL_S = 0.2  # seconds between two checks for finished batches; only the progress line is delayed


class StreamFailed(PurgatoryError):
    """The stream stopped because of an error.  The batch in which it occurred is not committed."""


class LateRows(PurgatoryError):
    """Rows arrived later than the delay allows and were dropped, and ``fail_on_late`` is set."""


@dataclass(frozen=True)
class Settings:
    """The settings of a job.

    ``source``, ``out``: a directory or its URI, or ``kafka``.  ``checkpoint``: a directory or its URI.
    ``file_format``: the format of the files in the source, ``parquet`` or ``json`` (one object per line).  ``delay``,
    ``max_ahead``: seconds; see :func:`process_stream` and :func:`parse_rows`.  ``trigger``: seconds between two
    batches; None: process the rows that are in the source now, and stop.  ``modules``: see :class:`ShardProcessor`.
    ``shards``: the number of shards; None: the number in the checkpoint or, for a new checkpoint, sixteen for each of
    Spark's shuffle partitions.
    """

    source: str
    out: str
    checkpoint: Location
    file_format: str = "parquet"
    delay: float = 10.0
    max_ahead: float | None = 86_400.0
    trigger: float | None = None
    files_per_batch: int | None = None
    fail_on_late: bool = False
    modules: tuple[str, ...] = ()
    shards: int | None = None
    source_options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a batch.  ``lag``: the number of seconds from the watermark to the newest row of the batch."""

    batch_id: int
    rows: int
    outcomes: int
    dead_letters: int
    live: int
    lag: float | None
    dropped: int
    seconds: float

    def __str__(self) -> str:
        lag = "   -  " if self.lag is None else f"{self.lag:6.1f}"
        return (
            f"batch {self.batch_id:>6}  rows {self.rows:>9,}  outcomes {self.outcomes:>9,}"
            f"  dead {self.dead_letters:>6,}  live {self.live:>9,}"
            f"  lag {lag} s  dropped {self.dropped:>6,}  {self.seconds:6.1f} s"
        )


def read_stream(spark: SparkSession, settings: Settings) -> DataFrame:
    """Read the source as a stream of JSON strings, in a column ``value``."""
    reader = spark.readStream.option("maxFileAge", _ANY_AGE).options(**settings.source_options)
    if settings.source == "kafka":
        return reader.format("kafka").load().select(F.col("value").cast("string"))
    if settings.files_per_batch is not None:
        reader = reader.option("maxFilesPerTrigger", settings.files_per_batch)
    if settings.file_format == "json":
        return reader.text(location_to_read(settings.source))
    directory, location = local_path(settings.source), location_to_read(settings.source)
    if directory is None:
        whole = value_is_whole_in_store(spark, location)
    else:
        whole = value_is_whole(directory, new=not _has_begun(settings, spark))
    return rows_to_json(reader.schema(_schema(whole=whole)).parquet(location))


def read_batch(spark: SparkSession, source: str, form: str = "parquet") -> DataFrame:
    """Read a directory as a batch of JSON strings, in a column ``value``.

    Raises BadRowFile if a file on this machine has a column that cannot be read.
    """
    location = location_to_read(source)
    if form == "json":
        return spark.read.text(location)
    directory = None if is_connect(spark) else local_path(source)
    if directory is None:
        schema = _schema(whole=value_is_whole_in_store(spark, location))
        return rows_to_json(spark.read.schema(schema).parquet(location))
    files = check_row_files(directory)
    if not (files.whole and files.real):
        return rows_to_json(spark.read.schema(_schema(whole=bool(files.whole))).parquet(location))
    whole = spark.read.schema(_schema(whole=True)).parquet(*map(location_to_read, files.whole))
    rest = spark.read.schema(_schema(whole=False)).parquet(*map(location_to_read, (*files.real, *files.either)))
    return rows_to_json(whole).unionAll(rows_to_json(rest))


def check_stream_files(settings: Settings) -> None:
    """Raise BadRowFile if a new stream cannot read its files.  Only local files are checked, without a session."""
    directory = local_path(settings.source)
    if settings.source == "kafka" or settings.file_format == "json" or directory is None:
        return
    if local_path(settings.checkpoint) is not None:
        value_is_whole(directory, new=not _has_begun(settings))


def _schema(*, whole: bool) -> str:
    return ROW_COLUMNS.replace("value DOUBLE", "value LONG") if whole else ROW_COLUMNS


def _has_begun(settings: Settings, spark: SparkSession | None = None) -> bool:
    return "offsets" in directory_at(settings.checkpoint, spark).names()


def make_sink(settings: Settings, spark: SparkSession | None = None) -> Sink:
    """Create the sink for the settings.  Raises ValueError if its directory belongs to another run, or if its options
    are wrong.

    ``spark``: the session for URIs.
    """
    if settings.out == "kafka":
        return KafkaSink(settings.sink_options)
    if settings.sink_options:
        raise ValueError(f"--sink-option is for the kafka sink: out must be kafka, got {settings.out}")
    out, checkpoint = directory_at(settings.out, spark), directory_at(settings.checkpoint, spark)
    if any(name.startswith("batch=") for name in out.names()) and "offsets" not in checkpoint.names():
        raise ValueError(
            f"{out} holds the batches of another run, and {checkpoint} is not its checkpoint:"
            " pass that checkpoint to continue, or an empty directory to start anew"
        )
    return DirectorySink(settings.out, settings.checkpoint)


def check_checkpoint(checkpoint: Location) -> None:
    """Raise ValueError if the path has characters that Spark would encode.

    A job that continues from the checkpoint could not read its state.
    """
    found = _ENCODED.search(str(checkpoint) if (path := local_path(checkpoint)) is None else str(path))
    if found is not None:
        raise ValueError(f"checkpoint must be a path without {found[0]!r}, which Spark would encode, got {checkpoint}")


def check_places(settings: Settings) -> None:
    """Raise BadOutput if the output, the checkpoint, or the source lies within another one of these.

    Spark would not find the partitions of the output if its directory also contained other folders.
    """
    places = {"out": settings.out, "checkpoint": settings.checkpoint, "source": settings.source}
    directories = {name: place for name, place in places.items() if place != "kafka"}
    for name, others in (("out", ("source", "checkpoint")), ("checkpoint", ("source",))):
        if name in directories:
            check_apart(directories[name], [directories[o] for o in others if o in directories], name, below=True)


def check_output(settings: Settings, spark: SparkSession | None = None) -> None:
    """Raise ValueError if the checkpoint and the output belong to different jobs: one would replace the other's
    batches.

    A checkpoint from an earlier release does not contain the location of its output; in that case, the checkpoint's
    batches must be the ones in the output.  ``spark``: the session for URIs.
    """
    checkpoint = directory_at(settings.checkpoint, spark)
    begun = checkpoint.names("offsets")
    if not begun:
        return
    stored, wanted = checkpoint.read_text(_OUT_FILE), _location_of_output(settings)
    if stored is not None and stored.strip() != wanted:
        raise ValueError(
            f"out must be {stored.strip()}, as when the checkpoint {checkpoint} was started, got {wanted}: pass the"
            f" checkpoint of this output; if the output was moved, write its location into {checkpoint}/{_OUT_FILE}"
        )
    if stored is None and settings.out != "kafka":
        known = max((int(name) for name in begun if name.isdecimal()), default=-1)
        batches = (name.removeprefix("batch=") for name in directory_at(settings.out, spark).names())
        there = max((int(name) for name in batches if name.isdecimal()), default=-1)
        if there > known:
            raise ValueError(
                f"{settings.out} holds a batch {there}, and {checkpoint} is not its checkpoint: it has begun {known}"
            )


def _location_of_output(settings: Settings) -> str:
    if settings.out == "kafka":
        return f"kafka {settings.sink_options.get('topic', '')}".strip()
    path = local_path(settings.out)
    return settings.out.rstrip("/") if path is None else str(path.resolve())


def number_of_shards(settings: Settings, spark: SparkSession | None = None) -> int | None:
    """Return the number of shards in the checkpoint or, for a new one, in the settings; None if neither specifies it.

    ``spark``: the session for a URI.
    Raises ValueError if the two numbers differ: with another number, a group would be in a shard other than the one
    that has its state.
    """
    checkpoint, requested = directory_at(settings.checkpoint, spark), settings.shards
    if requested is not None and requested < 1:
        raise ValueError(f"shards must be at least 1, got {requested}")
    if "offsets" not in checkpoint.names():
        return requested
    stored = checkpoint.read_text(_SHARDS_FILE)
    if stored is None:
        raise ValueError(
            f"checkpoint must be one that was started with shards, got {checkpoint}: use an empty directory"
        )
    if not stored.strip().isdecimal():
        raise ValueError(f"checkpoint must be complete, got {checkpoint}, whose file {_SHARDS_FILE} has no number")
    started_with = int(stored)
    if requested not in (None, started_with):
        raise ValueError(
            f"shards must be {started_with}, as when the checkpoint {checkpoint} was started, got {requested}"
        )
    return started_with


def load_conditions(modules: Iterable[str]) -> None:
    """Import the modules that register conditions.  Raises ValueError if an import fails, before any worker starts."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            reason = str(error).partition("\n")[0]
            if not isinstance(error, ImportError):
                reason = f"{type(error).__name__}: {reason}"
            raise ValueError(f"the module {module!r} with conditions cannot be imported: {reason}") from error


def run(spark: SparkSession, settings: Settings, report: Callable[[BatchProgress], None]) -> int:
    """Run the job until its source is exhausted or, with a trigger, until it is stopped.

    Return the number of dropped rows.  Raises :class:`LateRows` if rows were dropped and ``fail_on_late`` is set, and
    :class:`StreamFailed` if the query fails.
    """
    if is_connect(spark):
        raise StreamFailed("the stream cannot run in a session of Spark Connect: submit it to the cluster instead")
    check_checkpoint(settings.checkpoint)
    check_places(settings)
    load_conditions(settings.modules)
    sink = make_sink(settings, spark)
    check_output(settings, spark)
    shards = number_of_shards(settings, spark) or _SHARDS_A_PARTITION * int(
        str(spark.conf.get("spark.sql.shuffle.partitions"))
    )
    checkpoint = directory_at(settings.checkpoint, spark)
    for name, value in ((_SHARDS_FILE, shards), (_OUT_FILE, _location_of_output(settings))):
        if checkpoint.read_text(name) != f"{value}\n":  # a store may truncate a file before it writes it again
            checkpoint.write_text(name, f"{value}\n")
    ship_package(spark)
    silence_state_server(spark)
    if "RocksDB" not in str(spark.conf.get(_PROVIDER)):
        spark = spark.newSession()  # the caller's settings stay as they are
        spark.conf.set(_PROVIDER, _ROCKSDB)
    return _QueryRun(spark, replace(settings, shards=shards), sink, report).run()


class _QueryRun:
    """One run of the query."""

    def __init__(
        self, spark: SparkSession, settings: Settings, sink: Sink, report: Callable[[BatchProgress], None]
    ) -> None:
        self.spark = spark
        self.settings = settings
        self.sink = sink
        self.report = report
        self.counts: dict[int, BatchCounts] = {}
        self.reported = -1
        self.dropped = 0
        self.query: StreamingQuery | None = None
        self.failure: str | None = None  # of a batch
        self.live = _live_at_start(spark, settings.checkpoint)

    def run(self) -> int:
        settings = self.settings
        try:
            rows = parse_rows(read_stream(self.spark, settings), settings.max_ahead)
        except (AnalysisException, IllegalArgumentException) as error:  # the latter for options of Kafka
            raise StreamFailed(f"the source cannot be read: {reason_of(error)}") from error
        assert settings.shards is not None
        writer = (
            process_stream(rows, settings.delay, settings.modules, settings.shards)
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", location_for_spark(settings.checkpoint))
        )
        if settings.trigger is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(settings.trigger * 1000)} milliseconds")
        with _reading(settings.checkpoint):
            query = self.query = writer.start()
        try:
            while query.isActive:
                time.sleep(_POLL_S)
                self._report_progress()
            query.awaitTermination()
            self._report_progress()
        except StreamingQueryException as error:
            self._report_progress()
            raise StreamFailed(reading_error(error) or self.failure or reason_of(error)) from error
        finally:
            query.stop()
        return self.dropped

    def _write(self, records: DataFrame, batch_id: int) -> None:
        if self.settings.fail_on_late and self.query is not None:
            # The progress of a batch is known only after it ends, so check it before the next batch is written.
            late = sum(_dropped(progress) for progress in self.query.recentProgress if progress["batchId"] < batch_id)
            if late:
                raise LateRows(f"{late} rows were too late")
        try:
            self.counts[batch_id] = self.sink.write(records, batch_id)
        except BadOutput as error:
            self.failure = str(error)
            raise
        except Exception as error:  # Spark would show its traceback, line by line
            self.failure = f"batch {batch_id} failed: {reason_of(error)}"
            raise

    def _report_progress(self) -> None:
        """Report the progress of each new batch; raise at the first dropped row if ``fail_on_late`` is set."""
        assert self.query is not None
        for progress in self.query.recentProgress:
            batch_id = int(progress["batchId"])
            if batch_id > self.reported and batch_id in self.counts:
                self.reported = batch_id
                self.report(self._progress(json.loads(progress.json), self.counts.pop(batch_id)))
        if self.dropped and self.settings.fail_on_late:
            self.query.stop()
            raise LateRows(
                f"{self.dropped} rows came more than {self.settings.delay:g} s late and were dropped:"
                " a greater delay would have waited for them"
            )

    def _progress(self, progress: dict[str, Any], counts: BatchCounts) -> BatchProgress:
        dropped = _dropped(progress)
        self.dropped += dropped
        self.live += counts.live
        return BatchProgress(
            int(progress["batchId"]),
            int(progress["numInputRows"]),
            counts.outcomes,
            counts.dead_letters,
            self.live,
            _lag(progress.get("eventTime", {})),
            dropped,
            int(progress["durationMs"].get("triggerExecution", 0)) / 1000,
        )


def _live_at_start(spark: SparkSession, checkpoint: Location) -> int:
    """Return the number of operations that wait in the checkpoint from which the run continues."""
    if not any(name.isdecimal() for name in directory_at(checkpoint, spark).names("commits")):
        return 0
    with _reading(checkpoint):
        state = spark.read.format("statestore").option("stateVarName", STATE_NAME).load(location_for_spark(checkpoint))
        row = state.agg(F.sum("value.live")).first()
    return 0 if row is None or row[0] is None else int(row[0])


@contextmanager
def _reading(checkpoint: Location) -> Iterator[None]:
    """Raise StreamFailed instead of Spark's error, which has many lines."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise StreamFailed(f"the stream cannot start from the checkpoint {checkpoint}: {reason_of(error)}") from error


def _dropped(progress: Mapping[str, Any]) -> int:
    return sum(int(operator["numRowsDroppedByWatermark"]) for operator in progress["stateOperators"])


def _lag(times: Mapping[str, str]) -> float | None:
    if "max" not in times or "watermark" not in times:
        return None
    newest, watermark = (datetime.fromisoformat(times[name]) for name in ("max", "watermark"))
    return None if watermark.timestamp() == 0 else (newest - watermark).total_seconds()
