"""Naming tasks after what they wait for."""

import asyncio
import weakref
from typing import Any

from purgatory.events import Event
from purgatory.texts import key_text

from .end_observer import EndObserver

__all__ = ["TaskNames"]

_MOST_KEYS = 3


class TaskNames(EndObserver):
    """An observer that renames a task while the task waits for a parked operation; the name shows what the task waits
    for.

    ::

        room = Purgatory("orders", observers=[TaskNames()])

    ``python -m asyncio pstree PID`` (Python 3.14), ``asyncio.all_tasks()``, and debuggers then show ``orders: GET
    /orders/{id} on order-7`` instead of ``Task-4711``.  When the operation ends, the task's previous name is restored,
    unless other code has renamed it in the meantime.  A task with several operations is named after the latest one that
    is still parked.

    With a task factory that starts tasks eagerly, ``create_task`` in Python 3.12 and 3.13 sets the task's name after
    its first step, so the name of a wait in that step is lost.

    This observer costs a few microseconds for each parked operation, and it calls ``repr`` on keys that are not str.
    If :meth:`Purgatory.try_complete_else_watch` parks an operation that no task awaits, the calling task is renamed.
    """

    def __init__(self) -> None:
        self._named: dict[tuple[int | None, int], _Named] = {}  # (instance, op_id) -> the name given for the operation
        self._latest: dict[int, _Named] = {}  # id() of a task -> the latest name given to it

    def parked(self, event: Event) -> None:
        """Rename the running task."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop is running
            return
        if task is None:
            return
        keys = ", ".join([key_text(key) for key in event.keys[:_MOST_KEYS]])
        more = "" if len(event.keys) <= _MOST_KEYS else f" and {len(event.keys) - _MOST_KEYS} more"
        named = _Named(task, f"{event.purgatory}: {event.kind} on {keys}{more}")
        below = self._latest.get(id(task))
        if below is not None and below.task() is task and below.name == named.previous:
            named.below = below
            below.above = named
        self._named[event.instance, event.op_id] = self._latest[id(task)] = named
        task.set_name(named.name)

    def ended(self, event: Event) -> None:
        """Restore the task's previous name."""
        named = self._named.pop((event.instance, event.op_id), None)
        if named is None:
            return
        below, above = named.below, named.above
        if below is not None:
            below.above = above
        if above is not None:  # removing the later name must restore this one's previous name
            above.below = below
            above.previous = named.previous
            return
        if self._latest.get(named.identity) is named:
            if below is None:
                del self._latest[named.identity]
            else:
                self._latest[named.identity] = below
        task = named.task()
        if task is not None and task.get_name() == named.name:
            task.set_name(named.previous)


class _Named:
    """A name that a task was given for an operation.  A task with several operations has a chain of names.

    ``previous``: the name that the task had before it was given this one.  ``below``, ``above``: the names before and
    after this one, if their operations are still parked and no other code has renamed the task in between.
    """

    __slots__ = ("above", "below", "identity", "name", "previous", "task")

    def __init__(self, task: "asyncio.Task[Any]", name: str) -> None:
        self.task = weakref.ref(task)
        self.identity = id(task)
        self.previous = task.get_name()
        self.name = name
        self.below: _Named | None = None
        self.above: _Named | None = None
