"""The desk of a purgatory: parking, checking, ending.  Floor 4.

One try is enough
=================

Kafka tries an operation, puts it on its watch lists, and tries it **again**, because between the first try and the
watching another thread may have made the condition true and found nobody to tell.  Here both happen on one event loop
with no await in between:

1.  ``try_complete()`` says no.
2.  The operation is linked into the watch lists.
3.  Only now can other code run; a check from there on finds the operation.

A check that ``try_complete()`` itself asks for falls between 1 and 3 only in appearance: it is queued (below), and the
queue is worked off after 2.  So no wake-up is lost, and the condition, which may be costly, is evaluated once.

Checks within checks
====================

A callback that calls :meth:`Room.check_and_complete` would, taken literally, try the next operation, whose callback
checks the next: a chain of a hundred thousand operations would be as deep.  So while user code runs on behalf of the
room, a check only notes its key.  The outermost call works the notes off in order before it returns, and what they
complete counts for it.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from .books import Books
from .clock import Clock, ceil_now, now
from .errors import PurgatoryClosed, PurgatoryFull
from .events import Event
from .hearing import Hearing
from .operation import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    PENDING,
    Holder,
    Operation,
    end,
    fail,
    finish,
)
from .thresholds import ThresholdWatch, check_thresholds, check_value
from .timekeeper import Timekeeper
from .timer.system import TimerHeart
from .timer.task import NOT_QUEUED, TimerTask
from .watch import Watch, WatchRoot
from .watchers import Walk, Watchers

__all__ = ["Desk", "Floor"]

_UNLIMITED: Final = 1 << 60


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


class Desk(Holder):
    """Where operations are handed over, tried and answered.

    It is a class of the compiled core that nobody subclasses, so its methods are called directly; :class:`Room`, which
    people do subclass, is its public face.
    """

    __slots__ = (
        "_contained",
        "_floor",
        "_hearing",
        "_heart",
        "_last_id",
        "_limited",
        "_max_parked",
        "_max_parked_per_key",
        "_queue",
        "_trying",
        "books",
        "busy",
        "clock",
        "closed",
        "name",
        "timer",
        "watchers",
    )

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
        self.name: str = name
        self.timer: Timekeeper = timer
        self.clock: Clock = timer.clock
        self.books: Books = Books()
        self.watchers: Watchers = Watchers()
        self.closed: bool = False
        self.busy: bool = False  # user code runs on behalf of the room
        self._floor: Floor = floor
        self._heart: TimerHeart = timer.heart
        self._contained = contained
        self._max_parked: i64 = _limit("max_parked", max_parked)
        self._max_parked_per_key: i64 = _limit("max_parked_per_key", max_parked_per_key)
        self._limited: bool = max_parked is not None or max_parked_per_key is not None
        self._hearing: Hearing = Hearing(name, observers, contained, self._observer_failed)
        self._trying: Operation | None = None
        self._queue: deque[tuple[Hashable, Any]] = deque()
        self._last_id: i64 = 0

    # Parking

    def hand_over(self, operation: Operation, keys: Any) -> bool:
        """See :meth:`Room.try_complete_else_watch`."""
        self.check_open()
        many: tuple[Hashable, ...] = ()
        only: Hashable = None
        shard: dict[Hashable, Watch] | None = None
        thresholds: dict[Hashable, Any] | None = None
        if isinstance(keys, tuple):
            many = keys
        elif isinstance(keys, list):  # asking for the abstract Mapping and Iterable takes longer than all the rest
            many = tuple(keys)
        else:
            thresholds = _thresholds(keys)
            many = tuple(keys if thresholds is None else thresholds)
        if len(many) == 1:
            only = many[0]
            shard = self.watchers.shard(only)
        else:
            _check_keys(many)
        if operation._state != PENDING:
            raise ValueError(f"{operation!r} has ended: an operation is used once, make a new one")
        if operation._holder is not None:
            raise ValueError(f"{operation!r} is parked already: an operation is used once, make a new one")
        self.books.submitted += 1
        self._last_id += 1
        operation._op_id = self._last_id
        operation._holder = self
        outermost = not self.busy
        self.busy = True
        try:
            operation._parked_ms = ceil_now(self.clock)
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
                        self._admit(many)
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

    # Checking

    def check(self, key: Hashable, value: Any) -> i64:
        """See :meth:`Room.check_and_complete`."""
        if value is not None:
            check_value(value)
        entry = self.watchers.entry(key)
        if self.busy:
            self._queue.append((key, value))
            return 0
        if entry is None:
            return 0
        self.busy = True
        done: i64 = 0
        try:
            done = self._check_entry(entry, value)
        finally:
            done += self.leave()
        return done

    def _check_entry(self, entry: Watch, value: Any) -> i64:
        if not isinstance(entry, WatchRoot):
            operation = entry.operation
            return 1 if operation is not None and self._try(operation) else 0
        newest = self._last_id  # who arrives meanwhile has had a try of its own
        if entry.ranks is not None:
            return self._check_ranked(entry, value, newest)
        done: i64 = 0
        watch = entry.after
        while watch is not None and watch is not entry:
            operation = watch.operation
            assert operation is not None
            if operation._op_id > newest:
                break
            if operation._watch is not None and self._try(operation):
                done += 1
            watch = watch.after  # a watch that has left leads on to those that have not
        return done

    def _check_ranked(self, root: WatchRoot, value: Any, newest: i64) -> i64:
        """Try those who gave no threshold and those whose threshold is reached, in the order of arrival."""
        walk = Walk(root, newest)
        reached: list[Operation] = []
        if value is not None:
            assert root.ranks is not None
            reached = root.ranks.reached(value)
            walk.leave_out_ranked()
        done: i64 = 0
        following = walk.next()
        for operation in reached:
            while following is not None and following._op_id < operation._op_id:
                if following._watch is not None and self._try(following):
                    done += 1
                following = walk.next()
            if operation._watch is not None and self._try(operation):
                done += 1
        while following is not None:
            if following._watch is not None and self._try(following):
                done += 1
            following = walk.next()
        return done

    def _try(self, operation: Operation) -> bool:
        """Try one parked operation.  True iff it is completed now."""
        self._trying = operation
        tried: Any = operation  # an override may return anything that is true or false
        try:
            if tried.try_complete():
                finish(operation, COMPLETED, True)
        except BaseException as error:
            if not self.contains(error):
                raise
            told = operation._state == PENDING and fail(operation, error)
            if not told:
                self.report(error, operation)
        finally:
            self._trying = None
        return operation._state == COMPLETED

    def check_some(self, walk: Walk, number: int) -> int:
        """Try the next ``number`` operations of a walk along a key; return how many, fewer at the end of the walk."""
        self.busy = True
        try:
            for tried in range(number):
                operation = walk.next()
                if operation is None:
                    return tried
                self._try(operation)
        finally:
            self.leave()
        return number

    def walk(self, key: Hashable) -> Walk | None:
        """A walk along those who wait on the key now, or None if nobody does."""
        entry = self.watchers.entry(key)
        return None if entry is None else Walk(entry, self._last_id)

    def expire_some(self, number: int) -> int:
        """Expire up to ``number`` of those who wait, whatever their deadline; return how many have left."""
        waiting = self.books.parked
        for operation in self.watchers.some(number):
            finish(operation, EXPIRED, True)
        return waiting - self.books.parked

    # What an operation asks of its holder

    def release(self, operation: Operation) -> None:
        if operation._list is not None:
            TimerTask.cancel(operation)
        watch = operation._watch
        if watch is None:
            return  # it is in its first try and parked nowhere
        books = self.books
        now_ms: i64 = now(self.clock)
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

    def enter(self) -> bool:
        if self.busy:
            return False
        self.busy = True
        return True

    def leave(self) -> i64:
        done: i64 = 0
        queue = self._queue
        if not queue:
            self.busy = False
            return done
        try:
            while queue:
                key, value = queue.popleft()
                entry = self.watchers.entry(key)
                if entry is not None:
                    try:
                        done += self._check_entry(entry, value)
                    except BaseException:
                        queue.appendleft((key, value))  # those behind the one that was interrupted still want it
                        raise
        finally:
            self.busy = False
            if queue:
                self._put_off()
        return done

    def _put_off(self) -> None:
        """An interrupt passes through: what callbacks have asked for is checked later, for they rely on it."""
        for key, _ in self._queue:
            self._floor.check_later(key)
        self._queue.clear()

    def contains(self, error: BaseException) -> bool:
        return isinstance(error, self._contained)

    def report(self, error: BaseException, operation: Operation) -> None:
        self._floor.report(error, operation)

    def is_trying(self, operation: Operation) -> bool:
        return self._trying is operation

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
        assert not self.busy and not self._queue, f"{len(self._queue)} checks were left queued"
        books._check()
        self.timer._check()


def _limit(name: str, limit: Any) -> int:
    if limit is None:
        return _UNLIMITED
    if type(limit) is not int:
        raise TypeError(f"{name} is a whole number (int) or None, not {limit!r}")
    if limit < 1:
        raise ValueError(f"{name} is at least 1, or None for no limit, not {limit}")
    return limit


def _thresholds(keys: Any) -> dict[Hashable, Any] | None:
    """A mapping of keys to thresholds, checked; None if it is another iterable of keys.  TypeError if it is neither."""
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys is an iterable of keys, not the bare key {keys!r}: [{keys!r}] was meant")
    if not isinstance(keys, Mapping):
        return None
    thresholds = dict(keys)
    check_thresholds(thresholds)
    return thresholds


def _check_keys(keys: tuple[Hashable, ...]) -> None:
    """A bad key has to be found before anything has changed."""
    if not keys:
        raise ValueError("keys is empty: an operation that waits on nothing could only expire")
    for key in keys:
        hash(key)
