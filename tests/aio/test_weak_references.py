"""Weak references to what users hold and forget, as to an ``asyncio.Future``."""

import weakref

import pytest

from purgatory import SystemTimer, TimerTask
from purgatory.testing import VirtualClock
from tests.helpers import Op


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
