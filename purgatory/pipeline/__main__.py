"""``python -m purgatory.pipeline``: report, compare, replay, compact, synthesize, stream, backfill."""

import argparse
import sys
from collections.abc import Sequence

from purgatory.broken_pipe import run_command
from purgatory.errors import PurgatoryError
from purgatory.extras import need

from .commands.backfill import add_backfill
from .commands.compact import add_compact
from .commands.compare import add_compare
from .commands.options import check_paths
from .commands.replay import add_replay
from .commands.report import add_report
from .commands.stream import add_stream
from .commands.synthesize import add_synthesize

__all__ = ["main"]

_NEEDED = ("pyspark", "pandas", "numpy", "pyarrow", "matplotlib", "jinja2", "rich")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m purgatory.pipeline") -> int:
    """Run a command and return the exit status.

    1: the command failed, and the reason is on standard error.  130: it was interrupted.  141: the reader of its output
    is gone.

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

    console = Console(stderr=True)
    try:
        check_paths(options)
        return int(options.run(options, console))
    except BrokenPipeError:
        raise
    except (PurgatoryError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        from .spark.shipping import missing_in_workers

        reason = missing_in_workers(error)
        if reason is None:
            raise
        print(f"error: {reason}", file=sys.stderr)
        return 1


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description="Reports over journals, and streams of operations, on Spark."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (add_report, add_compare, add_replay, add_compact, add_synthesize, add_stream, add_backfill):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
