"""Weak references to what users hold and forget, as to an ``asyncio.Future``."""

import weakref
from typing import Any

import pytest

from purgatory import Purgatory, SystemTimer, TimerTask
from purgatory.testing import VirtualClock
from tests.helpers import Op, futures


@pytest.mark.usefixtures("no_gc")
async def test_a_delayed_future_can_be_weakly_referenced(purgatory: Purgatory[Any]) -> None:
    """The reference is cleared when the operation has ended and nothing else holds it."""
    (future,) = futures(1)
    operation = purgatory.when_all([future], 5)
    gone = weakref.ref(operation)
    assert gone() is operation
    future.set_result(1)
    assert await operation == [1]
    del operation
    assert gone() is None


@pytest.mark.usefixtures("no_gc")
async def test_a_timeout_can_be_weakly_referenced(timer: SystemTimer, clock: VirtualClock) -> None:
    """The reference is cleared after the block."""
    async with timer.timeout(5) as timeout:
        gone = weakref.ref(timeout)
        assert gone() is timeout
    del timeout
    assert gone() is None


@pytest.mark.usefixtures("no_gc")
async def test_a_task_of_a_class_of_ones_own_can_be_weakly_referenced(timer: SystemTimer, clock: VirtualClock) -> None:
    """An operation and a timer task have a slot for it as any subclass has; the reference is cleared after the end."""

    class Alarm(TimerTask):
        pass

    operation, alarm = Op(5.0), Alarm(5000)
    timer.add(operation)
    timer.add(alarm)
    gone = weakref.ref(operation), weakref.ref(alarm)
    assert (gone[0](), gone[1]()) == (operation, alarm)
    await clock.advance(5.0)
    del operation, alarm
    assert (gone[0](), gone[1]()) == (None, None)
