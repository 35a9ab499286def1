"""The observers of a purgatory, and their notification."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import count
from typing import Any

from purgatory.core.operation.lifecycle import (
    CANCELLED,
    EXPIRED_BY_CLOSING,
    FAILED,
    OUTCOMES,
    PENDING,
    error_of,
    keys_of,
)
from purgatory.core.operation.operation import Operation
from purgatory.core.operation.wait_until import LibraryWait, given_kind
from purgatory.core.timer.coroutines import refuse_coroutine_function
from purgatory.core.timer.task import NOT_QUEUED
from purgatory.events import Event
from purgatory.texts import safe_repr, type_name

from .record_buffer import RecordBuffer, append_record

__all__ = ["ObserverNotifier"]

# The observer method for each state; PENDING stands for "parked".  Two states have the outcome EXPIRED.
_METHODS = ("parked", *[outcome.value for outcome in OUTCOMES[1:]])
_Method = Callable[[Event], object]
_INSTANCES: Iterator[int] = count(1)  # for all purgatories in the process


class ObserverNotifier:
    """Notifies observers; an observer that raises is detached, and the error is reported.

    Only methods that an observer defines are called: methods that it lacks or that it inherits from :class:`Observer`
    are skipped.  An event that no observer receives is not created.

    ``active``: whether there is any observer.
    """

    __slots__ = (
        "_buffers",
        "_contained",
        "_events",
        "_leaving",
        "_left_id",
        "_left_keys",
        "_left_ms",
        "_methods",
        "_sending",
        "active",
        "instance",
        "label",
        "name",
        "on_error",
    )

    def __init__(
        self,
        name: str,
        observers: Any,
        contained: tuple[type[BaseException], ...],
        on_error: Callable[[BaseException, object], None],
    ) -> None:
        if isinstance(observers, (str, bytes)) or not isinstance(observers, Sequence):
            raise TypeError(f"observers must be a sequence of observers, got {safe_repr(observers)}")
        self.name: str = name
        self.instance: int = next(_INSTANCES)
        self.label: tuple[str, int] = (name, self.instance)  # identifies the purgatory in records
        self._contained = contained
        self.on_error: Callable[[BaseException, object], None] = on_error
        self._methods: list[list[tuple[object, _Method]]] = [[] for _ in _METHODS]
        self._buffers: list[tuple[object, RecordBuffer]] = []  # with the observers to which they belong
        self._events: deque[tuple[int, Event]] = deque()  # created, but not yet sent to every observer
        self._sending: bool = False
        # The first operation that has left its keys but has not been reported yet; the dict holds those that end in its
        # callbacks.
        self._left_id: int = 0
        self._left_keys: tuple[Hashable, ...] = ()
        self._left_ms: int = 0
        self._leaving: dict[int, tuple[tuple[Hashable, ...], int]] = {}
        for observer in observers:
            self._attach(observer)
        self.active: bool = any(self._methods) or bool(self._buffers)

    def parked(self, operation: Operation) -> None:
        """Notify observers of an operation that was parked."""
        if self._methods[0]:
            self._send(operation, PENDING, keys_of(operation), _deadline_of(operation), None)

    def parked_event(self, operation: Operation) -> Event:
        """Return the ``parked`` event of a parked operation."""
        deadline_ms = _deadline_of(operation)
        keys, parked_ms = keys_of(operation), operation._parked_ms
        return Event(
            operation,
            self.name,
            operation._op_id,
            keys,
            parked_ms,
            deadline_ms,
            None,
            OUTCOMES[PENDING],
            None,
            self.instance,
            None,
            given_kind(operation),
        )

    def leaving(self, operation: Operation, now_ms: int) -> None:
        """Store an operation's keys before it leaves them, because the event after its callback needs them."""
        keys = keys_of(operation)
        parked_ms = operation._parked_ms
        left_ms = max(parked_ms, now_ms)
        if self._left_id == 0:
            self._left_id = operation._op_id
            self._left_keys = keys
            self._left_ms = left_ms
        else:
            self._leaving[operation._op_id] = (keys, left_ms)

    def ended(self, operation: Operation) -> None:
        """Notify observers of an operation whose outcome has been decided."""
        keys: tuple[Hashable, ...] = ()
        finished_ms = operation._parked_ms
        was_parked = True
        if self._left_id == operation._op_id:
            keys = self._left_keys
            finished_ms = self._left_ms
            self._left_id = 0
            self._left_keys = ()
        else:
            left = self._leaving.pop(operation._op_id, None)
            if left is None:
                was_parked = False
            else:
                keys, finished_ms = left
        state = operation._op_state
        sends = bool(self._methods[state])
        if not sends and not self._buffers:
            return
        deadline_ms: int | None = None
        if operation._delay_ms >= 0:
            deadline_ms = _deadline_of(operation) if was_parked else operation._parked_ms + operation._delay_ms
        elif operation._expiration_ms != NOT_QUEUED:
            deadline_ms = operation._expiration_ms  # it completed at once and has an absolute deadline
        if self._buffers:
            self._append(operation, keys, deadline_ms, finished_ms)
        if sends:
            self._send(operation, state, keys, deadline_ms, finished_ms)

    def _append(
        self, operation: Operation, keys: tuple[Hashable, ...], deadline_ms: int | None, finished_ms: int
    ) -> None:
        kind: Any = type(operation)
        if isinstance(operation, LibraryWait) and operation._given_kind is not None:
            kind = operation._given_kind
        for observer, buffer in tuple(self._buffers):
            try:
                append_record(
                    buffer,
                    operation._op_state,
                    self.label,
                    kind,
                    operation._op_id,
                    keys,
                    operation._parked_ms,
                    deadline_ms,
                    finished_ms,
                )
            except BaseException as error:
                if not isinstance(error, self._contained):
                    raise
                self._detach(observer)
                self.on_error(error, observer)

    def _send(
        self,
        operation: Operation,
        state: int,
        keys: tuple[Hashable, ...],
        deadline_ms: int | None,
        finished_ms: int | None,
    ) -> None:
        event = Event(
            operation,
            self.name,
            operation._op_id,
            keys,
            operation._parked_ms,
            deadline_ms,
            finished_ms,
            OUTCOMES[state],
            error_of(operation) if state == FAILED else None,
            self.instance,
            operation._value if state == CANCELLED else None,
            given_kind(operation),
            state == EXPIRED_BY_CLOSING,
        )
        # An observer may cause another event, but all observers receive this one first.
        self._events.append((state, event))
        if self._sending:
            return
        self._sending = True
        interrupt: BaseException | None = None
        while self._events:
            state, event = self._events.popleft()
            try:
                self._send_to_all(state, event)
            except BaseException as error:
                interrupt = error  # it propagates after the remaining events have been sent
        self._sending = False
        if interrupt is not None:
            raise interrupt

    def _send_to_all(self, state: int, event: Event) -> None:
        for observer, method in tuple(self._methods[state]):
            try:
                method(event)
            except BaseException as error:
                if not isinstance(error, self._contained):
                    raise
                self._detach(observer)
                self.on_error(error, observer)

    def attach(self, observer: object) -> None:
        """Add an observer between two events, while no operation is ending.  Raises TypeError for an object that has
        none of an observer's methods.
        """
        self._attach(observer)
        self.active = True

    def detach(self, observer: object) -> None:
        """Remove an observer, even from within one of its own methods."""
        self._detach(observer)

    def observers(self) -> list[object]:
        """Return the observers, each only once."""
        found: dict[int, object] = {id(observer): observer for observer, _ in self._buffers}
        for pairs in self._methods:
            for observer, _ in pairs:
                found[id(observer)] = observer
        return list(found.values())

    def _attach(self, observer: object) -> None:
        buffer = observer if isinstance(observer, RecordBuffer) else getattr(observer, "record_buffer", None)
        if isinstance(buffer, RecordBuffer):
            refuse_coroutine_function(f"{type_name(buffer)}.flush", buffer.flush)
            self._buffers.append((observer, buffer))
            return
        found = 0
        for state, name in enumerate(_METHODS):
            method = getattr(observer, name, None)
            inherited = getattr(getattr(type(observer), name, None), "__module__", "") == Event.__module__
            if callable(method) and not inherited:
                refuse_coroutine_function(f"{type_name(observer)}.{name}", method)
                self._methods[state].append((observer, method))
                found += 1
        if not found:
            raise TypeError(
                f"an observer must have one of the methods {', '.join(dict.fromkeys(_METHODS))},"
                f" got {safe_repr(observer)}"
            )

    def _detach(self, observer: object) -> None:
        for pairs in self._methods:
            pairs[:] = [pair for pair in pairs if pair[0] is not observer]
        self._buffers = [pair for pair in self._buffers if pair[0] is not observer]
        self.active = any(self._methods) or bool(self._buffers)
        if not self.active:
            self._leaving.clear()
            self._left_id = 0
            self._left_keys = ()


def _deadline_of(operation: Operation) -> int | None:
    """Return the deadline of a parked or ended operation, or the time of parking if the deadline had passed by then."""
    return None if operation._delay_ms < 0 else max(operation._parked_ms, operation._expiration_ms)
