"""What can go wrong, as exceptions.  Floor 0: imports nothing of the house."""

__all__ = ["OperationCancelled", "PurgatoryClosed", "PurgatoryError", "PurgatoryFull"]


class PurgatoryError(Exception):
    """Base of every error that this package raises on its own account.

    Misuse is told with the built-in exceptions instead: ``ValueError`` and ``TypeError`` for arguments that cannot be
    meant, always before anything has changed.
    """


class PurgatoryClosed(PurgatoryError):
    """The purgatory or the timer has been closed and takes nothing new."""


class PurgatoryFull(PurgatoryError):
    """A limit (``max_parked``, ``max_parked_per_key``) is reached; nothing was parked.

    ``limit`` is the number that was reached; ``key`` is the key that is full, or None where the whole purgatory is.
    """

    def __init__(self, message: str, *, limit: int = 0, key: object = None) -> None:
        super().__init__(message)
        self.limit = limit
        self.key = key


class OperationCancelled(PurgatoryError):
    """The awaited operation was withdrawn (``cancel()``, ``cancel_for_key()``) before it was answered.

    It is an ordinary exception on purpose: the *operation* was cancelled, the task that awaits it was not.
    """
