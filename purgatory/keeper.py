"""Where operations are kept while they wait: on their keys, on the timer, in the books.  Floor 4."""

from collections.abc import Hashable
from typing import Any

from mypy_extensions import i64, mypyc_attr

from .books import Books
from .clock import Clock, ceil_now, now
from .endings import EXPIRED, PENDING, Holder
from .errors import PurgatoryClosed
from .events import Event
from .hearing import Hearing
from .operation import Operation
from .timekeeper import Timekeeper
from .timer.system import TimerHeart
from .timer.task import NOT_QUEUED, TimerTask
from .watch import Watch
from .watchers import Watchers

__all__ = ["Floor", "Keeper"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Floor:
    """What the desk asks of the floor that it stands on: rare things only."""

    __slots__ = ()

    def report(self, error: BaseException, operation: Operation) -> None:
        """An operation failed and nobody waits for it."""
        raise NotImplementedError

    def report_observer(self, error: BaseException, observer: object) -> None:
        """An observer raised, and is detached."""
        raise NotImplementedError

    def check_later(self, key: Hashable) -> None:
        """An interrupt came between a check that was asked for and its turn: do it in the next one."""

    def emptied(self) -> None:
        """The last operation has left a purgatory that is closing."""


class Keeper(Holder):
    """What an operation asks of its holder, and what of that the books and the observers are told."""

    __slots__ = ("_contained", "_floor", "_hearing", "_heart", "books", "clock", "closed", "name", "timer", "watchers")

    def __init__(
        self, floor: Floor, name: str, timer: Timekeeper, contained: tuple[type[BaseException], ...], observers: Any
    ) -> None:
        super().__init__()
        self.name: str = name
        self.timer: Timekeeper = timer
        self.clock: Clock = timer.clock
        self.books: Books = Books()
        self.watchers: Watchers = Watchers()
        self.closed: bool = False
        self._floor: Floor = floor
        self._heart: TimerHeart = timer.heart
        self._contained = contained
        self._hearing: Hearing = Hearing(name, observers, contained, self._observer_failed)

    def time_ms(self) -> i64:
        return now(self.clock)

    def release(self, operation: Operation, now_ms: i64) -> None:
        if operation._list is not None:
            TimerTask.cancel(operation)
        watch = operation._watch
        if watch is None:
            return  # it is in its first try and parked nowhere
        books = self.books
        if self._hearing.anybody:
            self._hearing.leaving(operation, now_ms)
        operation._watch = None
        while watch is not None:
            self._take_out(watch, operation)
            watch = watch.sibling
        books.parked -= 1
        books.wait.record(now_ms - operation._parked_ms)
        if operation.delay_ms >= 0:
            books.delayed -= 1
            if operation._state == EXPIRED and now_ms >= operation._expiration_ms:
                books.lateness.record(now_ms - operation._expiration_ms)
        if books.parked == 0 and self.closed:
            self._floor.emptied()

    def _take_out(self, watch: Watch, operation: Operation) -> None:
        """Take the watch out.  A key that raises by now is reported, and does not keep its operation from ending."""
        self.books.watched -= 1
        try:
            self.watchers.remove(watch)
        except Exception as error:
            self.watchers.lose(watch)
            self._floor.report(error, operation)

    def ended(self, operation: Operation) -> None:
        self.books.count(operation._state)
        if self._hearing.anybody:
            self._hearing.ended(operation)

    def contains(self, error: BaseException) -> bool:
        return isinstance(error, self._contained)

    def report(self, error: BaseException, operation: Operation) -> None:
        self._floor.report(error, operation)

    def extend(self, operation: Operation, delay_ms: int) -> None:
        if operation._watch is None:  # in its first try: it is put on the timer when it is parked
            operation.delay_ms = delay_ms
            operation._expiration_ms = NOT_QUEUED if delay_ms < 0 else ceil_now(self.clock) + delay_ms
            return
        if delay_ms >= 0 and self.timer.closed:
            raise PurgatoryClosed(f"the timer of purgatory {self.name!r} is closed: nobody would keep the deadline")
        now_ms: i64 = ceil_now(self.clock)
        books = self.books
        if operation.delay_ms >= 0:
            books.delayed -= 1
        operation.delay_ms = delay_ms
        bucket = operation._list
        if delay_ms < 0:
            if bucket is not None:
                bucket.remove(operation)
            return
        books.delayed += 1
        expiration_ms = self._heart.rounded_ms(now_ms + delay_ms, now_ms)
        if bucket is not None and expiration_ms >= operation._expiration_ms:
            operation._expiration_ms = expiration_ms  # the bucket finds out when it comes up
            return
        due_ms = self._heart.schedule(operation, expiration_ms, now_ms)
        if due_ms < self.timer.alarm_ms:
            self.timer.earlier(due_ms)

    def parked_event(self, operation: Operation) -> Event:
        """How an observer is told of an operation that waits."""
        return self._hearing.parked_event(operation)

    def _observer_failed(self, error: BaseException, observer: object) -> None:
        self.books.detached += 1
        self._floor.report_observer(error, observer)

    def _check(self) -> None:
        """Assert the invariants of the whole purgatory.  For use between calls, not in a callback."""
        books = self.books
        assert self.watchers._check() == books.watched
        everyone = self.watchers.everyone()
        assert len(everyone) == books.parked, f"{len(everyone)} operations wait, the books say {books.parked}"
        assert sum([len(operation.keys) for operation in everyone]) == books.watched
        delayed = [operation for operation in everyone if operation.delay_ms >= 0]
        assert len(delayed) == books.delayed, f"{len(delayed)} have a deadline, the books say {books.delayed}"
        for operation in everyone:
            assert operation._state == PENDING, f"{operation!r} has ended and is still parked"
            assert operation._holder is self
            assert operation.scheduled == (operation.delay_ms >= 0), f"{operation!r}: its deadline is not on the timer"
        assert self.depth == 0
        books._check()
        self.timer._check()
