"""A lock, or a number of permits, for each key.

The rules of granting and the operations that wait are in ``core.permits``.
"""

from collections.abc import Hashable
from types import TracebackType
from typing import Any, Literal

from purgatory.aio.purgatory import Purgatory
from purgatory.core.permits import KeyedPermits, Permits
from purgatory.texts import safe_repr, uncopyable

from .room import not_granted, out_of_time, validated_kind, validated_room

__all__ = ["Acquisition", "KeyedLock", "KeyedSemaphore"]


class Acquisition:
    """Holds a permit of one key during a block: ``async with locks("order-7", timeout=5.0): ...``.

    It can be entered any number of times, and takes the permit each time.
    """

    __slots__ = ("_deadline", "_key", "_keyed", "_permits", "_timeout")

    def __init__(self, keyed: "_Keyed", key: Hashable, timeout: float | None, deadline: float | None) -> None:
        self._keyed = keyed
        self._key = key
        self._timeout = timeout
        self._deadline = deadline

    async def __aenter__(self) -> None:
        """Acquire the permit; see :meth:`KeyedLock.acquire` for the errors."""
        taken = self._keyed._permits.take(self._key, self._timeout, self._deadline)
        self._permits: Permits = taken if type(taken) is Permits else await self._keyed._wait(taken, self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the permit, however the block has ended."""
        self._keyed._permits.give_back(self._permits)

    def __repr__(self) -> str:
        return f"<Acquisition of {safe_repr(self._key)} in {self._keyed!r}>"


class _Keyed:
    """The common base of a lock and a semaphore."""

    __slots__ = ("__weakref__", "_kind", "_permits", "_room", "_what")

    def __init__(self, room: Purgatory[Any], value: int, what: str, kind: str) -> None:
        self._room = validated_room(room)
        self._kind = validated_kind(kind)
        self._what = what
        self._permits = KeyedPermits(self._room._core, value, what == "lock", what, kind)

    def __call__(self, key: Hashable, *, timeout: float | None = None, deadline: float | None = None) -> Acquisition:
        """Return a context manager that acquires the key and releases it at the end of the block.

        The parameters and errors are the same as for :meth:`acquire`.
        """
        return Acquisition(self, key, timeout, deadline)

    async def acquire(
        self, key: Hashable, *, timeout: float | None = None, deadline: float | None = None
    ) -> Literal[True]:
        """Wait until the key can be acquired, at most ``timeout`` seconds or until ``deadline``; return True.

        ``deadline``: a time in seconds on the timer's clock (:meth:`SystemTimer.time`).  None: no deadline.  The time
        is for acquiring only; after that, the key is held until it is released.  With a timeout of 0 or a deadline that
        has passed, the call does not wait.

        Raises TimeoutError if the time has passed, :class:`PurgatoryClosed` if the task would have to wait in a
        purgatory that is closed or closes, and :class:`PurgatoryFull` if the task would have to wait and a limit is
        reached.  Raises TypeError if the key is unhashable or if both a timeout and a deadline are given, ValueError if
        the timeout is negative, and RuntimeError in a thread other than the one in which the purgatory's event loop
        runs.
        """
        taken = self._permits.take(key, timeout, deadline)
        if type(taken) is not Permits:
            await self._wait(taken, timeout)
        return True

    def release(self, key: Hashable) -> None:
        """Release the key, and hand it over to the first waiter.  The call never waits, and works in a closed
        purgatory.

        Raises RuntimeError if the key is not held, and in a thread other than the one in which the purgatory's event
        loop runs.
        """
        self._permits.release(key)

    def locked(self, key: Hashable) -> bool:
        """Return whether acquiring the key would wait."""
        return self._permits.locked(key)

    async def _wait(self, wait: Any, timeout: float | None) -> Permits:
        """Park the operation, and return the permits that it was granted one of."""
        permits: Permits = wait.permits
        try:
            if wait.delay_ms == 0:
                raise out_of_time(self._name_of(permits), timeout)
            self._room._bind()  # a grant must find the future of this loop, not of one that was closed
            if await self._room.park(wait, (permits.private_key,)):
                return permits
            raise not_granted(self._room, wait, self._name_of(permits), timeout)
        finally:
            self._permits.ended(wait)
            del wait

    def _name_of(self, permits: Permits) -> str:
        return f"the {self._what} on {safe_repr(permits.key)}"

    def __len__(self) -> int:
        """The number of keys that are held or waited for.  Nothing is kept for others."""
        return len(self._permits)

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise uncopyable(self, "its holders and waiters have one place each")

    def _check(self) -> None:
        """Assert the invariants.  For use between calls, not in a callback."""
        self._permits._check()

    def __repr__(self) -> str:
        value = "" if self._what == "lock" else f" value={self._permits.value}"
        return f"<{type(self).__name__} in {self._room.name!r}{value} keys={len(self)}>"


class KeyedLock(_Keyed):
    """A lock for each key, for the tasks of one event loop.

    **Usage.**  ::

        locks = KeyedLock(room)
        async with locks("order-7", timeout=5.0):
            ...                                     # one task at a time for each order

    **Implementation.**  A free lock is taken without an operation.  Otherwise one operation waits in the purgatory, on
    a private key that no check reaches; limits, statistics, dumps, and events show it under the user's key.  The lock
    is handed over in the order of arrival, and no task overtakes a waiter.  For a key that no task holds or waits for,
    nothing is kept.

    **Cancellation safety.**  If a task is cancelled while it waits, it leaves the queue.  If it was granted the lock in
    the same turn of the loop, the lock goes to the next waiter.  If the block raises, the lock is released.

    **Closing.**  A free lock can be taken in a closed purgatory, because requests still run while a server stops.
    Waiters get :class:`PurgatoryClosed` when the purgatory closes.  During the grace of ``aclose`` a released lock is
    still handed over.

    Two locks are independent, even in one purgatory, so create one for each purpose, and share it.  The lock is not
    reentrant: a task that holds it gets RuntimeError when it asks for the same key again.  As with
    :class:`asyncio.Lock`, another task may release it.

    ``room``: the purgatory in which the waiters wait.  ``kind``: what events, dumps, metrics, and journals show as the
    kind of the waiting operations.
    """

    __slots__ = ()

    def __init__(self, room: Purgatory[Any], *, kind: str = "KeyedLock") -> None:
        super().__init__(room, 1, "lock", kind)


class KeyedSemaphore(_Keyed):
    """A number of permits for each key, for the tasks of one event loop.

    **Usage.**  ::

        slots = KeyedSemaphore(room, 4)
        async with slots("gpu", timeout=5.0):
            ...                                     # at most four tasks at a time for each key

    Otherwise, it behaves like a :class:`KeyedLock`, except that a task may take several permits of a key.

    ``value``: how many permits each key has, at least 1; otherwise raises TypeError or ValueError.  The semaphore is
    bounded: releasing more permits than were taken raises RuntimeError.
    """

    __slots__ = ()

    def __init__(self, room: Purgatory[Any], value: int, *, kind: str = "KeyedSemaphore") -> None:
        if type(value) is not int:
            raise TypeError(f"value must be an int, at least 1, got {safe_repr(value)}")
        if not 1 <= value < 1 << 60:
            raise ValueError(f"value must be at least 1, got {safe_repr(value)}")
        super().__init__(room, value, "semaphore", kind)
