"""The ``synthesize`` command."""

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from purgatory.pipeline.recipe import Recipe

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_synthesize"]

_MEANING: Final = {
    "rows": "number of operations",
    "seed": "the same seed gives the same rows",
    "rate": "operations per second",
    "keys": "number of distinct keys",
    "skew": "exponent of the Zipf distribution of keys; 0: uniform",
    "median_wait": "median wait, in seconds",
    "spread": "standard deviation of the logarithm of the wait",
    "immediate": "share of operations that never wait",
    "cancelled": "share of cancelled operations",
    "failed": "share of failed operations",
    "unique": "share of operations that wait on a key of their own, such as a request ID",
    "dropped": "number of dropped rows that each file records",
    "rows_per_file": "operations per file",
}


def add_synthesize(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "synthesize",
        help="generate a journal for measurements",
        description="Generate a journal of random operations, to try or to measure the commands that read journals."
        " Arrivals are uniform, keys have a Zipf distribution, and waits have a log-normal one. _answers.json in the"
        " journal contains the counts of its outcomes.",
        epilog="example: purgatory synthesize journal --rows 1000000",
    )
    parser.add_argument("journal", help="a directory on this machine, without a journal")
    parser.add_argument("--rows", type=int, required=True, metavar="N", help=_MEANING["rows"])
    for field in fields(Recipe)[1:]:
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            metavar="N",
            help=f"{_MEANING[field.name]} (default: %(default)g)",
        )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, console: "Console") -> int:
    from purgatory.pipeline.locations import local_path
    from purgatory.pipeline.synthetic_journal import generate

    path = local_path(options.journal)
    if path is None:
        raise ValueError(f"journal must be a directory on this machine, got {options.journal}")
    recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
    with console.status(f"generating {recipe.rows:,} rows"):
        answers = generate(path, recipe)
    rows, files = answers["rows"], answers["files"]
    print(f"{rows:,} row{'s' if rows != 1 else ''} in {files} file{'s' if files != 1 else ''}: {options.journal}")
    return 0
