"""The ``stream`` command."""

import argparse
import sys
from typing import Any, Final

from purgatory.extras import need
from purgatory.pipeline.locations import is_uri
from purgatory.pipeline.output.directory import check_out, check_store

from .options import (
    add_row_options,
    check_source,
    check_source_of,
    local_settings,
    name_and_value,
    positive,
    remote_url,
    seconds,
    spark_settings,
)

__all__ = ["add_stream"]

LATE: Final = 3  # the exit status if --fail-on-late stopped the job
STOPPED: Final = 130  # the exit status that shells report for an interrupted program


def add_stream(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "stream",
        help="process operations as a stream",
        description="Process a stream of rows: operations that park, the signals that complete them, and rows that move"
        " their deadlines, cancel them, or fail them. Without --trigger, the job ends when it has processed the rows"
        " of the source. The next run continues from the checkpoint.",
        epilog="example: purgatory stream --source rows --out out --checkpoint checkpoint",
    )
    parser.add_argument("--source", required=True, metavar="DIR", help="a directory or URI of row files, or: kafka")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="a directory or URI, for the state")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="a directory or URI, for outcomes and dead letters, or: kafka"
    )
    parser.add_argument(
        "--delay", type=seconds, default=10.0, metavar="S", help="how late a row may arrive (default: %(default)g)"
    )
    parser.add_argument("--trigger", type=seconds, metavar="S", help="run without end, one batch every S seconds")
    parser.add_argument(
        "--files-per-batch", type=positive, metavar="N", help="read at most N files of the source in a batch"
    )
    parser.add_argument(
        "--shards",
        type=positive,
        metavar="N",
        help="number of states that hold the groups (default: 16 per partition); fixed for the life of a checkpoint",
    )
    parser.add_argument(
        "--fail-on-late", action="store_true", help=f"stop at the first dropped row, with exit status {LATE}"
    )
    parser.add_argument(
        "--otel",
        action="store_true",
        help="count each batch with the global meter provider of OpenTelemetry (see opentelemetry-instrument)",
    )
    for side in ("source", "sink"):
        parser.add_argument(
            f"--{side}-option",
            type=name_and_value,
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"for Spark's {side}",
        )
    add_row_options(parser, connect=False)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _console: object) -> int:
    master, conf = spark_settings(options)
    if options.otel:
        try:
            need("purgatory stream --otel", "otel", "opentelemetry")
        except ImportError as error:
            raise ValueError(str(error)) from error
    check_source(options.source, kafka=True)
    if options.out != "kafka":
        check_out(options.out)
    check_out(options.checkpoint, "checkpoint")
    if remote_url(options) is not None:
        raise ValueError("the stream cannot run on Spark Connect: submit it to the cluster with spark-submit instead")
    from purgatory.pipeline.spark import session
    from purgatory.pipeline.stream.job import (
        LateRows,
        Settings,
        check_checkpoint,
        check_output,
        check_places,
        check_stream_files,
        make_sink,
        number_of_shards,
        run,
    )

    check_checkpoint(options.checkpoint)
    settings = Settings(
        source=options.source,
        out=options.out,
        checkpoint=options.checkpoint,
        file_format=options.format,
        delay=options.delay,
        max_ahead=options.max_ahead,
        trigger=options.trigger,
        files_per_batch=options.files_per_batch,
        fail_on_late=options.fail_on_late,
        modules=tuple(options.conditions),
        shards=options.shards,
        source_options=dict(options.source_option),
        sink_options=dict(options.sink_option),
    )
    check_places(settings)
    if not is_uri(options.checkpoint):
        number_of_shards(settings)
    if options.out == "kafka" or not (is_uri(options.out) or is_uri(options.checkpoint)):
        make_sink(settings)
        if not is_uri(options.checkpoint):
            check_output(settings)
    check_stream_files(settings)
    own = local_settings(
        options.source,
        master or conf.get("spark.master"),
        endless=options.trigger is not None,
        checkpoint=options.checkpoint,
    )
    try:
        with session.spark_session(master, own | conf) as spark:
            check_source_of(spark, options.source)
            for name in ("checkpoint", "out"):
                check_store(spark, getattr(options, name), name)  # kafka is not a URI
            dropped = run(spark, settings, _with_metrics(_print) if options.otel else _print)
    except LateRows as error:
        print(f"error: {error}", file=sys.stderr)
        return LATE
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue", file=sys.stderr)
        return STOPPED
    if dropped:
        print(f"{dropped:,} rows arrived too late and were dropped: increase --delay to keep them", file=sys.stderr)
    return 0


def _with_metrics(report: Any) -> Any:
    from opentelemetry import metrics

    from purgatory.pipeline.stream.metrics import count_progress

    return count_progress(metrics.get_meter("purgatory.stream"), report)


def _print(line: object) -> None:
    print(line, flush=True)
