"""The ``report`` command."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from purgatory.pipeline.output.directory import check_out

from .compare import add_baseline_options, baseline_selection, compared, print_comparison
from .options import (
    add_journal_options,
    add_selection_options,
    check_top,
    print_skipped,
    selection_of,
    session_for_journal,
    whole_ms,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_report"]


_EXAMPLES: Final = """\
examples:
  purgatory report journal --out report
  purgatory report journal --since 2026-11-22T10:00 --until 2026-11-22T11:00 --out report
  purgatory report after --compare before --out report
  purgatory report journal --purgatory fetch --kind DelayedFetch --out report
"""


def add_report(commands: Any) -> None:
    """Add the command to the result of ``ArgumentParser.add_subparsers``."""
    parser = commands.add_parser(
        "report",
        help="wait times and outcomes of the operations in a journal",
        description="Compute wait times, outcomes, occupancy, and hot keys of the operations in a journal.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_journal_options(parser)
    add_selection_options(parser)
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="for the tables, the plots, and index.html; may be a URI"
    )
    parser.add_argument("--top", type=int, default=50, metavar="N", help="number of hot keys (default: %(default)s)")
    parser.add_argument(
        "--bucket", type=float, metavar="SECONDS", help="resolution of the occupancy (default: automatic)"
    )
    parser.add_argument(
        "--step", type=float, metavar="SECONDS", help="resolution of outcomes and waits over time (default: automatic)"
    )
    parser.add_argument(
        "--draw",
        action="append",
        default=[],
        metavar="NAME",
        help="a purgatory that has plots of its own; can be repeated (default: the eight with the most operations)",
    )
    group = parser.add_argument_group("comparison", "Also compare with another journal, as the compare command does.")
    group.add_argument("--compare", metavar="OTHER", help="the baseline; adds compare.html and changes.json")
    add_baseline_options(group)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, console: "Console") -> int:
    bucket_ms = None if options.bucket is None else whole_ms(options.bucket, "bucket")
    step_ms = None if options.step is None else whole_ms(options.step, "step")
    check_top(options.top)
    selection = selection_of(options)
    other = baseline_selection(options, selection)
    if options.compare is None and (options.baseline_since is not None or options.baseline_until is not None):
        raise ValueError("compare must be a journal if baseline-since or baseline-until is set, got nothing")
    check_out(options.out, files=["index.html"] if options.compare is None else ["index.html", "compare.html"])
    from purgatory.pipeline.report import compute, write_report

    others = [] if options.compare is None else [options.compare]
    comparison = None
    with session_for_journal(options, console, others=others, python_works=True) as spark:
        report = compute(
            spark,
            options.journal,
            top=options.top,
            bucket_ms=bucket_ms,
            step_ms=step_ms,
            selection=selection,
            skip_corrupt=options.skip_corrupt,
            console=None if options.quiet else console,
        )
        page = write_report(report, options.out, spark, draw=options.draw)
        if options.compare is not None:
            from purgatory.pipeline.compare import write_comparison

            comparison = compared(spark, options, options.compare, other, report, console)
            compare_page = write_comparison(comparison, options.out, spark)
    print_skipped(report.skipped, console)
    if report.dropped:
        console.print(f"{report.dropped:,} rows were dropped by the servers and are missing from the counts")
    print(f"{report.operations:,} operations: {page}")
    if comparison is not None:
        print_skipped(comparison.baseline.skipped, console)
        print_comparison(comparison)
        print(compare_page)
    return 0
