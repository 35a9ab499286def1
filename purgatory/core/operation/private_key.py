"""Keys that only the library checks."""

from collections.abc import Hashable
from typing import Any, final

__all__ = ["PrivateKey", "shown_key"]


@final
class PrivateKey:
    """A key on which the library parks its own operations, such as those that wait for a lock.

    It is equal only to itself, so checks, cancellations, and failures of the user's key do not reach its watchers.
    It is left out wherever keys are listed in order to check them: in ``keys()``, ``check_all()``, and the relay.
    Events, dumps, and errors show the user's key instead.

    ``shown``: the user's key.
    """

    __slots__ = ("shown",)

    def __init__(self, shown: Hashable) -> None:
        self.shown: Hashable = shown

    def __repr__(self) -> str:
        return repr(self.shown)


def shown_key(key: Hashable) -> Any:
    """Return the key that events, dumps, and errors show for the given key."""
    return key.shown if isinstance(key, PrivateKey) else key
