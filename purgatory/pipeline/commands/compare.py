"""The ``compare`` command, and the options that it shares with ``report``."""

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any, Final

from purgatory.pipeline.output.directory import check_out
from purgatory.pipeline.selection import Selection

from .options import (
    add_journal_options,
    add_selection_options,
    check_top,
    print_skipped,
    selection_of,
    session_for_journal,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

    from purgatory.pipeline.compare import Comparison
    from purgatory.pipeline.report import Report

__all__ = ["add_baseline_options", "add_compare", "baseline_selection", "compared", "print_comparison"]

_MOST_TIMES: Final = 8
WORSE: Final = 3  # the exit status with --fail-on-worse if a figure got worse

_EXAMPLES: Final = f"""\
examples:
  purgatory compare journal-monday journal-tuesday
  purgatory compare before after --purgatory fetch --out comparison
  purgatory compare journal journal --baseline-since 2026-11-21 --baseline-until 2026-11-22 --since 2026-11-22
  purgatory compare before after --threshold 0.2 --fail-on-worse --json > changes.json

exit status {WORSE}: with --fail-on-worse, a figure got worse
"""


def add_compare(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "compare",
        help="two journals side by side: what got better, and what got worse",
        description="Compare a journal's outcomes, refused operations, waits, lateness, peaks, and hot keys with a"
        " baseline's.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("baseline", help="the journal to compare with: a directory, a file, or a URL")
    add_journal_options(parser)
    add_selection_options(parser)
    add_baseline_options(parser)
    parser.add_argument("--top", type=int, default=20, metavar="N", help="number of hot keys (default: %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="for the changes, the pictures, and compare.html; may be a URI")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--fail-on-worse", action="store_true", help=f"end with exit status {WORSE} if a figure got worse"
    )
    parser.set_defaults(run=_run)


def add_baseline_options(parser: "argparse._ActionsContainer") -> None:
    """Add ``--threshold``, ``--baseline-since``, and ``--baseline-until``."""
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="the least change that counts, as a share of the baseline (default: %(default)s)",
    )
    for name, other in (("since", "until"), ("until", "since")):
        parser.add_argument(
            f"--baseline-{name}",
            metavar="TIME",
            help=f"the same as --{name}, for the baseline"
            f" (default: no limit with --baseline-{other}, otherwise --{name})",
        )


def baseline_selection(options: argparse.Namespace, selection: Selection) -> Selection:
    """Return the selection for the baseline: the same names, but other times.  Raises ValueError for an invalid
    option."""
    if not 0 < options.threshold < math.inf:
        raise ValueError(f"threshold must be more than 0 and finite, got {options.threshold:g}")
    if options.baseline_since is None and options.baseline_until is None:
        return selection
    own = Selection.parse(options.baseline_since, options.baseline_until, name="baseline-")
    return Selection(own.since_ms, own.until_ms, selection.purgatories, selection.kinds)


def compared(
    spark: "SparkSession",
    options: argparse.Namespace,
    baseline: str,
    selection: Selection,
    report: "Report",
    console: "Console",
) -> "Comparison":
    """Compute the report on the baseline, and compare the two reports."""
    from purgatory.pipeline.compare import compare
    from purgatory.pipeline.report import compute

    skip_corrupt = options.skip_corrupt
    shown = None if options.quiet else console
    other = compute(
        spark,
        baseline,
        top=options.top,
        selection=selection,
        skip_corrupt=skip_corrupt,
        console=shown,
        interval_keys=False,
    )
    return compare(spark, other, report, threshold=options.threshold, skip_corrupt=skip_corrupt)


def print_comparison(comparison: "Comparison") -> None:
    """Print the figures that changed, and one sentence about all of them."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from purgatory.pipeline.compare.page import COLUMNS, about, headline, lead, row_texts, when

    print(f"baseline: {about(comparison.baseline)}")
    print(f"journal:  {about(comparison.report)}")
    rows = row_texts(comparison, "worse", "better", "more", "fewer", "new", "gone")
    if rows:
        table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="right" if name in ("baseline", "journal", "change") else "left")
        for row in rows:
            table.add_row(*map(Text, row.values()), style="bold" if row["verdict"] == "worse" else None)
        Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(headline(comparison))
    for sentence in lead(comparison):
        print(sentence)
    events = when(comparison)
    for line in events[:_MOST_TIMES]:
        print(f"  {line}")
    if len(events) > _MOST_TIMES:
        print(f"  and {len(events) - _MOST_TIMES} more lines, in times.csv and on the page with --out")


def _run(options: argparse.Namespace, console: "Console") -> int:
    check_top(options.top)
    selection = selection_of(options)
    other = baseline_selection(options, selection)
    if options.out is not None:
        check_out(options.out, files=["compare.html"])
    from purgatory.pipeline.compare import write_comparison
    from purgatory.pipeline.report import compute

    with session_for_journal(options, console, others=[options.baseline], python_works=True) as spark:
        report = compute(
            spark,
            options.journal,
            top=options.top,
            selection=selection,
            skip_corrupt=options.skip_corrupt,
            console=None if options.quiet else console,
            interval_keys=False,
        )
        comparison = compared(spark, options, options.baseline, other, report, console)
        page = None if options.out is None else write_comparison(comparison, options.out, spark)
    print_skipped([*comparison.baseline.skipped, *report.skipped], console)
    if options.json:
        print(comparison.as_json())
    else:
        print_comparison(comparison)
        if page is not None:
            print(page)
    return WORSE if options.fail_on_worse and comparison.counts["worse"] else 0
