"""The desk of a purgatory, where operations are handed over and parked.  Floor 4.

One try is enough
=================

Kafka tries an operation, puts it on its watch lists, and tries it **again**, because between the first try and the
watching another thread may have made the condition true and found nobody to tell.  Here both happen on one event loop
with no await in between:

1.  ``try_complete()`` says no.
2.  The operation is linked into the watch lists.
3.  Only now can other code run; a check from there on finds the operation.

A check that ``try_complete()`` itself asks for falls between 1 and 3 only in appearance: it is queued (see
:mod:`purgatory.checks`), and the queue is worked off after 2.  So no wake-up is lost, and the condition, which may be
costly, is evaluated once.
"""

from collections.abc import Hashable, Iterable
from typing import Any, Final

from mypy_extensions import i64

from .checks import Checks
from .clock import ceil_now
from .endings import CANCELLED, COMPLETED, FAILED, PENDING, end, finish
from .errors import PurgatoryClosed, PurgatoryFull
from .keeper import Floor
from .keys import check_keys, limit_of, thresholds_of
from .operation import Operation
from .thresholds import ThresholdWatch
from .timekeeper import Timekeeper
from .timer.task import NOT_QUEUED
from .watch import Watch

__all__ = ["Desk"]

_UNLIMITED: Final = 1 << 60


class Desk(Checks):
    """Where operations are handed over.

    It is a class of the compiled core that nobody subclasses, so its methods are called directly; :class:`Room`, which
    people do subclass, is its public face.
    """

    __slots__ = ("_limited", "_max_parked", "_max_parked_per_key")

    def __init__(
        self,
        floor: Floor,
        name: str,
        timer: Timekeeper,
        contained: tuple[type[BaseException], ...],
        max_parked: Any,
        max_parked_per_key: Any,
        observers: Any,
    ) -> None:
        super().__init__(floor, name, timer, contained, observers)
        self._max_parked: i64 = _UNLIMITED if max_parked is None else limit_of("max_parked", max_parked)
        self._max_parked_per_key: i64 = (
            _UNLIMITED if max_parked_per_key is None else limit_of("max_parked_per_key", max_parked_per_key)
        )
        self._limited: bool = max_parked is not None or max_parked_per_key is not None

    def hand_over(self, operation: Operation, keys: Any) -> bool:
        """See :meth:`Room.try_complete_else_watch`."""
        self.check_open()
        many: tuple[Hashable, ...] = ()
        only: Hashable = None
        shard: dict[Hashable, Watch] | None = None
        thresholds: dict[Hashable, Any] | None = None
        # Asking for the abstract Mapping and Iterable takes longer than all the rest.
        if isinstance(keys, tuple):
            many = keys
        elif isinstance(keys, list):
            if len(keys) == 1:
                only = keys[0]
                shard = self.watchers.shard(only)
            else:
                many = tuple(keys)
        else:
            thresholds = thresholds_of(keys)
            many = tuple(keys if thresholds is None else thresholds)
        if len(many) == 1:
            only = many[0]
            shard = self.watchers.shard(only)
        elif shard is None:
            check_keys(many)
        if operation._state != PENDING:
            raise ValueError(f"{operation!r} has ended: an operation is used once, make a new one")
        if operation._holder is not None:
            raise ValueError(f"{operation!r} is parked already: an operation is used once, make a new one")
        self.feel()
        parked_ms: i64 = ceil_now(self.clock)  # may fail, and nothing has changed yet
        self.books.submitted += 1
        self._last_id += 1
        operation._op_id = self._last_id
        operation._holder = self
        outermost = not self.busy
        self.busy = True
        counted: Checks = self  # which declares depth: changed as one of this class, its type is a guess
        counted.depth += 1
        try:
            operation._parked_ms = parked_ms
            operation._expiration_ms = NOT_QUEUED  # unless it is extended while it is tried
            self._first_try(operation)
            if operation._state == PENDING:
                if operation._op_id != self._last_id:
                    # Its try_complete() has parked others: they came first.
                    self._last_id += 1
                    operation._op_id = self._last_id
                try:
                    self.check_open()  # its own try_complete() may have closed the house
                    if self._limited:
                        self._admit(many or (only,))
                    if thresholds is not None:
                        self._watch_ranked(operation, thresholds)
                    elif shard is not None:
                        watch = Watch(only, operation)
                        self.watchers.add(shard, watch)
                        operation._watch = watch
                        self.books.watched += 1
                    else:
                        self._watch_many(operation, many)
                except BaseException:
                    self._hand_back(operation)
                    raise
                self._parked(operation)
            elif operation._state == COMPLETED:
                self.books.immediate += 1
        finally:
            counted.depth -= 1
            if outermost:
                self.leave()
        return operation._state == COMPLETED

    def park(self, operation: Any, keys: Any) -> Any:
        """Hand the operation over for somebody who waits; return the future to wait for, or None if it has ended."""
        if not isinstance(operation, Operation):
            raise TypeError(f"operation is a DelayedOperation, not {operation!r}")
        fresh = operation._holder is None
        try:
            self.hand_over(operation, keys)
        except BaseException:
            if fresh and operation._watch is not None:
                end(operation, CANCELLED, None)  # interrupted by a queued check, when it was parked already
            raise
        if operation._watch is None:
            return None
        try:
            waiter = operation._parker = self.timer.loop.create_future()
        except BaseException:
            end(operation, CANCELLED, None)
            raise
        return waiter

    def check_open(self) -> None:
        """Raise PurgatoryClosed if nothing new is taken."""
        if self.closed:
            raise PurgatoryClosed(f"purgatory {self.name!r} is closed")
        if self.timer.closed:
            raise PurgatoryClosed(f"the timer of purgatory {self.name!r} is closed")

    def _first_try(self, operation: Operation) -> None:
        try:
            tried: Any = operation  # an override may return anything that is true or false
            if tried.try_complete():
                finish(operation, COMPLETED, False)
        except BaseException as error:
            if operation._state == PENDING:
                if self.contains(error):
                    end(operation, FAILED, error)
                else:
                    self._hand_back(operation)
            raise

    def _admit(self, keys: Iterable[Hashable]) -> None:
        """Raise PurgatoryFull unless there is room."""
        if self.books.parked >= self._max_parked:
            raise PurgatoryFull(
                f"purgatory {self.name!r} is full: max_parked={self._max_parked} operations wait already",
                limit=self._max_parked,
            )
        if self._max_parked_per_key == _UNLIMITED:
            return
        for key in keys:
            if self.watchers.count(key) >= self._max_parked_per_key:
                raise PurgatoryFull(
                    f"key {key!r} of purgatory {self.name!r} is full:"
                    f" max_parked_per_key={self._max_parked_per_key} operations wait on it already",
                    limit=self._max_parked_per_key,
                    key=key,
                )

    def _watch_many(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        watchers = self.watchers
        for key in keys:
            watch = Watch(key, operation)
            if watchers.add(watchers.shard(key), watch):
                watch.sibling = operation._watch
                operation._watch = watch
                self.books.watched += 1

    def _watch_ranked(self, operation: Operation, thresholds: dict[Hashable, Any]) -> None:
        for key, threshold in thresholds.items():
            watch = ThresholdWatch(key, operation, threshold)
            self.watchers.add_ranked(watch)
            watch.sibling = operation._watch
            operation._watch = watch
            self.books.watched += 1

    def _parked(self, operation: Operation) -> None:
        books = self.books
        books.parked += 1
        delay_ms = operation.delay_ms
        try:
            if delay_ms >= 0:
                books.delayed += 1
                now_ms = operation._parked_ms
                expiration_ms = operation._expiration_ms
                if expiration_ms == NOT_QUEUED:
                    expiration_ms = now_ms + delay_ms
                due_ms = self._heart.schedule(operation, expiration_ms, now_ms)
                if due_ms < self.timer.alarm_ms:
                    self.timer.earlier(due_ms)
            if self._hearing.anybody:
                self._hearing.parked(operation)
        except BaseException:
            end(operation, CANCELLED, None)  # an interrupt, or a clock that fails: nobody will wait for it
            raise

    def _hand_back(self, operation: Operation) -> None:
        """The operation, still PENDING, could not be parked: leave no trace of it."""
        watch = operation._watch
        operation._watch = None
        while watch is not None:
            self._take_out(watch, operation)
            watch = watch.sibling
        operation._holder = None
        operation._expiration_ms = NOT_QUEUED
        self.books.submitted -= 1
