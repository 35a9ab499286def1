"""The ``compact`` command."""

import argparse
from typing import Any

from .options import positive

__all__ = ["add_compact"]


def add_compact(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "compact",
        help="merge the small files of a journal",
        description="Merge small files of a journal into large ones, each in its folder and for one run of a server."
        " Servers may write to the journal in the meantime; reports should not read it. If the command is killed,"
        " no row is lost or duplicated, and the next run finishes the work.",
        epilog="example: purgatory compact journal --rows-per-file 1000000",
    )
    parser.add_argument("journal", help="a directory on this machine")
    parser.add_argument(
        "--rows-per-file", type=positive, default=1_000_000, metavar="N", help="maximum (default: %(default)s)"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _console: object) -> int:
    from purgatory.journal import JournalError, compact
    from purgatory.pipeline.locations import local_path
    from purgatory.pipeline.output.directory import reason_of

    path = local_path(options.journal)
    if path is None:
        raise ValueError(f"journal must be a directory on this machine, got {options.journal}")
    try:
        done = compact(path, options.rows_per_file)
    except OSError as error:  # the error has a path only if the system call had one
        raise JournalError(f"the journal {path} cannot be compacted: {reason_of(error)}") from error
    print(f"{done.before:,} files became {done.after:,}; {done.rows:,} rows were merged: {options.journal}")
    return 0
