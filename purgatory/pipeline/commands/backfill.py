"""The ``backfill`` command."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from purgatory.pipeline.locations import is_uri, local_path, location_to_read
from purgatory.pipeline.output.directory import check_apart, check_out, check_store
from purgatory.pipeline.stream.input_rows import LAST_MS

from .options import add_row_options, check_source, check_source_of, local_settings, remote_url, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory.pipeline.spark.directories import Directory

__all__ = ["add_backfill"]

_ONLY_BATCH: Final = "batch=000000000"


def add_backfill(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "backfill",
        help="process the same rows in one batch",
        description="Process a directory of rows in one batch, up to the time of its last row.",
        epilog="example: purgatory backfill --source rows --out out",
    )
    parser.add_argument("--source", required=True, metavar="DIR", help="a directory or URI of row files")
    parser.add_argument("--out", required=True, metavar="DIR", help="a directory or URI, for outcomes and dead letters")
    parser.add_argument(
        "--until-ms", type=int, metavar="MS", help="process up to this time (default: the time of the last row)"
    )
    parser.add_argument("--pending", action="store_true", help="also write a record for each pending operation")
    add_row_options(parser, connect=True)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _console: object) -> int:
    master, conf = spark_settings(options)
    remote = remote_url(options)
    if options.until_ms is not None and not 0 <= options.until_ms <= LAST_MS:
        raise ValueError(
            f"until-ms must be a time in milliseconds since 1970, before the year 10000, got {options.until_ms}"
        )
    if remote is None:  # paths on a server cannot be checked here
        check_source(options.source)
        check_out(options.out)
    check_apart(options.out, [options.source], below=True)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from purgatory.pipeline.spark import session
    from purgatory.pipeline.spark.directories import directory_at
    from purgatory.pipeline.spark.workers import ship_package
    from purgatory.pipeline.stream.batch import process_batch
    from purgatory.pipeline.stream.dataframes import parse_rows
    from purgatory.pipeline.stream.job import load_conditions, read_batch
    from purgatory.pipeline.stream.row_files import BadRowFile, check_row_files, reading_error
    from purgatory.pipeline.stream.sinks import DirectorySink

    if remote is None and not is_uri(options.out):
        _check_empty(directory_at(options.out))
    directory = local_path(options.source)
    if remote is None and options.format == "parquet" and directory is not None:
        check_row_files(directory)
    load_conditions(options.conditions)
    own = {} if remote else local_settings(options.source, master or conf.get("spark.master"))
    with session.spark_session(master, own | conf, remote) as spark:
        if session.is_connect(spark):
            _check_on_server(spark, options.source, options.out)
        else:
            check_source_of(spark, options.source)
            check_store(spark, options.out)
            _check_empty(directory_at(options.out, spark))
        ship_package(spark)
        rows = parse_rows(read_batch(spark, options.source, options.format), options.max_ahead)
        modules = tuple(options.conditions)
        try:
            records = process_batch(rows, options.until_ms, pending=options.pending, modules=modules)
            counts = DirectorySink(options.out).write(records, 0)
        except (PySparkException, Py4JJavaError) as error:
            reason = reading_error(error)
            if reason is None:
                raise
            raise BadRowFile(reason) from error
    print(f"outcomes {counts.outcomes:,}  dead {counts.dead_letters:,}: {options.out}")
    return 0


def _check_empty(out: "Directory") -> None:
    """Raise ValueError if the directory holds batches."""
    batches = [name for name in out.names() if name.startswith("batch=")]
    if not batches:
        return
    reason = f"out must be an empty directory, got {out}, which holds the batches of another run"
    names = out.names(batches[0])
    if batches == [_ONLY_BATCH] and names and "_SUCCESS" not in names:
        reason += f"; the batch is not complete: remove {out}/{_ONLY_BATCH} if a killed backfill has left it"
    raise ValueError(reason)


def _check_on_server(spark: "SparkSession", source: str, out: str) -> None:
    """Check both locations by listing them; with Spark Connect, they are locations on the server."""
    if not _exists(spark, location_to_read(source)):
        raise ValueError(f"source must be a directory of the server, got {source}")
    if _exists(spark, f"{location_to_read(out).rstrip('/')}/batch=*"):
        raise ValueError(f"out must be an empty directory, got {out}, which holds the batches of another run")


def _exists(spark: "SparkSession", pattern: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        return bool(spark.read.text(pattern).columns)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        return False
