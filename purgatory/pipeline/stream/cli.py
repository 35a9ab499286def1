"""The commands ``stream`` and ``backfill`` of ``python -m purgatory.pipeline``."""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from purgatory.pipeline.arguments import check_master, check_out

__all__ = ["add_commands", "local_settings"]

LATE: Final = 3  # the exit status where --fail-on-late has stopped the job
STOPPED: Final = 130  # as shells say it of a program that was interrupted

# A batch then writes what has changed, not all that is kept.
_CHANGES: Final = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true"}
# Java's second compiler takes some 12 CPU seconds and saves some 30 us a row: that pays from some 400 000 rows on.
_QUICK: Final = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
_SMALL: Final = 32 << 20  # bytes of row files


def add_commands(commands: Any) -> None:
    """Add the two to what ``ArgumentParser.add_subparsers`` has returned; each sets ``run`` to what does it."""
    stream = commands.add_parser(
        "stream",
        help="decide operations that park and are signalled, as a stream",
        description="Decide a stream of rows: operations that park, and the signals that complete them. Without"
        " --trigger it works off what is there and ends; run again, it goes on from its checkpoint.",
    )
    stream.add_argument("--source", required=True, metavar="DIR", help="a directory of row files, or: kafka")
    stream.add_argument("--checkpoint", required=True, type=Path, metavar="DIR", help="where the job keeps its state")
    stream.add_argument("--out", required=True, metavar="DIR", help="for outcomes and dead letters, or: kafka")
    stream.add_argument(
        "--delay", type=_seconds, default=10.0, metavar="S", help="how late a row may come (default: 10)"
    )
    stream.add_argument("--trigger", type=_seconds, metavar="S", help="go on without end, a batch every S seconds")
    stream.add_argument(
        "--files-per-batch", type=_positive, metavar="N", help="at most N files of the source in a batch"
    )
    stream.add_argument(
        "--shards",
        type=_positive,
        metavar="N",
        help="how many states the groups are put into (default: 16 a partition); as the checkpoint was begun, it stays",
    )
    stream.add_argument(
        "--fail-on-late", action="store_true", help=f"stop at the first dropped row, exit status {LATE}"
    )
    stream.add_argument("--source-option", type=_option, action="append", default=[], metavar="NAME=VALUE")
    stream.add_argument("--sink-option", type=_option, action="append", default=[], metavar="NAME=VALUE")
    _common(stream)
    stream.set_defaults(run=_stream)

    backfill = commands.add_parser(
        "backfill",
        help="decide the same rows in one batch",
        description="Decide a directory of rows in one batch, up to the time of its last row.",
    )
    backfill.add_argument("--source", required=True, metavar="DIR", help="a directory of row files")
    backfill.add_argument("--out", required=True, type=Path, metavar="DIR", help="for outcomes and dead letters")
    backfill.add_argument("--until-ms", type=int, metavar="MS", help="how far the time goes, if not to the last row")
    backfill.add_argument("--pending", action="store_true", help="also a record for each operation that waits then")
    _common(backfill)
    backfill.set_defaults(run=_backfill)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("parquet", "json"), default="parquet", help="of the row files")
    add = parser.add_argument
    add("--max-ahead", type=_seconds, default=86_400.0, metavar="S", help="rows from further ahead are dead letters")
    add("--conditions", action="append", default=[], metavar="MODULE", help="a module that registers conditions")
    add("--master", metavar="URL", help="Spark's master (default: all cores of this machine)")
    add("--conf", action="append", default=[], type=_option, metavar="NAME=VALUE", help="for Spark")


def local_settings(source: str, master: str | None, *, endless: bool = False) -> dict[str, str]:
    """Settings that suit a job on one machine; none for a cluster, whose own hold.

    ``endless``: it goes on when it has decided what is in the source now.
    """
    if not (master or "local").startswith("local"):
        return {}
    if endless or not Path(source).is_dir():
        return _CHANGES
    size = sum(file.stat().st_size for file in Path(source).rglob("*") if file.is_file())
    return _CHANGES | _QUICK if size <= _SMALL else _CHANGES


def _stream(asked: argparse.Namespace, _console: object) -> int:
    conf = dict(asked.conf)
    check_master(asked.master or conf.get("spark.master"))
    _check_source(asked.source)
    if asked.out != "kafka" and "://" not in asked.out:
        check_out(Path(asked.out))
    check_out(asked.checkpoint, "checkpoint")
    from purgatory.pipeline.session import spark_session

    from .job import LateRows, Settings, make_sink, run, shards_of
    from .quiet import without_chatter

    settings = Settings(
        source=asked.source,
        out=asked.out,
        checkpoint=asked.checkpoint,
        form=asked.format,
        delay=asked.delay,
        max_ahead=asked.max_ahead,
        trigger=asked.trigger,
        files_per_batch=asked.files_per_batch,
        fail_on_late=asked.fail_on_late,
        modules=tuple(asked.conditions),
        shards=asked.shards,
        source_options=dict(asked.source_option),
        sink_options=dict(asked.sink_option),
    )
    make_sink(settings)
    shards_of(settings)
    own = local_settings(asked.source, asked.master or conf.get("spark.master"), endless=asked.trigger is not None)
    try:
        with without_chatter(), spark_session(asked.master, own | conf) as spark:
            dropped = run(spark, settings, _say)
    except LateRows as error:
        print(f"error: {error}", file=sys.stderr)
        return LATE
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return STOPPED
    if dropped:
        print(f"{dropped:,} rows came too late and were dropped: a greater --delay waits longer", file=sys.stderr)
    return 0


def _backfill(asked: argparse.Namespace, _console: object) -> int:
    conf = dict(asked.conf)
    check_master(asked.master or conf.get("spark.master"))
    _check_source(asked.source)
    check_out(asked.out)
    from purgatory.pipeline.session import spark_session

    from .frames import prepared
    from .job import load_conditions, read_batch
    from .quiet import without_chatter
    from .sinks import DirectorySink, observed, tally_of
    from .twin import decided

    if any(asked.out.glob("batch=*")):
        raise ValueError(f"{asked.out} holds the batches of another run: give an empty directory")
    load_conditions(asked.conditions)
    own = local_settings(asked.source, asked.master or conf.get("spark.master"))
    with without_chatter(), spark_session(asked.master, own | conf) as spark:
        rows = prepared(read_batch(spark, asked.source, asked.format), asked.max_ahead)
        records = decided(rows, asked.until_ms, pending=asked.pending, modules=tuple(asked.conditions))
        counted, observation = observed(records)
        DirectorySink(asked.out).write(counted, 0)
        tally = tally_of(observation)
    print(f"outcomes {tally.outcomes:,}  dead {tally.dead:,}: {asked.out}")
    return 0


def _check_source(source: str) -> None:
    if source != "kafka" and not Path(source).is_dir():
        raise ValueError(f"{source} is no directory: the rows are read from the files in one")


def _say(line: object) -> None:
    print(line, flush=True)


def _checked(text: str, kind: Callable[[str], float], suits: Callable[[float], bool], meant: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not suits(value):
        raise argparse.ArgumentTypeError(f"{meant}, not {text!r}")
    return value


def _seconds(text: str) -> float:
    return _checked(text, float, lambda value: 0 <= value < math.inf, "a number of seconds, at least 0")


def _positive(text: str) -> int:
    return int(_checked(text, int, lambda value: value >= 1, "a whole number, at least 1"))


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"NAME=VALUE, not {text!r}")
    return name, value
