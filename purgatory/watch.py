"""An operation's place in a watch list, and the list itself.  Floor 3."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from mypy_extensions import i64

if TYPE_CHECKING:
    from .operation import Operation
    from .thresholds import Ranks

__all__ = ["Watch", "WatchRoot"]


class Watch:
    """An operation's place in the watch list of one key.

    ``list_root`` is the root of the list that it is linked into, or None: then it is the only watcher of its key, or
    has left.  ``sibling`` is the operation's place on the key before.

    A watch that has left keeps its ``after``: whoever walks the list and holds on to it is led on, along watches that
    have left, to the next one that has not (lists only grow at the end, so nothing is skipped).  Nobody else holds it.
    """

    __slots__ = ("after", "before", "key", "list_root", "operation", "sibling")

    def __init__(self, key: Hashable, operation: Operation | None) -> None:
        self.key: Hashable = key
        self.operation: Operation | None = operation
        self.list_root: WatchRoot | None = None
        self.before: Watch | None = None
        self.after: Watch | None = None
        self.sibling: Watch | None = None


class WatchRoot(Watch):
    """The root of a watch list: circular, doubly linked, in the order of arrival.  It has no operation.

    ``weight`` is the length of the list.  ``ranks`` holds the watchers of the same key that gave a threshold.
    """

    # It sets ``before`` and ``after`` as a Watch: declared here once more they would be other places in the compiled
    # object than those that a Watch has, and not declared they would have a type that each checker infers on its own.

    __slots__ = ("ranks", "weight")

    def __init__(self, key: Hashable) -> None:
        super().__init__(key, None)
        me: Watch = self
        me.before = me
        me.after = me
        self.weight: i64 = 0
        self.ranks: Ranks | None = None

    def append(self, watch: Watch) -> None:
        """Link the watch, which is in no list, in at the end."""
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
        """Take out the watch, which is in this list."""
        before = watch.before
        after = watch.after
        assert before is not None and after is not None
        before.after = after
        after.before = before
        watch.list_root = None
        watch.before = None
        self.weight -= 1

    def dissolve(self) -> None:
        """The list is empty and done with: let go of itself, so that nothing is left for the garbage collector."""
        me: Watch = self
        me.after = None
        me.before = None
