"""``python -m purgatory.pipeline``: report, compare, replay, estimate, compact, load, synthesize, stream, backfill."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory.broken_pipe import run_command
from purgatory.errors import PurgatoryError
from purgatory.extras import need

from .commands.backfill import add_backfill
from .commands.compact import add_compact
from .commands.compare import add_compare
from .commands.estimate import add_estimate
from .commands.load import add_load
from .commands.options import check_paths
from .commands.replay import add_replay
from .commands.report import add_report
from .commands.stream import add_stream
from .commands.synthesize import add_synthesize
from .signals import Signals

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["main"]

_NEEDED = ("pyspark", "pandas", "numpy", "pyarrow", "matplotlib", "jinja2", "rich")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m purgatory.pipeline") -> int:
    """Run a command and return the exit status.

    1: the command failed, and the reason is on standard error.  130: it was interrupted.  141: the process that reads
    its output has exited.  143: SIGTERM ended it.

    ``prog``: the name of the program in its messages.
    """
    return run_command(lambda: _run(arguments, prog))


def _run(arguments: Sequence[str] | None, prog: str) -> int:
    options = _parser(prog).parse_args(arguments)
    try:
        need(f"{prog} {options.command}", "spark", *_NEEDED)
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    from rich.console import Console

    signals = Signals()
    try:
        with signals.raising():
            status = _run_command(options, Console(stderr=True))
    except KeyboardInterrupt:
        if signals.received is None:
            raise
        status = signals.status
    except Exception:
        if signals.received is None:  # otherwise, the error is a consequence of the signal
            raise
    return status if signals.received is None else signals.status


def _run_command(options: argparse.Namespace, console: "Console") -> int:
    try:
        check_paths(options)
        return int(options.run(options, console))
    except BrokenPipeError:
        raise
    except (PurgatoryError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        from .spark.workers import missing_in_workers

        reason = missing_in_workers(error)
        if reason is None:
            raise
        print(f"error: {reason}", file=sys.stderr)
        return 1


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Reports on journals, and streams of operations, on Spark.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    of_journals = (add_report, add_compare, add_replay, add_estimate, add_compact, add_load, add_synthesize)
    for add in (*of_journals, add_stream, add_backfill):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
