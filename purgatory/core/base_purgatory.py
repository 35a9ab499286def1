"""The public interface of the synchronous core: the base class of :class:`purgatory.Purgatory`."""

from collections.abc import Hashable, Iterator
from heapq import nlargest
from typing import Any

from mypy_extensions import mypyc_attr

from purgatory.events import Event, Statistics
from purgatory.texts import safe_repr, type_name, uncopyable

from .hooks import Hooks
from .operation.lifecycle import CANCELLED, end, fail_externally
from .operation.operation import Operation
from .operation.private_key import shown_key
from .purgatory import PurgatoryCore, no_operation
from .timer.base_timer import BaseTimer
from .timer.coroutines import refuse_coroutine_function
from .watch.validation import UNLIMITED, validated_limit

__all__ = ["BasePurgatory"]


@mypyc_attr(allow_interpreted_subclasses=True)
class BasePurgatory:
    """The synchronous part of :class:`Purgatory`.

    This class uses no event loop and reads only its timer's clock, so it also works without a loop.  While the timer's
    event loop runs, calls from other threads that would change anything raise RuntimeError.  The parameters are the
    same as those of :class:`Purgatory`.  ``contained``: the exceptions that count as a failure of the operation; all
    others propagate.  ``hooks``: the object to which errors are reported.  ``jitter_source``: returns random numbers
    from 0 to 1.
    """

    __slots__ = ("_core",)

    def __init__(
        self,
        name: str,
        timer: BaseTimer,
        contained: tuple[type[BaseException], ...] = (Exception,),
        max_parked: Any = None,
        max_parked_per_key: Any = None,
        observers: Any = (),
        hooks: Hooks | None = None,
        expiry_jitter: Any = 0.0,
        jitter_source: Any = None,
    ) -> None:
        self._core: PurgatoryCore = PurgatoryCore(
            Hooks() if hooks is None else hooks,
            name,
            timer,
            contained,
            max_parked,
            max_parked_per_key,
            observers,
            expiry_jitter,
            jitter_source,
        )
        self._set_up()
        for observer in observers:
            attached = getattr(observer, "attached", None)
            if callable(attached):
                refuse_coroutine_function(f"{type_name(observer)}.attached", attached)
                attached(self)

    def _set_up(self) -> None:
        """Set the fields of a subclass before the observers receive the purgatory."""

    def try_complete_else_watch(self, operation: Any, keys: Any) -> bool:
        """Try the operation once; if its condition does not hold, park it under the keys.  Return True if it completed.

        ``operation``: an operation that is not parked and has not ended.

        ``keys``: an iterable of hashable objects, or a mapping ``key -> threshold``: checks of a key with a value below
        its threshold need not try the operation.  Duplicate keys count once.

        If a callback raises, the exception reaches the caller, and the operation fails.  Raises ValueError if there are
        no keys, or if the operation is parked or has ended; TypeError for a bare str or bytes, or an unhashable key;
        PurgatoryClosed if the purgatory or its timer is closed; and PurgatoryFull if the operation would have to wait
        and a limit has been reached.  In these cases, nothing is parked, and the operation is still PENDING.
        """
        if not isinstance(operation, Operation):
            raise no_operation(operation)
        return self._core.submit(operation, keys)

    def check_and_complete(self, key: Hashable, value: Any = None, *, limit: Any = None) -> int:
        """Try the operations parked on the key, in the order of arrival; return how many this call completed.

        ``key``: the key whose state may have changed.  ``value``: the value that the key has reached, an int or a
        float; with None, every watcher is tried.  ``limit``: the number of completions after which the check stops.

        If ``value`` is given, operations with a threshold for the key are tried only if the value reaches that
        threshold.  If ``limit`` is given, the check completes the first ``limit`` operations that can complete, and
        tries no others.

        If a callback makes the call while this purgatory tries, completes, or expires an operation, the check is queued
        and 0 is returned; before the outermost call returns, it runs the check and counts the operations that the check
        completes.  If an operation raises an exception, it fails; the others are still tried.  Raises TypeError for an
        unhashable key, a value that is not a number, or a limit that is not an int; raises ValueError for NaN or a
        limit below 1.
        """
        return self._core.check(key, value, UNLIMITED if limit is None else validated_limit("limit", limit))

    def check(self, key: Hashable, value: Any = None, *, limit: Any = None) -> int:
        """Call :meth:`check_and_complete`, or a subclass's override of it; ``check`` is the everyday name."""
        if limit is None:
            return self.check_and_complete(key, value)
        return self.check_and_complete(key, value, limit=limit)

    def cancel_for_key(self, key: Hashable, *, reason: Any = None) -> list[Any]:
        """Withdraw the operations parked on the key; return them in the order of arrival.  Their outcome is CANCELLED.

        ``key``: the key whose operations end.

        ``reason``: any object, passed to their awaiters and observers, as in :meth:`DelayedOperation.cancel`.

        This is one synchronous call that costs O(watchers); :meth:`Purgatory.acancel_for_key` does the same in slices.
        """
        self._core.validate_thread()
        self._core.ensure_stack()
        return [
            operation
            for operation in self._core.watcher_lists.operations(key)
            if end(operation, CANCELLED, reason, True)
        ]

    def fail_for_key(self, key: Hashable, error: Any) -> int:
        """Make the operations parked on the key fail with the exception; return how many failed.

        ``key``: the key whose operations end.  ``error``: the exception that each awaiter receives.

        This is one synchronous call that costs O(watchers); :meth:`Purgatory.afail_for_key` does the same in slices.
        """
        if not isinstance(error, Exception):
            raise TypeError(f"error must be an instance of Exception, got {safe_repr(error)}")
        self._core.validate_thread()
        self._core.ensure_stack()
        return sum([fail_externally(operation, error) for operation in self._core.watcher_lists.operations(key)])

    @property
    def name(self) -> str:
        """The name that was given to the constructor."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """Whether new operations are refused."""
        return self._core.closed

    @property
    def watched(self) -> int:
        """The exact number of (operation, key) pairs.  Cost: O(1)."""
        return self._core.counters.watched

    @property
    def num_delayed(self) -> int:
        """The number of this purgatory's operations that are on the timer.  Cost: O(1)."""
        return self._core.counters.delayed

    def __len__(self) -> int:
        """The number of parked operations.  Cost: O(1)."""
        return self._core.counters.parked

    def __bool__(self) -> bool:
        return True

    def statistics(self) -> Statistics:
        """Return a frozen snapshot, which is cheap enough to take every second."""
        return self._core.counters.statistics(self._core.name, self._core.watcher_lists.num_keys())

    def is_watched(self, key: Hashable) -> bool:
        """Return whether an operation is parked on the key.  Cost: O(1).  Raises TypeError for an unhashable key."""
        return self._core.watcher_lists.count(key) > 0

    def keys(self) -> Iterator[Hashable]:
        """Iterate over the keys on which operations are parked, each at most once, in no particular order.

        The keys of locks and quorums (:mod:`purgatory.locks`) are left out, because no check reaches their waiters.

        Operations may be parked or end during the iteration.  A key that is watched throughout the iteration is
        included; a key that gains its first watcher or loses its last one during the iteration may or may not be
        included.  The keys are copied in 512 parts, so no step takes long, however many keys there are.
        """
        return self._core.watcher_lists.keys()

    def hot_keys(self, n: Any = 10) -> list[tuple[Hashable, int]]:
        """Return the ``n`` keys with the most watchers as (key, number), in descending order.  Cost: O(keys).

        ``n``: the number of keys, at least 0.

        The waiters of a lock or quorum are counted in a separate item, even if operations are parked on the same key.
        """
        if type(n) is not int or n < 0:
            raise ValueError(f"n must be an int, at least 0, got {safe_repr(n)}")
        hottest = nlargest(n, self._core.watcher_lists.counts(), key=_count)
        return [(shown_key(key), number) for key, number in hottest]

    def parked_events(self) -> list[Event]:
        """Return a ``parked`` event for each parked operation, in the order of arrival.  Cost: O(watches).

        An observer that needs the parked operations only now and then can call this method instead of receiving an
        event for each one.
        """
        return [self._core.parked_event(operation) for operation in self._core.watcher_lists.all_operations()]

    def __reduce__(self) -> Any:
        raise uncopyable(self, "its operations are parked in one purgatory")

    def _check(self) -> None:
        """Assert the invariants of the whole purgatory.  Call this method between other calls, not in a callback."""
        self._core._check()


def _count(pair: tuple[Hashable, int]) -> int:
    return pair[1]
