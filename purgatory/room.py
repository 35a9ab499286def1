"""The purgatory's synchronous half, as people see it.  Floor 4."""

from collections.abc import Hashable
from heapq import nlargest
from typing import Any

from mypy_extensions import mypyc_attr

from .desk import Desk
from .endings import CANCELLED, end, refuse
from .events import Event, Statistics
from .keeper import Floor
from .operation import Operation
from .timekeeper import Timekeeper

__all__ = ["Room"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Room(Floor):
    """Holds operations: everything of a :class:`Purgatory` that happens without waiting.

    It knows no event loop and reads no other clock than its timer's, so it also serves where there is none.  The
    parameters are those of :class:`Purgatory`; ``contained``: the exceptions that are an operation's own failure, all
    others pass through.
    """

    __slots__ = ("_desk",)

    def __init__(
        self,
        name: str,
        timer: Timekeeper,
        contained: tuple[type[BaseException], ...] = (Exception,),
        max_parked: Any = None,
        max_parked_per_key: Any = None,
        observers: Any = (),
    ) -> None:
        self._desk: Desk = Desk(self, name, timer, contained, max_parked, max_parked_per_key, observers)
        for observer in observers:
            attached = getattr(observer, "attached", None)
            if callable(attached):
                attached(self)

    def try_complete_else_watch(self, operation: Any, keys: Any) -> bool:
        """Try the operation once; if its condition does not hold, park it on the keys.  True iff this completed it.

        ``keys``: any iterable of hashables, or a mapping ``key -> threshold``: there is no use in trying the operation
        for that key before its value reaches the threshold.  Duplicates count once.

        What its callbacks raise reaches the caller, and it has failed then.  Raises ValueError for no keys and for an
        operation that is parked or has ended, TypeError for a bare str or bytes and for a key that is unhashable,
        PurgatoryClosed, and PurgatoryFull if it would have to wait and a limit is reached.  In all these cases nothing
        is parked and the operation is still PENDING.
        """
        if not isinstance(operation, Operation):
            raise TypeError(f"operation is a DelayedOperation, not {operation!r}")
        return self._desk.hand_over(operation, keys)

    def check_and_complete(self, key: Hashable, value: Any = None) -> int:
        """Try those who wait on the key, in the order of arrival; return how many operations this completed.

        With a ``value``, a number, those who gave a threshold for the key are tried only if it is reached.

        From inside a callback the check is queued: it returns 0, and the outermost call runs it before it returns and
        counts what it completes.  An operation that raises has failed; the others are still tried.  TypeError for an
        unhashable key and for a value that is no number, ValueError for NaN.
        """
        return self._desk.check(key, value)

    def cancel_for_key(self, key: Hashable) -> list[Any]:
        """Withdraw everyone who waits on the key and return them, in the order of arrival; they end CANCELLED."""
        self._desk.feel()
        return [operation for operation in self._desk.watchers.operations(key) if end(operation, CANCELLED, None)]

    def fail_for_key(self, key: Hashable, error: Any) -> int:
        """Fail everyone who waits on the key with the exception; return how many.  Their awaiters get it."""
        if not isinstance(error, Exception):
            raise TypeError(f"error is an exception (an instance), not {error!r}")
        self._desk.feel()
        return sum([refuse(operation, error) for operation in self._desk.watchers.operations(key)])

    @property
    def name(self) -> str:
        """For people, statistics and events."""
        return self._desk.name

    @property
    def closed(self) -> bool:
        """Whether it takes nothing new."""
        return self._desk.closed

    @property
    def watched(self) -> int:
        """Live (operation, key) pairs.  Exact, O(1)."""
        return self._desk.books.watched

    @property
    def num_delayed(self) -> int:
        """Operations of this purgatory that are on the timer.  O(1)."""
        return self._desk.books.delayed

    def __len__(self) -> int:
        """Parked operations.  O(1)."""
        return self._desk.books.parked

    def statistics(self) -> Statistics:
        """A frozen snapshot; cheap enough to be asked for every second."""
        return self._desk.books.statistics(self._desk.name, self._desk.watchers.num_keys())

    def hot_keys(self, n: Any = 10) -> list[tuple[Hashable, int]]:
        """The ``n`` keys with the most watchers, and how many those are, most first.  O(keys)."""
        if type(n) is not int or n < 0:
            raise ValueError(f"n is a number of keys, at least 0, not {n!r}")
        return nlargest(n, self._desk.watchers.counts(), key=_count)

    def parked_events(self) -> list[Event]:
        """A ``parked`` event for everyone who waits now, in the order of arrival.  O(watches).

        For an observer that needs to know who waits only now and then, and does not want to hear of every parking.
        """
        return [self._desk.parked_event(operation) for operation in self._desk.watchers.everyone()]

    def _check(self) -> None:
        """Assert the invariants of the whole purgatory.  For use between calls, not in a callback."""
        self._desk._check()


def _count(pair: tuple[Hashable, int]) -> int:
    return pair[1]
