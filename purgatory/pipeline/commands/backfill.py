"""The command ``backfill``."""

import argparse
from pathlib import Path
from typing import Any

from purgatory.pipeline.output.directory import check_out

from .options import spark_settings
from .row_options import add_row_options, check_source, local_settings

__all__ = ["add_backfill"]


def add_backfill(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "backfill",
        help="decide the same rows in one batch",
        description="Decide a directory of rows in one batch, up to the time of its last row.",
        epilog="example: purgatory backfill --source rows --out out",
    )
    parser.add_argument("--source", required=True, metavar="DIR", help="a directory of row files")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="for outcomes and dead letters")
    parser.add_argument("--until-ms", type=int, metavar="MS", help="decide up to this time (default: the last row)")
    parser.add_argument("--pending", action="store_true", help="also write a record for each pending operation")
    add_row_options(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _console: object) -> int:
    master, conf = spark_settings(options)
    check_source(options.source)
    check_out(options.out)
    from purgatory.pipeline.spark import session
    from purgatory.pipeline.spark.stderr_filter import without_chatter
    from purgatory.pipeline.stream.batch import process_batch
    from purgatory.pipeline.stream.dataframes import parse_rows
    from purgatory.pipeline.stream.job import load_conditions, read_batch
    from purgatory.pipeline.stream.sinks import DirectorySink

    if any(options.out.glob("batch=*")):
        raise ValueError(f"out must be an empty directory, got {options.out}, which holds the batches of another run")
    load_conditions(options.conditions)
    own = local_settings(options.source, master or conf.get("spark.master"))
    with without_chatter(), session.spark_session(master, own | conf) as spark:
        rows = parse_rows(read_batch(spark, options.source, options.format), options.max_ahead)
        records = process_batch(rows, options.until_ms, pending=options.pending, modules=tuple(options.conditions))
        counts = DirectorySink(options.out).write(records, 0)
    print(f"outcomes {counts.outcomes:,}  dead {counts.dead_letters:,}: {options.out}")
    return 0
