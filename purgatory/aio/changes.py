"""An async iterator over the keys that are checked, for server-sent events and WebSockets.

On each of its keys, a subscription parks one operation that never completes: trying the operation records the key.  A
subscription therefore sees every kind of check, even on keys that nothing else watches, and the statistics and limits
count its operations like any others.  A purgatory without subscriptions has no extra cost.  Two cases are
special:

* A check with a limit stops when the limit is reached, so it tries the operations of subscriptions first.
* When a purgatory closes, its subscriptions end at once, because they would only use up the grace period.

If a key is checked several times before the consumer takes it, the key is recorded only once.  The buffer therefore
never holds more than one entry for each key, however slow the consumer is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from purgatory.core.operation.delayed_operation import DelayedOperation
from purgatory.core.operation.lifecycle import CANCELLED, FAILED, PENDING, exception_of
from purgatory.core.timer.task import TimerTask
from purgatory.core.timer.units import duration_ms
from purgatory.core.watch.validation import validate_keys, validated_thresholds
from purgatory.errors import PurgatoryClosed
from purgatory.texts import safe_repr

if TYPE_CHECKING:
    from types import TracebackType

    from purgatory.core.operation.operation import Operation

    from .purgatory import Purgatory

__all__ = ["Changes", "Subscription"]

K = TypeVar("K")


class _Change(DelayedOperation[None]):
    """Records that one key was checked.  The operation never completes."""

    __slots__ = ("_index", "_listeners", "_subscription")

    def __init__(self, subscription: Subscription, index: int) -> None:
        super().__init__(None)
        self._subscription = subscription
        self._index = index
        self._listeners: dict[int, Operation] | None = None

    def try_complete(self) -> bool:
        self._subscription.note(self._index)
        return False


# Journals, metrics, and dumps show the class of an operation as its kind, so this class is named after
# ``Purgatory.changes``.
_Change.__name__ = _Change.__qualname__ = "changes"


class _Heartbeat(TimerTask):
    """Wakes the consumer of a subscription after ``heartbeat`` seconds, or with an error if the timer closes."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: Subscription, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self._subscription = subscription

    def run(self) -> None:
        self._subscription.wake(True)

    def _timer_closed(self) -> None:
        self._subscription.wake_with(PurgatoryClosed("the timer was closed"))


class Subscription:
    """The operations of one :class:`Changes`, and a record of which of their keys have been checked.

    The subscription does not refer to the iterator.  When no other object refers to the iterator either, it is freed,
    and its subscription ends.
    """

    __slots__ = ("_checked", "_operations", "_parking", "_room", "ended", "error", "waiter")

    def __init__(self, room: Purgatory[Any], keys: tuple[Hashable, ...]) -> None:
        self._room = room
        # Keys are recorded by index because recording an index runs no user code.  A plain dict would keep the places
        # of removed entries, and every search for its first entry would pass over all of them.
        self._checked: OrderedDict[int, None] = OrderedDict()
        self._operations: list[_Change] = []
        self._parking = True
        self.ended: bool = False
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[bool] | None = None
        room._core.validate_open()
        room._core.admit(keys, len(keys))  # all keys or none: a refusal must change nothing
        try:
            for index, key in enumerate(keys):
                operation = _Change(self, index)
                self._operations.append(operation)
                room.try_complete_else_watch(operation, (key,))
                if operation._op_state == PENDING:
                    operation._listeners = room._core.listen(operation, key)
                    room._core.call_when_ended(operation, partial(self._operation_ended, operation, key))
                else:  # an observer has ended this operation or, with an earlier one, the subscription
                    self._operation_ended(operation, key)
                    return
        except BaseException:
            self.end()
            raise
        self._parking = False
        room._subscriptions[id(self)] = self

    def note(self, index: int) -> None:
        """Record a check of the key with this index."""
        # The first try of an operation is not caused by a check.  An operation of a subscription that has ended may
        # still be parked, because closing withdraws the operations in slices.
        if not self._parking and not self.ended:
            self._checked[index] = None
            self.wake()

    def take(self) -> int | None:
        """Remove and return the index of the key that was checked first; return None if no key was checked."""
        return self._checked.popitem(last=False)[0] if self._checked else None

    def wait_with(self, waiter: asyncio.Future[bool]) -> None:
        """Resume the consumer through this future.

        While it was created, the garbage collector may have run a finalizer that checked a key.
        """
        self.waiter = waiter
        if self._checked or self.ended:
            self.wake()

    def wake(self, heartbeat: bool = False) -> None:
        """Resume the consumer; do nothing if its loop is closed."""
        waiter = self._pending_waiter()
        if waiter is not None:
            waiter.set_result(heartbeat)

    def wake_with(self, error: BaseException) -> None:
        """Raise the error in the consumer; do nothing if its loop is closed."""
        waiter = self._pending_waiter()
        if waiter is not None:
            waiter.set_exception(error)

    def _pending_waiter(self) -> asyncio.Future[bool] | None:
        waiter = self.waiter
        return None if waiter is None or waiter.done() or waiter.get_loop().is_closed() else waiter

    def end(self) -> None:
        """Withdraw the operations; the consumer still receives the recorded keys."""
        self.end_some(len(self._operations))

    def end_some(self, number: int) -> int:
        """Do the same as :meth:`end`, but withdraw at most ``number`` operations; return how many were visited."""
        self.ended = True
        self.wake()
        operations = self._operations
        number = min(number, len(operations))
        for _ in range(number):
            if not operations:  # an observer of the operation before has ended the subscription
                break
            operation = operations[-1]
            operation.cancel()
            if operations and operations[-1] is operation:
                operations.pop()
        if not operations:
            self._room._subscriptions.pop(id(self), None)
        return number

    def leave(self) -> None:
        """End the subscription after its consumer has left, unless closing is already ending it in slices."""
        if not self.ended or not self._room.closed:
            self.end()

    def _operation_ended(self, operation: _Change, key: Hashable) -> None:
        try:
            if not self.ended:
                # The operation did not end through end(): other code cancelled it or made it fail, or it expired
                # because the purgatory is closing.
                if operation._op_state in (CANCELLED, FAILED):
                    self.error = exception_of(operation, (key,))
                self.end()
        finally:
            if operation._listeners is not None:
                self._room._core.unlisten(operation, key, operation._listeners)


class Changes(Generic[K]):
    """An async iterator over the keys that are checked, in the order of their first checks.

    **Usage.**  :meth:`Purgatory.changes`; ``async for key in changes``.  The subscription begins when the iterator is
    created, so code that reads the state afterward misses no change.  Leaving an ``async with`` block, or calling
    :meth:`aclose`, ends the subscription.  The subscription also ends after the last reference to the iterator is gone:
    in one of the next turns of the loop or, if the loop is closed, when the purgatory moves to another loop.

    **Implementation.**  Each key has one parked operation, which counts in ``parked``, in ``watched``, and toward the
    limits.  If a key is checked several times before it is taken, it is returned only once.  When the purgatory closes,
    the iteration ends after the keys that have been recorded by then.

    **Cancellation safety.**  Cancelling a task that waits for the next key ends the subscription, as it would end an
    async generator.  A framework that cancels a stream therefore need not close the iterator.  To do other work between
    keys, use ``heartbeat``.

    If a key has already been recorded, iterating returns it without waiting for a turn of the loop.  If a consumer
    checks one of its own keys for every key that it takes, it must therefore await something else; otherwise, it blocks
    the loop.

    Only one task may iterate at a time; in a second task, iterating raises RuntimeError.  While the event loop runs,
    iterating and :meth:`aclose` raise RuntimeError in any other thread and change nothing.
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
        """Wait for the next key and return it; return None after ``heartbeat`` seconds without a key.

        If the operation on one of the keys was withdrawn or failed (``cancel_for_key``, ``fail_for_key``), the
        iteration ends with OperationCancelled or that operation's error.  With a heartbeat, raises PurgatoryClosed if
        the timer closes or has closed, because no heartbeat can then come.
        """
        self._room._core.validate_thread()
        subscription = self._subscription
        if subscription.waiter is not None:
            raise RuntimeError("another task is already waiting for the next key")
        while True:
            index = subscription.take()
            if index is not None:
                return self._keys[index]
            if subscription.error is not None:
                error, subscription.error = subscription.error, None
                try:
                    raise error
                finally:
                    del error  # otherwise, the error would refer to itself through this frame
            if subscription.ended:
                raise StopAsyncIteration
            if await self._wait(subscription):
                nothing: Any = None
                return nothing  # type: ignore[no-any-return]

    async def _wait(self, subscription: Subscription) -> bool:
        """Wait until a key is recorded or the subscription ends; return True if the heartbeat came first."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        subscription.wait_with(waiter)
        alarm = None
        try:
            if self._heartbeat is not None:
                timer = self._room.timer
                timer.start()
                alarm = _Heartbeat(subscription, duration_ms(self._heartbeat, "heartbeat"))
                timer.add(alarm)
            return await waiter
        except BaseException:
            subscription.leave()
            raise
        finally:
            subscription.waiter = None
            del waiter  # otherwise, an error in it would refer to itself through this frame
            if alarm is not None:
                alarm.cancel()

    async def aclose(self) -> None:
        """End the subscription.  Idempotent."""
        self._room._core.validate_thread()
        self._subscription.leave()

    async def __aenter__(self) -> Self:
        """Return the iterator, which is already subscribed."""
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
