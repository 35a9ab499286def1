"""The guard against calls from another thread.

A purgatory and its timer are used by one thread, that of their event loop.  A call from another one while that loop
runs would change the lists under its hands, and would not wake it: the waiter that a check answers would be told with
the next event.  So every call that changes something asks first.

The owner hands in how to ask, because the core imports neither threads nor an event loop.  ``is_here`` is asked in each
call, and must be cheap.  The number of a thread would be a new object for each question; an ``RLock`` that the loop's
thread holds knows whether the calling thread is its owner, and answers with True or False itself.
"""

from collections.abc import Callable
from typing import Any, Final

__all__ = ["FOREIGN_THREAD", "ThreadGuard"]

FOREIGN_THREAD: Final = (
    "the event loop of this purgatory or timer is running in another thread: from here call check_threadsafe(), or have"
    " that loop make the call, with loop.call_soon_threadsafe(); give each loop a purgatory of its own"
)


class ThreadGuard:
    """Refuses calls from another thread than that of the event loop, while that loop runs.

    Before :meth:`bind` there is no loop, and every thread may call.
    """

    __slots__ = ("_is_here", "_refuse")

    def __init__(self) -> None:
        self._is_here: Any = None
        self._refuse: Any = None

    def bind(self, is_here: Callable[[], bool], refuse: Callable[[], None]) -> None:
        """The timer belongs to the event loop of the calling thread from now on.

        ``is_here``: whether this is the thread that called :meth:`bind`.  ``refuse``: called if it is not; it raises
        RuntimeError if the event loop is running in another thread than the calling one.
        """
        self._is_here = is_here
        self._refuse = refuse

    def validate(self) -> None:
        """Raise RuntimeError if the event loop is running in another thread than the calling one."""
        is_here = self._is_here
        if is_here is not None and is_here() is not True:
            self._refuse()
