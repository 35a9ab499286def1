"""A lock for relays that share a transport, so that they take turns using its connection."""

import asyncio

__all__ = ["LoopLock"]


class LoopLock:
    """A lock for the tasks of one event loop.  In a new loop, it starts unlocked, even if it was held when the old loop
    ended.

    An :class:`asyncio.Lock` belongs to the first loop in which a task has waited for it; a transport may outlive that
    loop.
    """

    __slots__ = ("_lock", "_loop")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.Lock:
        """Return the lock for the running event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._lock = asyncio.Lock()
        return self._lock
