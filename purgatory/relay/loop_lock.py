"""One event loop at a time for a transport; in that loop, the relays that share the transport take turns publishing.

A connection works only in the event loop that has made it.  A transport may outlive the loop, and a forked process
inherits the transport together with the parent's connections.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Generic, TypeVar

__all__ = ["LoopLock", "Use"]

C = TypeVar("C")

_claiming: Final = threading.RLock()  # held while a transport is given to a loop, and during a fork
_inherited: Final[list[object]] = []  # the parent's connections: freeing them here could end them


class Use(Generic[C]):
    """The use of a transport in one event loop.

    ``connection``: the connection that publishes, if there is one.  ``lock``: held while a relay publishes.  ``users``:
    the number of calls that use the transport at the moment.  ``is_released``: whether the transport has been closed,
    so that another loop may use it.
    """

    __slots__ = ("connection", "is_released", "lock", "loop", "pid", "users")

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.pid: int = pid
        self.lock: asyncio.Lock = asyncio.Lock()
        self.connection: C | None = None
        self.users: int = 0
        self.is_released: bool = False


class LoopLock(Generic[C]):
    """Gives a transport to one event loop, until the loop has ended or has closed the transport.

    The next loop starts without a connection and with an unlocked lock, even if the lock was held when the old loop
    ended.  A forked process starts in the same way.

    ``kind``: the name of the transport's class, for the error message.
    """

    __slots__ = ("_kind", "_use")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._use: Use[C] | None = None

    @contextmanager
    def used(self) -> Iterator[Use[C]]:
        """Use the transport in the running event loop.

        Raises RuntimeError if another loop that is running uses the transport.
        """
        use = self._claim()
        if use is None:
            raise RuntimeError(f"a {self._kind} serves one event loop at a time: create another one for this loop")
        try:
            yield use
        finally:
            use.users -= 1

    @asynccontextmanager
    async def publishing(self) -> AsyncIterator[Use[C]]:
        """Use the transport when no other relay of this loop publishes.

        Raises RuntimeError if another loop that is running uses the transport.
        """
        with self.used() as use:
            async with use.lock:
                yield use

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[C | None]:
        """Take the connection of the running event loop, or None if there is none, in order to close it.

        If no other relay of this loop uses the transport, another loop can use it afterward.
        """
        use = self._claim()
        if use is None:  # the connection belongs to the other loop
            yield None
            return
        try:
            async with use.lock:
                connection, use.connection = use.connection, None
                yield connection
        finally:
            use.users -= 1
            use.is_released = not use.users

    def _claim(self) -> Use[C] | None:
        """Count one more user in the running event loop; return None if another loop that is running uses the
        transport.
        """
        loop, pid = asyncio.get_running_loop(), os.getpid()
        with _claiming:
            # The local name keeps the old connection alive until the lock is released: destructors run other code.
            previous = use = self._use
            if previous is not None and previous.pid != pid:
                _inherited.append(previous)
                use = None
            if use is None or use.loop is not loop:
                if use is not None and use.loop.is_running() and not use.is_released:
                    return None
                use = self._use = Use(loop, pid)
            use.users += 1
            use.is_released = False
            return use


# Forked processes

if hasattr(os, "register_at_fork"):  # Windows has no fork()
    os.register_at_fork(before=_claiming.acquire, after_in_parent=_claiming.release, after_in_child=_claiming.release)
