"""The error of a command whose Spark ends too early."""

from purgatory.errors import PurgatoryError

__all__ = ["SparkEnded"]


class SparkEnded(PurgatoryError):
    """Spark cannot start or continue: its Java process has ended, or the disk with its temporary files is full, or the
    Spark Connect server cannot be reached.
    """
