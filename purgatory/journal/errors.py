"""The error of a journal."""

from purgatory.errors import PurgatoryError

__all__ = ["JournalError"]


class JournalError(PurgatoryError):
    """The journal cannot be written there, or cannot be read; the message names the path."""
