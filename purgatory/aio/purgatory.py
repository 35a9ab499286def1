"""The purgatory on an asyncio event loop."""

import asyncio
import contextlib
import functools
import os
import random
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from purgatory.core.hooks import Hooks
from purgatory.core.operation.delayed_operation import DelayedOperation
from purgatory.core.operation.lifecycle import CANCELLED, end, fail_externally, result_of, validated_error
from purgatory.core.operation.operation import Operation
from purgatory.core.operation.wait_until import MISSING, keys_of_call, until_wait, value_wait
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.stats.record_buffer import RecordBuffer
from purgatory.core.timer.clock import Clock
from purgatory.core.timer.units import duration_ms
from purgatory.core.watch.thresholds import validated_value
from purgatory.core.watch.validation import validate_checked_key
from purgatory.events import Observer
from purgatory.texts import safe_repr

from .changes import Changes, Subscription
from .closing import PurgatoryClosing
from .coalesced_checks import LoopChecks
from .dump import Dump, dump
from .error_reporting import report
from .system_timer import SystemTimer
from .turn_budget import TurnBudget
from .when_all import AnyFuture, DelayedFuture, DoneCallbacks, WhenAll, wait_for_all

__all__ = ["Purgatory", "finish"]

K = TypeVar("K")
T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # PEP 696, in typing from Python 3.13 on

    Op = TypeVarWithDefault("Op", bound=DelayedOperation[Any], default=DelayedOperation[Any])
else:
    Op = TypeVar("Op", bound=DelayedOperation)


# This generator is separate so that the jitter does not advance a generator that the user has seeded.
_generator = random.Random()  # noqa: S311 - jitter, not a secret
_random = _generator.random
with contextlib.suppress(AttributeError):  # Windows has no fork()
    os.register_at_fork(after_in_child=_generator.seed)  # otherwise, all workers of a server would use the same jitter


class _LoopHooks(Hooks):
    """The core's hooks for a purgatory on an event loop."""

    def __init__(self, purgatory: "Purgatory[Any]") -> None:
        self._purgatory = purgatory

    def start_reaper(self) -> None:
        self._purgatory._start_reaper()

    def report(self, error: BaseException, operation: Operation) -> None:
        _report(self._purgatory.name, error, operation)

    def report_observer(self, error: BaseException, observer: object) -> None:
        name = self._purgatory.name
        report(f"an observer of purgatory {name!r} raised and is detached", error, observer=observer)

    def report_key(self, error: BaseException, key: Hashable) -> None:
        report(f"a key of purgatory {self._purgatory.name!r} raised, and its check was left out", error, key=key)

    def check_later(self, key: Hashable, value: float | None, limit: int | None) -> None:
        purgatory = self._purgatory
        with contextlib.suppress(RuntimeError):  # no loop is running, so there is no next turn
            if limit is None:
                purgatory.check_soon(key, value)
            else:
                check = functools.partial(purgatory.check_and_complete, key, value, limit=limit)
                asyncio.get_running_loop().call_soon(check, context=Context())

    def emptied(self) -> None:
        self._purgatory._closing.emptied()


def _report(name: str, error: BaseException, operation: Operation) -> None:
    report(f"an operation of purgatory {name!r} raised", error, operation=operation)


class Purgatory(BasePurgatory, Generic[Op]):
    """Keeps requests parked until their condition holds or their deadline passes.

    **Usage.**  ::

        async with Purgatory("fetch") as purgatory:
            answer = await purgatory.park(operation, ["orders-0"])  # in the request's handler
            purgatory.check_and_complete("orders-0")                # wherever the state changes

    **Implementation.**  A purgatory has a watcher list for each key, and a timer with hierarchical timing wheels.  When
    an operation ends, it is removed from the timer and from every watcher list immediately; there is no purge.

    **Cancellation safety.**  Cancelling a task in :meth:`park` or :meth:`wait_until` withdraws its operation
    immediately.  If the operation has ended in the same turn of the loop, its outcome stands, but the task is still
    cancelled, and the result is passed to :meth:`DelayedOperation.on_abandoned`.

    ``name``: identifies the purgatory in statistics, events, and messages.  ``timer``: a timer for several purgatories
    to share.  The timer starts when a purgatory on it is entered, or when :meth:`park`, :meth:`wait_until`,
    :meth:`when_all` with a timeout, or :meth:`changes` with a heartbeat is called; :meth:`try_complete_else_watch` does
    not start it.  Closing a purgatory does not close a shared timer.  Without ``timer``, the purgatory has its own
    timer; ``clock``, ``tick_ms``, and ``wheel_size`` are the same as for :class:`SystemTimer`.  ``max_parked``,
    ``max_parked_per_key``: limits on the number of parked operations; parking an operation beyond a limit raises
    :class:`PurgatoryFull`.  ``observers``: objects that receive the events of every operation (see
    :class:`purgatory.events.Observer`).

    ``expiry_jitter``: shortens timeouts at random, so that operations with equal deadlines do not all expire at once.
    When an operation is parked, its remaining time is randomly shortened by up to this fraction: 0.1 changes a
    timeout of 30 s to a random value from 27 to 30 s.  A later ``extend`` is not affected.  The fraction is from 0 to
    1; 0 means no jitter.
    """

    def __init__(
        self,
        name: str,
        *,
        timer: SystemTimer | None = None,
        clock: Clock | None = None,
        tick_ms: int = 1,
        wheel_size: int = 20,
        max_parked: int | None = None,
        max_parked_per_key: int | None = None,
        observers: Sequence[Observer | RecordBuffer] = (),
        expiry_jitter: float = 0.0,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {safe_repr(name)}")
        if timer is None:
            timer = SystemTimer(tick_ms=tick_ms, wheel_size=wheel_size, clock=clock)
            timer._reaper.starts_itself = True
            self._owns_timer = True
        else:
            if not isinstance(timer, SystemTimer):
                raise TypeError(f"timer must be a SystemTimer, got {safe_repr(timer)}")
            if clock is not None or tick_ms != 1 or wheel_size != 20:
                raise ValueError(
                    "timer must not be combined with clock, tick_ms, or wheel_size: a shared timer has its own"
                )
            self._owns_timer = False
        # The core refers to the same timer, but only as a BaseTimer.  The reaper and the binding to a loop belong to
        # the timer; these references save every wait and every callback one access.
        self._timer = timer
        self._reaper = timer._reaper
        self._binding = timer._binding
        contained = (Exception, asyncio.CancelledError)
        hooks = _LoopHooks(self)
        super().__init__(
            name, timer, contained, max_parked, max_parked_per_key, observers, hooks, expiry_jitter, _random
        )

    def _set_up(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done_callbacks = DoneCallbacks(self)
        self._subscriptions: dict[int, Subscription] = {}  # by the id() of each subscription
        self._dropped: deque[Subscription] = deque()  # those whose iterators have been freed
        self._soon = LoopChecks(self)
        self._closing = PurgatoryClosing(self)
        self._locks: weakref.WeakSet[Any] = weakref.WeakSet()  # the locks whose tasks wait here
        self._timer._purgatories.add(self)

    if TYPE_CHECKING:

        def try_complete_else_watch(self, operation: Op, keys: Iterable[Hashable] | Mapping[Any, float]) -> bool: ...

        def check_and_complete(self, key: Hashable, value: float | None = None, *, limit: int | None = None) -> int: ...

        def check(self, key: Hashable, value: float | None = None, *, limit: int | None = None) -> int: ...

        def cancel_for_key(self, key: Hashable, *, reason: object = None) -> list[Op]: ...

        def fail_for_key(self, key: Hashable, error: Exception | Callable[[], Exception]) -> int: ...

        def hot_keys(self, n: int = 10) -> list[tuple[Hashable, int]]: ...

    @property
    def timer(self) -> SystemTimer:
        """The timer that holds the deadlines of this purgatory."""
        return self._timer

    # Life

    async def __aenter__(self) -> Self:
        self._start_reaper()
        self._loop = self._binding.bind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, *, grace: float = 0.0) -> None:
        """Close the purgatory: refuse new operations and answer every waiter.

        ``grace``: the number of seconds for which the waiting operations may still end as usual.

        After ``grace`` seconds, the checks that have been requested by then (:meth:`check_soon`) run, and all
        remaining operations expire immediately, in slices.  When this method returns, no operation is waiting, and the
        reaper of the purgatory's own timer has ended.  The method is idempotent: a second call waits for the first.  If
        the closing task is cancelled, all operations are answered before the cancellation propagates.
        """
        await self._closing.close(duration_ms(grace, "grace"))

    # Waiting

    @overload
    async def park(self, operation: DelayedOperation[T], keys: Iterable[Hashable] | Mapping[Any, float]) -> T: ...

    @overload
    async def park(self, operation: DelayedOperation[T], *, key: Hashable) -> T: ...

    async def park(
        self,
        operation: DelayedOperation[T],
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        *,
        key: Hashable = MISSING,
    ) -> T:
        """Submit the operation and wait for its end; return the result of its ``on_complete``.

        ``operation``: an operation that is not parked and has not ended.

        ``keys``: as in :meth:`try_complete_else_watch`; or ``key``: a single key, any hashable object.

        If the awaiting task is cancelled, the operation is withdrawn immediately; if the operation has ended in the
        same turn of the loop, its result is passed to :meth:`DelayedOperation.on_abandoned`.  Raises the errors of
        :meth:`try_complete_else_watch`, OperationCancelled if other code withdraws the operation, and the operation's
        exception if the operation fails.  Raises TypeError unless exactly one of ``keys`` and ``key`` is given.
        """
        if keys is MISSING or key is not MISSING:
            keys = keys_of_call("park", key, keys)
        # wait_until(), wait_value(), and purgatory.asgi repeat the lines from here to finish(), because each
        # additional coroutine between a task and its future adds a tenth to the cost of a wait.
        waiter = self._core.submit_and_wait(operation, keys)
        if waiter is None:
            return result_of(operation)  # type: ignore[no-any-return]
        try:
            return await waiter  # type: ignore[no-any-return]
        except BaseException as error:
            again = finish(self, operation, waiter, error)
            if again is None:
                # The traceback refers to this frame, and both the waiter and a failed operation refer to the exception.
                del operation, waiter
                raise
            return await again  # type: ignore[no-any-return]

    def _start_reaper(self) -> None:
        """Start the reaper in this loop.  Called on entry, before the first wait, and if the reaper has ended."""
        self._core.validate_open()
        self._timer.start()
        self._end_dropped()

    @overload
    async def wait_until(
        self, predicate: Callable[[], object], *, key: Hashable, timeout: float | None, kind: str | None = None
    ) -> bool: ...

    @overload
    async def wait_until(
        self, predicate: Callable[[], object], *, key: Hashable, deadline: float | None, kind: str | None = None
    ) -> bool: ...

    @overload
    async def wait_until(
        self,
        predicate: Callable[[], object],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        timeout: float | None,
        kind: str | None = None,
    ) -> bool: ...

    @overload
    async def wait_until(
        self,
        predicate: Callable[[], object],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        deadline: float | None,
        kind: str | None = None,
    ) -> bool: ...

    async def wait_until(
        self,
        predicate: Callable[[], object],
        *,
        key: Hashable = MISSING,
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
        kind: str | None = None,
    ) -> bool:
        """Wait until ``predicate()`` is true.  The predicate is called now and whenever one of the keys is checked.

        ``predicate``: a function without parameters; only the truth value of its result matters.

        Return True as soon as the predicate is true; return False when the time is up or the purgatory closes.
        ``key``: the key to wait on, any hashable object; or ``keys``: several keys, or a mapping ``key -> threshold``,
        as in :meth:`try_complete_else_watch`.  ``timeout``: seconds; or ``deadline``: a time in seconds on the timer's
        clock (:meth:`SystemTimer.time`).  None: no deadline.  ``kind``: what events, dumps, metrics, and journals show
        as the kind of this wait.  Use only a few different names, never a key or an ID.  Default: ``wait_until``.

        With a timeout of 0 or a deadline that has passed, the predicate is called once, and the method does not wait.
        Such a call is not counted, and neither a limit nor a closed purgatory refuses it.

        Raises TypeError unless exactly one of ``key`` and ``keys`` and exactly one of ``timeout`` and ``deadline`` are
        given.  Also raises TypeError if the predicate is a coroutine function or returns a coroutine, because the
        predicate is called, not awaited.  For the other errors, see :meth:`park`.
        """
        wait = until_wait(self._timer, predicate, timeout, deadline, kind)
        if keys is MISSING or key is not MISSING:
            keys = keys_of_call("wait_until", key, keys)
        if wait.delay_ms == 0:
            return self._core.try_without_parking(wait, keys)  # type: ignore[no-any-return]
        if type(self).park is not Purgatory.park:  # an override
            try:
                return await self.park(wait, keys)
            finally:
                del wait  # as in park()
        waiter = self._core.submit_and_wait(wait, keys)
        if waiter is None:
            return wait.result()  # type: ignore[no-any-return]
        try:
            return await waiter  # type: ignore[no-any-return]
        except BaseException as error:
            again = finish(self, wait, waiter, error)
            if again is None:
                del wait, waiter
                raise
            return await again  # type: ignore[no-any-return]

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable,
        timeout: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[Any], object] | None = None,
    ) -> T | None: ...

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable,
        deadline: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[Any], object] | None = None,
    ) -> T | None: ...

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        timeout: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[Any], object] | None = None,
    ) -> T | None: ...

    @overload
    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        keys: Iterable[Hashable] | Mapping[Any, float],
        deadline: float | None,
        kind: str | None = None,
        on_abandoned: Callable[[Any], object] | None = None,
    ) -> T | None: ...

    async def wait_value(
        self,
        get: Callable[[], T | None],
        *,
        key: Hashable = MISSING,
        keys: Iterable[Hashable] | Mapping[Any, float] = MISSING,
        timeout: float | None = MISSING,
        deadline: float | None = MISSING,
        kind: str | None = None,
        on_abandoned: Callable[[Any], object] | None = None,
    ) -> T | None:
        """Wait until ``get()`` returns a value; return the value.  ``get`` is called now and whenever one of the keys
        is checked.

        ``get``: a function without parameters that returns the value, or None while there is no value.

        The first value that is not None ends the wait; 0 and ``""`` are values.  After that, ``get`` is not called
        again.  At the deadline, or when the purgatory closes, ``get`` is not called, and the result is None.  ``get``
        may therefore remove the value from a container::

            item = await room.wait_value(lambda: queue.popleft() if queue else None, key="queue", timeout=30,
                                         on_abandoned=queue.appendleft)

        ``on_abandoned``: called with the value if the task is cancelled after ``get`` has returned the value but before
        the task receives it.  It is called in the same way as :meth:`DelayedOperation.on_abandoned`.

        The other parameters and the errors are the same as for :meth:`wait_until`; the default of ``kind`` is
        ``wait_value``.  With a timeout of 0 or a deadline that has passed, ``get`` is called once, and the method does
        not wait.
        """
        wait = value_wait(self._timer, get, timeout, deadline, kind, on_abandoned)
        if keys is MISSING or key is not MISSING:
            keys = keys_of_call("wait_value", key, keys)
        if wait.delay_ms == 0:
            return self._core.try_without_parking(wait, keys)  # type: ignore[no-any-return]
        if type(self).park is not Purgatory.park:  # an override
            try:
                return await self.park(wait, keys)
            finally:
                del wait  # as in park()
        waiter = self._core.submit_and_wait(wait, keys)
        if waiter is None:
            return wait.result()  # type: ignore[no-any-return]
        try:
            return await waiter  # type: ignore[no-any-return]
        except BaseException as error:
            again = finish(self, wait, waiter, error)
            if again is None:
                del wait, waiter
                raise
            return await again  # type: ignore[no-any-return]

    def when_all(
        self, futures: Iterable[AnyFuture[T]], timeout: float | None, callback: WhenAll[T] | None = None
    ) -> DelayedFuture[T]:
        """Park an operation that completes when all the futures are done; await it, pass a ``callback``, or do both.

        ``futures``: the futures or tasks to wait for.  ``timeout``: seconds, or None for no deadline.  ``callback``:
        called with the operation's result, which is the list of the futures' outcomes.

        The operation is submitted immediately.  Raises the errors of :meth:`try_complete_else_watch`.  On expiry, the
        pending futures fail with TimeoutError, and pending tasks are cancelled.  For a call in an executor, pass a task
        that awaits the call.  See :class:`purgatory.DelayedFuture`.
        """
        self._core.validate_thread()
        operation = DelayedFuture(futures, timeout, callback)
        self._bind()  # this may raise, so it comes before anything is parked
        wait_for_all(self, self._done_callbacks, operation)
        if operation.scheduled:
            self._timer.start()
        return operation

    # Subscribing to checks

    @overload
    def changes(self, keys: Iterable[K], *, heartbeat: None = None) -> Changes[K]: ...

    @overload
    def changes(self, keys: Iterable[K], *, heartbeat: float) -> Changes[K | None]: ...

    def changes(self, keys: Iterable[Any], *, heartbeat: float | None = None) -> Changes[Any]:
        """Subscribe to the checks of the keys; return an async iterator over the checked keys.

        ``keys``: the keys to subscribe to.  ``heartbeat``: the number of seconds without a check after which the
        iterator returns None.

        ::

            async for key in room.changes(["orders"], heartbeat=15):
                ...                                     # None: 15 s have passed without a check

        The subscription begins before this method returns, and it ends when the purgatory closes.  It receives every
        kind of check, even if no other operation waits on the key.  If a key is checked several times before the
        iterator returns it, the checks count as one, so the buffer holds at most one entry for each key.  A check means
        that the state of the key may have changed, so read the state after the check.

        Each key counts as one parked operation until the iteration ends.  Raises PurgatoryFull and PurgatoryClosed;
        ValueError if there are no keys or the heartbeat is not a positive number of seconds; TypeError for a bare str,
        an unhashable key, or a mapping; RuntimeError if no loop is running.  See :class:`purgatory.types.Changes`.
        """
        return Changes(self, keys, heartbeat)

    def _bind(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop, to which the timer now belongs."""
        loop = self._binding.bind()
        self._end_dropped()
        return loop

    def _drop(self, subscription: Subscription) -> None:
        """End the subscription in a later turn.  A finalizer may call this method from any thread and between any two
        statements.

        The subscription is recorded before the loop is read.  If that loop is closed, :meth:`_loop_changed` therefore
        finds the subscription when the timer moves to the next loop.  If there is no loop, this process was forked, and
        the subscription belongs to the parent.
        """
        self._dropped.append(subscription)
        loop = self._timer._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._end_dropped, context=Context())

    def _end_dropped(self) -> None:
        """End the subscriptions whose iterators have been freed.

        In a loop to which the timer no longer belongs, do nothing: :meth:`_loop_changed` has scheduled this method in
        the new loop.
        """
        while self._dropped and self._timer._loop is asyncio._get_running_loop():
            Context().run(self._dropped.popleft().end)

    # Ending all operations on a key, in slices

    async def acancel_for_key(self, key: Hashable, *, reason: object = None) -> list[Op]:
        """Do the same as :meth:`cancel_for_key`, in slices of the timer's ``turn_budget_ms``.

        Withdraw every operation that currently waits on the key, and return the operations that this call withdrew, in
        the order of arrival.  An operation that is parked on the key after the call has begun is not withdrawn, and an
        operation that ends between two slices keeps its outcome.  If the calling task is cancelled, the remaining
        operations continue to wait.  ``reason``: any object, passed to the awaiters and observers of the operations.
        Raises TypeError for an unhashable key.
        """
        return await self._end_for_key(key, lambda operation: end(operation, CANCELLED, reason))

    async def afail_for_key(self, key: Hashable, error: Exception | Callable[[], Exception]) -> int:
        """Do the same as :meth:`fail_for_key`, in slices; return how many operations failed."""
        error = validated_error(error)
        return len(await self._end_for_key(key, lambda operation: fail_externally(operation, error)))

    async def _end_for_key(self, key: Hashable, ending: Callable[[Operation], bool]) -> list[Any]:
        self._core.validate_thread()
        ended: list[Any] = []
        cursor = self._core.cursor(key, None)
        if cursor is None:
            return ended
        slices = TurnBudget(self._timer.clock, self._timer.turn_budget_ms)
        while True:
            self._core.ensure_stack()
            for _ in range(slices.portion()):
                operation = cursor.next()
                if operation is None:
                    return ended
                if ending(operation):
                    ended.append(operation)
            if slices.over():
                await slices.next_turn()

    # Checking, later

    def check_soon(self, key: Hashable, value: float | None = None) -> None:
        """Check the key once at the end of this turn of the loop, no matter how many times this method is called before
        then.

        The check uses the largest ``value`` of these calls.  If one of the calls has no value, the check has none and
        tries every watcher of the key, whatever its threshold.

        The checks of a turn run in slices of the timer's ``turn_budget_ms`` and alternate between the keys, so neither
        many keys nor many watchers delay the loop.  If the method is called again for a key during its check, the key
        is checked once more.  Raises RuntimeError if no loop is running, TypeError for an unhashable key or a value
        that is not a number, and ValueError for NaN.
        """
        self._core.validate_thread()
        validate_checked_key(key)
        hash(key)
        if value is not None:
            value = validated_value(value)
        self._soon.schedule()
        self._soon.add(key, value)

    def check_all(self) -> None:
        """Call :meth:`check_soon` for every key that is currently watched.

        The keys are also collected in slices, so even a million keys do not delay the loop.  Raises RuntimeError if no
        loop is running.
        """
        self._core.validate_thread()
        self._soon.schedule()
        self._soon.add_all()

    def check_threadsafe(self, key: Hashable, value: float | None = None) -> None:
        """Do the same as :meth:`check_soon`, from any thread; all calls before the next turn of the loop share one
        wake-up.

        Raises RuntimeError if the loop is closed, or if the purgatory has not been entered and therefore belongs to no
        loop; raises TypeError and ValueError as :meth:`check_soon` does.
        """
        validate_checked_key(key)
        hash(key)
        if value is not None:
            value = validated_value(value)
        self._soon.add_from_thread(key, value)

    def _loop_changed(self, loop: asyncio.AbstractEventLoop) -> None:
        """After the timer has moved to this event loop, schedule the work that the previous loop did not do."""
        if self._dropped:
            loop.call_soon(self._end_dropped, context=Context())
        self._soon.move_to(loop)

    def _after_fork(self) -> None:
        """In a child process, detach the purgatory from its loop, as if it had never been entered."""
        self._loop = None
        self._soon.after_fork()

    def _forget_holders(self) -> None:
        """In a child process, free the locks and semaphores, whose holders are tasks of the parent."""
        for locks in list(self._locks):
            locks._after_fork()

    # Introspection

    def dump(self, limit: int | None = 1000) -> Dump:
        """List the parked operations with their keys, ages, and deadlines, as a dict whose ``str()`` is a table.

        The operation that has waited the longest comes first.  If more than ``limit`` operations wait, the list
        contains the ``limit`` operations that have waited the longest.  The cost does not depend on how many other
        operations there are.  As a trade-off, the selection is not exact if some keys have been watched for longer than
        their oldest operation has waited.  If ``limit`` is None, all operations are listed.
        """
        return dump(self._core, limit)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        gauges = f"parked={len(self)} watched={self.watched} num_delayed={self.num_delayed}"
        return f"<Purgatory {self.name!r} {state} {gauges}>"


def finish(
    purgatory: Purgatory[Any], operation: DelayedOperation[Any], waiter: "asyncio.Future[Any]", error: BaseException
) -> Coroutine[Any, Any, Any] | None:
    """Clean up after awaiting the future of :meth:`PurgatoryCore.submit_and_wait` has raised, because the task was
    cancelled or the operation failed.

    Return None if the caller must re-raise.  If the future belongs to another event loop, which has stopped, nothing
    has changed.  In that case, return a coroutine that waits again, for the caller to await instead.
    """
    if isinstance(error, RuntimeError) and waiter.get_loop() is not asyncio.get_running_loop():
        return _wait_in_this_loop(purgatory, operation, waiter)
    purgatory._core.task_left(operation, waiter)
    return None


async def _wait_in_this_loop(
    purgatory: Purgatory[Any], operation: DelayedOperation[Any], foreign: "asyncio.Future[Any]"
) -> Any:
    """Wait again, in this event loop, because the timer was still bound to another loop, which has stopped."""
    waiter = foreign
    try:
        loop = purgatory._binding.bind()
        waiter = loop.create_future()
        if operation._park_future is not foreign:
            return result_of(operation)  # it has ended in the meantime
        operation._park_future = waiter
        return await waiter
    except BaseException:
        purgatory._core.task_left(operation, waiter)
        del operation, waiter, foreign  # as in park()
        raise
