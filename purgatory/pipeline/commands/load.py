"""The ``load`` command."""

import argparse
import os
import time
from typing import TYPE_CHECKING, Any, Final

from purgatory.extras import need
from purgatory.pipeline.locations import TABLE
from purgatory.pipeline.output.directory import check_apart, check_out
from purgatory.pipeline.selection import Selection

from .options import add_journal_options, print_skipped, remote_url, session_for_journal

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_load"]

# The variables through which Spark finds settings other than those on the command line.
_CONFIGURATIONS: Final = {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"}
_EXAMPLES = """\
examples:
  purgatory load journal --out lake/journal --since 2026-11-22 --until 2026-11-23
  purgatory load journal --out table:lake.journal --format delta
"""


def add_load(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "load",
        help="a journal as a table, partitioned by date",
        description="Write the rows of a journal to a table that is partitioned by date. The rows for a date replace"
        " the table's rows for that date, so a load can be repeated.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_journal_options(parser)
    parser.add_argument("--since", metavar="DATE", help="rows of this date (UTC) or later")
    parser.add_argument("--until", metavar="DATE", help="rows before this date (UTC)")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="a directory, a URI, or table:NAME for a table of Spark's catalog"
    )
    parser.add_argument(
        "--format",
        default="parquet",
        choices=("parquet", "delta"),
        help="the format of a new table; delta needs its JAR files (default: %(default)s)",
    )
    parser.add_argument(
        "--otel",
        action="store_true",
        help="count the load with the global meter provider of OpenTelemetry (see opentelemetry-instrument)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, console: "Console") -> int:
    from pyspark.sql import SparkSession

    from purgatory.pipeline.lake import check_catalog, check_table, check_whole_days, load_journal

    meter = _meter() if options.otel else None
    began = time.perf_counter()
    selection = Selection.parse(options.since, options.until)
    check_whole_days(selection)
    if not options.out.startswith(TABLE) and remote_url(options) is None:
        check_out(options.out)
        check_apart(options.out, [options.journal], below=True)
        check_table(options.out, options.format)
    # A session that the program has begun, and a Spark Connect server, outlive the command.
    ends = SparkSession.getActiveSession() is None and remote_url(options) is None
    if ends and _CONFIGURATIONS.isdisjoint(os.environ):  # otherwise, Spark may have other settings
        check_apart(options.out, [options.journal], below=True)
        check_catalog(options.out, dict(options.conf).get)
    with session_for_journal(options, console, spark_writes=True) as spark:
        if ends:
            check_catalog(options.out, lambda name: spark.conf.get(name, None))
        loaded = load_journal(
            spark,
            options.journal,
            options.out,
            file_format=options.format,
            selection=selection,
            skip_corrupt=options.skip_corrupt,
        )
    if meter is not None:
        from purgatory.pipeline.load_metrics import count_load

        count_load(meter, loaded, time.perf_counter() - began)
    print_skipped(loaded.skipped, console)
    late = f", {loaded.expired:,} of them expired {loaded.lateness_s:.4g} s late on average" if loaded.expired else ""
    dropped = f"; the journal dropped {loaded.dropped:,} rows" if loaded.dropped else ""
    dates = loaded.first if loaded.first == loaded.last else f"{loaded.first} to {loaded.last}"
    print(f"{loaded.rows:,} rows of {dates}{late}{dropped}: {options.out}")
    return 0


def _meter() -> Any:
    try:
        need("purgatory load --otel", "otel", "opentelemetry")
    except ImportError as error:
        raise ValueError(str(error)) from error
    from opentelemetry import metrics

    return metrics.get_meter("purgatory.load")
