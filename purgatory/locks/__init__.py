"""Locks and semaphores by key, and quorums: waiters are served in order and have deadlines; idle keys use no memory.

:class:`KeyedLock` and :class:`KeyedSemaphore` are in ``keyed``; :class:`Quorum` is in ``quorum``.  All three serve the
tasks of one event loop.
"""

from purgatory.texts import names_of

from .keyed import Acquisition, KeyedLock, KeyedSemaphore
from .quorum import Quorum

__all__ = ["Acquisition", "KeyedLock", "KeyedSemaphore", "Quorum"]


def __dir__() -> list[str]:
    return names_of(globals())
