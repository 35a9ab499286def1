"""Who listens: the observers of a purgatory, and how they are told.  Floor 3."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .endings import FAILED, OUTCOMES, PENDING
from .events import Event
from .ledger import Ledger, note_in
from .operation import Operation

__all__ = ["Hearing"]

_METHODS = ("parked", "completed", "expired", "cancelled", "failed")  # by state, a pending one has been parked
_Tell = Callable[[Event], object]


class Hearing:
    """Tells observers what happens; one that raises is out.

    Only what an observer says it hears is told: a method that it lacks, or inherits from :class:`Observer`, is left
    out, and where nobody hears an event, none is made.
    """

    __slots__ = (
        "_contained",
        "_events",
        "_leaving",
        "_ledgers",
        "_left_id",
        "_left_keys",
        "_left_ms",
        "_tell",
        "_telling",
        "anybody",
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
            raise TypeError(f"observers is a sequence of observers, not {observers!r}")
        self.name: str = name
        self._contained = contained
        self.on_error: Callable[[BaseException, object], None] = on_error
        self._tell: list[list[tuple[object, _Tell]]] = [[], [], [], [], []]
        self._ledgers: list[Ledger] = []
        self._events: deque[tuple[int, Event]] = deque()  # made, and not yet told to everyone
        self._telling: bool = False
        # The operation that is between leaving its keys and its end; those in whose callbacks it ends, in the dict.
        self._left_id: int = 0
        self._left_keys: tuple[Hashable, ...] = ()
        self._left_ms: int = 0
        self._leaving: dict[int, tuple[tuple[Hashable, ...], int]] = {}
        for observer in observers:
            self._attach(observer)
        self.anybody: bool = any(self._tell) or bool(self._ledgers)

    def parked(self, operation: Operation) -> None:
        """The operation waits from now on."""
        if self._tell[0]:
            deadline_ms = None if operation.delay_ms < 0 else operation._expiration_ms
            self._send(operation, 0, operation.keys, deadline_ms, None)

    def parked_event(self, operation: Operation) -> Event:
        """The event that says: this operation, which is parked, waits."""
        deadline_ms = None if operation.delay_ms < 0 else operation._expiration_ms
        keys, parked_ms = operation.keys, operation._parked_ms
        return Event(
            operation, self.name, operation._op_id, keys, parked_ms, deadline_ms, None, OUTCOMES[PENDING], None
        )

    def leaving(self, operation: Operation, now_ms: int) -> None:
        """The operation is about to leave its keys: the event that follows, after its callback, will name them."""
        watch = operation._watch
        assert watch is not None
        keys = (watch.key,) if watch.sibling is None else operation.keys
        parked_ms = operation._parked_ms
        left_ms = max(parked_ms, now_ms)
        if self._left_id == 0:
            self._left_id = operation._op_id
            self._left_keys = keys
            self._left_ms = left_ms
        else:
            self._leaving[operation._op_id] = (keys, left_ms)

    def ended(self, operation: Operation) -> None:
        """The operation has its outcome."""
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
        heard = bool(self._tell[operation._state])
        if not heard and not self._ledgers:
            return
        deadline_ms: int | None = None
        if operation.delay_ms >= 0:
            deadline_ms = operation._expiration_ms if was_parked else operation._parked_ms + operation.delay_ms
        if self._ledgers:
            self._note(operation, keys, deadline_ms, finished_ms)
        if heard:
            self._send(operation, operation._state, keys, deadline_ms, finished_ms)

    def _note(
        self, operation: Operation, keys: tuple[Hashable, ...], deadline_ms: int | None, finished_ms: int
    ) -> None:
        for ledger in self._ledgers:
            try:
                note_in(
                    ledger,
                    operation._state,
                    self.name,
                    type(operation),
                    operation._op_id,
                    keys,
                    operation._parked_ms,
                    deadline_ms,
                    finished_ms,
                )
            except BaseException as error:
                if not isinstance(error, self._contained):
                    raise
                self._detach(ledger)
                self.on_error(error, ledger)

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
            operation._value if state == FAILED else None,
        )
        # What an observer does may make the next event: everyone hears of this one first.
        self._events.append((state, event))
        if self._telling:
            return
        self._telling = True
        interrupt: BaseException | None = None
        while self._events:
            state, event = self._events.popleft()
            try:
                self._tell_all(state, event)
            except BaseException as error:
                interrupt = error  # it passes through when what else has happened is told
        self._telling = False
        if interrupt is not None:
            raise interrupt

    def _tell_all(self, state: int, event: Event) -> None:
        for observer, tell in tuple(self._tell[state]):
            try:
                tell(event)
            except BaseException as error:
                if not isinstance(error, self._contained):
                    raise
                self._detach(observer)
                self.on_error(error, observer)

    def _attach(self, observer: object) -> None:
        if isinstance(observer, Ledger):
            self._ledgers.append(observer)
            return
        heard = 0
        for state, name in enumerate(_METHODS):
            method = getattr(observer, name, None)
            inherited = getattr(getattr(type(observer), name, None), "__module__", "") == Event.__module__
            if callable(method) and not inherited:
                self._tell[state].append((observer, method))
                heard += 1
        if not heard:
            raise TypeError(f"{observer!r} is no observer: it has none of the methods {', '.join(_METHODS)}")

    def _detach(self, observer: object) -> None:
        for told in self._tell:
            told[:] = [pair for pair in told if pair[0] is not observer]
        self._ledgers = [ledger for ledger in self._ledgers if ledger is not observer]
        self.anybody = any(self._tell) or bool(self._ledgers)
        if not self.anybody:
            self._leaving.clear()
            self._left_id = 0
            self._left_keys = ()
