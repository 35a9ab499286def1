"""Watcher lists: the operations parked on each key, in the order of arrival.

**Requirements.**  Put an operation on a key, take it off in O(1) without a search, iterate over the watchers of a key
in the order of arrival, forget a key as soon as it has no watchers, and never stall the loop, however many keys there
are.

**Prior art.**  Kafka keeps 512 ``WatcherLists``, each with a lock and a map from key to a linked list; an operation
that completes through one key stays on the lists of its others until a purge pass finds it.  trio's parking lot keeps
an ordered dict per lot.  Hand-written servers keep an ``Event`` per key and never free it.

**Design.**  512 shards as well, but not because of locks: a dict grows by copying itself, and copying a
million entries takes tens of milliseconds, while copying two thousand is not noticeable.  The entry of a key is one of

*   the operation itself, if it is alone on the key and has no other key, which is the most frequent case,
*   the :class:`Watch` of an operation that is alone on the key,
*   a :class:`WatchList`, circular and doubly linked around a root, from the second watcher on until it is empty.

**Plain keys.**  Hashing or comparing a str, an int, or a private key runs no user code and cannot fail.  A shard whose
keys have all been such *plain* keys is plain, and needs none of the precautions below against keys that raise, change
or act.  The first key of another class makes its shard general, once and for all.  Only a plain shard has operations as
entries: an entry that cannot be removed, because its key raises, would keep the operation alive.

**General keys.**  The hash or the equality of any other key may raise, may answer differently at each call, and may end
operations of this purgatory.  These guarantees remain:

1.  While a key is hashed or compared (``asking``), no watch is removed.  The removal is deferred until the answer is
    there, so no list changes between a lookup and the change that follows from it.
2.  If a key raises when an operation is *added*, nothing has changed: every call that may fail comes before the first
    assignment to a link.
3.  If a key raises when its last watcher *leaves*, the operation ends all the same.  Its entry cannot be found and
    remains as a *tombstone*, an entry without watchers, which the next watcher of the key takes over.
4.  An entry never replaces one of another key.  If one of them finds no place any more when two are exchanged, it is
    *misplaced*: no check finds its operations, but they still expire, can be cancelled, and end at closing.

**Invariants.**  :meth:`WatcherLists._check` asserts them:

1.  Each watch of a parked operation is reached from exactly one entry, which is in the shard of its key, or misplaced.
2.  A watch refers to a list if and only if it is linked into that list.  The watch of a lone operation refers to none.
3.  A list is in the order of arrival, and its ``weight`` is its length; likewise the list of those with a threshold.
4.  A shard that is plain has plain keys only.  One that is not has no operation as an entry.
5.  ``_tombstones`` is the number of entries without a watcher: there are as many keys as entries less these.

**Costs.**  A watch is one object with seven fields; a list is one more.  Adding and removing cost one dict operation
for a lone watcher, and pointer assignments for the others.

**Alternatives.**  A dict of dicts is simpler and takes 230 bytes for the first watcher of a key.  A Python list per key
makes removal O(n).  Weak references leave the end of an operation to the garbage collector.
"""

from collections.abc import Hashable, Iterator
from typing import Any, Final

from mypy_extensions import i64

from purgatory.core.operation.operation import Operation
from purgatory.core.operation.private_key import PrivateKey

from .cursor import NO_ID, WatchCursor
from .thresholds import ThresholdHeap, ThresholdWatch
from .validation import is_plain
from .watch import LONE, Shard, Watch, WatchList

__all__ = ["SHARDS", "WatcherLists", "as_watch"]

SHARDS: Final = 512
_CHANGED: Final = "the hash or the equality of a key changed while operations were parked on it"


class WatcherLists:
    """The watches of every key, in the order of arrival.

    ``asking``: a key is being hashed or compared in order to change a dict, and nothing else may change one meanwhile.
    ``deferred``: the watches to be removed afterwards.
    """

    __slots__ = ("_misplaced", "_shards", "_tombstones", "asking", "deferred")

    def __init__(self) -> None:
        self._shards: list[Shard] = [Shard() for _ in range(SHARDS)]
        self._tombstones: i64 = 0  # entries without watchers, whose key raised when they were to be deleted
        self._misplaced: list[Watch] = []  # entries whose key raised when they were to be put back
        self.asking: bool = False
        self.deferred: list[Watch] = []

    def shard(self, key: Hashable) -> Shard:
        """Return the shard of the key.  Raises TypeError if it is unhashable.

        The shard is computed from the hash, and the dict of the shard hashes the key again: both may run user code.

        A dict selects the slot by the lowest bits of the hash.  Selecting the shard by the same bits would put all keys
        of a shard into one slot.
        """
        number: i64 = hash(key)
        return self._shards[(number ^ (number >> 9)) & 511]

    def entry(self, key: Hashable) -> Any:
        """Return the entry of the key, an Operation or a Watch, or None."""
        number: i64 = hash(key)  # as in shard(), without the call
        return self._shards[(number ^ (number >> 9)) & 511].entries.get(key)

    def watches(self, key: Hashable) -> Watch | None:
        """Return the only watch of the key, its list, or None; for an operation as the entry, a watch made for it."""
        entry = self.entry(key)
        return None if entry is None else as_watch(entry)

    def add_operation(self, shard: Shard, key: Hashable, operation: Operation) -> None:
        """Put an operation without other keys on the key, in the shard of that key.  It gets its watch, or ``LONE``.

        If the key raises, ``asking`` stays set for the caller to clear.
        """
        if shard.plain and is_plain(key):
            # The most frequent case: one lookup, and no object but the operation itself.
            if shard.entries.setdefault(key, operation) is operation:
                operation._lone_key = key
                operation._watch = LONE
                return
            watch = Watch(key, operation)
            self.add_plain(shard, watch)
        else:
            watch = Watch(key, operation)
            self.add(shard, watch)
        operation._watch = watch

    def remove_operation(self, operation: Operation) -> None:
        """Remove an operation that is an entry itself.  Its key is plain, so no step of this can fail."""
        key = operation._lone_key
        operation._lone_key = None
        number: i64 = hash(key)
        del self._shards[(number ^ (number >> 9)) & 511].entries[key]

    def add_plain(self, shard: Shard, watch: Watch) -> bool:
        """:meth:`add` for a plain key, in a shard that is plain: no step runs user code or can fail.

        The watch keeps its shard, so that its removal need not hash the key.
        """
        key = watch.key
        watch.shard = shard
        entry: Any = shard.entries.setdefault(key, watch)
        if entry is watch:
            return True
        if isinstance(entry, WatchList):
            tail = entry.before
            assert tail is not None
            if tail.operation is watch.operation:
                return False
            entry.append(watch)
            return True
        # The second watcher of the key: the entry of the first one becomes a list.
        first = entry if isinstance(entry, Watch) else self._give_watch(shard, entry)
        if first.operation is watch.operation:
            return False
        root = WatchList(key)
        root.shard = shard
        shard.entries[key] = root
        root.append(first)
        root.append(watch)
        return True

    def _give_watch(self, shard: Shard, operation: Operation) -> Watch:
        """Replace an operation that is an entry by its watch, and return that."""
        key = operation._lone_key
        watch = Watch(key, operation)
        watch.shard = shard
        shard.entries[key] = watch
        operation._watch = watch
        operation._lone_key = None
        return watch

    def _make_general(self, shard: Shard) -> None:
        """The shard gets its first key that is not plain: every entry from now on is a watch.  O(keys of the shard)."""
        for entry in list(shard.entries.values()):
            if not isinstance(entry, Watch):
                self._give_watch(shard, entry)
        shard.plain = False

    def add(self, shard: Shard, watch: Watch) -> bool:
        """Append the watch to the list of its key, in the shard of that key.

        False, and nothing changes, if its operation watches the key already; being the newest, it is then the last.
        If the key raises, ``asking`` stays set for the caller to clear.

        One lookup both finds the entry of the key and, if there is none, makes the watch the entry.  What follows
        depends on what is found:

        1.  A list, perhaps without watchers: the watch is appended.
        2.  A tombstone: the watch replaces it.
        3.  The watch of another operation: a list with both replaces it.
        """
        if shard.plain:
            if is_plain(watch.key):
                return self.add_plain(shard, watch)
            self._make_general(shard)
        self.asking = True
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
                    self._replace(shard, entry, root)  # the last call that can fail, and no watch is touched yet
                    root.append(entry)
                    root.append(watch)
        self.asking = False
        return added

    def add_threshold(self, watch: ThresholdWatch) -> bool:
        """Add the watch to those of its key that have a threshold.

        They are in a heap at the key's list, so an entry that is not a list yet is replaced by one first; the watch of
        an operation without a threshold moves into it.

        False, and nothing changes, if its operation watches the key already, because two keys have become equal.
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
        """Count the list as a tombstone no more, if it was one, because a watch is about to be added."""
        if root.weight == 0 and root.thresholds is None:
            self._tombstones -= 1

    def _replace(self, shard: Shard, entry: Watch, other: Watch) -> None:
        """Replace the entry.  If that fails, nothing has changed.

        Assigning ``entries[key]`` would be simpler.  But the dict would then compare the key once more, and if the
        answer is another one, overwrite the entry of another key, whose operations no check would find any more.
        So the entry is taken out, what was taken is verified, and the other one is inserted without overwriting.
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
        """Delete the entry.  LookupError, and nothing has changed, if the key now leads to another entry.

        Two lookups: the first one refuses without a change in nearly all cases.  The second one deletes, and may still
        find another entry, which is then put back.
        """
        if shard.entries.get(key) is not entry:
            raise LookupError(_CHANGED)
        found = shard.entries.pop(key)  # the key may lead to another entry at each call
        if found is not entry:
            self._put_back(as_watch(found))
            raise LookupError(_CHANGED)

    def _put_back(self, entry: Watch) -> None:
        """Put back an entry that was deleted by mistake; if its key does not lead to a free place, keep it aside."""
        try:
            if self.shard(entry.key).entries.setdefault(entry.key, entry) is entry:
                return
        except Exception:
            self._misplaced.append(entry)  # no check finds it, but its operations still expire and can be cancelled
            return
        self._misplaced.append(entry)

    def remove(self, watch: Watch) -> None:
        """Remove the watch; a key without watchers is forgotten.

        Only the forgetting can fail.  It comes last, so the watch is off its list in any case, and the caller calls
        :meth:`bury` for the entry.
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
        """Remove a watch from the heap of its key, the heap if it is empty, and the key if it has no other watchers."""
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
        """Delete the entry of a key without watchers.  If the key raises, ``asking`` stays set: see :meth:`bury`.

        A plain key cannot fail.  Any other is looked for and compared with the entry before it is deleted, so that no
        other key loses its watchers.
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
        """Forget an entry that is kept aside.  False if it is not one of these."""
        for place, misplaced in enumerate(self._misplaced):
            if misplaced is entry:
                del self._misplaced[place]
                return True
        return False

    def bury(self, watch: Watch) -> None:
        """Clear the watch, whose key raised when its entry was to be deleted.

        The entry remains as a tombstone, without an operation, until an operation is parked on the key again.  Only the
        last watcher of a key deletes its entry, so no other operation is affected.
        """
        self.asking = False
        self._tombstones += 1
        watch.operation = None

    def count(self, key: Hashable) -> int:
        """Return how many operations are parked on the key.  O(1)."""
        entry = self.entry(key)
        if entry is None:
            return 0
        return _weight(entry) if isinstance(entry, Watch) else 1

    def operations(self, key: Hashable) -> list[Operation]:
        """Return the operations parked on the key, in the order of arrival."""
        entry = self.watches(key)
        return [] if entry is None else _operations(entry)

    def reached(self, key: Hashable, value: Any) -> list[Operation]:
        """Return the operations whose threshold for the key the value reaches, in the order of arrival."""
        entry = self.entry(key)
        return entry.thresholds.reached(value) if isinstance(entry, WatchList) and entry.thresholds is not None else []

    def counts(self) -> Iterator[tuple[Hashable, int]]:
        """Yield each key with its number of watchers.  O(keys)."""
        for shard in self._shards:
            for key, entry in shard.entries.items():
                yield key, _weight(as_watch(entry))

    def counts_of_shard(self, number: i64) -> list[tuple[Hashable, int]]:
        """Return the keys of one of the :data:`SHARDS` with their numbers of watchers.  Another thread may call it."""
        found: list[tuple[Hashable, int]] = []
        for key, entry in list(self._shards[number].entries.items()):
            found.append((key, _weight(entry) if isinstance(entry, Watch) else 1))
        return found

    def keys_of_shard(self, number: i64) -> list[Hashable]:
        """Return the watched keys of one of the :data:`SHARDS`, without the private ones."""
        entries = self._shards[number].entries
        return [key for key, entry in entries.items() if not isinstance(key, PrivateKey) and _weight(as_watch(entry))]

    def keys(self) -> Iterator[Hashable]:
        """Yield every watched key but the private ones, shard by shard; keys may come and go between two steps."""
        for number in range(SHARDS):
            yield from self.keys_of_shard(number)

    def num_keys(self) -> int:
        """Return how many keys are watched.  O(1): there are always 512 shards."""
        return sum([len(shard.entries) for shard in self._shards]) - self._tombstones + len(self._misplaced)

    def all_operations(self) -> list[Operation]:
        """Return every parked operation once, in the order of arrival.  O(watches).

        An operation is found once for each of its keys; its number removes the duplicates and gives the order.
        """
        seen = {}
        for shard in self._shards:
            for entry in shard.entries.values():
                for operation in _operations(as_watch(entry)):
                    seen[operation._op_id] = operation
        for misplaced in self._misplaced:
            for operation in _operations(misplaced):
                seen[operation._op_id] = operation
        return [seen[op_id] for op_id in sorted(seen)]

    def some(self, number: int) -> list[Operation]:
        """Return at most ``number`` parked operations, in no order, for a caller that ends them in slices.

        An operation with several keys may be found several times: ending it again does nothing.
        """
        found: list[Operation] = []
        for shard in self._shards:
            if not shard.entries:
                continue  # iterating over a dict also visits the slots of deleted entries
            for entry in shard.entries.values():
                cursor = WatchCursor(as_watch(entry), NO_ID)
                while len(found) < number:
                    operation = cursor.next()
                    if operation is None:
                        break
                    found.append(operation)
                else:
                    return found
        for misplaced in self._misplaced:
            found.extend(_operations(misplaced)[: number - len(found)])
        return found

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
                    assert entry._watch is LONE, f"the entry of {key!r} has a watch"
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


def as_watch(entry: Any) -> Watch:
    """Return the entry; for an operation a watch that only the caller has."""
    return entry if isinstance(entry, Watch) else Watch(entry._lone_key, entry)


def _weight(entry: Watch) -> int:
    """Return the number of watchers of an entry, with and without a threshold: 0 for a tombstone."""
    if not isinstance(entry, WatchList):
        return 0 if entry.operation is None else 1
    return entry.weight if entry.thresholds is None else entry.weight + entry.thresholds.members.weight


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
