"""An iteration over the watchers of one key, in the order of arrival, that may pause at any point.

A check that tries every watcher in one pass follows the links of the list itself; see :mod:`purgatory.core.purgatory`.
A check with a limit, a check with a value, and a check that works in slices use a cursor.

A cursor refers to a watch, not to an index.  When a watch leaves its list, it keeps its ``after``, so a cursor at that
watch still reaches the watches after it.  Lists grow only at the end, so no watch is skipped or returned twice.
"""

from typing import Any, Final

from mypy_extensions import i64

from purgatory.core.operation.lifecycle import is_parked
from purgatory.core.operation.operation import Operation

from .thresholds import ThresholdWatch
from .watch import Watch, WatchList

__all__ = ["NO_ID", "ReachedCursor", "WatchCursor"]

NO_ID: Final = 1 << 60  # above every arrival number, for a cursor without an upper bound


class WatchCursor:
    """An iteration over the watchers of one key, in the order of arrival, that may pause at any point.

    Operations may end and arrive between two steps.  Ended operations are left out, as are those that arrived after
    ``newest``.  ``skips``: whether the operation that :meth:`next` returned must be skipped, not tried.
    """

    __slots__ = ("_newest", "_plain", "_with_threshold", "skips")

    def __init__(self, entry: Watch, newest: i64) -> None:
        self._newest: i64 = newest
        self._plain: Watch | None = entry
        self._with_threshold: Watch | None = None
        self.skips: bool = False
        if isinstance(entry, WatchList):
            self._plain = entry.after
            if entry.thresholds is not None:
                self._with_threshold = entry.thresholds.members.after

    def next(self) -> Operation | None:
        """Return the next operation that is still parked, or None at the end."""
        plain = self._plain = self._waiting(self._plain)
        with_threshold = self._with_threshold = self._waiting(self._with_threshold)
        if plain is None and with_threshold is None:
            return None
        if with_threshold is None or (plain is not None and _op_id(plain) < _op_id(with_threshold)):
            assert plain is not None
            self._plain = plain.after
            return plain.operation
        self._with_threshold = with_threshold.after
        return with_threshold.operation

    def at_end(self) -> bool:
        """Return whether :meth:`next` is sure to return None.  The result may be False even if all other operations
        have ended.
        """
        return _is_end(self._plain) and _is_end(self._with_threshold)

    def skip_thresholds(self) -> None:
        """Leave out the watchers that have a threshold."""
        self._with_threshold = None

    def _waiting(self, watch: Watch | None) -> Watch | None:
        """Return the first watch from here on whose operation is still parked, or None at the end of the list."""
        while watch is not None and not isinstance(watch, WatchList):
            operation = watch.operation
            if operation is not None and is_parked(operation):
                return watch if operation._op_id <= self._newest else None
            watch = watch.after
        return None


class ReachedCursor(WatchCursor):
    """An iteration over the watchers of one key that have either no threshold or one that the value reaches.

    If the value reaches at most ``most`` thresholds, the cursor takes the watchers with these thresholds from the heap
    and does not visit the watchers with other thresholds.  Otherwise, it visits every watcher in the order of arrival
    and sets ``skips`` for those that must not be tried, so that a caller that works in slices can count them.  In both
    cases, creating a cursor costs O(``most``).
    """

    __slots__ = ("_reached", "_value")

    def __init__(self, root: WatchList, newest: i64, value: Any, most: i64) -> None:
        super().__init__(root, newest)
        assert root.thresholds is not None
        self._value: Any = value
        # The operations that the value reaches, the latest arrival first: each is released when its turn comes.
        self._reached: list[Operation] | None = root.thresholds.few_reached(value, most)
        if self._reached is not None:
            self._reached.reverse()
            self.skip_thresholds()

    def next(self) -> Operation | None:
        """Return the next operation that is still parked, or None at the end."""
        plain = self._plain = self._waiting(self._plain)
        reached = self._reached
        if reached is not None:
            self._drop_ended(reached)
            if reached and (plain is None or reached[-1]._op_id < _op_id(plain)):
                return reached.pop()
            if plain is None:
                return None
            self._plain = plain.after
            return plain.operation
        with_threshold = self._with_threshold = self._waiting(self._with_threshold)
        cursor: WatchCursor = self  # the class that declares ``skips``
        if with_threshold is None or (plain is not None and _op_id(plain) < _op_id(with_threshold)):
            cursor.skips = False
            if plain is None:
                return None
            self._plain = plain.after
            return plain.operation
        assert isinstance(with_threshold, ThresholdWatch)
        cursor.skips = not with_threshold.threshold <= self._value
        self._with_threshold = with_threshold.after
        return with_threshold.operation

    def at_end(self) -> bool:
        """See :meth:`WatchCursor.at_end`."""
        return not self._reached and super().at_end()

    def _drop_ended(self, reached: list[Operation]) -> None:
        """Remove operations from the end of the list until one is found that may be tried."""
        while reached and not (is_parked(reached[-1]) and reached[-1]._op_id <= self._newest):
            reached.pop()


def _is_end(watch: Watch | None) -> bool:
    return watch is None or isinstance(watch, WatchList)


def _op_id(watch: Watch) -> i64:
    operation = watch.operation
    assert operation is not None
    return operation._op_id
