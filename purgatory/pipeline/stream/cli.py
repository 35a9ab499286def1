"""The commands ``stream`` and ``backfill``."""

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

__all__ = ["add_backfill", "add_stream", "backfill", "stream"]

LATE = 3  # the exit status where --fail-on-late has stopped the job

Sessions = Callable[[], AbstractContextManager[Any]]


def add_stream(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``stream``."""
    parser.description = (
        "Decide a stream of rows: operations that park, and the signals that complete them. Without --trigger it works"
        " off what is there and stops; run again, it goes on from its checkpoint."
    )
    parser.add_argument("--source", required=True, help="a directory of row files, or: kafka")
    parser.add_argument("--format", choices=("parquet", "json"), default="parquet", help="of the row files")
    parser.add_argument("--checkpoint", required=True, type=Path, help="the directory that the job's state lives in")
    parser.add_argument("--out", required=True, help="the directory for outcomes and dead letters, or: kafka")
    parser.add_argument(
        "--delay", type=_seconds, default=10.0, metavar="S", help="how late a row may come (default 10)"
    )
    parser.add_argument("--trigger", type=_seconds, metavar="S", help="go on without end, a batch every S seconds")
    parser.add_argument("--files-per-batch", type=_positive, metavar="N", help="at most N files of the source a batch")
    parser.add_argument("--fail-on-late", action="store_true", help=f"stop at the first late row, exit status {LATE}")
    _add_common(parser)
    parser.add_argument("--source-option", type=_option, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--sink-option", type=_option, action="append", default=[], metavar="NAME=VALUE")


def add_backfill(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``backfill``."""
    parser.description = "Decide a directory of rows in one batch, up to the time of its last row."
    parser.add_argument("--source", required=True, help="a directory of row files")
    parser.add_argument("--format", choices=("parquet", "json"), default="parquet", help="of the row files")
    parser.add_argument("--out", required=True, type=Path, help="the directory for outcomes and dead letters")
    parser.add_argument("--until-ms", type=int, metavar="MS", help="how far the time goes, instead")
    parser.add_argument("--pending", action="store_true", help="also a record for each operation that waits then")
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-ahead", type=_seconds, default=86_400.0, metavar="S",
        help="a row this far ahead of the clock is a dead letter (default: a day)",
    )  # fmt: skip
    parser.add_argument(
        "--conditions", action="append", default=[], metavar="MODULE", help="a module that registers conditions"
    )


def stream(arguments: argparse.Namespace, sessions: Sessions) -> int:
    """Run the command; return the exit status.  ``sessions`` makes a context that gives a Spark session."""
    from .job import LateRows, Settings, StreamFailed, make_sink, run

    settings = Settings(
        source=arguments.source,
        out=arguments.out,
        checkpoint=arguments.checkpoint,
        form=arguments.format,
        delay=arguments.delay,
        max_ahead=arguments.max_ahead,
        trigger=arguments.trigger,
        files_per_batch=arguments.files_per_batch,
        fail_on_late=arguments.fail_on_late,
        modules=tuple(arguments.conditions),
        source_options=dict(arguments.source_option),
        sink_options=dict(arguments.sink_option),
    )
    try:
        _check_source(settings.source)
        make_sink(settings)
        with sessions() as spark:
            dropped = run(spark, settings, _say)
    except LateRows as error:
        return _fail(str(error), LATE)
    except (StreamFailed, ValueError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("stopped; run the same command again to go on", 130)
    if dropped:
        _warn(f"{dropped} rows came too late and were dropped: a greater --delay waits longer")
    return 0


def backfill(arguments: argparse.Namespace, sessions: Sessions) -> int:
    """Run the command; return the exit status."""
    from .frames import prepared
    from .job import load_conditions, read_batch
    from .sinks import DirectorySink, observed, tally_of
    from .twin import decided

    try:
        _check_source(arguments.source)
        if any(arguments.out.glob("batch=*")):
            raise ValueError(f"{arguments.out} holds the batches of another run: give an empty directory")
        load_conditions(arguments.conditions)
        with sessions() as spark:
            rows = prepared(read_batch(spark, arguments.source, arguments.format), arguments.max_ahead)
            records = decided(rows, arguments.until_ms, pending=arguments.pending, modules=tuple(arguments.conditions))
            counted, observation = observed(records)
            DirectorySink(arguments.out).write(counted, 0)
            tally = tally_of(observation)
    except ValueError as error:
        return _fail(str(error), 1)
    sys.stdout.write(f"outcomes {tally.outcomes:,}  dead {tally.dead:,}  in {arguments.out}\n")
    return 0


def _check_source(source: str) -> None:
    if source != "kafka" and not Path(source).is_dir():
        raise ValueError(f"{source} is no directory: the rows are read from the files in one")


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _warn(message: str) -> None:
    sys.stderr.write(f"warning: {message}\n")


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"{message}\n")
    return status


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds, at least 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value
