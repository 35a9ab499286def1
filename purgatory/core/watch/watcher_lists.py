"""Watcher lists: the operations parked on each key, in the order of arrival.

**Requirements.**  Put an operation on a key, take it off in O(1) without a search, iterate over the watchers of a key
in the order of arrival, forget a key as soon as it has no watchers, and never stall the loop, however many keys there
are.

**Prior art.**  Kafka keeps 512 ``WatcherLists``, each with a lock and a map from key to a linked list; an operation
that completes through one key stays on the lists of its others until a purge pass finds it.  trio's parking lot keeps
an ordered dict per lot.  Hand-written servers keep an ``Event`` per key and never free it.

**Design.**  512 shards as well, though not for the sake of locks: a dict grows by copying itself, and copying a
million entries takes tens of milliseconds, while copying two thousand is not noticeable.  Most keys have one watcher,
so the entry of a key is the :class:`Watch` of that watcher.  The second watcher turns it into a list, circular and
doubly linked around a root, which stays until it is empty.

**Costs.**  A watch is one object with six fields; a list is one more.  Adding and removing cost one dict operation for
a lone watcher, and pointer assignments for the others.

**Alternatives.**  A dict of dicts is simpler and takes 230 bytes for the first watcher of a key.  A Python list per key
makes removal O(n).  Weak references leave the end of an operation to the garbage collector.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, Final

from mypy_extensions import i64

from purgatory.core.operation.operation import Operation

from .thresholds import HeapEntry, ThresholdHeap, ThresholdWatch
from .watch import Watch, WatchList

__all__ = ["SHARDS", "ReachedCursor", "WatchCursor", "WatcherLists"]

SHARDS: Final = 512
_CHANGED: Final = "the hash or the equality of a key changed while operations were parked on it"


class WatcherLists:
    """The watches of every key, in the order of arrival.

    ``asking``: a key is being hashed or compared in order to change a dict, and nothing else may change one meanwhile.
    ``deferred``: the watches to be removed afterwards.
    """

    __slots__ = ("_misplaced", "_shards", "_tombstones", "asking", "deferred")

    def __init__(self) -> None:
        self._shards: list[dict[Hashable, Watch]] = [{} for _ in range(SHARDS)]
        self._tombstones: i64 = 0  # entries without watchers, whose key raised when they were to be deleted
        self._misplaced: list[Watch] = []  # entries whose key raised when they were to be put back
        self.asking: bool = False
        self.deferred: deque[Watch] = deque()

    def shard(self, key: Hashable) -> dict[Hashable, Watch]:
        """Return the dict for the key.  TypeError if it is unhashable.

        A dict selects the slot by the lowest bits of the hash.  Selecting the shard by the same bits would put all keys
        of a shard into one slot.
        """
        number: i64 = hash(key)
        return self._shards[(number ^ (number >> 9)) & 511]

    def entry(self, key: Hashable) -> Watch | None:
        """Return the entry of the key: its only watch, its list, or None."""
        return self.shard(key).get(key)

    def add(self, shard: dict[Hashable, Watch], watch: Watch) -> bool:
        """Append the watch to the list of its key, in the shard of that key.

        False, and nothing changes, if its operation watches the key already; being the newest, it is then the last.
         If the key raises, ``asking`` stays set for the caller to clear.
        """
        self.asking = True
        key = watch.key
        entry = shard.setdefault(key, watch)
        added = True
        if entry is not watch:
            if isinstance(entry, WatchList):
                tail = entry.before
                assert tail is not None
                added = tail.operation is not watch.operation
                if added:
                    self._reuse(entry)
                    entry.append(watch)
            elif entry.operation is None:
                self._replace(shard, entry, watch)
                self._tombstones -= 1
            else:
                added = entry.operation is not watch.operation
                if added:
                    root = WatchList(key)
                    self._replace(shard, entry, root)  # the last call that can fail, and no watch is touched yet
                    root.append(entry)
                    root.append(watch)
        self.asking = False
        return added

    def add_threshold(self, watch: ThresholdWatch) -> bool:
        """Add the watch to those of its key that have a threshold.

        False, and nothing changes, if its operation watches the key already, because two keys have become equal.
        If the key raises, ``asking`` stays set for the caller to clear.
        """
        self.asking = True
        key = watch.key
        shard = self.shard(key)
        entry = shard.get(key)
        if isinstance(entry, WatchList):
            root = entry
            self._reuse(root)
        else:
            root = WatchList(key)
            if entry is None:
                if shard.setdefault(key, root) is not root:
                    raise LookupError(_CHANGED)
            else:
                self._replace(shard, entry, root)
                if entry.operation is None:
                    self._tombstones -= 1
                else:
                    root.append(entry)
        heap = root.thresholds
        if heap is None:
            heap = root.thresholds = ThresholdHeap(root)
        tail = heap.members.before
        assert tail is not None
        added = tail.operation is not watch.operation
        if added:
            heap.add(watch)
        self.asking = False
        return added

    def _reuse(self, root: WatchList) -> None:
        if root.weight == 0 and root.thresholds is None:
            self._tombstones -= 1

    def _replace(self, shard: dict[Hashable, Watch], entry: Watch, other: Watch) -> None:
        """Replace the entry.  If that fails, nothing has changed."""
        key = other.key
        self._take(shard, key, entry)
        try:
            if shard.setdefault(key, other) is not other:
                raise LookupError(_CHANGED)
        except BaseException:
            self._put_back(entry)
            raise

    def _take(self, shard: dict[Hashable, Watch], key: Hashable, entry: Watch) -> None:
        """Delete the entry.  LookupError, and nothing has changed, if the key now leads to another entry."""
        if shard.get(key) is not entry:
            raise LookupError(_CHANGED)
        if type(key) is str or type(key) is int:
            del shard[key]
            return
        found = shard.pop(key)  # a key of another class may lead to another entry at each call
        if found is not entry:
            self._put_back(found)
            raise LookupError(_CHANGED)

    def _put_back(self, entry: Watch) -> None:
        """Put back an entry that was deleted by mistake."""
        try:
            if self.shard(entry.key).setdefault(entry.key, entry) is entry:
                return
        except Exception:
            self._misplaced.append(entry)  # no check finds it, but its operations still expire and can be cancelled
            return
        self._misplaced.append(entry)

    def remove(self, watch: Watch) -> None:
        """Remove the watch; a key without watchers is forgotten."""
        if isinstance(watch, ThresholdWatch):
            self._remove_threshold(watch)
            return
        root = watch.list_root
        if root is None:
            self._forget(watch)
            return
        root.unlink(watch)
        if root.weight == 0 and root.thresholds is None:
            self._forget(root)
            root._clear_links()

    def _remove_threshold(self, watch: ThresholdWatch) -> None:
        members = watch.list_root
        assert members is not None
        heap = members.thresholds
        assert heap is not None
        heap.remove(watch)
        if members.weight == 0:
            root = heap.root
            heap.detach()
            if root.weight == 0:
                self._forget(root)
                root._clear_links()

    def _forget(self, entry: Watch) -> None:
        """Delete the entry of a key without watchers.  If the key raises, ``asking`` stays set: see :meth:`abandon`."""
        self.asking = True
        key = entry.key
        if not self._misplaced or not self._forget_misplaced(entry):
            self._take(self.shard(key), key, entry)
        self.asking = False

    def _forget_misplaced(self, entry: Watch) -> bool:
        for place, misplaced in enumerate(self._misplaced):
            if misplaced is entry:
                del self._misplaced[place]
                return True
        return False

    def abandon(self, watch: Watch) -> None:
        """Clear the watch, whose key raised when its entry was to be deleted.

        The entry remains as a tombstone, without an operation, until an operation is parked on the key again.
        """
        self.asking = False
        self._tombstones += 1
        watch.operation = None

    def count(self, key: Hashable) -> int:
        """Return how many operations are parked on the key.  O(1)."""
        entry = self.entry(key)
        return 0 if entry is None else _weight(entry)

    def operations(self, key: Hashable) -> list[Operation]:
        """Return the operations parked on the key, in the order of arrival."""
        entry = self.entry(key)
        return [] if entry is None else _operations(entry)

    def reached(self, key: Hashable, value: Any) -> list[Operation]:
        """Return the operations whose threshold for the key the value reaches, in the order of arrival."""
        entry = self.entry(key)
        return entry.thresholds.reached(value) if isinstance(entry, WatchList) and entry.thresholds is not None else []

    def counts(self) -> Iterator[tuple[Hashable, int]]:
        """Yield each key with its number of watchers.  O(keys)."""
        for shard in self._shards:
            for key, entry in shard.items():
                yield key, _weight(entry)

    def keys_of_shard(self, number: i64) -> list[Hashable]:
        """Return the watched keys of one of the :data:`SHARDS`."""
        return [key for key, entry in self._shards[number].items() if _weight(entry)]

    def keys(self) -> Iterator[Hashable]:
        """Yield every watched key, shard by shard; keys may come and go between two steps."""
        for number in range(SHARDS):
            yield from self.keys_of_shard(number)

    def num_keys(self) -> int:
        """Return how many keys are watched.  O(1): there are always 512 shards."""
        return sum([len(shard) for shard in self._shards]) - self._tombstones + len(self._misplaced)

    def everyone(self) -> list[Operation]:
        """Return every parked operation once, in the order of arrival.  O(watches)."""
        seen = {}
        for shard in self._shards:
            for entry in shard.values():
                for operation in _operations(entry):
                    seen[operation._op_id] = operation
        for entry in self._misplaced:
            for operation in _operations(entry):
                seen[operation._op_id] = operation
        return [seen[op_id] for op_id in sorted(seen)]

    def some(self, number: int) -> list[Operation]:
        """Return at most ``number`` parked operations, in no order, for a caller that ends them in slices."""
        found: list[Operation] = []
        for shard in self._shards:
            if not shard:
                continue  # iterating over a dict also visits the slots of deleted entries
            for entry in shard.values():
                cursor = WatchCursor(entry, _NO_ID)
                while len(found) < number:
                    operation = cursor.next()
                    if operation is None:
                        break
                    found.append(operation)
                else:
                    return found
        for entry in self._misplaced:
            found.extend(_operations(entry)[: number - len(found)])
        return found

    def _check(self) -> int:
        """Assert the invariants; return the number of watches."""
        assert not self.asking and not self.deferred, f"{len(self.deferred)} watches are still to be removed"
        total = tombstones = 0
        misplaced: dict[Hashable, Watch] = dict(enumerate(self._misplaced))
        for number, shard in enumerate([*self._shards, misplaced]):
            for key, entry in shard.items():
                if number < SHARDS and isinstance(key, (str, int, tuple)):  # other classes may change their hash
                    assert self.shard(key) is shard, f"{key!r} is in shard {number}"
                    assert entry.key == key, f"{key!r} leads to the entry of {entry.key!r}"
                tombstones += _weight(entry) == 0
                if isinstance(entry, WatchList):
                    length = _check_list(entry)
                    if entry.thresholds is not None:
                        length += _check_list(entry.thresholds.members)
                        entry.thresholds._check()
                    assert length == _weight(entry), f"{key!r}: {length} watchers, not {_weight(entry)}"
                    total += length
                else:
                    assert entry.list_root is None, f"the only watcher of {key!r} refers to a list"
                    total += _weight(entry)
        assert tombstones == self._tombstones, f"{tombstones} entries have no watchers, counted {self._tombstones}"
        return total


_NO_ID: Final = 1 << 60


class WatchCursor:
    """An iteration over the watchers of one key, in the order of arrival, that may pause at any point.

    Operations may end and arrive between two steps.  Ended operations are left out, and so are those that arrived after
    ``newest``.  ``skips``: whether the operation that :meth:`next` returned must not be tried.
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
        """Whether :meth:`next` is known to return None.  May be False although all further operations have ended."""
        return _is_end(self._plain) and _is_end(self._with_threshold)

    def skip_thresholds(self) -> None:
        """Leave out the watchers with a threshold."""
        self._with_threshold = None

    def _waiting(self, watch: Watch | None) -> Watch | None:
        """Return the first watch from here on that is still linked; None at the end of the list."""
        while watch is not None and not isinstance(watch, WatchList):
            operation = watch.operation
            if operation is not None and operation._watch is not None:
                return watch if operation._op_id <= self._newest else None
            watch = watch.after
        return None


class ReachedCursor(WatchCursor):
    """An iteration over the watchers of one key without a threshold, or with one that the value reaches.

    If the value reaches at most ``most`` thresholds, these come from the heap, and the other watchers are not visited.
    Otherwise the cursor visits every watcher in the order of arrival and sets ``skips`` for those not to be tried, so
    that a caller that works in slices can count them.  Either way creating a cursor costs O(``most``).
    """

    __slots__ = ("_place", "_reached", "_value")

    def __init__(self, root: WatchList, newest: i64, value: Any, most: i64) -> None:
        super().__init__(root, newest)
        assert root.thresholds is not None
        self._value: Any = value
        self._place: i64 = 0
        self._reached: list[tuple[int, HeapEntry]] | None = root.thresholds.reached_entries(value, most)
        if self._reached is not None:
            self.skip_thresholds()

    def next(self) -> Operation | None:
        """Return the next operation that is still parked, or None at the end."""
        plain = self._plain = self._waiting(self._plain)
        if self._reached is not None:
            reached = self._next_reached()
            if reached is not None and (plain is None or reached._op_id < _op_id(plain)):
                self._place += 1
                return reached
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
        reached = self._reached
        return (reached is None or self._place >= len(reached)) and super().at_end()

    def _next_reached(self) -> Operation | None:
        reached = self._reached
        assert reached is not None
        while self._place < len(reached):
            operation = reached[self._place][1].operation
            if operation is not None and operation._op_id <= self._newest:
                return operation
            self._place += 1
        return None


def _is_end(watch: Watch | None) -> bool:
    return watch is None or isinstance(watch, WatchList)


def _op_id(watch: Watch) -> i64:
    operation = watch.operation
    assert operation is not None
    return operation._op_id


def _weight(entry: Watch) -> int:
    if not isinstance(entry, WatchList):
        return 0 if entry.operation is None else 1
    return entry.weight if entry.thresholds is None else entry.weight + entry.thresholds.members.weight


def _operations(entry: Watch) -> list[Operation]:
    found: list[Operation] = []
    cursor = WatchCursor(entry, _NO_ID)
    while (operation := cursor.next()) is not None:
        found.append(operation)
    return found


def _check_list(root: WatchList) -> int:
    watch, length, last_id = root.after, 0, 0
    while watch is not root:
        assert watch is not None and watch.before is not None and watch.operation is not None
        assert watch.list_root is root and watch.before.after is watch, "links disagree"
        assert watch.operation._op_id > last_id, f"{root.key!r}: out of the order of arrival"
        last_id = watch.operation._op_id
        watch, length = watch.after, length + 1
    assert length == root.weight, f"{root.key!r}: {length} watchers, the list has {root.weight}"
    return length
