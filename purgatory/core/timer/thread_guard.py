"""The guard against calls from another thread.

One thread, the thread of the event loop, uses a purgatory and its timer.  A call from another thread while that loop
runs could change a list that the loop is iterating over, and would not wake the loop: the waiter that a check answers
would learn of its answer only at the next event.  Every call that changes something is therefore guarded.

The owner passes the function that decides, because the core imports neither threads nor an event loop.  ``is_here`` is
called each time, and must be cheap.  A comparison of thread numbers would create a new object for each call; an
``RLock`` that the loop's thread holds can report without one whether the calling thread owns it.
"""

from collections.abc import Callable
from typing import Any, Final

__all__ = ["FOREIGN_THREAD", "ThreadGuard"]

FOREIGN_THREAD: Final = (
    "the event loop of this purgatory or timer is running in another thread: from here call check_threadsafe(), or have"
    " that loop make the call, with loop.call_soon_threadsafe(); give each loop a purgatory of its own"
)


class ThreadGuard:
    """Refuses calls from a thread other than the event loop's, while that loop runs.

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
