"""The purgatory on an event loop: its timer, which it starts, and its text."""

import asyncio
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Op


async def test_a_purgatory_starts_its_own_timer_when_it_is_needed(clock: VirtualClock) -> None:
    """Without async with, the first deadline starts the reaper."""
    purgatory = Purgatory[Op]("test", clock=clock)
    assert not purgatory.timer.running
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a"])
    assert purgatory.timer.running
    await clock.advance(5)
    assert op.expired
    await purgatory.aclose()


async def test_parking_starts_a_shared_timer(clock: VirtualClock) -> None:
    """A task that parks on a shared timer that was not entered is still answered."""
    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    task = asyncio.create_task(purgatory.park(Op(5, name="x"), ["a"]))
    await clock.advance(5)
    assert await task == "x"
    await purgatory.aclose()
    await timer.aclose()


async def test_entering_starts_a_shared_timer(clock: VirtualClock) -> None:
    """A deadline that a synchronous call adds in ``async with`` comes, although nothing else has started the timer."""
    timer = SystemTimer(clock=clock)
    async with Purgatory[Op]("test", timer=timer) as purgatory:
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        await clock.advance(5)
        assert op.expired
    assert timer.running
    await timer.aclose()


async def test_a_shared_timer_has_its_own_settings(clock: VirtualClock) -> None:
    """A timer must not be combined with settings for a timer."""
    timer = SystemTimer(clock=clock)
    settings: tuple[dict[str, Any], ...] = ({"clock": clock}, {"tick_ms": 2}, {"wheel_size": 10})
    for setting in settings:
        with pytest.raises(ValueError, match="timer must not be combined with clock, tick_ms, or wheel_size"):
            Purgatory("x", timer=timer, **setting)


async def test_the_repr_of_a_purgatory_shows_its_state(clock: VirtualClock) -> None:
    """The ``repr`` shows the name, whether the purgatory is open, and the gauges."""
    purgatory = Purgatory[Op]("fetch", clock=clock)
    purgatory.try_complete_else_watch(Op(5), ["a", "b"])
    assert repr(purgatory) == "<Purgatory 'fetch' open parked=1 watched=2 num_delayed=1>"
    await purgatory.aclose()
    assert repr(purgatory) == "<Purgatory 'fetch' closed parked=0 watched=0 num_delayed=0>"
    with pytest.raises(PurgatoryClosed, match="'fetch' is closed"):
        purgatory.try_complete_else_watch(Op(5), ["a"])
    assert purgatory.closed
    assert purgatory.name == "fetch"
