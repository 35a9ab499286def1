"""Name tasks after what they wait for."""

import asyncio
import weakref
from typing import Any

from purgatory.events import Event, Observer
from purgatory.texts import key_text

__all__ = ["TaskNames"]

_MOST_KEYS = 3


class TaskNames(Observer):
    """An observer that renames a task while an operation of the task is parked: the name says what the task waits for.

    ::

        room = Purgatory("orders", observers=[TaskNames()])

    ``python -m asyncio pstree PID`` (Python 3.14), ``asyncio.all_tasks()``, and debuggers then show
    ``orders: GET /orders/{id} on order-7`` instead of ``Task-4711``.  When the operation ends, the task gets its
    previous name, unless other code has named it meanwhile.  A task with several operations has the name of the latest
    one that is still parked.

    With a task factory that starts tasks eagerly, ``create_task`` of Python 3.12 and 3.13 names a task after its first
    step, so the name of a wait in that step is lost.

    It costs a few microseconds for each operation that is parked, and calls the ``repr`` of keys that are not str.  If
    :meth:`Purgatory.try_complete_else_watch` parks an operation, so that no task awaits it, the task that made the call
    is renamed.
    """

    def __init__(self) -> None:
        self._named: dict[tuple[int | None, int], _Named] = {}  # (instance, op_id) -> the name given for it
        self._latest: dict[int, _Named] = {}  # id() of a task -> the latest name given to it

    def parked(self, event: Event) -> None:
        """Name the task that runs."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs
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

    def completed(self, event: Event) -> None:
        """Give the task its previous name."""
        self._restore(event)

    def expired(self, event: Event) -> None:
        """Give the task its previous name."""
        self._restore(event)

    def cancelled(self, event: Event) -> None:
        """Give the task its previous name."""
        self._restore(event)

    def failed(self, event: Event) -> None:
        """Give the task its previous name."""
        self._restore(event)

    def _restore(self, event: Event) -> None:
        named = self._named.pop((event.instance, event.op_id), None)
        if named is None:
            return
        below, above = named.below, named.above
        if below is not None:
            below.above = above
        if above is not None:  # the task has a later name, and gets this one's previous name after that
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
    """A name that a task was given for an operation.  A task with several operations has a chain of them.

    ``previous``: its name before.  ``below``, ``above``: the names before and after this one, if they are of
    operations that are still parked, and no other code has named the task in between.
    """

    __slots__ = ("above", "below", "identity", "name", "previous", "task")

    def __init__(self, task: "asyncio.Task[Any]", name: str) -> None:
        self.task = weakref.ref(task)
        self.identity = id(task)
        self.previous = task.get_name()
        self.name = name
        self.below: _Named | None = None
        self.above: _Named | None = None
