"""The permits for each key, which implement the locks and semaphores of :mod:`purgatory.locks`.

The rules
=========

1.  A permit is taken without waiting only if one is free and no operation is waiting for one.  Therefore, no caller
    overtakes the waiters, which are served in the order of arrival.
2.  A permit that is given back becomes free; then a check of the private key completes the first waiter, whose
    ``on_complete`` takes the permit for the waiting task.  There is no await in between.
3.  The lifecycle of operations handles the hard cases.  If a waiter's task was cancelled earlier in the same turn, the
    check withdraws the waiter and tries the next one.  If a waiter's task is cancelled between the grant and its next
    step, or never runs again because its loop is closed, ``on_abandoned`` gives the permit back.
4.  A key is forgotten as soon as all its permits are free and no task waits for one or is about to wait.  Forgetting a
    key runs no code of the key: in the dict, the permits stand for the key, with the hash that the key had when they
    were first taken.

If a permit is given back in a callback of the same purgatory, the check is queued, as every check is, and the permit
stays free until the outermost call runs the check.  Rule 1 still holds during that time.  If the check then finds only
cancelled waiters, the key is forgotten when the last of their tasks runs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, final

from mypy_extensions import i64

from purgatory.texts import safe_repr

from .operation.lifecycle import COMPLETED, is_parked
from .operation.operation import set_deadline
from .operation.private_key import PrivateKey
from .operation.wait_until import MISSING, LibraryWait, times_of
from .purgatory import PurgatoryCore
from .timer.event_loop import event_loop

__all__ = ["AcquireWait", "KeyedPermits", "Permits"]


@final
class Permits:
    """The permits for one key; the object is equal to that key.

    ``free``: how many permits are not taken.  ``owner``: the task that has the permit, if there is only one permit.
    ``private_key``: the key on which the waiters are parked; None before the first waiter.  ``waits``: how many waits
    have begun and not ended; some of them may not be parked yet.  ``known``: False once the key has been forgotten;
    later permits for that key are different objects.
    """

    __slots__ = ("_hash", "free", "key", "known", "owner", "private_key", "waits")

    def __init__(self, key: Hashable, key_hash: int, free: i64) -> None:
        self.key: Hashable = key
        self._hash: int = key_hash
        self.free: i64 = free
        self.known: bool = True
        self.owner: Any = None
        self.private_key: PrivateKey | None = None
        self.waits: i64 = 0

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Permits):
            return other is self  # the keys in a dict differ, and forgetting a key must not run its code
        return self.key is other or bool(self.key == other)


@final
class AcquireWait(LibraryWait):
    """Waits for a permit.  Its result states whether a permit was granted."""

    __slots__ = ("_owner", "_source", "permits")

    def __init__(self, source: KeyedPermits, permits: Permits, owner: Any, kind: str) -> None:
        super().__init__(kind)
        self._source: KeyedPermits = source
        self.permits: Permits = permits
        self._owner: Any = owner

    def try_complete(self) -> bool:
        if self.permits.free == 0:
            return False
        # A permit given back since this wait began belongs to it, if no other is waiting.
        return is_parked(self) or not self._source._is_waited_for(self.permits)

    def on_complete(self) -> Any:
        if self._op_state != COMPLETED:
            return False
        permits = self.permits
        if permits.free == 0:
            raise RuntimeError("releasing a permit completes this operation; force_complete() cannot")
        permits.free -= 1
        permits.owner = self._owner
        return True

    def on_abandoned(self, result: Any) -> Any:
        if result:
            self._source.give_back(self.permits)


# Errors show the class name of an operation, so that name is set here to the name of the method.
setattr(AcquireWait, "__name__", "acquire")  # noqa: B010 - the compiler rejects an assignment to a class
setattr(AcquireWait, "__qualname__", "acquire")  # noqa: B010


@final
class KeyedPermits:
    """A number of permits for each key, with waiters in a purgatory.

    ``value``: how many permits each key has.  ``exclusive``: whether a task is refused a second permit, because it
    would wait for itself.  ``what``: the name in error messages, such as "lock".  ``kind``: the kind of the waiting
    operations.
    """

    __slots__ = ("_by_key", "_core", "_exclusive", "_kind", "_what", "value")

    def __init__(self, core: PurgatoryCore, value: i64, exclusive: bool, what: str, kind: str) -> None:
        self._core: PurgatoryCore = core
        self.value: i64 = value
        self._exclusive: bool = exclusive
        self._what: str = what
        self._kind: str = kind
        self._by_key: dict[Any, Permits] = {}

    def take(self, key: Hashable, timeout: Any, deadline: Any) -> Any:
        """Take a permit for the key and return the key's :class:`Permits`; if the task must wait, return an operation
        that waits.

        The operation has its deadline but is not parked yet.  Raises RuntimeError if this task already has the only
        permit.
        """
        core = self._core
        core.validate_thread()
        if deadline is None:
            delay_ms, at_ms = times_of("acquire", core.timer, timeout, MISSING)
        else:
            delay_ms, at_ms = times_of("acquire", core.timer, MISSING if timeout is None else timeout, deadline)
        owner: Any = event_loop.current_task(None) if self._exclusive else None
        key_hash = hash(key)
        permits = self._by_key.get(key)
        if permits is None:
            permits = Permits(key, key_hash, self.value)
            self._by_key[permits] = permits
        elif owner is not None and permits.owner is owner:
            raise RuntimeError(f"this task already has the {self._what} on {safe_repr(key)} and would wait for itself")
        if permits.free > 0 and not self._is_waited_for(permits):
            permits.free -= 1
            permits.owner = owner
            return permits
        permits.waits += 1  # from here on, the key is not forgotten
        if permits.private_key is None:
            permits.private_key = PrivateKey(key)
        wait = AcquireWait(self, permits, owner, self._kind)
        set_deadline(wait, delay_ms, at_ms)
        return wait

    def give_back(self, permits: Permits) -> None:
        """Give back a permit and grant it to the first waiter.  Raises RuntimeError if no permit is taken."""
        core = self._core
        core.validate_thread()
        if permits.free >= self.value:
            raise RuntimeError(f"the {self._what} on {safe_repr(permits.key)} is not held")
        permits.free += 1
        permits.owner = None
        if permits.waits > 0 and permits.private_key is not None:
            core.check(permits.private_key, None, 1)
        self._forget_if_idle(permits)

    def release(self, key: Hashable) -> None:
        """Do the same as :meth:`give_back`, for a key."""
        self._core.validate_thread()
        permits = self._by_key.get(key)
        if permits is None:
            raise RuntimeError(f"the {self._what} on {safe_repr(key)} is not held")
        self.give_back(permits)

    def ended(self, wait: AcquireWait) -> None:
        """Record that a task no longer waits; forget its key if there is no other waiter and no holder."""
        wait._owner = None  # the exception of a task without a permit may refer to the wait
        wait.permits.waits -= 1
        self._forget_if_idle(wait.permits)

    def _forget_if_idle(self, permits: Permits) -> None:
        """Forget the key if all its permits are free and no wait for one has begun."""
        if permits.known and permits.free == self.value and permits.waits == 0:
            permits.known = False
            del self._by_key[permits]

    def locked(self, key: Hashable) -> bool:
        """Return whether a task would have to wait for a permit for the key."""
        permits = self._by_key.get(key)
        return permits is not None and (permits.free == 0 or self._is_waited_for(permits))

    def forget_all(self) -> None:
        """Forget every key.  A permit that was taken earlier can still be given back, but that does not free a later
        permit.
        """
        for permits in self._by_key.values():
            permits.known = False
        self._by_key.clear()

    def _is_waited_for(self, permits: Permits) -> bool:
        key = permits.private_key
        return key is not None and self._core.watcher_lists.count(key) > 0

    def __len__(self) -> int:
        """The number of keys whose permits are taken or waited for."""
        return len(self._by_key)

    def _check(self) -> None:
        """Assert the invariants.  Call this method between other calls, not in a callback."""
        for known, permits in self._by_key.items():
            key = permits.key
            waiting = self._is_waited_for(permits)
            parked = 0 if permits.private_key is None else self._core.watcher_lists.count(permits.private_key)
            assert permits.waits >= parked, (
                f"{parked} operations wait for {key!r}, and {permits.waits} waits have begun"
            )
            assert known is permits and permits.known, f"{key!r} is in the wrong place"
            assert 0 <= permits.free <= self.value, f"{permits.free} of {self.value} permits of {key!r} are free"
            assert not waiting or permits.free == 0, f"{permits.free} permits of {key!r} are free, and tasks wait"
            assert self._exclusive or permits.owner is None, f"{key!r} has an owner"
            assert permits.free == 0 or permits.owner is None, f"{key!r} is free and has an owner"
