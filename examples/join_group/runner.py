"""Run a simulation: advance the clock, show the progress, and write the requested files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from purgatory.testing import VirtualClock
from purgatory.types import MonotonicClock

from .cli import Options
from .loop_monitor import LoopMonitor
from .simulation import Simulation
from .terminal import final, live, plain_line

if TYPE_CHECKING:
    from examples.web import Page
    from purgatory.journal import Journal

__all__ = ["open_journal", "open_page", "run_options"]

_Look = Callable[[], None]

_FRAME = 0.1  # real seconds between two updates of the view
_PLAIN_FRAME = 2.0
_STEPS = 200  # number of steps in a run at full speed


def open_journal(options: Options, clock: MonotonicClock | VirtualClock) -> Journal | None:
    """Return the journal, or None.  Raise ImportError with the install command if the extra is missing."""
    if options.journal is None:
        return None
    from purgatory.journal import Journal  # an extra

    return Journal(options.journal, clock=clock, key_text=_key_text)


def open_page(options: Options, simulation: Simulation) -> Page | None:
    """Return the live page, which is not served yet, or None."""
    if options.web_port is None:
        return None
    from examples.web import Groups, Page  # loaded only with --web

    timer = simulation.timer
    speed = 1.0 if options.real_time else options.speed
    groups = Groups(simulation.coordinator.groups, timer, timer.time(), options.scenario.duration, speed)
    return Page("Join-group simulation", simulation.coordinator.purgatories, groups=groups, port=options.web_port)


def _key_text(key: Hashable) -> str:
    return "/".join(key) if isinstance(key, tuple) else str(key)


async def run_options(options: Options, meter: LoopMonitor, console: Console) -> Simulation:
    """Run the simulation to its end, or until the task is cancelled.  Then print the tables."""
    clock = MonotonicClock() if options.real_time else VirtualClock()
    journal = open_journal(options, clock)
    observers: Sequence[Any] = () if journal is None else (journal,)
    simulation = Simulation(options.scenario, clock=clock, observers=observers)
    async with contextlib.AsyncExitStack() as stack:
        if journal is not None:
            await stack.enter_async_context(journal)
        await stack.enter_async_context(simulation.running())
        page = open_page(options, simulation)
        if page is not None:
            stack.enter_context(page)
            console.print(f"live page: {page.url}", soft_wrap=True)
        await simulation.advance_to(0.001)
        # The members exist for the whole run, so repeated garbage collections would be wasted work.
        thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, *thresholds[1:])
        meter.begin()
        began, began_busy = time.perf_counter(), time.process_time()
        try:
            if console.is_terminal:
                await _paint(options, simulation, meter, console)
            else:
                await _print(options, simulation, meter, console)
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            view = simulation.view()
            took, busy = time.perf_counter() - began, time.process_time() - began_busy
            console.print(final(simulation, view, meter, took, busy))
    if journal is not None:
        kept = journal.statistics()
        console.print(
            f"journal: {kept.written:,} rows in {kept.files} files in {options.journal}, {kept.dropped} dropped"
        )
    return simulation


async def _paint(options: Options, simulation: Simulation, meter: LoopMonitor, console: Console) -> None:
    """Run with a live view on the terminal."""
    with Live(live(simulation, simulation.view()), console=console, auto_refresh=False, transient=True) as screen:

        def look() -> None:
            screen.update(live(simulation, simulation.view()), refresh=True)

        await _run(options, simulation, meter, look)


async def _print(options: Options, simulation: Simulation, meter: LoopMonitor, console: Console) -> None:
    """Run and print a line every two seconds."""
    shown = time.perf_counter()

    def look() -> None:
        nonlocal shown
        if time.perf_counter() - shown >= _PLAIN_FRAME:
            shown = time.perf_counter()
            console.print(plain_line(simulation.view()), soft_wrap=True)

    await _run(options, simulation, meter, look)


async def _run(options: Options, simulation: Simulation, meter: LoopMonitor, look: _Look) -> None:
    """Advance the clock in steps, and call ``look`` after each step.  Limit the speed as requested."""
    duration = options.scenario.duration
    speed = 1.0 if options.real_time else options.speed
    step = duration / _STEPS if speed is None else _FRAME * speed
    began, began_at = time.perf_counter(), simulation.now
    while simulation.now < duration:
        await simulation.advance_to(min(simulation.now + step, duration))
        with meter.left_out():
            look()
        if speed is not None:
            early = began + (simulation.now - began_at) / speed - time.perf_counter()
            if early > 0.0:
                await asyncio.sleep(early)
