"""The ``replay`` command."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from purgatory.pipeline.output.directory import check_out

from .options import add_journal_options, add_selection_options, print_skipped, selection_of, session_for_journal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from purgatory.pipeline.replay.what_if import WhatIf

__all__ = ["add_replay"]


_EXAMPLES: Final = """\
examples:
  purgatory replay journal --tick-ms 1,5,20 --out replay
  purgatory replay journal --since 2026-11-22T10:00 --until 2026-11-22T11:00 --purgatory fetch
"""


def add_replay(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "replay",
        help="the cost of other timer settings",
        description="Replay the operations of a journal with other timer settings, and compare their costs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_journal_options(parser)
    add_selection_options(parser)
    parser.add_argument(
        "--tick-ms",
        type=_whole_numbers,
        default="1,5,20",
        metavar="MS,...",
        help="ticks to compare, in milliseconds (default: %(default)s)",
    )
    parser.add_argument(
        "--wheel-size",
        type=_whole_numbers,
        default="20,64,512",
        metavar="N,...",
        help="wheel sizes (numbers of buckets) to compare (default: %(default)s)",
    )
    parser.add_argument(
        "--sample",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="the share of the journal to replay, in pieces of time (default: %(default)g)",
    )
    parser.add_argument(
        "--piece-rows",
        type=int,
        default=100_000,
        metavar="N",
        help="operations in a piece, which a task holds in memory (default: %(default)s)",
    )
    parser.add_argument(
        "--lateness-ms",
        type=float,
        metavar="MS",
        help="acceptable p99 of the tick's lateness (default: 1%% of the median timeout, and at least 1)",
    )
    parser.add_argument("--out", metavar="DIR", help="for the table, the picture, and replay.html; may be a URI")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, console: "Console") -> int:
    from rich.console import Console

    from purgatory.pipeline.replay.what_if import check_settings, what_if, write_what_if

    check_settings(options.tick_ms, options.wheel_size, options.sample, options.piece_rows, options.lateness_ms)
    selection = selection_of(options)
    if options.out is not None:
        check_out(options.out, files=["replay.html"])
    with session_for_journal(options, console, python_works=True) as spark:
        found = what_if(
            spark,
            options.journal,
            options.tick_ms,
            options.wheel_size,
            sample=options.sample,
            piece_rows=options.piece_rows,
            budget_ms=options.lateness_ms,
            selection=selection,
            skip_corrupt=options.skip_corrupt,
            console=None if options.quiet else console,
        )
        page = None if options.out is None else write_what_if(found, options.out, spark)
    print_skipped(found.skipped, console)
    Console().print(_table(found))
    print(found.headline)
    for reason in found.reasons:
        print(f"  {reason}")
    for example in found.examples:
        print(f"  changed: {example}")
    if page is not None:
        print(page)
    return 0


def _table(found: "WhatIf") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = Text(found.subtitle)  # in a string, square brackets would be markup
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for head in (
        "tick\nms",
        "wheel",
        "CPU\nus",
        "late\np99 ms",
        "late\nmax ms",
        "stall\np99 ms",
        "cascades",
        "buckets",
        "heap\nops",
        "changed",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for row in found.table.to_pylist():
        best = all(row[name] == value for name, value in found.recommended.items())
        table.add_row(
            f"{row['tick_ms']}",
            f"{row['wheel_size']}",
            f"{row['cpu_us']:.2f}",
            f"{row['late_p99_ms']:g}",
            f"{row['late_max_ms']:g}",
            f"{row['stall_p99_ms']:g}",
            f"{row['cascades']:.3f}",
            f"{row['buckets']:.3f}",
            f"{row['heap_operations']:.3f}",
            str(row["changed"]),
            style="bold" if best else None,
        )
    return table


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers separated by commas, got {text!r}") from None
