"""``python -m purgatory.pipeline``: report, replay, synthesize, stream, backfill."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory.errors import PurgatoryError
from purgatory.extras import need

from .arguments import check_master, check_out, whole_ms
from .stream.cli import add_commands

# What the extra brings is imported by the command that needs it: help is there without.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status.  1: it could not be done, and the reason is on standard error."""
    asked = _parser().parse_args(arguments)
    try:
        need("python -m purgatory.pipeline", "spark", *_NEEDED)
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    from rich.console import Console

    console = Console(stderr=True)
    try:
        return int(asked.run(asked, console))
    except (PurgatoryError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


_NEEDED = ("pyspark", "pandas", "numpy", "pyarrow", "matplotlib", "jinja2", "rich")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.pipeline", description="Reports over journals, and streams of operations, on Spark."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="what waited, how long, and how it ended")
    _common(report)
    report.add_argument("--out", type=Path, required=True, metavar="DIR", help="tables, plots and index.html go here")
    report.add_argument("--top", type=int, default=50, metavar="N", help="how many hot keys (default: %(default)s)")
    report.add_argument("--bucket", type=float, metavar="SECONDS", help="how finely time is divided (default: to fit)")
    report.set_defaults(run=_report)

    replay = commands.add_parser("replay", help="what other timer settings would have cost")
    _common(replay)
    replay.add_argument("--tick-ms", type=_whole_numbers, default=[1, 5, 20], metavar="1,5,20")
    replay.add_argument("--wheel-size", type=_whole_numbers, default=[20, 64, 512], metavar="20,64,512")
    replay.add_argument("--sample", type=float, default=1.0, metavar="SHARE", help="of the journal, by pieces of time")
    replay.add_argument("--piece-rows", type=int, default=100_000, metavar="N", help="operations per task")
    replay.add_argument(
        "--lateness-ms", type=float, metavar="MS", help="acceptable p99 (default: 1 %% of the timeouts)"
    )
    replay.add_argument("--out", type=Path, metavar="DIR", help="table, picture and replay.html go here")
    replay.set_defaults(run=_replay)

    made = commands.add_parser("synthesize", help="make up a journal to measure with")
    made.add_argument("journal", type=Path, help="a directory without a journal")
    made.add_argument("--rows", type=int, required=True)
    for name, kind, meaning in _KNOBS:
        made.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=meaning)
    made.set_defaults(run=_synthesize)

    add_commands(commands)
    return parser


_KNOBS = (
    ("seed", int, "the same seed makes the same rows"),
    ("rate", float, "operations per second"),
    ("keys", int, "how many different keys"),
    ("skew", float, "exponent of Zipf's law; 0: none"),
    ("median_wait", float, "seconds"),
    ("spread", float, "standard deviation of the logarithm of the wait"),
    ("immediate", float, "share that never waits"),
    ("cancelled", float, "share"),
    ("failed", float, "share"),
    ("dropped", int, "rows said to be lost, per file"),
    ("rows_per_file", int, "rows in a file"),
)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", help="a directory, one file, or anything that Spark can list")
    parser.add_argument(
        "--skip-corrupt", action="store_true", help="leave out files that cannot be read, and say which"
    )
    parser.add_argument("--master", metavar="URL", help="Spark's master (default: all cores of this machine)")
    parser.add_argument("--conf", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="for Spark")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _report(asked: argparse.Namespace, console: "Console") -> int:
    bucket_ms = None if asked.bucket is None else whole_ms(asked.bucket, "bucket")
    if asked.top < 1:
        raise ValueError(f"top must be at least 1, got {asked.top}")
    check_out(asked.out)
    from .report import compute, write_report

    with _spark(asked, console) as spark:
        report = compute(
            spark,
            asked.journal,
            top=asked.top,
            bucket_ms=bucket_ms,
            skip_corrupt=asked.skip_corrupt,
            console=None if asked.quiet else console,
        )
    page = write_report(report, asked.out)
    _say_skipped(report.skipped, console)
    if report.dropped:
        console.print(f"{report.dropped:,} rows were dropped by the servers: the counts are too low by as much")
    print(f"{report.operations:,} operations: {page}")
    return 0


def _replay(asked: argparse.Namespace, console: "Console") -> int:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from .whatif import check_settings, what_if, write_what_if

    check_settings(asked.tick_ms, asked.wheel_size, asked.sample, asked.piece_rows, asked.lateness_ms)
    if asked.out is not None:
        check_out(asked.out)
    with _spark(asked, console) as spark:
        found = what_if(
            spark,
            asked.journal,
            asked.tick_ms,
            asked.wheel_size,
            sample=asked.sample,
            piece_rows=asked.piece_rows,
            budget_ms=asked.lateness_ms,
            skip_corrupt=asked.skip_corrupt,
            console=None if asked.quiet else console,
        )
    _say_skipped(found.skipped, console)
    table = Table(title=found.subtitle, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for head in ("tick", "wheel", "CPU us", "late p99", "late max", "cascades", "buckets", "heap ops", "changed"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found.table.to_pylist():
        best = all(row[name] == value for name, value in found.recommended.items())
        table.add_row(
            f"{row['tick_ms']} ms",
            str(row["wheel_size"]),
            f"{row['cpu_us']:.2f}",
            f"{row['late_p99_ms']:g} ms",
            f"{row['late_max_ms']:g} ms",
            f"{row['cascades']:.3f}",
            f"{row['buckets']:.3f}",
            f"{row['heap_operations']:.3f}",
            str(row["changed"]),
            style="bold" if best else None,
        )
    Console().print(table)
    print(found.headline)
    for reason in found.reasons:
        print(f"  {reason}")
    for example in found.examples:
        print(f"  changed: {example}")
    if asked.out is not None:
        print(write_what_if(found, asked.out))
    return 0


def _synthesize(asked: argparse.Namespace, console: "Console") -> int:
    from .synthetic import Recipe, generate

    given = {field.name: getattr(asked, field.name) for field in fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
    with console.status(f"making {recipe.rows:,} rows"):
        answers = generate(asked.journal, recipe)
    print(f"{answers['rows']:,} rows in {answers['files']} files: {asked.journal}")
    return 0


@contextmanager
def _spark(asked: argparse.Namespace, console: "Console") -> "Iterator[SparkSession]":
    """A session for a journal that can be read: what is wrong with it is said before Spark has started."""
    conf = dict(asked.conf)
    check_master(asked.master or conf.get("spark.master"))
    from .reading import look
    from .session import spark_session

    look(asked.journal, skip_corrupt=asked.skip_corrupt)
    with ExitStack() as session:
        with nullcontext() if asked.quiet else console.status("starting Spark"):
            spark = session.enter_context(spark_session(asked.master, conf))
        yield spark


def _say_skipped(skipped: Sequence[str], console: "Console") -> None:
    for why in skipped:
        console.print(f"left out: {why}", highlight=False, soft_wrap=True)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"whole numbers with commas between, not {text!r}") from None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"NAME=VALUE, not {text!r}")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
