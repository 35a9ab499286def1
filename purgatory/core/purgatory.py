"""The purgatory without an event loop: submit, watch, check, and release.

:class:`BasePurgatory` has the public methods, and users subclass it; :class:`PurgatoryCore` does the work.

One try is enough
=================

Kafka tries an operation, puts it on its watch lists, and tries it **again**, because another thread may have made the
condition true after the first try and found no watcher.  Here, both steps happen on one event loop with no await in
between:

1.  ``try_complete()`` returns False.
2.  The operation is linked into the watcher lists.
3.  Only now can other code run, and any check from then on finds the operation.

A check that ``try_complete()`` itself requests is queued (see below), and the queue runs after step 2.  No wake-up is
therefore lost, and the condition, which may be costly, is evaluated only once.

Checks within checks
====================

If a call to ``check_and_complete`` in a callback tried the next operation immediately, and that operation's callback
did the same, a chain of 100,000 operations would need as many stack frames.  Therefore, while user code runs on behalf
of the purgatory, a check is only queued.  The outermost call runs the queue in order before it returns, and its count
includes the operations that the queued checks complete.

Keys that run user code
=======================

Hashing or comparing a key can run user code, which may end operations of this purgatory.  While a watcher list is being
changed (``WatcherLists.asking``), the removal of watches is therefore deferred, and a key is not allowed to submit an
operation.  If a key raises when its operation ends, the operation still ends; the error is reported after the awaiters
have their answers.

What user code may do
=====================

User code runs in ``try_complete``, in the callbacks, in observers, in the hash and the equality of keys, and in the
clock.  It may park, end, or check operations of this purgatory, close the purgatory, or raise.  Therefore:

1.  When user code is called, no change is half finished.  If a half-finished change cannot be avoided, a flag marks
    it (``asking``, ``queued.busy``), and work that must wait is deferred until the flag is cleared.
2.  After the call, the state is read again: the operation may have ended, and the purgatory may have closed.
3.  An exception in ``contained`` makes one operation fail and affects nothing else.  Any other exception, such as
    KeyboardInterrupt, reaches the caller of the outermost method; while it propagates, the invariants below are
    restored.

What holds between two calls
============================

1.  The parked operations, and no others, are on their keys; those with a deadline, and no others, are on the timer.
2.  The gauges ``parked``, ``watched``, and ``delayed`` are exact, and the totals balance.
3.  ``depth`` is 0, no check is queued, no key is being hashed or compared, and no removal is deferred.
4.  The watchers of a key are in the order of ``_op_id``, which is the order of arrival.

:meth:`PurgatoryCore._check` asserts all of them; the tests call it after every step.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import nlargest
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from purgatory.errors import PurgatoryClosed, PurgatoryError, PurgatoryFull
from purgatory.events import Event, Statistics
from purgatory.texts import safe_repr, type_name, uncopyable

from .hooks import Hooks
from .operation.lifecycle import (
    CANCELLED,
    COMPLETED,
    DEEP,
    EXPIRED,
    EXPIRED_BY_CLOSING,
    FAILED,
    FRAMES,
    PENDING,
    end,
    fail_externally,
    fail_tried,
    has_result,
    is_new,
    is_parked,
    is_true,
    not_new,
    result_of,
    validated_error,
)
from .operation.operation import FOREVER_MS, Operation, set_deadline, withdraw
from .operation.private_key import shown_key
from .operation.stack_guard import ensure_stack
from .queued_checks import QueuedChecks
from .stats.counters import Counters
from .stats.observers import ObserverNotifier
from .timer.base_timer import BaseTimer, ceil_now, now_both_ways
from .timer.coroutines import is_coroutine, refusal, refuse_coroutine_function
from .timer.task import NOT_QUEUED, unlink
from .timer.thread_guard import ThreadGuard
from .timer.timer_core import TimerCore
from .timer.units import validated_fraction
from .watch.cursor import ReachedCursor, WatchCursor
from .watch.thresholds import ThresholdWatch, validated_value
from .watch.validation import UNLIMITED, validate_checked_key, validate_keys, validated_limit, validated_thresholds
from .watch.watch import Watch, WatchList
from .watch.watcher_lists import WatcherLists, as_watch

__all__ = ["BasePurgatory", "PurgatoryCore", "no_operation"]

# A check with a limit first looks up thresholds in the heap (at most this number plus the limit) and then walks the
# watchers in the order of arrival.
_HEAP_LOOKUPS: Final = 64
_SLICE: Final = 1024  # the number of lookups for a check in slices


def no_operation(given: Any) -> TypeError:
    """Return the error for an object that is not an operation."""
    hint = "; for a function use wait_until() or wait_value()" if callable(given) else ""
    return TypeError(f"operation must be a DelayedOperation, got {safe_repr(given)}{hint}")


class PurgatoryCore:
    """Operations on keys and on a timer: the part of a purgatory that never awaits.

    Users subclass :class:`BasePurgatory`, which wraps this class.  This class has no subclasses, so the compiled core
    calls its methods directly.

    ``contained``: the exceptions that count as a failure of the operation; all others propagate.  ``jitter_source``:
    a function that returns random numbers from 0 to 1, because the core has no source of randomness.  The other
    parameters are the same as those of :class:`purgatory.Purgatory`.

    ``depth``: the number of operations that are being ended or submitted, each in a callback of the previous one; a
    function that makes the exception for an operation counts, too.
    ``queued``: the checks that callbacks request; see :mod:`.queued_checks`.

    Every public call that may change something validates the thread first, before it reads anything that another thread
    could be changing.  No method takes a lock: the guarantees hold because only one thread is used and nothing is
    awaited.
    """

    __slots__ = (
        "_contained",
        "_guard",
        "_hooks",
        "_jitter",
        "_jitter_source",
        "_key_errors",
        "_last_id",
        "_limited",
        "_listeners",
        "_max_parked",
        "_max_parked_per_key",
        "_notifier",
        "_timer_core",
        "_trying",
        "_when_ended",
        "closed",
        "counters",
        "depth",
        "name",
        "queued",
        "timer",
        "watcher_lists",
    )

    def __init__(
        self,
        hooks: Hooks,
        name: str,
        timer: BaseTimer,
        contained: tuple[type[BaseException], ...],
        max_parked: Any,
        max_parked_per_key: Any,
        observers: Any,
        expiry_jitter: Any,
        jitter_source: Any,
    ) -> None:
        self.name: str = name
        self.timer: BaseTimer = timer
        self.counters: Counters = Counters()
        self.watcher_lists: WatcherLists = WatcherLists()
        self.closed: bool = False
        self.queued: QueuedChecks = QueuedChecks()
        self.depth: i64 = 0
        self._hooks: Hooks = hooks
        # Two parts of the timer, which every submission reads: these references save it one access each.
        self._timer_core: TimerCore = timer._core
        self._guard: ThreadGuard = timer._guard
        self._contained = contained
        # The number of the latest arrival.  The watchers of a key are in the order of these numbers, and a check leaves
        # out operations whose number is higher than the latest number at the start of the check.
        self._last_id: i64 = 0
        self._trying: Operation | None = None  # the operation that a check is trying
        # Operations that every check of their key must try, even a check that has already reached its limit:
        # key -> ID -> operation.
        self._listeners: dict[Hashable, dict[int, Operation]] = {}
        self._key_errors: list[tuple[BaseException, Operation]] = []  # from keys that raised when their operation ended
        self._when_ended: dict[int, Callable[[], object]] = {}
        self._max_parked: i64 = validated_limit("max_parked", max_parked)
        self._max_parked_per_key: i64 = validated_limit("max_parked_per_key", max_parked_per_key)
        self._limited: bool = max_parked is not None or max_parked_per_key is not None  # otherwise, nothing is compared
        self._jitter: float = validated_fraction(expiry_jitter, "expiry_jitter")
        self._jitter_source: Any = jitter_source if self._jitter else None  # None: deadlines are not changed
        self._notifier: ObserverNotifier = ObserverNotifier(name, observers, contained, self._observer_detached)

    # Submit: try once, otherwise watch

    def submit(self, operation: Operation, keys: Any) -> bool:
        """See :meth:`BasePurgatory.try_complete_else_watch`.

        If one of steps 1 to 3 raises, it leaves no trace.  If an exception is raised between step 4 and the end of step
        6, the operation is removed again and counts as new, unless it has an outcome.  From step 7 on, the operation is
        parked: if that step raises, the operation ends CANCELLED, because no task will await it.  The state is read
        again after each call to user code, because user code may have ended the operation.
        """
        # 1. Check whether this call is allowed here and now.
        self._guard.validate()
        if self.closed or self.timer.closed:
            self.validate_open()
        lists = self.watcher_lists
        if lists.asking:
            raise PurgatoryError("a key must not submit an operation while it is hashed or compared")
        # 2. The keys: a single key, ``only``, is by far the most frequent case.  Hashing the keys may run user code,
        # which could change the length of a list.  A list is therefore copied first.
        many: tuple[Hashable, ...] = ()
        plain = False
        only: Hashable = None
        alone = False
        hashed: i64 = 0
        thresholds: dict[Hashable, Any] | None = None
        # isinstance() with the abstract Mapping or Iterable takes longer than everything else.
        if isinstance(keys, tuple):
            many = keys
        elif isinstance(keys, list):
            if len(keys) == 1:
                only = keys[0]
                alone = True
            else:
                many = tuple(keys)
        else:
            thresholds = validated_thresholds(keys)
            many = tuple(keys if thresholds is None else thresholds)
        if len(many) == 1:
            only = many[0]
            alone = True
        if alone:
            hashed = hash(only)
        else:
            plain = validate_keys(many)
        # 3. The stack, the clock, and the operation: the last steps that may fail before anything has changed.  The
        # operation is validated last, because hashing a key or reading the clock could have parked or ended it.
        if self.depth >= DEEP:
            ensure_stack(FRAMES)
        parked_ms: i64 = ceil_now(self.timer)
        if not is_new(operation):
            raise not_new(operation)
        # 4. The operation enters the purgatory.  From here on, an ending finds this purgatory, and any check that its
        # callbacks request is queued.  The operation is not parked yet: a check does not find it, and if it ends, it
        # need not be removed from any key or from the timer.  If it is on a timer as a task, it stays there until step
        # 7, because its awaiters rely on that deadline if the operation is refused.
        if operation._expiration_ms != NOT_QUEUED:
            _enter_with_deadline(operation)
        counters = self.counters
        counters.submitted += 1
        self._last_id += 1
        operation._op_id = self._last_id
        operation._core = self
        operation._parked_ms = parked_ms
        queued = self.queued
        outermost = queued.busy <= 0
        queued.busy = 1
        self.depth += 1
        try:
            # 5. The single try.  Between the return of try_complete() and the end of step 6, there is no await, and
            # only the keys can run user code.
            self._first_try(operation)
            if operation._op_state == PENDING:
                # 6. Put the operation on its keys; if that fails, remove it as if nothing had happened.  The limits are
                # compared only here, because an operation that completes at once needs no place.
                jitter = 0.0
                try:
                    if self.closed or self.timer.closed:
                        self.validate_open()  # the operation's own try_complete() has closed the purgatory
                    if self._limited:
                        self.admit(many or (only,), 1)
                    if self._jitter_source is not None:
                        jitter = self._draw_jitter(operation)
                    if operation._op_id != self._last_id:
                        # The operation's try_complete() has parked other operations, which therefore arrived first.
                        self._last_id += 1
                        operation._op_id = self._last_id
                    if thresholds is not None:
                        self._watch_thresholds(operation, thresholds)
                    elif alone:
                        lists.add_operation(hashed, only, operation)
                        counters.watched += 1
                    else:
                        self._watch_keys(operation, many, plain)
                except BaseException:
                    self._rollback(operation)
                    raise
                # 7. Put the operation on the timer, and notify the observers.  These steps come last because the
                # observers and the reaper, which the timer may start, must find the operation fully parked.
                if operation._op_state == PENDING:
                    self._parked(operation, jitter)
                else:  # a key, or a finalizer, ended the operation, which was not yet marked as being on its keys
                    self._unwatch(operation)
                    if operation._op_state == COMPLETED:
                        counters.immediate += 1
                if lists.deferred:  # last, because a key that is hashed may end the operation, which is counted by now
                    self._unlink_deferred()
            elif operation._op_state == COMPLETED:
                counters.immediate += 1
        finally:
            # 8. Handle what user code has requested or done in the meantime, even after an exception, because the
            # checks concern other operations.  A nested call leaves this work to the outermost call.
            self.depth -= 1
            if outermost:
                if queued.any:
                    self.run_queued_checks()
                else:
                    queued.busy = queued.rest
            if self._key_errors:
                self.report_keys()
        return operation._op_state == COMPLETED

    def submit_and_wait(self, operation: Any, keys: Any) -> Any:
        """Submit the operation for a task that awaits it; return the future to await, or None if the operation has
        ended.  If the await raises, call :meth:`task_left`.

        If the call raises, the task has no operation to await, so the operation is withdrawn here, or its result is
        given back.
        """
        reaper_task: Any = self.timer._reaper_task
        if reaper_task is None or reaper_task.done():
            self._hooks.start_reaper()
        if not isinstance(operation, Operation):
            raise no_operation(operation)
        try:
            fresh = operation._core is None and operation._op_state == PENDING  # otherwise, it belongs to another call
        except AttributeError:
            fresh = False  # its class did not call super().__init__(), so submit() raises
        try:
            self.submit(operation, keys)
        except BaseException:
            if fresh and is_parked(operation):
                end(operation, CANCELLED, None)  # a queued check was interrupted after the operation was parked
            elif fresh and has_result(operation):
                self.give_back(operation, operation._value)  # it has completed, but its task receives the exception
            raise
        if operation._op_state != PENDING:
            return None
        # The future is created only now, because an operation that completes at once needs none.  While it is created,
        # the garbage collector may run a finalizer that ends the operation.
        try:
            future = self.timer._loop.create_future()
        except BaseException:
            if not end(operation, CANCELLED, None) and has_result(operation):
                self.give_back(operation, operation._value)
            raise
        if operation._op_state != PENDING:
            return None
        operation._park_future = future
        return future

    def try_without_parking(self, operation: Operation, keys: Any, refuse: Any = None) -> Any:
        """Try the operation once; if its condition does not hold, let it expire, as with a timeout of zero.  Return its
        result.

        The operation is not counted, no observer is notified, and neither a limit nor a closed purgatory refuses it.
        In all other cases, the method raises as :meth:`submit` does.

        ``refuse``: called instead of expiring the operation; it must raise, and the operation still counts as new.

        The operation never enters the purgatory: ``_core`` stays None, so no key, timer, or gauge needs to be updated
        when it ends, and no check can find it.
        """
        self._guard.validate()
        thresholds = validated_thresholds(keys) if not isinstance(keys, (tuple, list)) else None
        validate_keys(tuple(keys if thresholds is None else thresholds))
        if not is_new(operation):
            raise not_new(operation)
        # 1. The single try.  An error makes the operation fail and reaches the caller; after an interrupt, the
        # operation still counts as new.
        try:
            holds: Any = operation.try_complete()
            if holds is True or (holds is not False and is_true(holds, operation)):
                end(operation, COMPLETED, None, False)
        except BaseException as error:
            if operation._op_state == PENDING and self.contains(error):
                end(operation, FAILED, error)
                operation._delivered()
            raise
        if refuse is not None and operation._op_state == PENDING:
            refuse()
        # 2. The expiration, which does nothing if the try has already ended the operation in any way.
        try:
            end(operation, EXPIRED, None, False)
        except BaseException as error:
            if operation._op_state != EXPIRED or not self.contains(error):
                raise
            self._hooks.report(error, operation)  # on_expiration() raised, and the outcome stands
        return result_of(operation)

    def task_left(self, operation: Operation, waiter: Any) -> None:
        """Withdraw the operation of a task that no longer waits, or pass the operation's result to ``on_abandoned``.

        ``waiter``: the future that the task awaited.
        """
        if operation._op_state != PENDING and has_result(operation):
            self._give_back_result(operation, waiter)
            return
        operation._park_future = None
        if operation._op_state == PENDING:
            try:
                withdraw(operation)
            except BaseException as error:
                # The task must receive its own exception, not one raised by an overridden cancel().
                if operation._op_state == PENDING or not self.contains(error):
                    raise
                self._hooks.report(error, operation)
            if has_result(operation):  # the override has completed it
                self.give_back(operation, operation._value)
        operation._delivered()

    def _give_back_result(self, operation: Operation, waiter: Any) -> None:
        """Call ``on_abandoned`` because the task was cancelled before it received the operation's result."""
        if operation._core is None:
            if operation._park_future is None:  # otherwise, the ending has called it: see _settle()
                self.give_back(operation, operation._value)
        elif not waiter.done() or waiter.cancelled():
            # The operation's on_complete() is running and has closed the coroutine that waits here, so there is no
            # result yet.
            self.call_when_ended(operation, lambda: self._give_back_late(operation, waiter))

    def _give_back_late(self, operation: Operation, waiter: Any) -> None:
        if has_result(operation):
            self._give_back_result(operation, waiter)

    def give_back(self, operation: Operation, value: Any) -> None:
        """Call ``on_abandoned(value)``, because no task receives this value; report any exception from the call."""
        hooked: Any = operation  # an override may return anything
        try:
            returned: Any = hooked.on_abandoned(value)
            if is_coroutine(returned):
                raise refusal(returned, f"{type_name(operation)}.on_abandoned() must return None")
        except BaseException as error:
            if not self.contains(error):
                raise
            self._hooks.report(error, operation)

    def validate_thread(self) -> None:
        """Raise RuntimeError if called from a thread other than the event loop's while that loop runs.

        Every public call that changes something calls this method first.
        """
        self._guard.validate()

    def validate_open(self) -> None:
        """Raise PurgatoryClosed if new operations are not accepted."""
        if self.closed:
            raise PurgatoryClosed(f"purgatory {self.name!r} is closed")
        if self.timer.closed:
            raise PurgatoryClosed(f"the timer of purgatory {self.name!r} is closed")

    def _first_try(self, operation: Operation) -> None:
        """Try an operation that is entering; complete it if its condition holds.

        Any exception reaches the caller.  If the condition raises an exception, the operation also fails; an interrupt
        instead removes the operation from the purgatory and leaves it as if it had never been submitted.  When
        ``on_complete`` raises, the outcome has already been set.
        """
        try:
            holds: Any = operation.try_complete()
            if holds is True or (holds is not False and is_true(holds, operation)):
                end(operation, COMPLETED, None, False)
        except BaseException as error:
            if operation._op_state == PENDING:
                if self.contains(error):
                    end(operation, FAILED, error)
                    operation._delivered()
                else:
                    self._rollback(operation)
            raise

    def admit(self, keys: Iterable[Hashable], number: i64) -> None:
        """Raise PurgatoryFull, and count one refusal, if a limit leaves no place for ``number`` more operations.

        Together, the operations need one place on each of the keys; the error names the first key that has no place
        left.  A refused operation is not counted as submitted, because the caller removes it again.
        """
        counters = self.counters
        # These operations are not counted as parked yet.
        if counters.parked + number > self._max_parked:
            counters.refused += 1
            raise PurgatoryFull(
                f"purgatory {self.name!r} is full: max_parked={self._max_parked} operations are parked",
                limit=self._max_parked,
            )
        if self._max_parked_per_key == UNLIMITED:
            return
        for key in keys:
            if self.watcher_lists.count(key) >= self._max_parked_per_key:
                counters.refused += 1
                counters.refused_by_key += 1
                raise PurgatoryFull(
                    f"key {safe_repr(key)} of purgatory {self.name!r} is full:"
                    f" max_parked_per_key={self._max_parked_per_key} operations are parked on it",
                    limit=self._max_parked_per_key,
                    key=shown_key(key),
                )

    # Watch.  A key may run user code, which may end the operation while only some of its keys have their watches.  The
    # operation therefore gets its watches only when all of them exist or when a key has raised.  Until then, it is not
    # parked, and its end does not remove it from any key; submit() does so afterward.

    def _watch_keys(self, operation: Operation, keys: tuple[Hashable, ...], plain: bool) -> None:
        """Put the operation on its keys.  ``plain``: whether all the keys are plain.

        If a key occurs twice, it gets only one watch: :meth:`WatcherLists.add` finds the first watch at the end of the
        list.  The watches are linked in reverse, from the last key to the first, because this order needs only one
        field and no second pass.
        """
        lists = self.watcher_lists
        last: Watch | None = None
        try:
            for key in keys:
                watch = Watch(key, operation)
                if plain:
                    shard = lists.shard(key)
                    added = lists.add_plain(shard, watch) if shard.plain else lists.add(shard, watch)
                else:
                    lists.asking = True  # hashing the key must not submit another operation, which would arrive first
                    added = lists.add(lists.shard(key), watch)
                    lists.asking = False
                if added:
                    watch.sibling = last
                    last = watch
                    self.counters.watched += 1
        finally:
            operation._watch = last

    def _watch_thresholds(self, operation: Operation, thresholds: dict[Hashable, Any]) -> None:
        """Do the same as :meth:`_watch_keys`, but with a threshold for each key."""
        last: Watch | None = None
        try:
            for key, threshold in thresholds.items():
                watch = ThresholdWatch(key, operation, threshold)
                if self.watcher_lists.add_threshold(watch):
                    watch.sibling = last
                    last = watch
                    self.counters.watched += 1
        finally:
            operation._watch = last

    def _parked(self, operation: Operation, jitter: float) -> None:
        """Put the operation, which is already on its watcher lists, on the timer, and notify the observers.

        ``jitter``: the fraction of the remaining time by which the deadline is brought forward.

        Deadlines count from the time rounded up (``now_ms``), and a deadline has passed only if it is at or before the
        time rounded down (``passed_ms``), so no operation expires early.  A deadline in the past is moved to
        ``passed_ms``: it is then due in the reaper's next turn, not in this call, which therefore never expires the
        operation that it parks.
        """
        counters = self.counters
        counters.parked += 1
        try:
            now_ms = operation._parked_ms
            delay_ms = operation._delay_ms
            expiration_ms = operation._expiration_ms  # absolute, or set by extend() during the first try
            if delay_ms < 0 and expiration_ms != NOT_QUEUED:
                unlink(operation)  # from a timer to which it was added as a task
                delay_ms = operation._delay_ms = max(0, expiration_ms - now_ms)
            if delay_ms >= 0:
                counters.delayed += 1
                # This does the same as now_both_ways(), without the call.
                passed_ms: i64 = now_ms - 1
                if self.timer._read is None:
                    passed_ms = self.timer.clock.now_ms()
                    if operation._op_state != PENDING:  # the clock has ended it
                        return
                if expiration_ms == NOT_QUEUED or operation._list is not None:
                    # Also if the operation is still on a timer as a task: schedule() takes it off that timer.
                    expiration_ms = now_ms + delay_ms if delay_ms > 0 else passed_ms
                elif expiration_ms < passed_ms:
                    expiration_ms = passed_ms
                if jitter:
                    expiration_ms = max(passed_ms, expiration_ms - int(jitter * float(delay_ms)))
                due_ms = self._timer_core.schedule(operation, expiration_ms, passed_ms)
                if due_ms < self.timer._next_wake_ms:
                    self.timer._wake_earlier(due_ms)
            if self._notifier.active:
                if self.watcher_lists.deferred:  # observers must find that these operations have left their keys
                    self._unlink_deferred()
                if operation._op_state == PENDING:
                    self._notifier.parked(operation)
        except BaseException:
            end(operation, CANCELLED, None)  # after this exception, no task will await the operation
            raise

    def _draw_jitter(self, operation: Operation) -> float:
        """Return the random fraction of the remaining time by which the operation's deadline is brought forward."""
        if operation._delay_ms < 0 and operation._expiration_ms == NOT_QUEUED:
            return 0.0
        number: float = self._jitter_source()
        return self._jitter * number

    def _rollback(self, operation: Operation) -> None:
        """Undo the submission of an operation that could not be parked, unless comparing a key has ended it.

        The operation can then be submitted again: its timeout starts over, and an absolute deadline stays
        the same.  If the operation is on a timer as a task, it stays there.  The operation's number is not reused.
        """
        self._unwatch(operation)
        if operation._op_state == PENDING:
            operation._core = None
            if operation._delay_ms >= 0 and operation._list is None:
                operation._expiration_ms = NOT_QUEUED
            self.counters.submitted -= 1

    def _unwatch(self, operation: Operation) -> None:
        """Remove an operation that is not parked from its watcher lists."""
        lists = self.watcher_lists
        lists.asking = False
        if operation._lone_key is not None:
            self.counters.watched -= 1
            lists.remove_operation(operation)
        else:
            self.leave_keys(operation)
        if lists.deferred:  # last, because a key that is hashed may end the operation
            self._unlink_deferred()

    # Check

    def check(self, key: Hashable, value: Any, limit: i64) -> i64:
        """See :meth:`BasePurgatory.check_and_complete`; ``limit`` is UNLIMITED if there is no limit.

        1.  The arguments are validated and the key is hashed even if the check is only queued, so that the caller, not
            the call that runs the queue, gets the error for a bad key.
        2.  If user code of this purgatory is running, the check is queued, and the outermost call counts the operations
            that the check completes.
        3.  Otherwise, this is the outermost call: it checks the key and then runs the checks that have been queued in
            the meantime, even if its own check was interrupted.
        """
        self._guard.validate()
        kind: Any = type(key)
        if kind is list or kind is dict or kind is set:
            validate_checked_key(key)
        if value is not None:
            value = validated_value(value)
        entry = self.watcher_lists.entry(key)
        queued = self.queued
        if queued.busy:
            if queued.busy > 0:  # the entry is looked up again when the check runs, because it may have changed by then
                queued.add(key, value, limit)
                return 0
            queued.note(key, entry is not None)
        if entry is None:
            return 0
        queued.busy = 1
        done: i64 = 0
        try:
            done = self._check_entry(entry, value, limit)
        finally:
            if queued.any:
                done += self.run_queued_checks()
            else:
                queued.busy = queued.rest
        return done

    def run_queued_checks(self) -> i64:
        """Run the checks queued by user code that has returned; return how many operations they completed.

        Only the outermost call that runs user code calls this method.  At that point, no change is half finished.

        ``queued.busy`` stays set while the queue runs, so checks that its operations request are appended, and the loop
        below runs them too.  The stack therefore does not grow.  If an interrupt ends a check, the rest of that check
        and all other queued checks move to the next turn of the event loop.  The interrupt therefore delays them, but
        none is lost while a loop runs.
        """
        done: i64 = 0
        queued = self.queued
        if not queued.waiting:
            queued.busy = queued.rest
            return done
        try:
            while queued.waiting:
                key, value, limit = queued.pop()
                entry = self._entry_of_queued(key)
                if queued.rest:
                    queued.note(key, entry is not None)
                if entry is not None:
                    try:
                        done += self._check_entry(entry, value, limit)
                    except BaseException:
                        queued.resume(key, value, limit)  # the operations after it still need the check
                        raise
        finally:
            queued.busy = queued.rest
            if queued.waiting:
                self._postpone_queued_checks()
        return done

    def _postpone_queued_checks(self) -> None:
        """Move the queued checks to the next turn of the loop, because an interrupt is propagating."""
        while self.queued.waiting:
            key, value, limit = self.queued.pop()
            try:
                self._hooks.check_later(key, value, None if limit == UNLIMITED else limit)
            except Exception as error:
                self._hooks.report_key(error, key)

    def _entry_of_queued(self, key: Hashable) -> Any:
        """Return the entry of a key whose check was queued; if the key raises, report the error and return None."""
        try:
            return self.watcher_lists.entry(key)
        except BaseException as error:
            if not self.contains(error):
                raise
            self._hooks.report_key(error, key)
            return None

    def _check_entry(self, entry: Any, value: Any, limit: i64) -> i64:
        """Try the watchers of a key in the order of arrival; return how many operations were completed.

        Each operation that is parked on the key now is tried exactly once, unless it ends before its turn or has a
        threshold that the value does not reach.  If an operation arrives during the check, it is not tried here: its
        own submission tries it, after the change to which this check refers.
        """
        if limit != UNLIMITED:
            return self._check_limited(as_watch(entry), value, limit)
        if not isinstance(entry, WatchList):
            operation: Operation | None = entry.operation if isinstance(entry, Watch) else entry
            return 1 if operation is not None and self._try(operation) else 0
        done: i64 = 0
        if entry.thresholds is not None:
            cursor = self._cursor_along(entry, value, UNLIMITED)
            while (following := cursor.next()) is not None:
                if self._try(following):
                    done += 1
            return done
        newest = self._last_id  # the same as above without a cursor, for the most frequent case
        watch = entry.after
        while watch is not None and watch is not entry:
            operation = watch.operation
            if operation is not None:  # None if it has ended during this check, and its key raised then
                if operation._op_id > newest:
                    break
                if self._try(operation):
                    done += 1
            watch = watch.after  # a removed watch still leads to the watches after it: see Watch
        return done

    def _check_limited(self, entry: Watch, value: Any, limit: i64) -> i64:
        """Try the watchers in the order of arrival until ``limit`` of them have completed.

        Listeners are tried first and do not count: a check with a limit reports a change to all listeners, whatever it
        completes.  ``queued.left`` is updated even if ``_try`` raises, because an interrupted check continues with the
        rest of its limit and must not complete more than ``limit`` operations in total.
        """
        self.queued.left = limit
        if self._listeners:
            self._try_listeners(entry)
        cursor = self._cursor_along(entry, value, _HEAP_LOOKUPS + limit)
        # The checks that callbacks queue run after this loop, so no other check changes ``left`` in the meantime.
        while self.queued.left > 0:
            operation = cursor.next()
            if operation is None:
                break
            if cursor.skips:  # its threshold is above the value
                continue
            try:
                self._try(operation)
            finally:
                if operation._op_state == COMPLETED:
                    self.queued.left -= 1
        return limit - self.queued.left

    def listen(self, operation: Operation, key: Hashable) -> dict[int, Operation]:
        """Make every check of the key try this operation first, and count it as subscribed; the operation is parked on
        the key and never completes.  Return the key's listeners, for :meth:`unlisten`.

        A check without a limit tries the operation anyway, along with the others.  A check with a limit might stop
        before it reaches the operation.
        """
        listeners = self._listeners.setdefault(key, {})
        listeners[operation._op_id] = operation
        self.counters.subscribed += 1
        return listeners

    def unlisten(self, operation: Operation, key: Hashable, listeners: dict[int, Operation]) -> None:
        """Undo :meth:`listen`, which returned ``listeners``.  If the key raises, it keeps an entry without listeners,
        as in the watcher lists.
        """
        del listeners[operation._op_id]
        self.counters.subscribed -= 1
        if not listeners and self._listeners.get(key) is listeners:
            del self._listeners[key]

    def _try_listeners(self, entry: Watch) -> None:
        """Try the operations on this entry that are registered with :meth:`listen`.

        The entry has been found, so its listeners must not miss the change if the key raises now.  In that case, the
        listeners of all keys are searched.  The listeners are copied because an operation may change them.
        """
        try:
            found = list(self._listeners.get(entry.key, {}).values())
        except BaseException as error:
            if not self.contains(error):
                raise
            found = []
            for listeners in self._listeners.values():
                found += [operation for operation in listeners.values() if _is_on(operation, entry)]
        for operation in found:
            self._try(operation)

    def _try(self, operation: Operation) -> bool:
        """Try the operation unless it has left its keys in the meantime; return whether it has completed.

        If ``try_complete`` raises an error, this operation fails, and the error is reported if no task receives it; an
        error from ``on_complete`` is contained by :func:`end`.  Only an interrupt propagates from this method, and the
        operation then either is still parked or has its outcome.  ``try_complete`` may have ended the operation itself
        in any way, so the return value depends on the state, not on what ``try_complete`` returned.
        """
        if not is_parked(operation):
            return False
        self._trying = operation
        try:
            holds: Any = operation.try_complete()
            if holds is True or (holds is not False and is_true(holds, operation)):
                end(operation, COMPLETED, None)
        except BaseException as error:
            if not self.contains(error):
                raise
            answered = operation._op_state == PENDING and fail_tried(operation, error)
            if not answered:
                self._hooks.report(error, operation)
        finally:
            self._trying = None
        return operation._op_state == COMPLETED

    def is_trying(self, operation: Operation) -> bool:
        """Return whether the operation is being tried by a check, rather than by the call that submits it."""
        return self._trying is operation

    # Checks in slices

    def cursor(self, key: Hashable, value: Any) -> WatchCursor | None:
        """Return a cursor over the operations currently parked on the key, or None if there are none.

        With a value, the cursor skips operations whose threshold is above the value.
        """
        entry = self.watcher_lists.watches(key)
        return None if entry is None else self._cursor_along(entry, value, _SLICE)

    def check_some(self, cursor: WatchCursor, number: int) -> int:
        """Take the next ``number`` steps of a cursor, or fewer at its end; return the number of steps taken.

        Between two calls, anything may happen to the key; the cursor continues where it stopped.  A skipped operation
        counts as a step, so that the duration of a call is bounded.
        """
        self.queued.busy = 1
        try:
            for tried in range(number):
                operation = cursor.next()
                if operation is None:
                    return tried
                if not cursor.skips:
                    self._try(operation)
        finally:
            self.run_queued_checks()
        return number

    def expire_some(self, number: int) -> int:
        """Expire up to ``number`` parked operations, because the purgatory is closing; return how many ended.

        That number includes operations that callbacks end, but not operations that had already ended, so it is
        computed from the gauge.  It is positive unless no operation is parked, so the caller's loop always ends.
        """
        waiting = self.counters.parked
        # A callback may end operations that are still in this list: end() then returns False.
        for operation in self.watcher_lists.some(number):
            end(operation, EXPIRED_BY_CLOSING, None)
        if self.counters.parked == 0:
            self.watcher_lists.end_some()
        return waiting - self.counters.parked

    def _cursor_along(self, entry: Watch, value: Any, most: i64) -> WatchCursor:
        """Return a cursor over the operations that are parked now, except those whose threshold is above the value.

        Without a value, every operation is tried, because the caller does not know whether a threshold has been
        reached.
        """
        if value is not None and isinstance(entry, WatchList) and entry.thresholds is not None:
            return ReachedCursor(entry, self._last_id, value, most)
        return WatchCursor(entry, self._last_id)

    # Called by the lifecycle when an operation ends

    def leave_keys(self, operation: Operation) -> None:
        """Remove an operation that has watches from its keys.

        From the start of this method, the operation is no longer parked, whatever a key does while the watches are
        being removed.
        """
        watch = operation._watch
        operation._watch = None
        while watch is not None:
            self._unlink(watch, operation)
            watch = watch.sibling

    def _unlink(self, watch: Watch, operation: Operation) -> None:
        """Remove the watch.  If the key raises, its operation still ends.

        The error is stored for :meth:`report_keys`, because reporting it may raise, and awaiters must be answered
        first.
        """
        self.counters.watched -= 1
        lists = self.watcher_lists
        if lists.asking:  # a key has ended the operation while that key is being hashed or compared
            lists.deferred.append(watch)
            return
        try:
            lists.remove(watch)
        except BaseException as error:
            lists.bury(watch)
            self._key_errors.append((error, operation))
        if lists.deferred:  # the key ended other operations while it was being hashed or compared
            self._unlink_deferred()

    def _unlink_deferred(self) -> None:
        """Remove the watches that could not be removed while a key was hashed or compared.

        Removing a watch hashes its key again, which may defer more removals, so this is a loop over the list itself,
        not a copy.
        """
        lists = self.watcher_lists
        while lists.deferred:
            watch = lists.deferred.pop(0)
            operation = watch.operation
            assert operation is not None
            try:
                lists.remove(watch)
            except BaseException as error:
                lists.bury(watch)
                self._key_errors.append((error, operation))

    def call_when_ended(self, operation: Operation, callback: Callable[[], object]) -> None:
        """Call ``callback()`` once, when the parked operation has ended in any way and its awaiters have been answered.

        The callback is stored by number, not by operation, so that the entry does not keep the operation alive.
        """
        self._when_ended[operation._op_id] = callback

    def run_when_ended(self, operation: Operation) -> None:
        """Call the callback that :meth:`call_when_ended` has stored for the operation, if any."""
        callback = self._when_ended.pop(operation._op_id, None)
        if callback is not None:
            try:
                callback()
            except Exception as error:
                self._hooks.report(error, operation)

    def report_keys(self) -> None:
        """Report the errors that keys have raised; an interrupt among them propagates.

        The errors after the interrupt stay in the list, and the next call reports them.
        """
        while self._key_errors:
            error, operation = self._key_errors.pop(0)
            if not self.contains(error):
                raise error
            self._hooks.report(error, operation)

    # Called by the lifecycle

    def ensure_stack(self) -> None:
        """Raise RecursionError if endings are nested so deeply that another ending might not finish."""
        if self.depth >= DEEP:
            ensure_stack(FRAMES)

    def contains(self, error: BaseException) -> bool:
        """Return whether the exception is a failure of the operation rather than an interrupt of the program.

        The class alone decides: ``isinstance`` would run the exception's ``__class__`` property, if it has one.
        """
        return issubclass(type(error), self._contained)

    def report(self, error: BaseException, operation: Operation) -> None:
        """Report the error of an operation that failed while no task awaited it."""
        self._hooks.report(error, operation)

    def extend(self, operation: Operation, delay_ms: i64) -> None:
        """Move an operation's deadline to ``delay_ms`` from now; a negative delay removes the deadline.

        During its first try, the operation only stores the deadline, which counts from now, not from when the operation
        is parked.
        """
        self._guard.validate()
        now_ms, passed_ms = now_both_ways(self.timer)
        if operation._op_state != PENDING:  # the clock runs user code, which has ended the operation
            return
        if not is_parked(operation):  # during its first try: it is put on the timer when it is parked
            _set_first_deadline(operation, delay_ms, NOT_QUEUED if delay_ms < 0 else now_ms + delay_ms)
        elif delay_ms < 0:
            self._reschedule(operation, delay_ms, NOT_QUEUED, 0)
        else:
            self._reschedule(operation, delay_ms, now_ms + delay_ms if delay_ms > 0 else passed_ms, passed_ms)

    def extend_to(self, operation: Operation, at_ms: i64) -> None:
        """Move an operation's deadline to ``at_ms`` on the timer's clock, or to now if that time has passed."""
        self._guard.validate()
        if not is_parked(operation):  # during its first try
            _set_first_deadline(operation, FOREVER_MS, at_ms)
            return
        now_ms, passed_ms = now_both_ways(self.timer)
        if operation._op_state == PENDING:  # otherwise, the clock, which runs user code, has ended it
            self._reschedule(operation, max(0, at_ms - now_ms), max(at_ms, passed_ms), passed_ms)

    def _reschedule(self, operation: Operation, delay_ms: i64, expiration_ms: i64, passed_ms: i64) -> None:
        """Give a parked operation a new deadline, or none if ``delay_ms`` is negative.

        A closed timer refuses the deadline before anything has changed.  If requesting an earlier wake-up raises, the
        new deadline stands.
        """
        if delay_ms >= 0 and self.timer.closed:
            raise PurgatoryClosed(f"the timer of purgatory {self.name!r} is closed: no deadline would be kept")
        counters = self.counters
        if operation._delay_ms >= 0:
            counters.delayed -= 1
        operation._delay_ms = delay_ms
        if delay_ms < 0:
            unlink(operation)
            operation._expiration_ms = NOT_QUEUED
            return
        counters.delayed += 1
        due_ms = self._timer_core.reschedule(operation, expiration_ms, passed_ms)
        if due_ms < self.timer._next_wake_ms:
            self.timer._wake_earlier(due_ms)

    # Observers

    def parked_event(self, operation: Operation) -> Event:
        """Return the ``parked`` event of a parked operation."""
        return self._notifier.parked_event(operation)

    def _observer_detached(self, error: BaseException, observer: object) -> None:
        """Count and report an observer that raised; the operation in the event is not affected."""
        self.counters.detached += 1
        self._hooks.report_observer(error, observer)

    def _check(self) -> None:
        """Assert the invariants of the whole purgatory.  Call this method between other calls, not in a callback."""
        counters = self.counters
        assert self.watcher_lists._check() == counters.watched
        parked = self.watcher_lists.all_operations()
        assert len(parked) == counters.parked, f"{len(parked)} operations are parked, the counter has {counters.parked}"
        assert sum([len(operation.keys) for operation in parked]) == counters.watched
        delayed = [operation for operation in parked if operation._delay_ms >= 0]
        assert len(delayed) == counters.delayed, f"{len(delayed)} have a deadline, the counter has {counters.delayed}"
        for operation in parked:
            assert operation._op_state == PENDING, f"{operation!r} has ended and is still parked"
            assert operation._core is self
            assert operation.scheduled == (operation._delay_ms >= 0), f"{operation!r}: its deadline is not on the timer"
        assert self.depth == 0
        assert self.queued.busy <= 0 and not self.queued.waiting, f"{len(self.queued.waiting)} checks are still queued"
        counters._check()
        self.timer._check()


@mypyc_attr(allow_interpreted_subclasses=True)
class BasePurgatory:
    """The synchronous part of :class:`Purgatory`.

    This class uses no event loop and reads only its timer's clock, so it also works without a loop.  While the timer's
    event loop runs, a call from another thread raises RuntimeError if it would change anything.  The parameters are the
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
        """Try the operation once; if its condition does not hold, park it on the keys.  Return True if it completed.

        ``operation``: an operation that is not parked and has not ended.

        ``keys``: an iterable of hashable objects, or a mapping ``key -> threshold``: if the value of a check is below
        the key's threshold, the check need not try the operation.  Duplicate keys count once.

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
        threshold.  If ``limit`` is given, the check completes the first ``limit`` operations that can complete and
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
            operation for operation in self._core.watcher_lists.operations(key) if end(operation, CANCELLED, reason)
        ]

    def fail_for_key(self, key: Hashable, error: Any) -> int:
        """Make the operations parked on the key fail with the exception; return how many failed.

        ``key``: the key whose operations end.  ``error``: the exception that each awaiter receives, or a function
        without parameters (such as an exception class) that returns a new exception for each operation.

        All awaiters share a single exception object.  Python records in that object where it was raised and, in its
        ``__context__``, which exception was being handled there, so the report of one request may show data of another.
        If several tasks may wait on the key, pass a function.  If the function raises an exception or returns anything
        else, the operation fails with that error.

        This is one synchronous call that costs O(watchers); :meth:`Purgatory.afail_for_key` does the same in slices.
        Raises TypeError unless ``error`` is an exception or a function.
        """
        error = validated_error(error)
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
        """Return the ``n`` keys with the most watchers as (key, number) pairs, in descending order.  Cost: O(keys).

        ``n``: the number of keys, at least 0.

        The waiters of a lock or quorum are counted in a separate item, even if operations are parked on the same key.
        """
        if type(n) is not int or n < 0:
            raise ValueError(f"n must be an int, at least 0, got {safe_repr(n)}")
        hottest = nlargest(n, self._core.watcher_lists.counts(), key=_count)
        return [(shown_key(key), number) for key, number in hottest]

    def parked_events(self) -> list[Event]:
        """Return a ``parked`` event for each parked operation, in the order of arrival.  Cost: O(watches).

        If an observer needs the parked operations only now and then, it can call this method instead of receiving an
        event for each one.
        """
        return [self._core.parked_event(operation) for operation in self._core.watcher_lists.all_operations()]

    def __reduce__(self) -> Any:
        raise uncopyable(self, "its operations are parked in one purgatory")

    def _check(self) -> None:
        """Assert the invariants of the whole purgatory.  Call this method between other calls, not in a callback."""
        self._core._check()


def _enter_with_deadline(operation: Operation) -> None:
    """Prepare an operation that is entering and has a stored deadline.

    The deadline is valid if it is absolute, or if the operation is on a timer as a task.  Otherwise, it is left over
    from a timer, and the timeout starts over.
    """
    bucket = operation._list
    if bucket is not None:
        bucket.counter.guard.validate()  # that timer may be on another loop
    elif operation._delay_ms >= 0:
        operation._expiration_ms = NOT_QUEUED


def _set_first_deadline(operation: Operation, delay_ms: i64, expiration_ms: i64) -> None:
    """Set the deadline of an operation during its first try.

    If the operation is on a timer as a task, it leaves that timer, whose bucket is found by the old deadline.
    """
    unlink(operation)
    set_deadline(operation, delay_ms, expiration_ms)


def _is_on(operation: Operation, entry: Watch) -> bool:
    """Return whether an operation with a single key is parked on the key of this entry."""
    watch = operation._watch
    return entry.operation is operation or (watch is not None and watch.list_root is entry)


def _count(pair: tuple[Hashable, int]) -> int:
    return pair[1]
