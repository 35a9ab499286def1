"""Names of tasks that tell what they wait for."""

import asyncio
import weakref
from typing import Any

from purgatory.events import Event, Observer
from purgatory.texts import key_text

__all__ = ["TaskNames"]

_MOST_KEYS = 3


class TaskNames(Observer):
    """An observer that names each task that parks an operation after what it waits for, until the operation ends.

    ::

        room = Purgatory("orders", observers=[TaskNames()])

    ``python -m asyncio pstree PID`` (Python 3.14), ``asyncio.all_tasks()`` and debuggers then show
    ``orders: GET /orders/{id} on order-7`` instead of ``Task-4711``.  When the operation ends, the task gets its
    previous name, unless other code has named it meanwhile.

    It costs a few microseconds for each operation that is parked, and calls the ``repr`` of keys that are not a str.
    An operation that is parked without a task that awaits it, with :meth:`Purgatory.try_complete_else_watch`, names the
    task that has parked it.
    """

    def __init__(self) -> None:
        # (instance, op_id) -> the task, its previous name, and its name from here.
        self._named: dict[tuple[int | None, int], tuple[weakref.ref[asyncio.Task[Any]], str, str]] = {}

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
        name = f"{event.purgatory}: {event.kind} on {keys}{more}"
        self._named[event.instance, event.op_id] = weakref.ref(task), task.get_name(), name
        task.set_name(name)

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
        found = self._named.pop((event.instance, event.op_id), None)
        if found is not None:
            reference, previous, name = found
            task = reference()
            if task is not None and task.get_name() == name:
                task.set_name(previous)
