"""The table on the terminal."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .row import Row, number, number_of

__all__ = ["print_machine", "print_rows", "print_verdicts"]

_WIDTH = 165


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal and console.width >= _WIDTH else Console(width=_WIDTH, highlight=False)


def print_machine(machine: Mapping[str, str]) -> None:
    """Print the machine on which the figures were measured."""
    console = _console()
    for name, text in machine.items():
        console.print(f"{name:10} {text}", markup=False)
    console.print(
        "ratio: theirs divided by ours (above 1: ours is better); the median of the pairs, with quartiles in brackets."
    )


def print_rows(section: str, rows: Sequence[Row], *, compiled: bool) -> None:
    """Print one section of the table."""
    table = Table(title=section, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", overflow="fold")
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("compared with", overflow="fold")
    table.add_column("theirs", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("budget", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    before = ""
    for row in rows:
        met = row.met(compiled=compiled)
        table.add_row(
            row.what if row.what != before else "",
            number_of(row.ours, row.unit),
            row.peer,
            "" if row.theirs is None else number_of(row.theirs, row.unit),
            ratio_text(row),
            row.budget_text(compiled=compiled),
            row.verdict(compiled=compiled),
            style="red" if met is False else "",
        )
        before = row.what
    console = _console()
    console.print(table)
    for note in dict.fromkeys(row.note for row in rows if row.note):
        console.print(f"  {note}", markup=False, style="dim")


def ratio_text(row: Row) -> str:
    """Return the ratio with its quartiles."""
    if row.ratio is None:
        return ""
    spread = "" if row.low is None or row.high is None else f" ({number(row.low)} .. {number(row.high)})"
    return f"{number(row.ratio)}x{spread}"


def print_verdicts(rows: Sequence[Row], *, compiled: bool) -> None:
    """Print how many budgets are met, and list those that are not."""
    verdicts = [row.met(compiled=compiled) for row in rows]
    kept, missed = verdicts.count(True), [row for row in rows if row.met(compiled=compiled) is False]
    console = _console()
    console.print(f"budgets: {kept} met, {len(missed)} not met", markup=False)
    for row in missed:
        compared = f", compared with {row.peer}" if row.peer else ""
        budget = f"{row.budget_text(compiled=compiled)}: {row.verdict(compiled=compiled)}"
        console.print(f"  {row.what}{compared}: {budget}", markup=False, style="red")
