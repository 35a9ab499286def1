"""A guard against calls from other threads.

A purgatory and its timer are used by a single thread, the event loop's.  A call from another thread while the
loop runs could change a list over which the loop is iterating.  Such a call would not wake the loop either, so a waiter
would receive its answer only at the next event.  Every call that changes something is therefore guarded.

The owner provides the function that decides, because the core imports neither threading nor an event loop.  ``is_here``
is called each time and must be cheap.  Comparing thread numbers would create a new object for each call.  An ``RLock``
that the loop's thread holds can report whether the calling thread owns it, without creating an object.
"""

from collections.abc import Callable
from typing import Any, Final

__all__ = ["FOREIGN_THREAD", "ThreadGuard"]

FOREIGN_THREAD: Final = (
    "the event loop of this purgatory or timer is running in another thread: from here call check_threadsafe(), or have"
    " that loop make the call, with loop.call_soon_threadsafe(); give each loop a purgatory of its own"
)


class ThreadGuard:
    """Refuses calls from threads other than the event loop's while that loop runs.

    Before :meth:`bind` is called, there is no loop, and calls from any thread are allowed.
    """

    __slots__ = ("_is_here", "_refuse")

    def __init__(self) -> None:
        self._is_here: Any = None
        self._refuse: Any = None

    def bind(self, is_here: Callable[[], bool], refuse: Callable[[], None]) -> None:
        """Bind the timer to the event loop of the calling thread.

        ``is_here``: returns whether the current thread is the one that called :meth:`bind`.  ``refuse``: called if
        ``is_here`` returns False; raises RuntimeError if the event loop is running in a thread other than the calling
        one.
        """
        self._is_here = is_here
        self._refuse = refuse

    def validate(self) -> None:
        """Raise RuntimeError if the event loop is running in a thread other than the calling one."""
        is_here = self._is_here
        if is_here is not None and is_here() is not True:
            self._refuse()
