"""The errors of the relay."""

from purgatory import PurgatoryError

__all__ = ["RelayLost"]


class RelayLost(PurgatoryError):
    """The engine cannot be reached, and the relay was created with ``on_lost="fail"``.

    The operations that waited fail with it; so does a new ``park`` or ``wait_until`` until the relay is connected.
    """
