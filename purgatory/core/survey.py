"""A survey of the parked operations: one pass over all of them, in portions.

It finds the hottest keys and the operations that have waited the longest, and counts the operations by kind, by age,
and by timer bucket.  An operator wants these numbers from a busy server, so the pass can stop after any operation and
continue in a later turn of the loop.

**Rules.**

1.  The results contain no operations, only kinds, keys, and times.  Between two portions, a survey also holds the
    entries of one of the 512 shards.
2.  It calls no user code: no method of a key or of an operation.
3.  Operations may arrive and end between two portions.  If an operation is parked during the whole survey, it is
    counted exactly once; if it arrives or ends during the survey, it is counted at most once.
4.  Memory is bounded by ``most_keys``, ``most_rows``, and the number of keys in one of the 512 shards.
"""

from collections.abc import Hashable
from heapq import heappush, heapreplace
from typing import Any, Final

from mypy_extensions import i64

from purgatory.core.operation.lifecycle import is_parked
from purgatory.core.operation.operation import Operation
from purgatory.core.operation.wait_until import given_kind
from purgatory.core.purgatory import PurgatoryCore
from purgatory.core.watch.thresholds import ThresholdWatch
from purgatory.core.watch.watch import Watch, WatchList
from purgatory.core.watch.watcher_lists import SHARDS
from purgatory.texts import type_name

__all__ = ["AGES_MS", "OTHERS", "HotKey", "Kind", "Row", "Survey", "rows_of_key"]

AGES_MS: Final = (1_000, 10_000, 60_000, 600_000)
"""The upper edges of the age ranges that a survey counts; the last range has no upper edge."""
OTHERS: Final = "(other kinds)"
_MOST_KINDS: Final = 200
_MOST_KEYS_OF_ROW: Final = 5


class Row:
    """A parked operation as a survey found it.  ``until_ms``: the deadline, or None.

    ``keys``: the first five of ``num_keys`` keys, as (key, threshold or None).  ``awaited``: whether a task awaits the
    operation.
    """

    __slots__ = ("awaited", "keys", "kind", "num_keys", "op_id", "since_ms", "until_ms")

    def __init__(self, operation: Operation) -> None:
        self.op_id: int = operation._op_id
        self.kind: str = given_kind(operation) or type_name(operation)
        self.since_ms: int = operation._parked_ms
        self.until_ms: int | None = None if operation._delay_ms < 0 else operation._expiration_ms
        self.awaited: bool = operation._park_future is not None or bool(operation._awaiters)
        self.keys: list[tuple[Hashable, Any]] = []
        self.num_keys: int = 0
        watch = operation._watch
        if operation._lone_key is not None:
            self.keys = [(operation._lone_key, None)]
            self.num_keys = 1
            return
        while watch is not None:
            self.keys.append((watch.key, watch.threshold if isinstance(watch, ThresholdWatch) else None))
            watch = watch.sibling
        self.keys.reverse()
        self.num_keys = len(self.keys)
        del self.keys[_MOST_KEYS_OF_ROW:]


class HotKey:
    """A key with its ``watchers``, the sum of their waits, and the time at which the oldest of them was parked."""

    __slots__ = ("key", "oldest_ms", "total_wait_ms", "watchers")

    def __init__(self, key: Hashable, watchers: int, total_wait_ms: int, oldest_ms: int) -> None:
        self.key: Hashable = key
        self.watchers: int = watchers
        self.total_wait_ms: int = total_wait_ms
        self.oldest_ms: int = oldest_ms


class Kind:
    """The operations of one kind: their number, how many have no deadline or no awaiting task, how many belong to
    subscriptions, and the oldest.
    """

    __slots__ = ("endless", "kind", "oldest_ms", "parked", "subscribed", "unawaited")

    def __init__(self, kind: str, oldest_ms: int) -> None:
        self.kind: str = kind
        self.parked: int = 0
        self.endless: int = 0
        self.unawaited: int = 0
        self.subscribed: int = 0
        self.oldest_ms: int = oldest_ms


class Survey:
    """One pass over the parked operations of a purgatory; call :meth:`step` until it returns False.

    ``now_ms``: the time of the survey, for ages and total waits.  ``most_keys``, ``most_rows``: how many keys and rows
    to keep.  ``only_kind``: the kind of the rows, or None for every kind.  ``buckets``: a dict that maps the ``id()``
    of each timer bucket to a list; the survey increments the last item of the list for each operation in the bucket.
    ``subscribed``: the class of the operations of subscriptions.

    ``visited``: the number of operations counted so far.  ``kinds``: the kinds by name.  ``ages``: a count for each of
    :data:`AGES_MS`, and one for all older operations.  ``keys``: the number of keys seen so far.
    """

    __slots__ = (
        "_buckets",
        "_by_wait",
        "_by_watchers",
        "_core",
        "_entries",
        "_key",
        "_key_oldest_id",
        "_key_oldest_ms",
        "_key_wait_ms",
        "_key_watchers",
        "_most_keys",
        "_most_rows",
        "_number",
        "_only_kind",
        "_place",
        "_rows",
        "_shard",
        "_subscribed",
        "_thresholds",
        "_watch",
        "ages",
        "keys",
        "kinds",
        "now_ms",
        "visited",
    )

    def __init__(
        self,
        core: PurgatoryCore,
        now_ms: int,
        most_keys: int,
        most_rows: int,
        only_kind: str | None = None,
        buckets: dict[int, list[int]] | None = None,
        subscribed: type[Operation] | None = None,
    ) -> None:
        self._core: PurgatoryCore = core
        self.now_ms: i64 = now_ms
        self._most_keys: i64 = most_keys
        self._most_rows: i64 = most_rows
        self._only_kind: str | None = only_kind
        self._buckets: dict[int, list[int]] | None = buckets
        self._subscribed: type[Operation] | None = subscribed
        self.visited: i64 = 0
        self.keys: i64 = 0
        self.kinds: dict[str, Kind] = {}
        self.ages: list[int] = [0] * (len(AGES_MS) + 1)
        # Heaps; the first item of each is the least interesting one.  A number in each item differs from that of every
        # other item, because rows and keys cannot be compared.
        self._rows: list[tuple[int, Row]] = []
        self._by_watchers: list[tuple[int, int, int, HotKey]] = []
        self._by_wait: list[tuple[int, int, int, HotKey]] = []
        self._number: i64 = 0
        # The place: the entries of the current shard, and the next watch of the current key.
        self._shard: i64 = -1
        self._entries: list[tuple[Hashable, Any]] = []
        self._place: i64 = 0
        self._watch: Watch | None = None
        self._thresholds: Watch | None = None
        self._key: Hashable = None
        self._key_watchers: i64 = 0
        self._key_wait_ms: i64 = 0
        self._key_oldest_id: i64 = 0
        self._key_oldest_ms: i64 = 0

    def step(self, number: i64) -> bool:
        """Visit about ``number`` more watches.  Return False when the survey is complete."""
        left = number
        while left > 0:
            watch = self._watch
            if watch is not None:
                left -= 1
                if isinstance(watch, WatchList):  # the end of the list
                    self._watch = None
                    continue
                operation = watch.operation
                self._watch = watch.after
                if operation is not None and is_parked(operation):
                    self._visit(operation, watch is operation._watch)
                continue
            if self._thresholds is not None:
                self._watch = self._thresholds
                self._thresholds = None
                continue
            self._end_key()
            if self._place < len(self._entries):
                left -= 1
                self._begin_key(self._entries[self._place])
                self._place += 1
                continue
            if self._shard == SHARDS:
                return False
            self._next_shard()
            left -= 1
        return True

    def _next_shard(self) -> None:
        self._shard += 1
        self._place = 0
        lists = self._core.watcher_lists
        if self._shard == SHARDS:
            self._entries = [(watch.key, watch) for watch in lists._misplaced]
        else:
            # Not the items: their tuples may start the garbage collector, whose finalizers may change the dict.
            entries = list(lists._shards[self._shard].entries.values())
            self._entries = [(entry.key if isinstance(entry, Watch) else entry._lone_key, entry) for entry in entries]

    def _begin_key(self, item: tuple[Hashable, Any]) -> None:
        self._key = item[0]
        entry: Any = item[1]
        if isinstance(entry, Operation):  # alone on its key, without a watch
            if entry._lone_key is not None:
                self._visit(entry, True)
            elif isinstance(entry._watch, Watch) and entry._watch.key is self._key:
                self._watch = entry._watch  # another operation has joined it on the key in the meantime
                self._from_root()
        else:
            self._watch = entry
            self._from_root()

    def _from_root(self) -> None:
        """If the watch is a list, begin at the first watch in the list."""
        watch = self._watch
        if isinstance(watch, WatchList):
            self._watch = watch.after
            if watch.thresholds is not None:
                self._thresholds = watch.thresholds.members.after

    def _visit(self, operation: Operation, is_first: bool) -> None:
        """Count an operation for the current key.  ``is_first``: also count the operation itself."""
        since_ms: i64 = operation._parked_ms
        waited_ms: i64 = self.now_ms - since_ms
        if waited_ms < 0:
            waited_ms = 0
        if self._key_watchers == 0 or operation._op_id < self._key_oldest_id:
            self._key_oldest_id = operation._op_id
            self._key_oldest_ms = since_ms
        self._key_watchers += 1
        self._key_wait_ms += waited_ms
        if not is_first:
            return
        self.visited += 1
        age: i64 = 0
        for edge_ms in AGES_MS:
            if waited_ms < edge_ms:
                break
            age += 1
        self.ages[age] += 1
        name = given_kind(operation) or type_name(operation)
        kind = self.kinds.get(name)
        if kind is None:
            kind = self._new_kind(name, since_ms)
        kind.parked += 1
        if since_ms < kind.oldest_ms:
            kind.oldest_ms = since_ms
        if type(operation) is self._subscribed:
            kind.subscribed += 1
        if operation._delay_ms < 0:
            kind.endless += 1
        if operation._park_future is None and not operation._awaiters:
            kind.unawaited += 1
        if self._buckets is not None and operation._list is not None:
            bucket = self._buckets.get(id(operation._list))
            if bucket is not None:
                bucket[-1] += 1
        if self._most_rows > 0 and (self._only_kind is None or self._only_kind == name):
            self._offer_row(operation)

    def _new_kind(self, name: str, since_ms: i64) -> Kind:
        if len(self.kinds) >= _MOST_KINDS:
            name = OTHERS
        kind = self.kinds.get(name)
        if kind is None:
            kind = self.kinds[name] = Kind(name, since_ms)
        return kind

    def _offer_row(self, operation: Operation) -> None:
        rows = self._rows
        if len(rows) < self._most_rows:
            heappush(rows, (-operation._op_id, Row(operation)))
        elif -operation._op_id > rows[0][0]:
            heapreplace(rows, (-operation._op_id, Row(operation)))

    def _end_key(self) -> None:
        """Offer the key to the lists of hot keys."""
        if self._key_watchers == 0:
            return
        self.keys += 1
        self._number += 1
        watchers: int = self._key_watchers
        wait_ms: int = self._key_wait_ms
        age: int = -self._key_oldest_id  # of two equally hot keys, the one with the oldest operation comes first
        number: int = -self._number
        offered: HotKey | None = None
        if self._most_keys > 0:
            if len(self._by_watchers) < self._most_keys or _is_hotter(watchers, age, self._by_watchers[0]):
                offered = HotKey(self._key, watchers, wait_ms, self._key_oldest_ms)
                _offer(self._by_watchers, (watchers, age, number, offered), self._most_keys)
            if len(self._by_wait) < self._most_keys or _is_hotter(wait_ms, age, self._by_wait[0]):
                if offered is None:
                    offered = HotKey(self._key, watchers, wait_ms, self._key_oldest_ms)
                _offer(self._by_wait, (wait_ms, age, number, offered), self._most_keys)
        self._key = None
        self._key_watchers = 0
        self._key_wait_ms = 0

    # The results

    def rows(self) -> list[Row]:
        """Return the operations that have waited the longest, starting with the oldest one."""
        return [row for _, row in sorted(self._rows, reverse=True)]

    def by_watchers(self) -> list[HotKey]:
        """Return the keys with the most watchers, in descending order."""
        return [hot for _, _, _, hot in sorted(self._by_watchers, reverse=True)]

    def by_total_wait(self) -> list[HotKey]:
        """Return the keys with the largest sums of waits, in descending order."""
        return [hot for _, _, _, hot in sorted(self._by_wait, reverse=True)]


def rows_of_key(core: PurgatoryCore, key: Hashable, number: int) -> list[Row]:
    """Return the first ``number`` operations parked on the key, in the order of arrival.

    Raises TypeError if the key is unhashable.
    """
    found: list[Row] = []
    cursor = core.cursor(key, None)
    while cursor is not None and len(found) < number:
        operation = cursor.next()
        if operation is None:
            break
        found.append(Row(operation))
    return found


def _is_hotter(figure: int, age: int, least: tuple[int, int, int, HotKey]) -> bool:
    return figure > least[0] or (figure == least[0] and age > least[1])


def _offer(heap: list[tuple[int, int, int, HotKey]], item: tuple[int, int, int, HotKey], most: i64) -> None:
    if len(heap) < most:
        heappush(heap, item)
    else:
        heapreplace(heap, item)
