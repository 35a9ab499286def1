"""The package's exceptions.  This module imports no other module of the package."""

from collections.abc import Hashable

__all__ = ["OperationCancelled", "PurgatoryClosed", "PurgatoryError", "PurgatoryFull", "RelayLost"]


class PurgatoryError(Exception):
    """Base class of the package's own exceptions.

    Invalid arguments raise the built-in ``ValueError`` or ``TypeError`` instead and change nothing.
    """


class PurgatoryClosed(PurgatoryError):
    """The purgatory or the timer is closed and accepts no new operations or tasks."""


class PurgatoryFull(PurgatoryError):
    """A limit (``max_parked`` or ``max_parked_per_key``) has been reached; nothing was parked.

    ``limit``: the limit that was reached.  ``key``: the key that is full, or None if the whole purgatory is full.
    """

    def __init__(self, message: str, *, limit: int = 0, key: object = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.key = key


class OperationCancelled(PurgatoryError):
    """The awaited operation was withdrawn (``cancel()``, ``cancel_for_key()``) before it completed.

    This is an ordinary exception, not a CancelledError: the *operation* was cancelled, but the task that awaits it was
    not.

    ``keys``: the keys on which the operation was parked; empty if the operation was first awaited after it had ended.
    ``reason``: the reason given to ``cancel()`` or ``cancel_for_key()``; None if no reason was given, or if the
    operation was withdrawn because the task in ``park()`` was cancelled.
    """

    def __init__(self, message: str = "", *, keys: tuple[Hashable, ...] = (), reason: object = None) -> None:
        super().__init__(message)
        self.keys = keys
        self.reason = reason

    def __str__(self) -> str:
        # The reprs of the reason and of the keys run the user's code, which may raise.  They are therefore computed not
        # when the operation ends but when the message is printed.
        text = super().__str__()
        if self.reason is not None:
            try:
                text = f"{text}, reason: {self.reason!r}"
            except Exception:
                text = f"{text}, reason: an object that cannot be printed"
        if self.keys:
            try:
                text = f"{text}, parked on {list(self.keys)!r}"
            except Exception:
                text = f"{text}, parked on {len(self.keys)} keys that cannot be printed"
        return text


# This class is public in purgatory.relay.  It is defined here because purgatory.asgi handles it but must not import the
# relay.
class RelayLost(PurgatoryError):
    """The engine cannot be reached, and the relay was created with ``on_lost="fail"``.

    All waiting operations fail with this exception.  Until the relay is connected again, every new ``park`` or
    ``wait_until`` raises it.
    """
