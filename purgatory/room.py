"""The purgatory's synchronous half: parking, checking, ending.  Floor 4.

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
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Any

from mypy_extensions import mypyc_attr

from .books import Books
from .clock import Clock
from .errors import PurgatoryClosed, PurgatoryFull
from .events import Statistics
from .hearing import Hearing
from .operation import CANCELLED, COMPLETED, EXPIRED, FAILED, PENDING, DelayedOperation, Holder
from .thresholds import ThresholdWatch, check_thresholds
from .timekeeper import Timekeeper
from .watch import Watch, WatchRoot
from .watchers import Walk, Watchers

__all__ = ["Room"]

_UNLIMITED = 1 << 60


@mypyc_attr(allow_interpreted_subclasses=True)
class Room(Holder):
    """Holds operations; the synchronous half of :class:`Purgatory`."""

    __slots__ = (
        "_books",
        "_busy",
        "_clock",
        "_closed",
        "_contained",
        "_hearing",
        "_last_id",
        "_max_parked",
        "_max_parked_per_key",
        "_queue",
        "_timer",
        "_trying",
        "_watchers",
        "name",
    )

    def __init__(
        self,
        name: str,
        timer: Timekeeper,
        contained: tuple[type[BaseException], ...],
        max_parked: int | None,
        max_parked_per_key: int | None,
        observers: Sequence[Any],
    ) -> None:
        self.name: str = name
        self._timer: Timekeeper = timer
        self._clock: Clock = timer.clock
        self._contained = contained
        self._max_parked: int = _limit("max_parked", max_parked)
        self._max_parked_per_key: int = _limit("max_parked_per_key", max_parked_per_key)
        self._hearing: Hearing = Hearing(name, observers, self._observer_failed)
        self._books: Books = Books()
        self._watchers: Watchers = Watchers()
        self._closed: bool = False
        self._busy: bool = False
        self._trying: DelayedOperation[Any] | None = None
        self._queue: deque[tuple[Hashable, Any]] = deque()
        self._last_id: int = 0

    # Parking

    def try_complete_else_watch(self, operation: Any, keys: Iterable[Hashable]) -> bool:
        """Try the operation once; if its condition does not hold, park it on the keys.  True iff this completed it.

        ``keys``: any iterable of hashables, or a mapping ``key -> threshold``: there is no use in trying the operation
        for that key before its value reaches the threshold.  Duplicates count once.

        What its callbacks raise reaches the caller, and it has failed then.  Raises ValueError for no keys and for an
        operation that is parked or has ended, TypeError for a bare str or bytes and for a key that is unhashable,
        PurgatoryClosed, and PurgatoryFull if it would have to wait and a limit is reached.  In all these cases nothing
        is parked and the operation is still PENDING.
        """
        if not isinstance(operation, DelayedOperation):
            raise TypeError(f"operation is a DelayedOperation, not {operation!r}")
        self._check_open()
        wanted = _distinct(keys)
        if operation._state != PENDING:
            raise ValueError(f"{operation!r} has ended: an operation is used once, make a new one")
        if operation._holder is not None:
            raise ValueError(f"{operation!r} is parked already: an operation is used once, make a new one")
        books = self._books
        books.submitted += 1
        self._last_id += 1
        operation._op_id = self._last_id
        operation._holder = self
        outermost = not self._busy
        self._busy = True
        try:
            operation._parked_ms = self._clock.ceil_ms()
            try:
                if operation.try_complete():
                    operation._finish(COMPLETED, False)
            except BaseException as error:
                if operation._state == PENDING:
                    if self.contains(error):
                        operation._end(FAILED, error)
                    else:
                        self._hand_back(operation)
                raise
            if operation._state == PENDING:
                try:
                    self._park(operation, wanted)
                except BaseException:
                    self._hand_back(operation)
                    raise
            elif operation._state == COMPLETED:
                books.immediate += 1
        finally:
            if outermost:
                self.leave()
        return operation._state == COMPLETED

    def _check_open(self) -> None:
        if self._closed:
            raise PurgatoryClosed(f"purgatory {self.name!r} is closed")
        if self._timer._closed:
            raise PurgatoryClosed(f"the timer of purgatory {self.name!r} is closed")

    def _hand_back(self, operation: DelayedOperation[Any]) -> None:
        """The operation, still PENDING, could not be parked: leave no trace of it."""
        watch = operation._watch
        operation._watch = None
        while watch is not None:
            self._watchers.remove(watch)
            self._books.watched -= 1
            watch = watch.sibling
        operation._holder = None
        self._books.submitted -= 1

    def _park(self, operation: DelayedOperation[Any], keys: tuple[Hashable, ...] | dict[Hashable, Any]) -> None:
        self._check_open()  # its own try_complete() may have closed the house
        books = self._books
        if books.parked >= self._max_parked:
            raise PurgatoryFull(
                f"purgatory {self.name!r} is full: max_parked={self._max_parked} operations wait already",
                limit=self._max_parked,
            )
        watchers = self._watchers
        if self._max_parked_per_key != _UNLIMITED:
            self._check_key_limit(keys)
        last: Watch | None = None
        for key in keys:
            if isinstance(keys, dict):
                watch = watchers.add_ranked(ThresholdWatch(key, operation, keys[key]))
            else:
                watch = watchers.add(Watch(key, operation))
            if last is None:
                operation._watch = watch
            else:
                last.sibling = watch
            last = watch
            books.watched += 1
        books.parked += 1
        if operation.delay_ms >= 0:
            books.delayed += 1
            now_ms = operation._parked_ms
            self._timer.schedule(operation, now_ms + operation.delay_ms, now_ms)
        if self._hearing.anybody:
            self._hearing.parked(operation)

    def _check_key_limit(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if self._watchers.count(key) >= self._max_parked_per_key:
                raise PurgatoryFull(
                    f"key {key!r} of purgatory {self.name!r} is full:"
                    f" max_parked_per_key={self._max_parked_per_key} operations wait on it already",
                    limit=self._max_parked_per_key,
                    key=key,
                )

    # Checking

    def check_and_complete(self, key: Hashable, value: Any = None) -> int:
        """Try those who wait on the key, in the order of arrival; return how many operations this completed.

        With a ``value``, a number, those who gave a threshold for the key are tried only if it is reached.

        From inside a callback the check is queued: it returns 0, and the outermost call runs it before it returns and
        counts what it completes.  An operation that raises has failed; the others are still tried.  TypeError for an
        unhashable key.
        """
        entry = self._watchers.entry(key)
        if self._busy:
            self._queue.append((key, value))
            return 0
        if entry is None:
            return 0
        self._busy = True
        done = 0
        try:
            done = self._check_entry(entry, value)
        finally:
            done += self.leave()
        return done

    def _check_entry(self, entry: Watch, value: Any) -> int:
        if not isinstance(entry, WatchRoot):
            operation = entry.operation
            assert operation is not None
            return 1 if self._try(operation) else 0
        newest = self._last_id  # who arrives meanwhile has had a try of its own
        if entry.ranks is not None:
            return self._check_ranked(entry, value, newest)
        done = 0
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

    def _check_ranked(self, root: WatchRoot, value: Any, newest: int) -> int:
        ranks = root.ranks
        assert ranks is not None
        if value is None:
            reached: list[DelayedOperation[Any]] = []
            walk = Walk(root, newest)
        else:
            reached = ranks.reached(value)
            walk = Walk(root, newest)
            walk.leave_out_ranked()
        done = 0
        following = walk.next()
        for operation in reached:
            while following is not None and following._op_id < operation._op_id:
                if self._try(following):
                    done += 1
                following = walk.next()
            if operation._watch is not None and self._try(operation):
                done += 1
        while following is not None:
            if following._watch is not None and self._try(following):
                done += 1
            following = walk.next()
        return done

    def _try(self, operation: DelayedOperation[Any]) -> bool:
        """Try one parked operation.  True iff it is completed now."""
        self._trying = operation
        try:
            if operation.try_complete():
                operation._finish(COMPLETED, True)
        except BaseException as error:
            if not self.contains(error):
                raise
            told = operation._state == PENDING and operation._fail(error)
            if not told:
                self.report(error, operation)
        finally:
            self._trying = None
        return operation._state == COMPLETED

    # Ending from outside

    def cancel_for_key(self, key: Hashable) -> list[Any]:
        """Withdraw everyone who waits on the key and return them, in the order of arrival; they end CANCELLED."""
        return [operation for operation in self._watchers.operations(key) if operation._end(CANCELLED, None)]

    def fail_for_key(self, key: Hashable, error: Exception) -> int:
        """Fail everyone who waits on the key with the exception; return how many.  Their awaiters get it."""
        if not isinstance(error, Exception):
            raise TypeError(f"error is an exception (an instance), not {error!r}")
        return sum([operation._end(FAILED, error) for operation in self._watchers.operations(key)])

    def _check_some(self, walk: Walk, number: int) -> bool:
        """Try the next ``number`` operations of a walk along a key.  False when the walk is at its end."""
        self._busy = True
        try:
            for _ in range(number):
                operation = walk.next()
                if operation is None:
                    return False
                self._try(operation)
        finally:
            self.leave()
        return True

    def _walk(self, key: Hashable) -> Walk | None:
        """A walk along those who wait on the key now, or None if nobody does."""
        entry = self._watchers.entry(key)
        return None if entry is None else Walk(entry, self._last_id)

    def _expire_some(self, number: int) -> int:
        """Expire up to ``number`` of those who wait, whatever their deadline; return how many were there."""
        some = self._watchers.some(number)
        for operation in some:
            operation._finish(EXPIRED, True)
        return len(some)

    # What can be seen

    @property
    def watched(self) -> int:
        """Live (operation, key) pairs.  Exact, O(1)."""
        return self._books.watched

    @property
    def num_delayed(self) -> int:
        """Operations of this purgatory that are on the timer.  O(1)."""
        return self._books.delayed

    def __len__(self) -> int:
        """Parked operations.  O(1)."""
        return self._books.parked

    def statistics(self) -> Statistics:
        """A frozen snapshot; cheap enough to be asked for every second."""
        return self._books.statistics(self.name, self._watchers.num_keys())

    def hot_keys(self, n: int = 10) -> list[tuple[Hashable, int]]:
        """The ``n`` keys with the most watchers, and how many those are, most first.  O(keys)."""
        if type(n) is not int or n < 0:
            raise ValueError(f"n is a number of keys, at least 0, not {n!r}")
        return nlargest(n, self._watchers.counts(), key=_count)

    # What an operation asks of its holder

    def release(self, operation: DelayedOperation[Any]) -> None:
        bucket = operation._list
        if bucket is not None:
            bucket.remove(operation)
        watch = operation._watch
        books = self._books
        if watch is None:
            return  # it is in its first try and parked nowhere
        now_ms = self._clock.now_ms()
        if self._hearing.anybody:
            self._hearing.leaving(operation, now_ms)
        operation._watch = None
        watchers = self._watchers
        while watch is not None:
            watchers.remove(watch)
            books.watched -= 1
            watch = watch.sibling
        books.parked -= 1
        if books.parked == 0 and self._closed:
            self.emptied()
        books.wait.record(now_ms - operation._parked_ms)
        if operation.delay_ms >= 0:
            books.delayed -= 1
            if operation._state == EXPIRED and now_ms >= operation._expiration_ms:
                books.lateness.record(now_ms - operation._expiration_ms)

    def ended(self, operation: DelayedOperation[Any]) -> None:
        self._books.ended[operation._state] += 1
        if self._hearing.anybody:
            self._hearing.ended(operation)

    def enter(self) -> bool:
        if self._busy:
            return False
        self._busy = True
        return True

    def leave(self) -> int:
        done = 0
        queue = self._queue
        try:
            while queue:
                key, value = queue.popleft()
                entry = self._watchers.entry(key)
                if entry is not None:
                    done += self._check_entry(entry, value)
        finally:
            self._busy = False
        return done

    def contains(self, error: BaseException) -> bool:
        return isinstance(error, self._contained)

    def is_trying(self, operation: DelayedOperation[Any]) -> bool:
        return self._trying is operation

    def extend(self, operation: DelayedOperation[Any], delay_ms: int) -> None:
        books = self._books
        if operation._watch is None:  # in its first try: it is put on the timer when it is parked
            operation.delay_ms = delay_ms
            return
        if operation.delay_ms >= 0:
            books.delayed -= 1
        operation.delay_ms = delay_ms
        bucket = operation._list
        if delay_ms < 0:
            if bucket is not None:
                bucket.remove(operation)
            return
        books.delayed += 1
        timer = self._timer
        now_ms = self._clock.ceil_ms()
        expiration_ms = timer.rounded_ms(now_ms + delay_ms, now_ms)
        if bucket is not None and expiration_ms >= operation._expiration_ms:
            operation._expiration_ms = expiration_ms  # the bucket finds out when it comes up
        else:
            timer.schedule(operation, expiration_ms, now_ms)

    def emptied(self) -> None:
        """The last operation has left a purgatory that is closing."""

    def _observer_failed(self, error: BaseException, observer: object) -> None:
        self._books.detached += 1
        self.report_observer(error, observer)

    def report_observer(self, error: BaseException, observer: object) -> None:
        """An observer raised, and is detached."""
        raise NotImplementedError

    def _check(self) -> None:
        """Assert the invariants of the whole purgatory.  For use between calls, not in a callback."""
        books = self._books
        assert self._watchers._check() == books.watched
        everyone = self._watchers.everyone()
        assert len(everyone) == books.parked, f"{len(everyone)} operations wait, the books say {books.parked}"
        assert sum(len(operation.keys) for operation in everyone) == books.watched
        delayed = [operation for operation in everyone if operation.delay_ms >= 0]
        assert len(delayed) == books.delayed, f"{len(delayed)} have a deadline, the books say {books.delayed}"
        for operation in everyone:
            assert operation._state == PENDING, f"{operation!r} has ended and is still parked"
            assert operation._holder is self
            assert operation.scheduled == (operation.delay_ms >= 0), f"{operation!r}: its deadline is not on the timer"
        assert not self._busy and not self._queue, f"{len(self._queue)} checks were left queued"
        books._check()
        self._timer._check()


def _count(pair: tuple[Hashable, int]) -> int:
    return pair[1]


def _limit(name: str, limit: int | None) -> int:
    if limit is None:
        return _UNLIMITED
    if type(limit) is not int:
        raise TypeError(f"{name} is a whole number (int) or None, not {limit!r}")
    if limit < 1:
        raise ValueError(f"{name} is at least 1, or None for no limit, not {limit}")
    return limit


def _distinct(keys: Iterable[Hashable]) -> tuple[Hashable, ...] | dict[Hashable, Any]:
    """The keys in order, each once, with their thresholds if they are a mapping.

    They are hashed here, so that a bad one is found before anything has changed.
    """
    if isinstance(keys, (list, tuple)) and len(keys) == 1:
        only = keys[0]
        hash(only)
        return (only,)
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys is an iterable of keys, not the bare key {keys!r}: [{keys!r}] was meant")
    if isinstance(keys, Mapping):
        thresholds = dict(keys)
        check_thresholds(thresholds)
        distinct: tuple[Hashable, ...] | dict[Hashable, Any] = thresholds
    else:
        distinct = tuple(dict.fromkeys(keys))
    if not distinct:
        raise ValueError("keys is empty: an operation that waits on nothing could only expire")
    return distinct
