"""A watch, which is the place of an operation on one key, and the list of a key's watches."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from purgatory.core.operation.operation import Operation

    from .thresholds import ThresholdHeap

__all__ = ["Shard", "Watch", "WatchList"]


class Shard:
    """The entries for some of the keys; see :mod:`.watcher_lists`.

    ``entries``: an Operation or a Watch for each key.  ``plain``: whether every key so far has been plain.  ``lone``:
    stands for the watch of each operation that is itself an entry; it leads to this shard without hashing the key
    again.
    """

    # The values are Any because the compiler would otherwise check at each access that they belong to one of the two
    # classes.

    __slots__ = ("entries", "lone", "plain")

    def __init__(self) -> None:
        self.entries: dict[Hashable, Any] = {}
        self.plain: bool = True
        self.lone: Watch = Watch(None, None)
        self.lone.shard = self


@mypyc_attr(free_list_len=1)
class Watch:
    """The place of an operation on one key.

    ``list_root``: the list into which the watch is linked, or None if it is the only watch of its key or was removed.
    ``sibling``: the watch of the same operation on its previous key.  ``shard``: the shard of the key, if the shard was
    plain when the watch was added.

    A removed watch keeps its ``after``.  A cursor at a removed watch follows these links to the next watch that is
    still linked; lists grow only at the end, so no watch is skipped.  Nothing else refers to a removed watch.
    """

    __slots__ = ("after", "before", "key", "list_root", "operation", "shard", "sibling")

    def __init__(self, key: Hashable, operation: Operation | None) -> None:
        self.key: Hashable = key
        self.operation: Operation | None = operation
        self.list_root: WatchList | None = None
        self.before: Watch | None = None
        self.after: Watch | None = None
        self.sibling: Watch | None = None
        self.shard: Shard | None = None


class WatchList(Watch):
    """The watches of a key: the root of a circular doubly linked list in the order of arrival, without an operation.

    ``weight``: the length of the list.  ``thresholds``: the heap of the key's watches that have a threshold; its list
    refers back to the heap.
    """

    # ``before`` and ``after`` are assigned through a variable of type Watch.  If they were declared here again, they
    # would be different slots of the compiled object; if they were assigned through self, each type checker would infer
    # its own type.

    __slots__ = ("thresholds", "weight")

    def __init__(self, key: Hashable) -> None:
        super().__init__(key, None)
        me: Watch = self
        me.before = me
        me.after = me
        self.weight: i64 = 0
        self.thresholds: ThresholdHeap | None = None

    def append(self, watch: Watch) -> None:
        """Append the watch, which is not in a list."""
        tail = self.before
        assert tail is not None
        watch.list_root = self
        watch.before = tail
        me: Watch = self
        watch.after = me
        tail.after = watch
        me.before = watch
        self.weight += 1

    def unlink(self, watch: Watch) -> None:
        """Remove a watch, which must be in this list."""
        before = watch.before
        after = watch.after
        assert before is not None and after is not None
        before.after = after
        after.before = before
        watch.list_root = None
        watch.before = None
        self.weight -= 1

    def _clear_links(self) -> None:
        """Break the reference cycle of an empty, unused list, so that the garbage collector has no work."""
        me: Watch = self
        me.after = None
        me.before = None
