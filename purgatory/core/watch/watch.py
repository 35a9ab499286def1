"""A watch, which is the place of an operation on one key, and the list of the watches of a key."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from purgatory.core.operation.operation import Operation

    from .thresholds import ThresholdHeap

__all__ = ["LONE", "Shard", "Watch", "WatchList"]


class Shard:
    """The entries of some of the keys: see :mod:`.watcher_lists`.

    ``entries``: an Operation or a Watch for each key.  ``plain``: every key so far was a plain one.
    """

    # The values are Any because the compiler would check at each access that they belong to one of the two classes.

    __slots__ = ("entries", "plain")

    def __init__(self) -> None:
        self.entries: dict[Hashable, Any] = {}
        self.plain: bool = True


@mypyc_attr(free_list_len=1)
class Watch:
    """The place of an operation on one key.

    ``list_root``: the list that it is linked into, or None if it is the only watch of its key or has been removed.
    ``sibling``: the watch of the same operation on its previous key.  ``shard``: the shard of the key, if it was plain
    when the watch was added.

    A removed watch keeps its ``after``.  A cursor at a removed watch follows these links to the next watch that is
    still linked; lists only grow at the end, so it skips none.  Nothing else refers to a removed watch.
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


LONE: Final = Watch(None, None)
"""In the place of an operation's watch: it has only the key ``_lone_key`` and is the entry of that key itself."""


class WatchList(Watch):
    """The watches of a key: the root of a circular doubly linked list in the order of arrival.  It has no operation.

    ``weight``: the length of the list.  ``thresholds``: the watches of the same key that have a threshold; their list
    refers back to the heap.
    """

    # ``before`` and ``after`` are assigned through a variable of type Watch.  Declared here again, they would be other
    # slots of the compiled object; assigned through self undeclared, each type checker would infer its own type.

    __slots__ = ("thresholds", "weight")

    def __init__(self, key: Hashable) -> None:
        super().__init__(key, None)
        me: Watch = self
        me.before = me
        me.after = me
        self.weight: i64 = 0
        self.thresholds: ThresholdHeap | None = None

    def append(self, watch: Watch) -> None:
        """Append the watch, which is in no list."""
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
        """Remove the watch, which is in this list."""
        before = watch.before
        after = watch.after
        assert before is not None and after is not None
        before.after = after
        after.before = before
        watch.list_root = None
        watch.before = None
        self.weight -= 1

    def _clear_links(self) -> None:
        """Break the cycle of an empty list that is no longer used, so that the garbage collector has no work."""
        me: Watch = self
        me.after = None
        me.before = None
