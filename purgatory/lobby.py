"""A purgatory for those who have none: one per event loop, made when it is first needed.  Floor 5."""

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

from .futures import DelayedFuture, WhenAll
from .purgatory import Purgatory

__all__ = ["lobby", "when_all"]

T = TypeVar("T")

_lobbies: dict[asyncio.AbstractEventLoop, Purgatory[Any]] = {}


def lobby() -> Purgatory[Any]:
    """The purgatory of the running event loop; it lives as long as the loop."""
    loop = asyncio.get_running_loop()
    found = _lobbies.get(loop)
    if found is None or found.closed:
        for other in list(_lobbies):
            if other.is_closed():
                del _lobbies[other]
        found = _lobbies[loop] = Purgatory("lobby")
    return found


def when_all(
    futures: Iterable["asyncio.Future[T]"],
    timeout: float | None,
    callback: WhenAll[T] | None = None,
    *,
    purgatory: Purgatory[Any] | None = None,
) -> DelayedFuture[T]:
    """Wait until all futures are done, at most ``timeout`` seconds; on expiry the pending ones fail with TimeoutError.

    ::

        outcomes = await when_all([first, second], 0.5)

    ``callback(outcomes)`` is called once, when all are done or the time is up, with what there is: a list with, for
    each future, what it returned or the exception with which it ended.  The same list is what an ``await`` returns.
    The operation waits in ``purgatory``, or in one of the running event loop's own.  See :class:`DelayedFuture`.
    """
    return (lobby() if purgatory is None else purgatory).when_all(futures, timeout, callback)
