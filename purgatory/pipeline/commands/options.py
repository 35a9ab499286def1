"""Options that several commands share, and checks.  The checks do not need Spark, so a mistake is reported early.

The first functions are for all commands, the next ones for commands that read rows of a stream, and the last ones for
commands that read a journal.
"""

import argparse
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from purgatory.pipeline.locations import is_local_mode, is_uri, local_path, without_secrets
from purgatory.pipeline.output.directory import check_apart, check_store
from purgatory.pipeline.selection import Selection
from purgatory.pipeline.stream.input_rows import LAST_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

__all__ = [
    "FIRST_COMPILER",
    "add_journal_options",
    "add_row_options",
    "add_selection_options",
    "add_spark_options",
    "check_master",
    "check_paths",
    "check_source",
    "check_source_of",
    "check_top",
    "local_settings",
    "name_and_value",
    "positive",
    "print_skipped",
    "remote_url",
    "seconds",
    "selection_of",
    "session_for_journal",
    "spark_settings",
    "whole_ms",
]

_PATHS: Final = ("journal", "baseline", "compare", "source", "checkpoint", "out")  # the paths among the arguments
# The forms that Spark accepts.  Any other URL may belong to a cluster manager that is installed as a plug-in.
_MASTER: Final = re.compile(
    r"local"
    r"|local\[(\*|0*[1-9]\d*)(\s*,\s*\d+)?\]"
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn"
    r"|[a-z][a-z0-9+.-]*://.+"
)
_YEAR_S: Final = 31_536_000
_MOST_KEYS: Final = 1_000_000  # keys in a table that the driver holds
_MOST_S: Final = LAST_MS // 1_000
_MOST: Final = 2**31 - 1
# Java's second compiler pays for itself only if Java has much to do.
FIRST_COMPILER: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
# With this setting, a batch writes only what has changed in the state.
_CHANGELOG: Final = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
# On this machine, Spark by default starts four programs to rename a file: one for each of the two paths, and two more
# for the checksum file.
_FILE_MANAGER: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
_SMALL: Final = 32 << 20  # bytes of row files (about 400,000 rows); above this size, the second compiler pays off


def add_spark_options(parser: argparse.ArgumentParser, *, connect: bool = True) -> None:
    """Add ``--master``, ``--remote``, and ``--conf``.

    ``connect``: whether the command runs on Spark Connect; otherwise, the help omits ``--remote``.
    """
    parser.add_argument("--master", metavar="URL", help="Spark's master (default: all cores on this machine)")
    parser.add_argument(
        "--remote",
        metavar="sc://HOST:PORT",
        help="a Spark Connect server, instead of a master" if connect else argparse.SUPPRESS,
    )
    parser.add_argument(
        "--conf", action="append", default=[], type=name_and_value, metavar="NAME=VALUE", help="a Spark setting"
    )


def spark_settings(options: argparse.Namespace) -> tuple[str | None, dict[str, str]]:
    """Return the master and the settings from ``--conf``.  Raises ValueError if Spark would not accept the master."""
    settings = dict(options.conf)
    check_master(options.master or settings.get("spark.master"))
    remote_url(options)
    return options.master, settings


def remote_url(options: argparse.Namespace) -> str | None:
    """Return the URL of the Spark Connect server: ``--remote``, or SPARK_REMOTE if there is no master.

    Raises ValueError if the value is not such a URL, or if there is also a master.
    """
    master = options.master or dict(options.conf).get("spark.master")
    remote: str | None = options.remote
    if remote is None:
        return None if master is not None else os.environ.get("SPARK_REMOTE") or None
    if master is not None:
        raise ValueError(
            f"either master or remote must be set, got {without_secrets(master)} and {without_secrets(remote)}"
        )
    if not re.fullmatch(r"sc://[^/].*", remote):
        raise ValueError(f"remote must be a URL such as sc://host:15002, got {without_secrets(remote)}")
    return remote


def check_master(master: str | None) -> None:
    """Raise ValueError unless the form of ``master`` is one that Spark accepts.  None is the default."""
    if master is not None and master.startswith("sc://"):
        raise ValueError(f"master must not be a Spark Connect server, which is a remote, got {without_secrets(master)}")
    if master is not None and not _MASTER.fullmatch(master):
        raise ValueError(
            "master must be local, local[N], local[*], yarn, or a URL such as spark://host:port,"
            f" got {without_secrets(master)}"
        )


def check_paths(options: argparse.Namespace) -> None:
    """Raise ValueError if a path given to a command is empty or is not UTF-8.

    An empty path would mean the current directory, but it usually comes from a shell variable that is not set.
    """
    for name in _PATHS:
        path: str | None = getattr(options, name, None)
        if path is None:
            continue
        if not path:
            raise ValueError(f"{name} must be a path or a URI, got ''")
        try:
            path.encode()
        except UnicodeEncodeError:
            given = os.fsencode(path)
            raise ValueError(f"{name} must be a path in UTF-8, which Arrow and Spark need, got {given!r}") from None


def check_top(top: int) -> None:
    """Raise ValueError unless ``top`` is a number of hot keys that a report can have."""
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if top > _MOST_KEYS:
        raise ValueError(f"top must be at most {_MOST_KEYS:,}, got {top}")


def whole_ms(value: float, name: str) -> int:
    """Convert seconds to milliseconds.  Raises ValueError unless the result is at least 1 and at most a year."""
    if not math.isfinite(value) or round(value * 1000) < 1:
        raise ValueError(f"{name} must be at least 0.001 seconds, got {value:g}")
    if value > _YEAR_S:
        raise ValueError(f"{name} must be at most {_YEAR_S:,} seconds, got {value:g}")
    return round(value * 1000)


def name_and_value(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        what = "no name" if equals else "no ="
        raise argparse.ArgumentTypeError(
            f"must be NAME=VALUE, got text with {what}; it is not repeated here, because it may contain a secret"
        )
    return name, value


def seconds(text: str) -> float:
    """Parse a number of seconds, at least 0 and at most the number of seconds from 1970 to the year 10000."""
    return _number(text, float, lambda value: 0 <= value < math.inf, "a number of seconds, at least 0", _MOST_S)


def positive(text: str) -> int:
    """Parse a whole number that is at least 1 and fits in a Spark int."""
    return int(_number(text, int, lambda value: value >= 1, "a whole number, at least 1", _MOST))


def _number(
    text: str, parse: Callable[[str], float], accepts: Callable[[float], bool], expected: str, most: int
) -> float:
    try:
        value = parse(text)
    except ValueError:
        value = math.nan
    if not accepts(value):
        raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}")
    if value > most:
        raise argparse.ArgumentTypeError(f"must be at most {most:,}, got {text!r}")
    return value


# Rows of a stream


def add_row_options(parser: argparse.ArgumentParser, *, connect: bool) -> None:
    """Add ``--format``, ``--max-ahead``, ``--conditions``, and the options for Spark.

    ``connect``: whether the command runs on Spark Connect; otherwise, the help omits ``--remote``.
    """
    parser.add_argument(
        "--format",
        choices=("parquet", "json"),
        default="parquet",
        help="the format of the row files (default: %(default)s)",
    )
    parser.add_argument(
        "--max-ahead",
        type=seconds,
        default=86_400.0,
        metavar="S",
        help="rows more than S seconds ahead of the clock become dead letters (default: %(default)g)",
    )
    parser.add_argument(
        "--conditions", action="append", default=[], metavar="MODULE", help="a module that registers conditions"
    )
    add_spark_options(parser, connect=connect)


def check_source(source: str, *, kafka: bool = False) -> None:
    """Raise ValueError unless the source is a directory, a URI, or (if ``kafka`` is set) ``kafka``.

    A URI needs a session: see :func:`check_source_of`.
    """
    directory = local_path(source)
    if not (kafka and source == "kafka") and directory is not None and not directory.is_dir():
        raise ValueError(f"source must be a directory{', or kafka' if kafka else ''}, got {source}")


def check_source_of(spark: "SparkSession", source: str) -> None:
    """Raise ValueError unless the URI names a directory, and StoreError if the directory cannot be read."""
    if local_path(source) is not None:
        return
    from purgatory.pipeline.spark.directories import HadoopDirectory

    if not HadoopDirectory(spark, source).is_directory():
        raise ValueError(f"source must be a directory, got {source}")


def local_settings(
    source: str, master: str | None, *, endless: bool = False, checkpoint: str | None = None
) -> dict[str, str]:
    """Return settings for a job on this machine, or no settings for a cluster, which has its own.

    ``endless``: whether the job continues after it has processed the rows that are in the source now.  ``checkpoint``:
    the location of the checkpoint; if it is on this machine, settings for it are added.
    """
    if not is_local_mode(master):
        return {}
    settings = _CHANGELOG if checkpoint is None or local_path(checkpoint) is None else _CHANGELOG | _FILE_MANAGER
    directory = local_path(source)
    if endless or directory is None or not directory.is_dir():
        return settings
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    return settings | FIRST_COMPILER if size <= _SMALL else settings


# A journal


def add_journal_options(parser: argparse.ArgumentParser) -> None:
    """Add the journal, ``--skip-corrupt``, ``--quiet``, and the options for Spark."""
    parser.add_argument("journal", help="a directory, a file, or a URL that Spark can read")
    parser.add_argument("--skip-corrupt", action="store_true", help="skip unreadable files, and list them")
    add_spark_options(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--since``, ``--until``, ``--purgatory``, and ``--kind``."""
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
    """Return the selection from the command line.  Raises ValueError if an option is invalid."""
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
    """Check the options and the journal, and then yield a Spark session.  Errors are raised before Spark starts.

    ``others``: more journals to check.  ``python_works``: whether Python does the work in local mode; Java's second
    compiler would then cost more than it saves.  ``spark_writes``: whether Spark writes ``out``; with Spark Connect,
    ``out`` is then a location on the server.
    """
    master, settings = spark_settings(options)
    remote = remote_url(options)
    if python_works and remote is None and is_local_mode(master or settings.get("spark.master")):
        settings = FIRST_COMPILER | settings
    if remote is not None and options.out is not None and is_uri(options.out) and not spark_writes:
        raise ValueError(
            f"with Spark Connect, which has no file system, out must be a path on this machine, got {options.out}"
        )
    if options.out is not None and (remote is None or spark_writes):  # otherwise, they are on different machines
        check_apart(options.out, (*others, options.journal), below=spark_writes)
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
    from rich.text import Text

    for reason in skipped:
        console.print(Text(f"skipped: {reason}"), soft_wrap=True)  # in a string, square brackets would be markup
