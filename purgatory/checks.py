"""Checks: trying those who wait on a key.  Floor 4.

Checks within checks
====================

A callback that calls :meth:`Room.check_and_complete` would, taken literally, try the next operation, whose callback
checks the next: a chain of a hundred thousand operations would be as deep.  So while user code runs on behalf of the
room, a check only notes its key.  The outermost call works the notes off in order before it returns, and what they
complete counts for it.
"""

from collections import deque
from collections.abc import Hashable
from typing import Any

from mypy_extensions import i64

from .endings import COMPLETED, EXPIRED, PENDING, fail, finish
from .keeper import Floor, Keeper
from .operation import Operation
from .thresholds import check_value
from .timekeeper import Timekeeper
from .watch import Watch, WatchRoot
from .watchers import Walk

__all__ = ["Checks"]


class Checks(Keeper):
    """The checks that are asked for, from outside and from within callbacks."""

    __slots__ = ("_last_id", "_queue", "_trying", "busy")

    def __init__(
        self, floor: Floor, name: str, timer: Timekeeper, contained: tuple[type[BaseException], ...], observers: Any
    ) -> None:
        super().__init__(floor, name, timer, contained, observers)
        self.busy: bool = False  # user code runs on behalf of the room
        self._trying: Operation | None = None
        self._queue: deque[tuple[Hashable, Any]] = deque()
        self._last_id: i64 = 0

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

    def is_trying(self, operation: Operation) -> bool:
        return self._trying is operation

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

    def _check(self) -> None:
        super()._check()
        assert not self.busy and not self._queue, f"{len(self._queue)} checks were left queued"
