"""Keys that are waiting to be sent or refreshed: each key only once, and at most ``max_keys`` keys."""

from collections.abc import Hashable

from .codec import Entry

__all__ = ["PendingKeys"]


class PendingKeys:
    """A set of keys, each with its largest value.  With more than ``max_keys`` keys, the set collapses into "every
    key".

    A check without a value tries every watcher, so None counts as larger than any number.  ``everything``: whether all
    keys are pending, whatever else is added.  ``collapsed`` is the number of times that the set became too large.
    """

    __slots__ = ("_values", "collapsed", "everything", "max_keys")

    def __init__(self, max_keys: int) -> None:
        self.max_keys: int = max_keys
        self.everything: bool = False
        self.collapsed: int = 0
        self._values: dict[Hashable, float | None] = {}

    def __bool__(self) -> bool:
        return self.everything or bool(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return self.everything or key in self._values

    def __len__(self) -> int:
        """The number of pending keys; "every key" counts as one."""
        return len(self._values) + self.everything

    def add(self, key: Hashable, value: float | None) -> None:
        """Add the key, or raise its value."""
        if self.everything:
            return
        values = self._values
        if key in values:
            present = values[key]
            if present is not None and (value is None or value > present):
                values[key] = value
            return
        if len(values) >= self.max_keys:
            self.collapsed += 1
            self.add_everything()
            return
        values[key] = value

    def add_everything(self) -> None:
        """Mark every key as pending; individual keys need not be stored."""
        self.everything = True
        self._values = {}

    def take_everything(self) -> bool:
        """Return whether every key was pending, and reset that mark."""
        taken, self.everything = self.everything, False
        return taken

    def take(self) -> list[Entry]:
        """Remove and return the individual keys, in the order in which they were added."""
        values, self._values = self._values, {}
        return list(values.items())
