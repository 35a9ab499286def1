"""A lock, or a number of permits, for each key.

The rules for granting permits, and the operations that wait for them, are in ``core.lock_permits``.
"""

from collections.abc import Hashable
from types import TracebackType
from typing import Any, Literal

from purgatory.aio.purgatory import Purgatory
from purgatory.core.lock_permits import KeyedPermits, Permits
from purgatory.texts import safe_repr, uncopyable

from .room import not_granted, out_of_time, validated_kind, validated_room

__all__ = ["Acquisition", "KeyedLock", "KeyedSemaphore"]


class Acquisition:
    """Holds a permit for one key during a block: ``async with locks("order-7", timeout=5.0): ...``.

    It can be entered any number of times and acquires the permit each time.
    """

    __slots__ = ("_deadline", "_key", "_keyed", "_permits", "_timeout")

    def __init__(self, keyed: "_Keyed", key: Hashable, timeout: float | None, deadline: float | None) -> None:
        self._keyed = keyed
        self._key = key
        self._timeout = timeout
        self._deadline = deadline

    async def __aenter__(self) -> None:
        """Acquire the permit; for the errors, see :meth:`KeyedLock.acquire`."""
        taken = self._keyed._permits.take(self._key, self._timeout, self._deadline)
        self._permits: Permits = taken if type(taken) is Permits else await self._keyed._wait(taken, self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the permit, however the block ended."""
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
        self._room._locks.add(self)

    def __call__(self, key: Hashable, *, timeout: float | None = None, deadline: float | None = None) -> Acquisition:
        """Return a context manager that acquires the key and releases it at the end of the block.

        The parameters and errors are the same as those of :meth:`acquire`.
        """
        return Acquisition(self, key, timeout, deadline)

    async def acquire(
        self, key: Hashable, *, timeout: float | None = None, deadline: float | None = None
    ) -> Literal[True]:
        """Acquire the key, waiting at most ``timeout`` seconds or until ``deadline``; return True.

        ``deadline``: a time in seconds on the timer's clock (:meth:`SystemTimer.time`).  None: no deadline.  The time
        limit applies only to acquiring; after that, the key is held until it is released.  With a timeout of 0 or a
        deadline that has passed, the call does not wait.

        Raises TimeoutError if the time is up, :class:`PurgatoryClosed` if the task would have to wait in a purgatory
        that is closed or closing, and :class:`PurgatoryFull` if the task would have to wait and a limit has been
        reached.  Raises TypeError if the key is unhashable or if both a timeout and a deadline are given, ValueError if
        the timeout is negative, and RuntimeError if called from any thread other than the event loop's.
        """
        taken = self._permits.take(key, timeout, deadline)
        if type(taken) is not Permits:
            await self._wait(taken, timeout)
        return True

    def release(self, key: Hashable) -> None:
        """Release the key and hand it over to the first waiter.  The call never waits and works even in a closed
        purgatory.

        Raises RuntimeError if the key is not held, or if called from any thread other than the event loop's.
        """
        self._permits.release(key)

    def locked(self, key: Hashable) -> bool:
        """Return whether a task would have to wait to acquire the key."""
        return self._permits.locked(key)

    async def _wait(self, wait: Any, timeout: float | None) -> Permits:
        """Park the operation; return the :class:`Permits` object that granted it a permit."""
        permits: Permits = wait.permits
        try:
            if wait.delay_ms == 0:
                raise out_of_time(self._name_of(permits), timeout)
            self._room._bind()  # a grant must find a future that belongs to this loop, not to a closed one
            if await self._room.park(wait, (permits.private_key,)):
                return permits
            raise not_granted(self._room, wait, self._name_of(permits), timeout)
        finally:
            self._permits.ended(wait)
            del wait

    def _after_fork(self) -> None:
        """In a child process, forget the holders, which are tasks of the parent."""
        self._permits.forget_all()

    def _name_of(self, permits: Permits) -> str:
        return f"the {self._what} on {safe_repr(permits.key)}"

    def __len__(self) -> int:
        """The number of keys that are held or waited for.  Nothing is stored for other keys."""
        return len(self._permits)

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise uncopyable(self, "its holders and waiters have one place each")

    def _check(self) -> None:
        """Assert the invariants.  Call this method between other calls, not in a callback."""
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

    **Implementation.**  A free lock is taken without an operation.  Otherwise, one operation waits in the purgatory, on
    a private key that no check reaches; limits, statistics, dumps, and events show the operation under the user's key.
    The lock is handed over in the order of arrival, and no task overtakes a waiter.  Nothing is stored for a key that
    no task holds or waits for.

    **Cancellation safety.**  If a task is cancelled while it waits, it leaves the queue.  If the task was granted the
    lock in the same turn of the loop, the lock goes to the next waiter.  If the block raises, the lock is released.

    **Closing.**  A free lock can be acquired even in a closed purgatory, because requests still run while a server
    stops.  When the purgatory closes, waiters get :class:`PurgatoryClosed`.  During the grace period of ``aclose``, a
    released lock is still handed over.

    Two locks are independent even if they use the same purgatory, so create one lock for each purpose and share it.
    The lock is not reentrant: a task that already holds a key gets RuntimeError when it tries to acquire the same key
    again.  As with :class:`asyncio.Lock`, another task may release the key.

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

    It behaves like a :class:`KeyedLock`, but each key has ``value`` permits, and a task may take more than one of them.

    ``value``: how many permits each key has, an int of at least 1; any other value raises TypeError or ValueError.  The
    semaphore is bounded: releasing more permits than were taken raises RuntimeError.
    """

    __slots__ = ()

    def __init__(self, room: Purgatory[Any], value: int, *, kind: str = "KeyedSemaphore") -> None:
        if type(value) is not int:
            raise TypeError(f"value must be an int, at least 1, got {safe_repr(value)}")
        if not 1 <= value < 1 << 60:
            raise ValueError(f"value must be at least 1, got {safe_repr(value)}")
        super().__init__(room, value, "semaphore", kind)
