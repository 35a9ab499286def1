"""The exception that is raised when a journal cannot be written or read."""

from purgatory.errors import PurgatoryError

__all__ = ["JournalError"]


class JournalError(PurgatoryError):
    """A journal cannot be written or read; the message names the path."""
