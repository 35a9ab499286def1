"""The output on the terminal: a live view during the run, and tables at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.group import GroupState, Removal

from .loop_monitor import LoopMonitor
from .simulation import Simulation, View

__all__ = ["clock_text", "final", "live", "plain_line"]

_COLOURS = {
    GroupState.STABLE: "green",
    GroupState.PREPARING_REBALANCE: "yellow",
    GroupState.COMPLETING_REBALANCE: "cyan",
    GroupState.EMPTY: "bright_black",
}
_REMOVALS = {
    Removal.SESSION: "its session expired",
    Removal.REBALANCE: "it did not rejoin in time",
    Removal.SYNC: "it did not sync in time",
    Removal.LEFT: "it left",
    Removal.GONE: "it disconnected before it received its id",
    Removal.FULL: "the group was full",
}
_BAR_WIDTH = 30


def clock_text(seconds: float) -> str:
    """Format a time as h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def live(simulation: Simulation, view: View) -> RenderableType:
    """Return the live view of a running simulation."""
    duration = simulation.scenario.duration
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(clock_text(view.now), style="bold"),
        ProgressBar(total=duration, completed=min(view.now, duration), width=44),
        Text(f"of {clock_text(duration)}", style="bright_black"),
        Text(f"{view.members:,} members"),
    )
    tables = Table.grid(padding=(0, 3))
    tables.add_row(_states(view), _purgatories(view))
    news = Table.grid(padding=(0, 2))
    for at_ms, what in simulation.record.news:
        news.add_row(Text(clock_text(at_ms / 1000), style="bright_black"), Text(what, no_wrap=True))
    return Group(head, Text(), tables, Text(), news)


def _states(view: View) -> Table:
    table = Table(box=None, pad_edge=False, title="groups", title_style="bold", title_justify="left")
    table.add_column("state", style="bright_black")
    table.add_column("number", justify="right")
    table.add_column("", width=_BAR_WIDTH // 2)
    total = max(1, sum(view.states.values()))
    for state, colour in _COLOURS.items():
        number = view.states[state]
        cells = -(-number * _BAR_WIDTH // 2 // total)
        table.add_row(state.value, f"{number:,}", Text("█" * cells, style=colour))
    return table


def _purgatories(view: View) -> Table:
    table = Table(box=None, pad_edge=False, title="purgatories", title_style="bold", title_justify="left")
    table.add_column("", style="bright_black")
    for name in ("parked", "completed", "expired"):
        table.add_column(name, justify="right")
    for purgatory in view.purgatories:
        counts = (purgatory.parked, purgatory.completed, purgatory.expired)
        table.add_row(purgatory.name, *(f"{count:,}" for count in counts))
    return table


def plain_line(view: View) -> str:
    """Return one line of progress, for output without a terminal."""
    join, _, heartbeat = view.purgatories
    states = ", ".join(f"{view.states[state]} {state.value}" for state in _COLOURS if view.states[state])
    return (
        f"{clock_text(view.now)}  {view.members} members in groups: {states or 'none'}"
        f" | joins parked {join.parked}, completed {join.completed}, expired {join.expired}"
        f" | sessions parked {heartbeat.parked}, expired {heartbeat.expired}"
    )


def final(simulation: Simulation, view: View, meter: LoopMonitor, took: float, busy: float) -> RenderableType:
    """Return the final tables.  ``took``, ``busy``: elapsed seconds and CPU seconds."""
    scenario = simulation.scenario
    number = sum(len(plans) for plans in simulation.plans.values())
    head = Text(
        f"groups {len(simulation.plans):,}, members {number:,}: {clock_text(view.now)} simulated in {took:.1f} s,"
        f" with {busy:.1f} s of CPU time (seed {scenario.seed})",
        style="bold",
    )
    return Group(Text(), head, Text(), _happened(simulation), Text(), _waited(view), Text(), _loop(simulation, meter))


def _happened(simulation: Simulation) -> Table:
    record = simulation.record
    rows: list[tuple[str, str]] = [
        ("rebalances", f"{record.rebalances:,}"),
        ("members that joined", f"{record.joined_first:,}"),
        ("members kept through a rebalance", f"{record.kept:,}"),
        ("static members that returned without a rebalance", f"{record.replaced:,}"),
        ("members removed", f"{sum(record.removed.values()):,}"),
    ]
    rows += [(f"  {_REMOVALS[why]}", f"{record.removed[why]:,}") for why in Removal if record.removed[why]]
    if record.latencies_ms:
        joins = quantiles(record.latencies_ms, (0.5, 0.9, 0.99, 1.0))
        rows += [
            ("seconds from the first JoinGroup to an assignment", ""),
            *((f"  {name}", f"{value / 1000:.3f}") for name, value in zip(_QUANTILES, joins, strict=True)),
        ]
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bright_black")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


_QUANTILES = ("p50", "p90", "p99", "max")


def _waited(view: View) -> Table:
    table = Table(title="purgatories", title_style="bold", title_justify="left", header_style="", box=None)
    table.pad_edge = False
    table.add_column("", style="bright_black")
    for name in ("submitted", "completed", "expired", "withdrawn", "parked", "wait p50", "p99", "max"):
        table.add_column(name, justify="right")
    for of in view.purgatories:
        counts: Iterable[int] = (of.submitted, of.completed, of.expired, of.cancelled, of.parked)
        waits = (of.wait.p50, of.wait.p99, of.wait.max)
        table.add_row(of.name, *(f"{count:,}" for count in counts), *(f"{wait:.3f}" for wait in waits))
    return table


def _loop(simulation: Simulation, meter: LoopMonitor) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bright_black")
    table.add_column(justify="right")
    table.add_row("longest turn of the event loop", f"{meter.longest * 1000:.1f} ms of CPU time")
    table.add_row("fingerprint of the run", simulation.record.fingerprint)
    return table


def quantiles(values: Iterable[int], fractions: Sequence[float]) -> list[int]:
    """Return the given quantiles of the values."""
    ordered = sorted(values)
    return [ordered[max(0, -(-int(fraction * 1_000_000) * len(ordered) // 1_000_000) - 1)] for fraction in fractions]


def console(plain: bool) -> Console:
    """Return the console for the output.  Without a terminal, lines are not wrapped."""
    made = Console(highlight=False, no_color=True if plain else None)
    if plain or not made.is_terminal:
        made = Console(highlight=False, no_color=True, width=max(100, made.width), force_terminal=False)
    return made
