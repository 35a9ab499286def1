"""Load a journal into a table that is partitioned by date: Parquet files, or Delta Lake.

The rows for a date replace the table's rows for that date.  A load can therefore be repeated after a failure,
or if a date was not over yet.  It does not matter whether the files of the journal were merged in the meantime.
Other dates in the table stay as they are.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from purgatory.journal import JournalError
from purgatory.journal.schema import COLUMNS

from .journal_reader import SPARK_SCHEMA, OpenJournal, first_reason, read_journal
from .locations import TABLE, TABLE_MARK, Location, is_uri, location_for_spark, location_to_read
from .output.directory import BadOutput, check_apart, reason_of
from .selection import EVERYTHING, Selection, utc_text
from .spark.directories import directory_at
from .spark.session import changed_settings, is_connect, is_temporary

__all__ = ["FORMATS", "Loaded", "check_catalog", "load_journal"]

FORMATS: Final = ("parquet", "delta")
_DAY_MS: Final = 86_400_000
_OWN_CATALOG: Final = "spark_catalog"  # the name of the catalog that every session has
# These classes replace that catalog, and keep tables of other formats in it.  Others have a catalog of their own.
_WITHIN_OWN: Final = (
    "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "org.apache.iceberg.spark.SparkSessionCatalog",
)
_FIRST_PART: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^.`\s]+))\s*\.")  # not if it is the only part


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a load.  ``first`` and ``last``: the earliest and the latest date, as YYYY-MM-DD.

    ``lateness_s`` and ``latest_s``: the mean and the highest lateness of the ``expired`` operations, in seconds.
    ``skipped``: for each skipped file, the reason.
    """

    rows: int
    first: str
    last: str
    expired: int
    lateness_s: float
    latest_s: float
    dropped: int
    skipped: tuple[str, ...]


def load_journal(
    spark: SparkSession,
    journal: str,
    out: Location,
    *,
    file_format: str = "parquet",
    selection: Selection = EVERYTHING,
    skip_corrupt: bool = False,
) -> Loaded:
    """Write the rows of a journal to the table ``out``, with a ``date`` column: the UTC date of ``parked_at``.

    ``out``: a directory or a URI, or ``table:NAME`` for a table in the catalog.  ``selection``: the time to load; it
    must consist of whole UTC days, because each date is replaced as a whole.  Raises ValueError for other times,
    JournalError as :func:`~purgatory.pipeline.report.compute` does, and BadOutput if there is no such format, if the
    table has another format, other columns, or other partitions than dates, if the directory has files but is not the
    table of an earlier load, or if ``out`` is the journal, contains it, or lies within it.
    """
    if file_format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {file_format!r}")
    check_whole_days(selection)
    check_apart(out, [journal], below=True)
    check_table(out, file_format, spark)
    in_catalog, on_server = str(out).startswith(TABLE), is_connect(spark)
    if in_catalog or (on_server and file_format == "parquet"):
        _check_existing(out, spark)

    def work(opened: OpenJournal) -> Row:
        rows = _with_date(opened.dataframe, selection)
        # Only operations that expired at their deadline have a lateness.
        counted = rows.agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("date").cast("string").alias("first"),
            F.max("date").cast("string").alias("last"),
            F.count("lateness").alias("expired"),
            F.coalesce(F.avg("lateness"), F.lit(0.0)).alias("lateness_s"),
            F.coalesce(F.max("lateness"), F.lit(0.0)).alias("latest_s"),
            F.coalesce(F.sum("dropped"), F.lit(0)).alias("dropped"),
        ).collect()[0]
        if counted.rows:
            try:
                if file_format == "parquet" and not (in_catalog or on_server):
                    _add_mark(out, spark)
                _replace_dates(rows.hint("rebalance", "date"), str(out), file_format)
            except (PySparkException, Py4JJavaError) as error:  # over Spark Connect, every error is a PySparkException
                # An AnalysisException is about the table, because the rows have already been read.
                if isinstance(error, AnalysisException) or "DATA_SOURCE_NOT_FOUND" in str(error):
                    raise BadOutput(f"out cannot be written as {file_format}, {out}: {first_reason(error)}") from error
                raise
        return counted

    counted, opened = read_journal(spark, journal, work, skip_corrupt=skip_corrupt)
    if not counted.rows:
        raise JournalError(selection.nothing_in(journal))
    return Loaded(**counted.asDict(), skipped=opened.skipped)


def check_table(out: Location, file_format: str, spark: SparkSession | None = None) -> None:
    """Raise BadOutput if the directory has anything but such a table: the table would be unreadable after the load.

    ``spark``: the session for a URI; without a session, a URI is not checked.  With Spark Connect, nothing is checked,
    because the directory is on the server.
    """
    if str(out).startswith(TABLE) or (is_uri(out) if spark is None else is_connect(spark)):
        return
    try:
        names = directory_at(out, spark).names()
    except OSError as error:
        raise BadOutput(f"out must be a directory that can be read, got {out}: {reason_of(error)}") from error
    visible = [name for name in names if not name.startswith((".", "_"))]
    is_delta = "_delta_log" in names
    if file_format == "delta":
        if visible and not is_delta:
            raise BadOutput(
                f"out must be a table of Delta Lake or a new directory, got {out}, which has {visible[0]} and no"
                " _delta_log"
            )
    elif is_delta:
        raise BadOutput(f"out must be a table of Parquet files, got {out}, which is a table of Delta Lake")
    elif visible and TABLE_MARK not in names:
        raise BadOutput(
            f"out must be a new directory or the table of an earlier load, got {out}, which has {visible[0]} and no"
            f" file {TABLE_MARK}; if a load through Spark Connect or with an earlier version has written this table,"
            f" create an empty file {TABLE_MARK} in it"
        )


def check_catalog(out: Location, setting: Callable[[str], str | None]) -> None:
    """Raise BadOutput if ``out`` is a table of a catalog that ends with the session, and the table with it.

    ``setting``: returns the value of a setting of the session, or None.
    """
    name = str(out).removeprefix(TABLE)
    if not str(out).startswith(TABLE) or "/" in name:  # delta.`/lake/journal` is a directory
        return
    match = _FIRST_PART.match(name)
    first = "" if match is None else match[1] or match[2]
    if first.lower() != _OWN_CATALOG and setting(f"spark.sql.catalog.{first}") is None:
        first = setting("spark.sql.defaultCatalog") or _OWN_CATALOG
    if first.lower() != _OWN_CATALOG or setting(f"spark.sql.catalog.{_OWN_CATALOG}") not in (None, *_WITHIN_OWN):
        return
    if setting("spark.sql.catalogImplementation") != "hive":
        reason = "in the memory of this command's own session"
    elif is_temporary(setting("spark.sql.warehouse.dir") or ""):
        reason = "with its files in a temporary directory, unless spark.sql.warehouse.dir is set"
    else:
        return
    raise BadOutput(
        f"out must be a table that outlives the command, got {out}, which would be {reason}: use a directory, or --conf"
        " spark.sql.catalog.NAME=... and a name that begins with NAME (not spark_catalog), or --conf"
        " spark.sql.catalogImplementation=hive for a catalog that lasts"
    )


def _check_existing(out: Location, spark: SparkSession) -> None:
    """Raise BadOutput if the catalog, or the directory on the server of Spark Connect, has a table with other columns
    or other partitions.

    If the table had no partitions, Spark would replace the whole table, without an error.  A directory that can be
    listed has a mark instead, and Delta Lake itself refuses other columns and, for a directory, other partitions.
    """
    try:
        found = _existing(out, spark)
        columns = set() if found is None else set(found.columns)  # Spark Connect does not look at the path before this
    except (PySparkException, Py4JJavaError) as error:
        if "PATH_NOT_FOUND" in str(error) or "UNABLE_TO_INFER_SCHEMA" in str(error):
            return
        raise BadOutput(f"out must be a table that Spark can read, got {out}: {first_reason(error)}") from error
    if found is None:
        return
    needed = {"date", *(column.name for column in COLUMNS if not column.added)}
    unknown, missing = columns - {"date", *SPARK_SCHEMA.names}, needed - columns
    if unknown or missing:
        difference = f"with the column {min(unknown)}" if unknown else f"without the column {min(missing)}"
        raise BadOutput(f"out must be a table that load has written, got {out}, {difference}")
    must = f"out must be a table partitioned by date and by nothing else, got {out}"
    try:
        partitions = _partitions(out, found)
    except (PySparkException, Py4JJavaError) as error:  # for example, Iceberg's days(parked_at)
        raise BadOutput(f"{must}: {first_reason(error)}") from error
    if partitions != ["date"]:
        raise BadOutput(f"{must}, " + (f"partitioned by {', '.join(partitions)}" if partitions else "not partitioned"))


def _existing(out: Location, spark: SparkSession) -> DataFrame | None:
    if not str(out).startswith(TABLE):
        return spark.read.option("mergeSchema", "true").parquet(location_to_read(out))
    name = str(out).removeprefix(TABLE)
    return spark.table(name) if spark.catalog.tableExists(name) else None


def _partitions(out: Location, found: DataFrame) -> list[str]:
    """Return the columns by which a table is partitioned; a bucket is a part of a partition."""
    if str(out).startswith(TABLE):
        columns = found.sparkSession.catalog.listColumns(str(out).removeprefix(TABLE))
        buckets = [f"buckets of {column.name}" for column in columns if column.isBucket]
        return [column.name for column in columns if column.isPartition] + buckets
    of_files = {_folders_of(file, found.columns) for file in found.inputFiles()}
    return list(next((names for names in sorted(of_files) if names != ("date",)), ("date",)))


def _folders_of(file: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns in the names of the folders directly above a file, as in ``date=2026-11-22/kind=fetch``."""
    names = [folder.partition("=") for folder in file.split("/")[:-1]]
    own = takewhile(lambda name: name[1] and name[0] in columns, reversed(names))
    return tuple(name[0] for name in own)[::-1]


def _add_mark(out: Location, spark: SparkSession) -> None:
    """Mark the directory of a table of Parquet files.  The mark comes first, so that a failed load can be repeated."""
    directory = directory_at(out, spark)
    if TABLE_MARK not in directory.names():
        directory.write_text(TABLE_MARK, "A table that purgatory load has written.\n")


def check_whole_days(selection: Selection) -> None:
    """Raise ValueError unless the selection consists of whole UTC days and includes all purgatories and kinds."""
    for name, ms in (("since", selection.since_ms), ("until", selection.until_ms)):
        if ms is not None and ms % _DAY_MS:
            raise ValueError(
                f"{name} must be a date, because each date of the table is replaced as a whole, got {utc_text(ms)}"
            )
    for column, names in selection.names:
        raise ValueError(f"a load must include all operations of a date, got {column} {names[0]!r}")


def _with_date(rows: DataFrame, selection: Selection) -> DataFrame:
    parked_ms = F.unix_millis("parked_at")
    if selection.since_ms is not None:
        rows = rows.where(F.col("parked_at") >= F.timestamp_millis(F.lit(selection.since_ms)))
    if selection.until_ms is not None:
        rows = rows.where(F.col("parked_at") < F.timestamp_millis(F.lit(selection.until_ms)))
    # to_date() would use the time zone of the session.
    return rows.withColumn("date", F.date_from_unix_date(F.floor(parked_ms / _DAY_MS).cast("int")))


def _replace_dates(rows: DataFrame, out: str, file_format: str) -> None:
    if out.startswith(TABLE):
        name = out.removeprefix(TABLE)
        writer = rows.writeTo(name)
        if not rows.sparkSession.catalog.tableExists(name):
            writer.using(file_format).partitionedBy(F.col("date")).create()
            return
        try:
            writer.overwritePartitions()
        except AnalysisException as error:
            if "v1 table" not in str(error):
                raise
            _insert(rows, name)
        return
    files = rows.write.format(file_format).mode("overwrite").option("partitionOverwriteMode", "dynamic")
    files.partitionBy("date").save(location_for_spark(out))


def _insert(rows: DataFrame, name: str) -> None:
    """Replace dates of a table of Spark's own catalog, which ``overwritePartitions`` does not support.

    Only a setting of the session keeps the other dates; ``insertInto`` ignores the option for a single write.
    """
    spark = rows.sparkSession
    found = spark.table(name).columns
    missing = [column for column in rows.columns if column not in found]  # too many columns are an error
    with changed_settings(spark, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        rows.select(*missing, *found).write.mode("overwrite").insertInto(name)
