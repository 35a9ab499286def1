"""Locks, semaphores, and quorums by key: waiters in order, deadlines, and nothing kept for idle keys.

:class:`KeyedLock` and :class:`KeyedSemaphore` are in ``keyed``, :class:`Quorum` in ``quorum``.  They serve the tasks
of one event loop.
"""

from purgatory.texts import names_of

from .keyed import Acquisition, KeyedLock, KeyedSemaphore
from .quorum import Quorum

__all__ = ["Acquisition", "KeyedLock", "KeyedSemaphore", "Quorum"]


def __dir__() -> list[str]:
    return names_of(globals())
