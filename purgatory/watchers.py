"""Watch lists: who waits on which key, in the order of arrival.  Floor 3.

**What it must do.**  Put an operation on a key, take it off again in O(1) without a search, try the watchers of one key
in the order in which they came, forget a key the moment nobody waits on it, and never hold the loop, however many
keys there are.

**Prior art.**  Kafka keeps 512 ``WatcherLists``, each with a lock and a map from key to a linked list; an operation
that completes through one key stays on the lists of its others until a purge pass finds it.  trio's parking lot keeps
an ordered dict per lot.  Servers written by hand keep an ``Event`` per key and never free it.

**What is done here.**  512 shards as well, but for another reason than locks: a dict grows by copying itself, and a
copy of a million entries takes tens of milliseconds; one of two thousand takes none that anybody notices.  Most keys
have one watcher, so a key's entry is that watcher's :class:`Watch` itself; the second to come makes it a list,
circular and doubly linked round a root, which stays until it is empty.

**Costs.**  A watch is one object of six fields; a list one more.  Watching and leaving are one dict operation for a
lone watcher and pointer assignments for the others.

**Alternatives.**  A dict of dicts is simpler and takes 230 bytes for the first watcher of a key; a list per key makes
leaving O(n); weak references leave the end of an operation to the garbage collector.
"""

from collections.abc import Hashable, Iterator
from typing import Any, Final

from mypy_extensions import i64

from .operation import Operation
from .thresholds import Ranks, ThresholdWatch
from .watch import Watch, WatchRoot

__all__ = ["SHARDS", "Walk", "Watchers"]

SHARDS: Final = 512


class Watchers:
    """Key -> the operations that wait on it, first come first."""

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: list[dict[Hashable, Watch]] = [{} for _ in range(SHARDS)]

    def shard(self, key: Hashable) -> dict[Hashable, Watch]:
        """The dict that the key belongs to.  TypeError if it is unhashable.

        A dict picks its slot by the lowest bits of the hash, so the shard must not be picked by them alone: all keys
        of a shard would meet in one slot.
        """
        number: i64 = hash(key)
        return self._shards[(number ^ (number >> 9)) & 511]

    def entry(self, key: Hashable) -> Watch | None:
        """What the key has: its only watch, or the root of its list, or None."""
        return self.shard(key).get(key)

    def add(self, shard: dict[Hashable, Watch], watch: Watch) -> bool:
        """Link the watch in at the end of its key's list, in the shard of that key.

        False, and nothing happens, if its operation watches the key already: being the newest, it is the last then.
        """
        key = watch.key
        entry = shard.setdefault(key, watch)
        if entry is watch:
            return True
        if isinstance(entry, WatchRoot):
            tail = entry.before
            if tail is None or tail.operation is watch.operation:
                return False
            entry.append(watch)
            return True
        if entry.operation is watch.operation:
            return False
        if entry.operation is None:  # a husk, see lose()
            shard[key] = watch
            return True
        root = WatchRoot(key)
        shard[key] = root  # the last call here that can fail, and the entry is not touched yet
        root.append(entry)
        root.append(watch)
        return True

    def add_ranked(self, watch: ThresholdWatch) -> None:
        """Link the watch in, to be tried when the key's value reaches its threshold."""
        key = watch.key
        shard = self.shard(key)
        entry = shard.get(key)
        if isinstance(entry, WatchRoot):
            root = entry
        else:
            root = WatchRoot(key)
            shard[key] = root
            if entry is not None and entry.operation is not None:
                root.append(entry)
        ranks = root.ranks
        if ranks is None:
            ranks = root.ranks = Ranks(key)
        ranks.add(watch)

    def remove(self, watch: Watch) -> None:
        """Take the watch out; a key without watchers is forgotten."""
        if isinstance(watch, ThresholdWatch):
            self._remove_ranked(watch)
            return
        root = watch.list_root
        if root is None:
            key = watch.key
            del self.shard(key)[key]
            return
        root.unlink(watch)
        if root.weight == 0 and root.ranks is None:
            self._forget(root)

    def _remove_ranked(self, watch: ThresholdWatch) -> None:
        root = self.entry(watch.key)
        assert isinstance(root, WatchRoot) and root.ranks is not None
        root.ranks.remove(watch)
        if root.ranks.members.weight == 0:
            root.ranks.members.dissolve()
            root.ranks = None
            if root.weight == 0:
                self._forget(root)

    def _forget(self, root: WatchRoot) -> None:
        key = root.key
        del self.shard(key)[key]
        root.dissolve()

    def lose(self, watch: Watch) -> None:
        """The key of the watch raised when the watch was taken out: let go of the operation without asking the key.

        The key's entry stays behind as a husk, which holds no operation, until somebody waits on the key again.
        """
        members = watch.list_root
        if isinstance(watch, ThresholdWatch) and members is not None:
            for shard in self._shards:
                for root in shard.values():
                    if isinstance(root, WatchRoot) and root.ranks is not None and root.ranks.members is members:
                        root.ranks.remove(watch)
                        if members.weight == 0:
                            members.dissolve()
                            root.ranks = None
        else:
            assert members is None, "whoever gave no threshold leaves its list before its key is asked"
            watch.operation = None

    def count(self, key: Hashable) -> int:
        """How many operations wait on the key.  O(1)."""
        entry = self.entry(key)
        return 0 if entry is None else _weight(entry)

    def operations(self, key: Hashable) -> list[Operation]:
        """Who waits on the key, in the order of arrival."""
        entry = self.entry(key)
        return [] if entry is None else _operations(entry)

    def reached(self, key: Hashable, value: Any) -> list[Operation]:
        """Of those who gave a threshold for the key, those for whom the value reaches it, in the order of arrival."""
        entry = self.entry(key)
        return entry.ranks.reached(value) if isinstance(entry, WatchRoot) and entry.ranks is not None else []

    def counts(self) -> Iterator[tuple[Hashable, int]]:
        """Every key and its number of watchers.  O(keys)."""
        for shard in self._shards:
            for key, entry in shard.items():
                yield key, _weight(entry)

    def num_keys(self) -> int:
        """How many keys have watchers.  O(1): there are 512 shards, always."""
        return sum([len(shard) for shard in self._shards])

    def everyone(self) -> list[Operation]:
        """Every operation that waits, once each, in the order of arrival.  O(watches)."""
        seen = {}
        for shard in self._shards:
            for entry in shard.values():
                for operation in _operations(entry):
                    seen[operation._op_id] = operation
        return [seen[op_id] for op_id in sorted(seen)]

    def some(self, number: int) -> list[Operation]:
        """At most ``number`` of the operations that wait, in no order, for who wants to end them slice by slice."""
        found: list[Operation] = []
        for shard in self._shards:
            if not shard:
                continue  # a dict walks over what was deleted from it, too
            for entry in shard.values():
                walk = Walk(entry, _NO_ID)
                while len(found) < number:
                    operation = walk.next()
                    if operation is None:
                        break
                    found.append(operation)
                else:
                    return found
        return found

    def _check(self) -> int:
        """Assert the invariants; return the number of watches."""
        total = 0
        for number, shard in enumerate(self._shards):
            for key, entry in shard.items():
                assert self.shard(key) is shard, f"{key!r} is in shard {number}"
                assert entry.key == key, f"{key!r} leads to the entry of {entry.key!r}"
                if isinstance(entry, WatchRoot):
                    length = _check_list(entry)
                    if entry.ranks is not None:
                        length += _check_list(entry.ranks.members)
                        entry.ranks._check()
                    assert length == _weight(entry), f"{key!r}: {length} watchers, not {_weight(entry)}"
                    total += length
                else:
                    assert entry.list_root is None, f"the only watcher of {key!r} thinks it is in a list"
                    total += _weight(entry)
        return total


_NO_ID: Final = 1 << 60


class Walk:
    """A walk along the watchers of one key, in the order of arrival, that may be interrupted at any point.

    Operations may end and arrive between two steps: who has ended is left out, and so is who arrived after ``newest``.
    """

    __slots__ = ("_newest", "_plain", "_ranked")

    def __init__(self, entry: Watch, newest: i64) -> None:
        self._newest: i64 = newest
        self._plain: Watch | None = entry
        self._ranked: Watch | None = None
        if isinstance(entry, WatchRoot):
            self._plain = entry.after
            if entry.ranks is not None:
                self._ranked = entry.ranks.members.after

    def next(self) -> Operation | None:
        """The next operation that still waits, or None at the end."""
        plain = self._plain = self._waiting(self._plain)
        ranked = self._ranked = self._waiting(self._ranked)
        if plain is None and ranked is None:
            return None
        if ranked is None or (plain is not None and _op_id(plain) < _op_id(ranked)):
            assert plain is not None
            self._plain = plain.after
            return plain.operation
        self._ranked = ranked.after
        return ranked.operation

    def leave_out_ranked(self) -> None:
        """Walk only along those who gave no threshold."""
        self._ranked = None

    def _waiting(self, watch: Watch | None) -> Watch | None:
        """The first watch from here on that is still linked in; None at the end of the list."""
        while watch is not None and not isinstance(watch, WatchRoot):
            operation = watch.operation
            if operation is not None and operation._watch is not None:
                return watch if operation._op_id <= self._newest else None
            watch = watch.after
        return None


def _op_id(watch: Watch) -> i64:
    operation = watch.operation
    assert operation is not None
    return operation._op_id


def _weight(entry: Watch) -> int:
    if not isinstance(entry, WatchRoot):
        return 0 if entry.operation is None else 1
    return entry.weight if entry.ranks is None else entry.weight + entry.ranks.members.weight


def _operations(entry: Watch) -> list[Operation]:
    found: list[Operation] = []
    walk = Walk(entry, _NO_ID)
    while (operation := walk.next()) is not None:
        found.append(operation)
    return found


def _check_list(root: WatchRoot) -> int:
    watch, length, last_id = root.after, 0, 0
    while watch is not root:
        assert watch is not None and watch.before is not None and watch.operation is not None
        assert watch.list_root is root and watch.before.after is watch, "links disagree"
        assert watch.operation._op_id > last_id, f"{root.key!r}: not in the order of arrival"
        last_id = watch.operation._op_id
        watch, length = watch.after, length + 1
    assert length == root.weight, f"{root.key!r}: {length} watchers, the list says {root.weight}"
    return length
