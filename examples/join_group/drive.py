"""Runs an order: moves the clock, paints, and writes what is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from purgatory.clock import MonotonicClock
from purgatory.testing import VirtualClock

from .cli import Order
from .show import final, live, plain_line
from .simulation import Simulation
from .turns import TurnMeter

if TYPE_CHECKING:
    from examples.web import Page
    from purgatory.journal import Journal

__all__ = ["drive", "open_journal", "open_page"]

_Look = Callable[[], None]

_FRAME = 0.1  # real seconds between two looks at it
_PLAIN_FRAME = 2.0
_STEPS = 200  # of a run at full speed


def open_journal(order: Order, clock: MonotonicClock | VirtualClock) -> Journal | None:
    """The journal that is asked for.  ImportError, with the command that helps, if its extra is not installed."""
    if order.journal is None:
        return None
    from purgatory.journal import Journal  # an extra

    return Journal(order.journal, clock=clock, key_text=_key_text)


def open_page(order: Order) -> Page | None:
    """The live page that is asked for, not yet served."""
    if order.web_port is None:
        return None
    from examples.web import Page  # not loaded where nobody asks for it

    return Page(order.web_port)


def _key_text(key: Hashable) -> str:
    return "/".join(key) if isinstance(key, tuple) else str(key)


async def drive(order: Order, meter: TurnMeter, console: Console) -> Simulation:
    """Run it to its end, or until the task is cancelled; show the tables."""
    clock = MonotonicClock() if order.real_time else VirtualClock()
    journal = open_journal(order, clock)
    observers: Sequence[Any] = () if journal is None else (journal,)
    simulation = Simulation(order.scenario, clock=clock, observers=observers)
    page = open_page(order)
    async with contextlib.AsyncExitStack() as stack:
        if page is not None:
            stack.enter_context(page)
            console.print(f"live page: {page.url}", soft_wrap=True)
        if journal is not None:
            await stack.enter_async_context(journal)
        await stack.enter_async_context(simulation.running())
        await simulation.advance_to(0.001)
        # The members live as long as the run: there is no use in looking through them for garbage, again and again.
        thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, *thresholds[1:])
        meter.begin()
        watch = stack.enter_context(_watched(page, order, simulation, meter))
        began, began_busy = time.perf_counter(), time.process_time()
        try:
            if console.is_terminal:
                await _paint(order, simulation, meter, console, watch)
            else:
                await _print(order, simulation, meter, console, watch)
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()
            view = simulation.view()
            took, busy = time.perf_counter() - began, time.process_time() - began_busy
            console.print(final(simulation, view, meter, took, busy))
    if journal is not None:
        kept = journal.statistics()
        console.print(
            f"journal: {kept.written:,} rows in {kept.files} files in {order.journal}, {kept.dropped} dropped"
        )
    return simulation


@contextlib.contextmanager
def _watched(page: Page | None, order: Order, simulation: Simulation, meter: TurnMeter) -> Iterator[_Look]:
    """What to call now and then for the live page, if there is one; it is shown the end, too."""
    if page is None:
        yield lambda: None
        return
    from examples.web import Scene

    scene = Scene(
        "Join-group simulation",
        simulation.timer,
        simulation.coordinator.purgatories,
        groups=simulation.coordinator.groups,
        meter=meter,
        until=order.scenario.duration,
        speed=1.0 if order.real_time else order.speed,
    )
    try:
        yield lambda: page.look(scene)
    finally:
        page.last_look(scene)


async def _paint(order: Order, simulation: Simulation, meter: TurnMeter, console: Console, watch: _Look) -> None:
    """Run, with a live view on the terminal."""
    with Live(live(simulation, simulation.view()), console=console, auto_refresh=False, transient=True) as screen:

        def look() -> None:
            screen.update(live(simulation, simulation.view()), refresh=True)
            watch()

        await _run(order, simulation, meter, look)


async def _print(order: Order, simulation: Simulation, meter: TurnMeter, console: Console, watch: _Look) -> None:
    """Run, with a line now and then."""
    shown = time.perf_counter()

    def look() -> None:
        nonlocal shown
        if time.perf_counter() - shown >= _PLAIN_FRAME:
            shown = time.perf_counter()
            console.print(plain_line(simulation.view()), soft_wrap=True)
        watch()

    await _run(order, simulation, meter, look)


async def _run(order: Order, simulation: Simulation, meter: TurnMeter, look: _Look) -> None:
    """Move the clock in steps to the end, looking after each, and no faster than is asked for."""
    duration = order.scenario.duration
    speed = 1.0 if order.real_time else order.speed
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
