"""Watcher lists: the operations parked on each key, in the order of arrival.

**Requirements.**  Put an operation on a key, remove it in O(1) without a search, iterate over the watchers of a key in
the order of arrival, forget a key as soon as it has no watchers, and never stall the loop, however many keys there are.

**Prior art.**  Kafka keeps 512 ``WatcherLists``, each with a lock and a map from key to a linked list; an operation
that completes through one key stays on the lists of its other keys until a purge pass finds it.  trio's parking lot
keeps an ordered dict for each lot.  Handwritten servers often keep an ``Event`` for each key and never free it.

**Design.**  There are also 512 shards here, but not because of locks: a dict grows by copying itself, and copying a
million entries takes tens of milliseconds, whereas copying two thousand is not noticeable.  The entry of a key is one
of the following:

*   the operation itself, if it is alone on the key and has no other key (the most frequent case);
*   the :class:`Watch` of an operation that is alone on the key;
*   a :class:`WatchList`, circular and doubly linked around a root, from the second watcher until the list is empty.

**Plain keys.**  Hashing or comparing a str, an int, or a private key runs no user code and cannot fail.  A shard whose
keys have all been such *plain* keys is plain itself and needs none of the precautions below against keys that raise,
change, or have side effects.  The first key of another class makes its shard general permanently.  Only a plain shard
has operations as entries: elsewhere, an entry that cannot be removed because its key raises would keep the operation
alive.

**General keys.**  Hashing or comparing any other key may raise, may give a different result each time, and may end
operations of this purgatory.  These guarantees remain:

1.  While a key is being hashed or compared (``asking``), no watch is removed.  Removals are deferred until the hash or
    comparison is done, so no list changes between a lookup and the change that is based on it.
2.  If a key raises when an operation is *added*, nothing has changed: every call that may fail comes before the first
    assignment to a link.
3.  If a key raises when its last watcher *leaves*, the operation still ends.  The key's entry cannot be found and
    remains as a *tombstone*, an entry without watchers, which the next watcher of the key takes over.
4.  An entry never replaces another key's entry.  If two entries are exchanged and one of them no longer finds a place,
    that entry is *misplaced*: no check finds its operations, but they still expire, can be cancelled, and end at
    closing.

**Invariants.**  :meth:`WatcherLists._check` asserts them:

1.  Each watch of a parked operation is reachable from exactly one entry, which is in the shard of its key or misplaced.
2.  A watch refers to a list if and only if it is linked into that list.  The watch of a lone operation refers to none.
3.  Each list is in the order of arrival, and its ``weight`` is its length; the same holds for lists of watches with
    thresholds.
4.  A plain shard contains only plain keys.  A general shard has no operations as entries.
5.  ``_tombstones`` is the number of entries without a watcher, so the number of keys is the number of entries minus
    ``_tombstones``.

**Costs.**  A watch is one object with seven fields; a list is one more object.  Adding or removing a watcher costs one
dict operation if it is alone on its key, and pointer assignments otherwise.

**Alternatives.**  A dict of dicts is simpler but takes 230 bytes for the first watcher of a key.  A Python list for
each key makes removal O(n).  Weak references leave the removal of ended operations to the garbage collector.
"""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import Any, Final

from mypy_extensions import i64

from purgatory.core.operation.lifecycle import is_parked
from purgatory.core.operation.operation import Operation
from purgatory.core.operation.private_key import PrivateKey

from .cursor import NO_ID, WatchCursor
from .thresholds import ThresholdHeap, ThresholdWatch
from .validation import is_plain
from .watch import Shard, Watch, WatchList

__all__ = ["SHARDS", "WatcherLists", "as_watch"]

_Head = tuple[int, int, Operation, WatchCursor, Iterator[Any]]
SHARDS: Final = 512
_AHEAD: Final = 4  # how many entries of each shard are compared in a search for the oldest operations
_CHANGED: Final = "the hash or the equality of a key changed while operations were parked on it"


class WatcherLists:
    """The watches of every key, in the order of arrival.

    ``asking``: whether a key is being hashed or compared in order to change a dict, or a heap is being changed; until
    that is done, nothing else may change a dict or a heap.  ``deferred``: the watches to be removed afterward.
    """

    __slots__ = ("_misplaced", "_rest", "_shards", "_tombstones", "asking", "deferred")

    def __init__(self) -> None:
        self._shards: list[Shard] = [Shard() for _ in range(SHARDS)]
        self._tombstones: i64 = 0  # entries without watchers whose keys raised when the entries were to be deleted
        self._misplaced: list[Watch] = []  # entries that could not be put back
        self._rest: Iterator[Operation] = iter(())  # the operations that some() has not returned yet
        self.asking: bool = False
        self.deferred: list[Watch] = []

    def shard(self, key: Hashable) -> Shard:
        """Return the shard of the key.  Raises TypeError if the key is unhashable.

        The shard is computed from the hash, and the shard's dict hashes the key again; both may run user code.

        All bits of the hash must count, because the low bits of numeric identifiers are often equal.  The remainder of
        a prime is the cheapest such function, both compiled and interpreted; 1021 is the largest prime below 2 x 512.
        A dict selects the slot by the lowest bits of the hash.  If the shard were selected by the same bits, all keys
        of a shard would compete for the same slots.
        """
        number: i64 = hash(key)
        return self._shards[(number % 1021) & 511]

    def entry(self, key: Hashable) -> Any:
        """Return the entry of the key, an Operation or a Watch, or None."""
        number: i64 = hash(key)  # as in shard(), without the call
        return self._shards[(number % 1021) & 511].entries.get(key)

    def watches(self, key: Hashable) -> Watch | None:
        """Return the key's only watch, its list, or None; if the entry is an operation, return a new watch for it."""
        entry = self.entry(key)
        return None if entry is None else as_watch(entry)

    def add_operation(self, hashed: i64, key: Hashable, operation: Operation) -> None:
        """Put an operation on its only key, whose hash is given.

        The operation gets its own watch or shares the shard's.

        If the key raises, ``asking`` stays set for the caller to clear.
        """
        shard = self._shards[(hashed % 1021) & 511]  # as in shard()
        if shard.plain and (type(key) is str or is_plain(key)):
            # The most frequent case: one lookup, and no object other than the operation itself.
            if shard.entries.setdefault(key, operation) is operation:
                operation._lone_key = key
                operation._watch = shard.lone
                return
            watch = Watch(key, operation)
            self.add_plain(shard, watch)
        else:
            watch = Watch(key, operation)
            self.add(shard, watch)
        operation._watch = watch

    def remove_operation(self, operation: Operation) -> None:
        """Remove an operation that is itself an entry.  Its key is plain, so no step can fail."""
        key = operation._lone_key
        lone = operation._watch
        operation._lone_key = None
        operation._watch = None
        assert lone is not None and lone.shard is not None
        del lone.shard.entries[key]

    def add_plain(self, shard: Shard, watch: Watch) -> bool:
        """Do the same as :meth:`add`, for a plain key in a plain shard: no step calls the key or can fail.

        The garbage collector may run a finalizer whenever an object is created.  ``asking`` therefore defers the
        removal of watches until this method is done; an operation without a watch may leave, see :meth:`_give_watch`.

        The watch stores its shard, so that removing it need not hash the key.
        """
        self.asking = True
        key = watch.key
        watch.shard = shard
        entry: Any = shard.entries.setdefault(key, watch)
        added = True
        if entry is not watch:
            if isinstance(entry, WatchList):
                tail = entry.before
                assert tail is not None
                added = tail.operation is not watch.operation
                if added:
                    entry.append(watch)
            else:
                # The second watcher of the key: the entry of the first one becomes a list.
                first = entry if isinstance(entry, Watch) else self._give_watch(shard, entry)
                if first is None:
                    return self.add_plain(shard, watch)
                added = first.operation is not watch.operation
                if added:
                    root = WatchList(key)
                    root.shard = shard
                    shard.entries[key] = root
                    root.append(first)
                    root.append(watch)
        self.asking = False
        return added

    def _give_watch(self, shard: Shard, operation: Operation) -> Watch | None:
        """Replace an operation that is an entry with its watch; return the watch.

        Return None if a finalizer ends the operation while the watch is being created.
        """
        key = operation._lone_key
        watch = Watch(key, operation)
        if operation._lone_key is None:
            return None
        watch.shard = shard
        shard.entries[key] = watch
        operation._watch = watch
        operation._lone_key = None
        return watch

    def _make_general(self, shard: Shard) -> None:
        """Make every entry a watch, because the shard gets its first key that is not plain.  Cost: O(keys in the
        shard).
        """
        for entry in list(shard.entries.values()):
            if not isinstance(entry, Watch):
                self._give_watch(shard, entry)
        shard.plain = False

    def add(self, shard: Shard, watch: Watch) -> bool:
        """Append the watch to the list of its key, in the key's shard.

        If its operation already watches the key, change nothing and return False; the operation is the newest, so its
        watch is the last one.  If the key raises, ``asking`` stays set for the caller to clear.

        One lookup both finds the key's entry and, if there is none, makes the watch the entry.  The next step depends
        on the entry that was found:

        1.  A list, perhaps without watchers: the watch is appended.
        2.  A tombstone: the watch replaces it.
        3.  The watch of another operation: a list that contains both watches replaces it.
        """
        self.asking = True
        if shard.plain:
            if is_plain(watch.key):
                return self.add_plain(shard, watch)
            self._make_general(shard)
        key = watch.key
        entry: Any = shard.entries.setdefault(key, watch)
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
                    self._replace(shard, entry, root)  # the last call that can fail, and no watch has been changed yet
                    root.append(entry)
                    root.append(watch)
        self.asking = False
        return added

    def add_threshold(self, watch: ThresholdWatch) -> bool:
        """Add the watch to the key's watches that have a threshold.

        The heap of these watches belongs to the key's list, so an entry that is not a list yet is first replaced with
        one; a watch without a threshold moves into that list.

        If its operation already watches the key, because two keys have become equal, change nothing and return False.
        If the key raises, ``asking`` stays set for the caller to clear.
        """
        self.asking = True
        key = watch.key
        shard = self.shard(key)
        if shard.plain and not is_plain(key):
            self._make_general(shard)
        found = shard.entries.get(key)
        if isinstance(found, WatchList):
            root = found
            self._reuse(root)
        else:
            root = WatchList(key)
            if found is None:
                if shard.entries.setdefault(key, root) is not root:
                    raise LookupError(_CHANGED)
            else:
                entry = found if isinstance(found, Watch) else self._give_watch(shard, found)
                if entry is None:
                    return self.add_threshold(watch)
                self._replace(shard, entry, root)
                if entry.operation is None:
                    self._tombstones -= 1
                else:
                    root.append(entry)
        # No step from here on runs user code.
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
        """If the list was a tombstone, no longer count it as one, because a watch is about to be added."""
        if root.weight == 0 and root.thresholds is None:
            self._tombstones -= 1

    def _replace(self, shard: Shard, entry: Watch, other: Watch) -> None:
        """Replace the entry.  If this fails, nothing has changed.

        Assigning ``entries[key]`` would be simpler, but the dict would then compare the key once more and, if the
        result were different this time, overwrite the entry of another key, whose operations no check would find any
        longer.  Therefore, the entry is removed, the removed entry is verified, and the new one is inserted without
        overwriting.
        """
        key = other.key
        self._take(shard, key, entry)
        try:
            if shard.entries.setdefault(key, other) is not other:
                raise LookupError(_CHANGED)
        except BaseException:
            self._put_back(entry)
            raise

    def _take(self, shard: Shard, key: Hashable, entry: Watch) -> None:
        """Delete the entry.  If the key now leads to another entry, change nothing and raise LookupError.

        There are two lookups: in nearly all such cases, the first one detects the problem before anything changes.  The
        second lookup deletes the entry that it finds; if that is another key's entry, it is put back.
        """
        if shard.entries.get(key) is not entry:
            raise LookupError(_CHANGED)
        found = shard.entries.pop(key)  # the key may lead to a different entry each time
        if found is not entry:
            self._put_back(as_watch(found))
            raise LookupError(_CHANGED)

    def _put_back(self, entry: Watch) -> None:
        """Put back an entry that was deleted by mistake, or set it aside if its key does not lead to a free place."""
        try:
            if self.shard(entry.key).entries.setdefault(entry.key, entry) is entry:
                return
        except Exception:
            self._misplaced.append(entry)  # no check finds its operations, but they still expire and can be cancelled
            return
        self._misplaced.append(entry)

    def remove(self, watch: Watch) -> None:
        """Remove the watch; forget the key if it has no other watchers.

        Only forgetting the key can fail.  That step comes last, so the watch has left its list in any case; if the step
        fails, the caller calls :meth:`bury` for the entry.
        """
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
        """Remove a watch from its key's heap.

        If the heap is then empty, remove the heap and, if the key has no other watchers, the key.
        """
        members = watch.list_root
        assert members is not None
        heap = members.thresholds
        assert heap is not None
        self.asking = True  # a finalizer that runs in between must not remove another watch of this heap
        heap.remove(watch)
        self.asking = False
        if members.weight == 0:
            root = heap.root
            heap.detach()
            if root.weight == 0:
                self._forget(root)
                root._clear_links()

    def _forget(self, entry: Watch) -> None:
        """Delete the entry of a key without watchers.  If the key raises, ``asking`` stays set; see :meth:`bury`.

        Deleting a plain key cannot fail.  Any other key is looked up, and its entry is compared before it is deleted,
        so that no other key loses its watchers.
        """
        key = entry.key
        shard = entry.shard
        if shard is not None and shard.plain:
            del shard.entries[key]
            return
        self.asking = True
        if not self._misplaced or not self._forget_misplaced(entry):
            self._take(self.shard(key), key, entry)
        self.asking = False

    def _forget_misplaced(self, entry: Watch) -> bool:
        """Forget an entry that was set aside.  Return False if it was not set aside."""
        for place, misplaced in enumerate(self._misplaced):
            if misplaced is entry:
                del self._misplaced[place]
                return True
        return False

    def bury(self, watch: Watch) -> None:
        """Clear the watch, because its key raised when the entry was to be deleted.

        The entry remains as a tombstone, without an operation, until an operation is parked on the key again.  Only the
        last watcher of a key deletes its entry, so no other operation is affected.
        """
        self.asking = False
        self._tombstones += 1
        watch.operation = None

    def count(self, key: Hashable) -> int:
        """Return how many operations are parked on the key.  Cost: O(1)."""
        entry = self.entry(key)
        if entry is None:
            return 0
        return _weight(entry) if isinstance(entry, Watch) else 1

    def operations(self, key: Hashable) -> list[Operation]:
        """Return the operations parked on the key, in the order of arrival."""
        entry = self.watches(key)
        return [] if entry is None else _operations(entry)

    def reached(self, key: Hashable, value: Any) -> list[Operation]:
        """Return the operations whose threshold for the key is reached by the value, in the order of arrival."""
        entry = self.entry(key)
        return entry.thresholds.reached(value) if isinstance(entry, WatchList) and entry.thresholds is not None else []

    def counts(self) -> Iterator[tuple[Hashable, int]]:
        """Yield each key with its number of watchers.  Cost: O(keys)."""
        for number in range(SHARDS):
            yield from self.counts_of_shard(number)

    def counts_of_shard(self, number: i64) -> list[tuple[Hashable, int]]:
        """Return the keys of one of the :data:`SHARDS` with their numbers of watchers.  Any thread may call this
        method.
        """
        found: list[tuple[Hashable, int]] = []
        # Each tuple may start the garbage collector, whose finalizers may end operations.  A list of items would
        # allocate tuples while it iterates over the dict, and a copy of the dict can be inconsistent.
        for entry in list(self._shards[number].entries.values()):
            if isinstance(entry, Watch):
                found.append((entry.key, _weight(entry)))
            else:
                key = entry._lone_key
                if key is not None:
                    found.append((key, 1))
        return found

    def keys_of_shard(self, number: i64) -> list[Hashable]:
        """Return the watched keys of one of the :data:`SHARDS`, without private keys."""
        return [key for key, weight in self.counts_of_shard(number) if weight and not isinstance(key, PrivateKey)]

    def keys(self) -> Iterator[Hashable]:
        """Yield every watched key except private ones, shard by shard; keys may come and go between two steps."""
        for number in range(SHARDS):
            yield from self.keys_of_shard(number)

    def num_keys(self) -> int:
        """Return how many keys are watched.  Cost: O(1), because there are always 512 shards."""
        return sum([len(shard.entries) for shard in self._shards]) - self._tombstones + len(self._misplaced)

    def all_operations(self) -> list[Operation]:
        """Return every parked operation exactly once, in the order of arrival.  Cost: O(watches).

        An operation is found once for each of its keys; its number is used to remove the duplicates and to sort the
        operations.
        """
        seen = {}
        for shard in self._shards:
            for entry in list(shard.entries.values()):
                for operation in _operations(as_watch(entry)):
                    seen[operation._op_id] = operation
        for misplaced in list(self._misplaced):
            for operation in _operations(misplaced):
                seen[operation._op_id] = operation
        return [seen[op_id] for op_id in sorted(seen)]

    def some(self, number: int) -> list[Operation]:
        """Return at most ``number`` parked operations, in no particular order, for a caller that ends them in slices.

        Each call continues where the previous one stopped: iterating over a dict also visits the slots of deleted
        entries, so starting again would make closing quadratic.  After the last operation, the next call begins again,
        because callbacks may have parked operations in the meantime.  The list is therefore empty only if no operation
        is parked.  An operation with several keys may be found several times; ending it again does nothing.
        """
        found = self._next_of_rest(number)
        if not found:
            self._rest = self._each_parked()
            found = self._next_of_rest(number)
        return found

    def end_some(self) -> None:
        """Drop the position of :meth:`some`, which refers to operations."""
        self._rest = iter(())

    def _next_of_rest(self, number: int) -> list[Operation]:
        found: list[Operation] = []
        while len(found) < number:
            operation = next(self._rest, None)
            if operation is None:
                break
            found.append(operation)
        return found

    def _each_parked(self) -> Iterator[Operation]:
        """Yield the operations that are parked, shard by shard; operations may end and arrive between two steps.

        The entries of one shard are copied, and each one is released when its turn comes.  If an entry has become part
        of a list since, the cursor follows that list.
        """
        for shard in self._shards:
            if not shard.entries:
                continue
            entries = list(shard.entries.values())
            entries.reverse()
            while entries:
                entry = entries.pop()
                if not isinstance(entry, Watch):
                    if is_parked(entry):
                        yield entry
                    continue
                yield from _along(entry)
        for misplaced in list(self._misplaced):
            yield from _along(misplaced)

    def oldest(self, number: int) -> list[Operation]:
        """Return, at least approximately, the ``number`` operations that have waited the longest, in the order of
        arrival.

        The entries of a shard are in the order in which their keys were first watched, and the operations of an entry
        are in the order of arrival.  The oldest operations are therefore at the front of the shards, and a merge of the
        shards finds them without examining other operations.  An old operation can be missing only if other keys of its
        shard have been watched for a longer time, by younger operations, so that its entry is behind the first
        :data:`_AHEAD` entries.
        """
        heads: list[_Head] = []
        order: i64 = 0  # breaks ties between entries of one operation, because cursors cannot be compared
        sources = [iter(shard.entries.values()) for shard in self._shards if shard.entries]
        for source in [*sources, iter(self._misplaced)]:
            for _ in range(_AHEAD):
                order += 1
                _open_next(heads, source, order)
        found: dict[int, Operation] = {}
        while heads and len(found) < number:
            op_id, head_order, operation, cursor, source = heads[0]
            found[op_id] = operation
            following = cursor.next()
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following._op_id, head_order, following, cursor, source))
            order += 1
            _open_next(heads, source, order)
        return [found[op_id] for op_id in sorted(found)]

    def _check(self) -> int:
        """Assert the invariants; return the number of watches."""
        assert not self.asking and not self.deferred, f"{len(self.deferred)} watches are still to be removed"
        watches = list(self._misplaced)
        total = 0
        for number, shard in enumerate(self._shards):
            for key, entry in shard.entries.items():
                if isinstance(key, (str, int, tuple)):  # other classes may change their hash
                    assert self.shard(key) is shard, f"{key!r} is in shard {number}"
                    assert as_watch(entry).key == key, f"{key!r} leads to the entry of {as_watch(entry).key!r}"
                assert is_plain(key) or not shard.plain, f"{key!r} is in shard {number}, which is plain"
                if isinstance(entry, Watch):
                    watches.append(entry)
                else:
                    assert shard.plain, f"{key!r}, in a shard that is not plain, leads to an operation"
                    assert entry._watch is shard.lone, f"the entry of {key!r} has a watch"
                    total += 1
        tombstones = 0
        for watch in watches:
            weight = _weight(watch)
            tombstones += weight == 0
            total += weight
            if isinstance(watch, WatchList):
                length = _check_list(watch)
                if watch.thresholds is not None:
                    length += _check_list(watch.thresholds.members)
                    watch.thresholds._check()
                assert length == weight, f"{watch.key!r}: {length} watchers, not {weight}"
            else:
                assert watch.list_root is None, f"the only watcher of {watch.key!r} refers to a list"
        assert tombstones == self._tombstones, f"{tombstones} entries have no watchers, counted {self._tombstones}"
        return total


def _along(entry: Watch) -> Iterator[Operation]:
    """Yield the operations of an entry; those that end between two steps are skipped."""
    cursor = WatchCursor(entry, NO_ID)
    operation = cursor.next()
    while operation is not None:
        yield operation
        operation = cursor.next()


def _open_next(heads: list[_Head], source: Iterator[Any], order: int) -> None:
    """Add the first operation of the next entry to the heap, if there is one."""
    for entry in source:
        cursor = WatchCursor(as_watch(entry), NO_ID)
        operation = cursor.next()
        if operation is not None:
            heappush(heads, (operation._op_id, order, operation, cursor, source))
        return


def as_watch(entry: Any) -> Watch:
    """Return the entry or, if the entry is an operation, a new watch to which only the caller refers."""
    return entry if isinstance(entry, Watch) else Watch(entry._lone_key, entry)


def _weight(entry: Watch) -> int:
    """Return the number of watchers of an entry, with and without a threshold; 0 for a tombstone."""
    if not isinstance(entry, WatchList):
        return 0 if entry.operation is None else 1
    heap = entry.thresholds  # read once, because the loop's thread may drop the heap while another thread counts
    return entry.weight if heap is None else entry.weight + heap.members.weight


def _operations(entry: Watch) -> list[Operation]:
    """Return the operations of an entry, in the order of arrival."""
    found: list[Operation] = []
    cursor = WatchCursor(entry, NO_ID)
    while (operation := cursor.next()) is not None:
        found.append(operation)
    return found


def _check_list(root: WatchList) -> int:
    """Assert the invariants of one list; return its length."""
    watch, length, last_id = root.after, 0, 0
    while watch is not root:
        assert watch is not None and watch.before is not None and watch.operation is not None
        assert watch.list_root is root and watch.before.after is watch, "links disagree"
        assert watch.operation._op_id > last_id, f"{root.key!r}: out of the order of arrival"
        last_id = watch.operation._op_id
        watch, length = watch.after, length + 1
    assert length == root.weight, f"{root.key!r}: {length} watchers, the list has {root.weight}"
    return length
