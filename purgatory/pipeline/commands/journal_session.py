"""The options of the commands that read a journal, and their Spark session."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from purgatory.pipeline.locations import is_local_mode, is_uri
from purgatory.pipeline.output.directory import check_store
from purgatory.pipeline.selection import Selection

from .options import FIRST_COMPILER, add_spark_options, remote_url, spark_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

__all__ = ["add_journal_options", "add_selection_options", "print_skipped", "selection_of", "session_for_journal"]


def add_journal_options(parser: argparse.ArgumentParser) -> None:
    """Add the journal, ``--skip-corrupt``, ``--quiet``, and the options for Spark."""
    parser.add_argument("journal", help="a directory, a file, or a URL that Spark can read")
    parser.add_argument("--skip-corrupt", action="store_true", help="skip unreadable files, and list them")
    add_spark_options(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--since``, ``--until``, ``--purgatory`` and ``--kind``."""
    group = parser.add_argument_group(
        "selection",
        "Select operations by the time at which they parked, and by name. TIME is a date or a time in ISO 8601 (UTC"
        " unless it has an offset), or epoch milliseconds.",
    )
    group.add_argument("--since", metavar="TIME", help="operations that parked at this time or later")
    group.add_argument("--until", metavar="TIME", help="operations that parked before this time")
    for name in ("purgatory", "kind"):
        group.add_argument(
            f"--{name}", action="append", metavar="NAME", help=f"operations of this {name}; can be repeated"
        )


def selection_of(options: argparse.Namespace) -> Selection:
    """Return the selection of the command line.  ValueError if an option is invalid."""
    return Selection.parse(options.since, options.until, options.purgatory, options.kind)


@contextmanager
def session_for_journal(
    options: argparse.Namespace,
    console: "Console",
    *,
    others: Sequence[str] = (),
    python_works: bool = False,
    spark_writes: bool = False,
) -> "Iterator[SparkSession]":
    """Check options and journal, then yield a Spark session.  Errors are raised before Spark starts.

    ``others``: more journals to check.
    ``spark_writes``: ``out`` is written by Spark, so with Spark Connect it is a location of the server.
    ``python_works``: in local mode, the work is done in Python, so Java's second compiler would not pay.
    """
    master, settings = spark_settings(options)
    remote = remote_url(options)
    if python_works and remote is None and is_local_mode(master or settings.get("spark.master")):
        settings = FIRST_COMPILER | settings
    if remote is not None and options.out is not None and is_uri(options.out) and not spark_writes:
        raise ValueError(
            f"out must be a path of this machine with Spark Connect, which has no file system, got {options.out}"
        )
    from purgatory.pipeline.journal_reader import check_files
    from purgatory.pipeline.spark import session

    if remote is None:
        for journal in (*others, options.journal):
            check_files(journal, skip_corrupt=options.skip_corrupt)
    with ExitStack() as stack:
        with nullcontext() if options.quiet else console.status("starting Spark"):
            spark = stack.enter_context(session.spark_session(master, settings, remote))
        if options.out is not None and remote is None:
            check_store(spark, options.out)
        yield spark


def print_skipped(skipped: Sequence[str], console: "Console") -> None:
    """Print one line for each skipped file."""
    for reason in skipped:
        console.print(f"skipped: {reason}", highlight=False, soft_wrap=True)
