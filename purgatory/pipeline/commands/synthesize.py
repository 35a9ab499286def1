"""The command ``synthesize``."""

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_synthesize"]

_RECIPE = (
    ("seed", int, "the same seed gives the same rows"),
    ("rate", float, "operations per second"),
    ("keys", int, "number of distinct keys"),
    ("skew", float, "exponent of the Zipf distribution of keys; 0: uniform"),
    ("median_wait", float, "in seconds"),
    ("spread", float, "standard deviation of the logarithm of the wait"),
    ("immediate", float, "share of operations that never wait"),
    ("cancelled", float, "share of cancelled operations"),
    ("failed", float, "share of failed operations"),
    ("dropped", int, "number of dropped rows to record per file"),
    ("rows_per_file", int, "rows in a file"),
)


def add_synthesize(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "synthesize",
        help="generate a journal for measurements",
        epilog="example: purgatory synthesize journal --rows 1000000",
    )
    parser.add_argument("journal", help="a directory of this machine, without a journal")
    parser.add_argument("--rows", type=int, required=True)
    for name, kind, meaning in _RECIPE:
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=meaning)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, console: "Console") -> int:
    from purgatory.pipeline.locations import local_path
    from purgatory.pipeline.synthetic_journal import Recipe, generate

    path = local_path(options.journal)
    if path is None:
        raise ValueError(f"journal must be a directory of this machine, got {options.journal}")
    given = {field.name: getattr(options, field.name) for field in fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
    with console.status(f"generating {recipe.rows:,} rows"):
        answers = generate(path, recipe)
    rows, files = answers["rows"], answers["files"]
    print(f"{rows:,} row{'s' if rows != 1 else ''} in {files} file{'s' if files != 1 else ''}: {options.journal}")
    return 0
