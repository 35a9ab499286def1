"""Waiting for several futures at once.  Floor 4.

Kafka's ``DelayedFuturePurgatory``: a request whose work is spread over other threads or machines is answered when all
the parts are done, or with what there is when its time is up.  Kafka parks such an operation on one key that all of
them share, and each part that is done completes it from an executor.  Here each future is itself a key: when it is
done, its key is checked.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from .delayed import DelayedOperation
from .room import Room

__all__ = ["DelayedFuture", "WhenAll", "wait_for_all"]

T = TypeVar("T")

WhenAll: TypeAlias = Callable[[list[T | BaseException]], object]


class DelayedFuture(DelayedOperation[list[T | BaseException]]):
    """Complete when all of its futures are done; on expiry the pending ones fail with TimeoutError.

    **Usage.**  :meth:`Purgatory.when_all`, or :func:`purgatory.when_all` where there is no purgatory at hand.

    **Implementation.**  Its result, and what ``callback`` is called with, is the outcome of each future in the order in
    which they were given: what it returned, or the exception with which it ended.  A future that is pending when the
    operation ends gets a TimeoutError; a pending *task* cannot be given an exception, so it is cancelled, and
    its outcome here is TimeoutError all the same.

    **Cancellation safety.**  Cancelling a task that awaits it leaves the operation and its futures alone.  Cancelling
    the operation leaves the futures alone, too, and ``callback`` is not called.

    ``futures``: futures and tasks of the running loop, else TypeError or ValueError.  ``timeout``: seconds or None.
    """

    __slots__ = ("_callback", "_pending", "futures")

    def __init__(
        self, futures: Iterable["asyncio.Future[T]"], timeout: float | None, callback: WhenAll[T] | None = None
    ) -> None:
        super().__init__(timeout)
        if callback is not None and not callable(callback):
            raise TypeError(f"callback is something to call, not {callback!r}")
        self.futures: tuple[asyncio.Future[T], ...] = _checked(futures)
        self._callback = callback
        self._pending = list(self.futures)

    def try_complete(self) -> bool:
        # From the end, and those that are done are not looked at again: all tries together look at each future once.
        pending = self._pending
        while pending and pending[-1].done():
            pending.pop()
        return not pending

    def on_complete(self) -> list[T | BaseException]:
        outcomes = [self._outcome(future) for future in self.futures]
        self._pending.clear()
        if self._callback is not None:
            self._callback(outcomes)
        return outcomes

    def _outcome(self, future: "asyncio.Future[T]") -> T | BaseException:
        if not future.done():
            late = TimeoutError(
                "it was still pending when the others were asked for"
                if self.timeout is None
                else f"it was not done within {self.timeout:g} s"
            )
            if isinstance(future, asyncio.Task):
                future.cancel()
                return late
            future.set_exception(late)
        if future.cancelled():
            return asyncio.CancelledError()
        error = future.exception()  # read here, so that nobody is told that it was never retrieved
        return future.result() if error is None else error

    def __repr__(self) -> str:
        pending = sum(not future.done() for future in self.futures)
        timeout = "for ever" if self.timeout is None else f"timeout={self.timeout:g}"
        return f"<{type(self).__name__} {self.outcome.name} {pending} of {len(self.futures)} pending {timeout}>"


def wait_for_all(room: Room, operation: DelayedFuture[Any]) -> None:
    """Hand the operation over, and have its key checked whenever one of its futures is done."""
    pending = tuple(dict.fromkeys(future for future in operation.futures if not future.done()))
    # Without a pending future it completes at once, and the key only has to be one.
    if not room.try_complete_else_watch(operation, pending or (operation,)):
        for future in pending:
            # What the future holds on to is the purgatory, not the operation, which may end long before.
            future.add_done_callback(room.check_and_complete)


def _checked(futures: Any) -> tuple[Any, ...]:
    if asyncio.isfuture(futures) or not isinstance(futures, Iterable):
        raise TypeError(f"futures is an iterable of futures, not {futures!r}")
    checked = tuple(futures)
    loop = asyncio.get_running_loop()
    for future in checked:
        if not asyncio.isfuture(future):
            raise TypeError(f"futures are futures or tasks of asyncio, not {future!r}: make a task of a coroutine")
        if future.get_loop() is not loop:
            raise ValueError(f"{future!r} belongs to another event loop")
    return checked
