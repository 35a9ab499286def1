"""The ``estimate`` command."""

import argparse
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from purgatory.pipeline.output.directory import check_out

from .options import (
    add_journal_options,
    add_selection_options,
    print_skipped,
    selection_of,
    session_for_journal,
    whole_ms,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_estimate"]

_MOST_SCENARIOS: Final = 100
_EXAMPLES: Final = """\
examples:
  purgatory estimate journal --timeout 10,60
  purgatory estimate journal --max-parked 500,1000 --purgatory fetch --out estimate
  purgatory estimate journal --split key --max-parked 500
"""


def add_estimate(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "estimate",
        help="what other timeouts and limits would have changed",
        description="Estimate how many operations would have expired or been refused with another timeout, other"
        " limits, or a second purgatory, and how many would have waited. What a journal does not show has a lower"
        " and an upper bound, or with a limit, the figures of two cases. Several values of several options are"
        " combined. Operations that parked before --since and still waited then are among the waiting ones, but only"
        " the selected operations are counted otherwise. With --kind, limits do not count other kinds.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_journal_options(parser)
    add_selection_options(parser)
    parser.add_argument(
        "--timeout",
        type=_numbers,
        default=[],
        metavar="S,...",
        help="timeouts, in seconds, for all operations that have one (default: the recorded ones)",
    )
    for name, what in (("max-parked", "in one process"), ("max-parked-per-key", "on one key")):
        parser.add_argument(
            f"--{name}",
            type=_whole_numbers,
            default=[],
            metavar="N,...",
            help=f"limits on waiting operations {what} (default: only the recorded limits)",
        )
    parser.add_argument(
        "--split",
        metavar="key|KIND",
        help="a second purgatory, for half of the keys or for a kind (default: none)",
    )
    parser.add_argument("--out", metavar="DIR", help="for the table and estimate.html; may be a URI")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, console: "Console") -> int:
    from purgatory.pipeline.replay.bounds import Scenario

    timeouts = [whole_ms(value, "timeout") for value in options.timeout]
    given: list[list[Any]] = [timeouts, options.max_parked, options.max_parked_per_key]
    combined = product(*(values or [None] for values in given))
    scenarios = [Scenario(timeout, most, per_key, options.split) for timeout, most, per_key in combined]
    if len(scenarios) > _MOST_SCENARIOS:
        raise ValueError(f"there must be at most {_MOST_SCENARIOS} combinations, got {len(scenarios)}")
    if scenarios == [Scenario()]:
        raise ValueError("timeout, max-parked, max-parked-per-key, or split must be set, got none of them")
    selection = selection_of(options)
    if options.out is not None:
        check_out(options.out, files=["estimate.html"])
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from purgatory.pipeline.replay.estimates import estimate_journal, readable, write_estimates

    with session_for_journal(options, console, python_works=True) as spark:
        found = estimate_journal(
            spark,
            options.journal,
            scenarios,
            selection=selection,
            skip_corrupt=options.skip_corrupt,
            console=None if options.quiet else console,
        )
        page = None if options.out is None else write_estimates(found, options.out, spark)
    print_skipped(found.skipped, console)
    shown = readable(found.table)
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, name in enumerate(shown.column_names):
        table.add_column(name, justify="left" if number < 3 else "right")
    for row in shown.to_pylist():
        table.add_row(*map(Text, row.values()))  # in a string, square brackets would be markup
    Console(width=None if console.is_terminal else 160).print(table)
    for caveat in found.caveats:
        print(f"  {caveat}")
    if found.refused:
        print(f"  In the recording, {found.refused:,} operations were refused.")
    undivided = sum(row["undivided"] for row in found.table.to_pylist() if row["scenario"] == str(scenarios[0]))
    if undivided:
        print(f"  {undivided:,} operations have keys in both halves and stay in the first half.")
    if page is not None:
        print(page)
    return 0


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, got {text!r}") from None


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers separated by commas, got {text!r}") from None
