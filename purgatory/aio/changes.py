"""An async iterator of the keys that are checked, for server-sent events and WebSockets.

On each of its keys a subscription parks one operation that never completes: trying the operation records its key.  So a
subscription sees every kind of check, even on keys that nothing else watches, and counts in the statistics and limits
like any parked operation.  A purgatory without subscriptions has no extra cost.  Two cases are special:

*   A check with a limit stops after that many completions.  It tries the operations of subscriptions first.
*   When a purgatory closes, its subscriptions end at once, because they would only use up the grace.

A key that is checked again before the consumer takes it is recorded once.  So the buffer never holds more than one
entry for each key, however slow the consumer is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from purgatory.core.operation.delayed_operation import DelayedOperation
from purgatory.core.operation.lifecycle import CANCELLED, FAILED, PENDING, exception_of
from purgatory.core.timer.units import duration_ms
from purgatory.core.watch.validation import validate_keys, validated_thresholds
from purgatory.texts import safe_repr

if TYPE_CHECKING:
    from types import TracebackType

    from .purgatory import Purgatory

__all__ = ["Changes", "Subscription"]

K = TypeVar("K")


class _Change(DelayedOperation[None]):
    """Records that one key was checked; it never completes."""

    __slots__ = ("_index", "_subscription")

    def __init__(self, subscription: Subscription, index: int) -> None:
        super().__init__(None)
        self._subscription = subscription
        self._index = index

    def try_complete(self) -> bool:
        self._subscription.note(self._index)
        return False


# Journals, metrics and dumps show the class of an operation as its kind, so this class has the name of the method.
_Change.__name__ = _Change.__qualname__ = "changes"


class Subscription:
    """The operations of one :class:`Changes`, and which of their keys have been checked.

    It does not refer to the iterator.  When no other object refers to the iterator either, the iterator is freed, and
    its subscription ends.
    """

    __slots__ = ("_checked", "_operations", "_parking", "_room", "ended", "error", "waiter")

    def __init__(self, room: Purgatory[Any], keys: tuple[Hashable, ...]) -> None:
        self._room = room
        self._checked: dict[int, None] = {}  # the indices of the keys: recording one runs no user code
        self._operations: list[_Change] = []
        self._parking = True
        self.ended: bool = False
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[bool] | None = None
        try:
            for index, key in enumerate(keys):
                operation = _Change(self, index)
                self._operations.append(operation)
                room.try_complete_else_watch(operation, (key,))
                if operation._state == PENDING:
                    room._core.listen(operation, key)
                    room._core.call_when_ended(operation, partial(self._operation_ended, operation, key))
                else:  # an observer has ended it, or an earlier one and with it the subscription
                    self._operation_ended(operation, key)
                    return
        except BaseException:
            self.end()
            raise
        self._parking = False
        room._subscriptions[id(self)] = self

    def note(self, index: int) -> None:
        """Record a check of the key with this index."""
        if not self._parking:  # the first try of an operation is not a check
            self._checked[index] = None
            self.wake()

    def take(self) -> int | None:
        """Remove and return the index of the key that was checked first, or None if none was."""
        for index in self._checked:
            del self._checked[index]
            return index
        return None

    def wake(self, heartbeat: bool = False) -> None:
        """Resume the consumer; do nothing if its loop is closed."""
        waiter = self.waiter
        if waiter is not None and not waiter.done() and not waiter.get_loop().is_closed():
            waiter.set_result(heartbeat)

    def end(self) -> None:
        """Withdraw the operations; the consumer still gets the recorded keys."""
        self.ended = True
        self._room._subscriptions.pop(id(self), None)
        while self._operations:
            self._operations[-1].cancel()
            self._operations.pop()
        self.wake()

    def _operation_ended(self, operation: _Change, key: Hashable) -> None:
        try:
            if not self.ended:
                # Not by end(): it is cancelled or failed from outside, or expired by a purgatory that closes.
                if operation._state in (CANCELLED, FAILED):
                    self.error = exception_of(operation, (key,))
                self.end()
        finally:
            self._room._core.unlisten(operation, key)


class Changes(Generic[K]):
    """The keys that are checked, in the order of their first check: an async iterator.

    **Usage.**  :meth:`Purgatory.changes`; ``async for key in changes``.  The subscription begins when the iterator is
    created, so code that reads the state after that misses no change.  ``async with``, or :meth:`aclose`, ends the
    subscription.  It also ends after the last reference to the iterator is gone: in one of the next turns of the loop,
    or, if the loop is closed, when the purgatory moves to another loop.

    **Implementation.**  Each key is one parked operation, which ``parked``, ``watched``, and the limits count.  A key
    that is checked several times before it is taken is returned once.  The iteration ends when the purgatory closes,
    after the keys that were recorded by then.

    **Cancellation safety.**  Cancelling a task that waits for the next key ends the subscription, as it ends an async
    generator: a framework that cancels a stream need not close it.  Use ``heartbeat`` to do other work in between.

    Only one task may iterate at a time; a second one gets RuntimeError.
    """

    __slots__ = ("__weakref__", "_heartbeat", "_keys", "_loop", "_room", "_subscription")

    def __init__(self, room: Purgatory[Any], keys: Iterable[Any], heartbeat: float | None) -> None:
        if heartbeat is not None and duration_ms(heartbeat, "heartbeat") == 0:
            raise ValueError(f"heartbeat must be a number of seconds above 0, got {safe_repr(heartbeat)}")
        if validated_thresholds(keys) is not None:
            raise TypeError(f"keys must be an iterable of keys without thresholds, got {safe_repr(keys)}")
        distinct = tuple(dict.fromkeys(keys))
        validate_keys(distinct)
        self._loop = room._bind()
        self._room = room
        self._keys: tuple[K, ...] = distinct
        self._heartbeat = heartbeat
        self._subscription = Subscription(room, distinct)

    def __aiter__(self) -> Self:
        """Iterate over the keys that are checked."""
        return self

    async def __anext__(self) -> K:
        """Wait for the next key; None after ``heartbeat`` seconds without one.

        Raises OperationCancelled or the error if the operations of one of its keys were withdrawn or failed
        (``cancel_for_key``, ``fail_for_key``); that ends the iteration.
        """
        subscription = self._subscription
        if subscription.waiter is not None:
            raise RuntimeError("another task is already waiting for the next key")
        while True:
            index = subscription.take()
            if index is not None:
                return self._keys[index]
            if subscription.error is not None:
                error, subscription.error = subscription.error, None
                raise error
            if subscription.ended:
                raise StopAsyncIteration
            if await self._wait(subscription):
                nothing: Any = None
                return nothing  # type: ignore[no-any-return]

    async def _wait(self, subscription: Subscription) -> bool:
        """Wait until a key is recorded or the subscription ends.  True: the heartbeat came first."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        subscription.waiter = waiter
        alarm = None
        try:
            if self._heartbeat is not None:
                timer = self._room.timer
                timer.start()
                alarm = timer.call_later(self._heartbeat, subscription.wake, True)
            return await waiter
        except BaseException:
            subscription.end()
            raise
        finally:
            subscription.waiter = None
            if alarm is not None:
                alarm.cancel()

    async def aclose(self) -> None:
        """End the subscription.  Idempotent."""
        self._subscription.end()

    async def __aenter__(self) -> Self:
        """Return the iterator; it is subscribed already."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the subscription."""
        await self.aclose()

    def __del__(self) -> None:
        subscription = getattr(self, "_subscription", None)
        if subscription is not None and not subscription.ended:
            self._room._drop(subscription)

    def __repr__(self) -> str:
        state = "ended" if self._subscription.ended else "open"
        return f"<Changes of {self._room.name!r} {state} keys={len(self._keys)}>"
