"""Weak references to what users hold and forget, as to an ``asyncio.Future``."""

import dataclasses
import gc
import weakref
from typing import Any

import pytest

from purgatory import DelayedOperation, SystemTimer, TimerTask
from purgatory.core.operation.wait_until import LibraryWait, WaitUntil
from purgatory.testing import VirtualClock
from tests.helpers import Op


class Slotted(TimerTask):
    """A task whose class adds no ``__dict__``."""

    __slots__ = ()


class SlottedOperation(DelayedOperation[None]):
    """An operation whose class adds a slot of its own."""

    __slots__ = ("note",)


@pytest.mark.usefixtures("no_gc")
async def test_a_task_of_a_class_of_ones_own_can_be_weakly_referenced(timer: SystemTimer, clock: VirtualClock) -> None:
    """The reference to an operation or to a timer task is cleared after its end."""

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


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("kind", [TimerTask, Slotted, DelayedOperation, SlottedOperation, LibraryWait, WaitUntil])
def test_every_task_can_be_weakly_referenced(kind: Any) -> None:
    """The class need not be a subclass without ``__slots__``; the callback runs, and a set forgets the task."""
    arguments = {LibraryWait: (None,), WaitUntil: (bool, None)}
    calls: list[object] = []
    task = kind(*arguments.get(kind, (5,)))
    gone, tasks = weakref.ref(task, calls.append), weakref.WeakSet([task])
    assert gone() is task
    assert list(tasks) == [task]
    del task
    assert gone() is None
    assert calls == [gone]
    assert len(tasks) == 0


@pytest.mark.usefixtures("no_gc")
async def test_a_task_of_call_later_can_be_weakly_referenced(timer: SystemTimer, clock: VirtualClock) -> None:
    """As an ``asyncio.TimerHandle``: the timer holds the task until it runs.  A task in reused memory starts anew."""
    for _ in range(3):
        calls: list[object] = []
        task = timer.call_later(5.0, calls.append, 1)
        assert weakref.getweakrefcount(task) == 0
        gone = weakref.ref(task, calls.append)
        del task
        assert gone() is not None
        await clock.advance(5.0)
        assert gone() is None
        assert calls == [1, gone]


def test_the_collector_clears_the_references_to_a_cycle() -> None:
    """The callback of a reference that is not in the cycle runs."""

    class Held(TimerTask):
        pass

    calls: list[object] = []
    task: Any = Held(5)
    task.itself = task
    gone = weakref.ref(task, calls.append)
    del task
    gc.collect()
    assert gone() is None
    assert calls == [gone]


def test_a_data_class_of_tasks_with_slots() -> None:
    """``dataclass(slots=True)`` works with a base class that has the slot."""

    @dataclasses.dataclass(slots=True, eq=False)
    class Named(TimerTask):
        name: str

        def __post_init__(self) -> None:
            TimerTask.__init__(self, 5)

    task = Named("a")
    assert weakref.ref(task)() is task
    assert not hasattr(task, "__dict__")
