"""The default purgatory of each event loop, created on first use."""

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

from .purgatory import Purgatory
from .when_all import AnyFuture, DelayedFuture, WhenAll

__all__ = ["default_purgatory", "when_all"]

T = TypeVar("T")

_purgatories_by_loop: dict[asyncio.AbstractEventLoop, Purgatory[Any]] = {}


def default_purgatory() -> Purgatory[Any]:
    """Return the default purgatory of the running event loop; it lives as long as the loop does."""
    loop = asyncio.get_running_loop()
    found = _purgatories_by_loop.get(loop)
    if found is None or found.closed:
        for other in list(_purgatories_by_loop):
            if other.is_closed():
                _purgatories_by_loop.pop(other, None)  # another thread may have removed it
        found = _purgatories_by_loop[loop] = Purgatory("default")
    return found


def when_all(
    futures: Iterable[AnyFuture[T]],
    timeout: float | None,
    callback: WhenAll[T] | None = None,
    *,
    purgatory: Purgatory[Any] | None = None,
) -> DelayedFuture[T]:
    """Wait until all futures are done, for at most ``timeout`` seconds; on expiry, pending futures fail with
    TimeoutError.

    ::

        outcomes = await when_all([first, second], 0.5)

    ``callback(outcomes)`` is called once, when all futures are done or the time is up.  ``outcomes`` has one item for
    each future: its result or its exception.  Awaiting the operation returns the same list.  On expiry, pending tasks
    are cancelled.  For a call in an executor, pass a task that awaits the call.  The operation waits in ``purgatory``.
    By default, this is a purgatory that belongs to the running event loop.  See :class:`DelayedFuture`.
    """
    return (default_purgatory() if purgatory is None else purgatory).when_all(futures, timeout, callback)
