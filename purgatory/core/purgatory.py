"""The purgatory without an event loop: submit, watch, check, release.

One try is enough
=================

Kafka tries an operation, puts it on its watch lists, and tries it **again**, because between the first try and the
watching another thread may have made the condition true and found no watcher.  Here both happen on one event loop with
no await in between:

1.  ``try_complete()`` returns False.
2.  The operation is linked into the watcher lists.
3.  Only now can other code run, and a check from there on finds the operation.

A check that ``try_complete()`` itself requests is queued (see below), and the queue runs after step 2.  So no wake-up
is lost, and the condition, which may be costly, is evaluated once.

Checks within checks
====================

If a call of ``check_and_complete`` in a callback tried the next operation immediately, and the callback of that one did
the same, a chain of 100,000 operations would need as many stack frames.  Therefore, while user code runs on behalf of
the purgatory, a check is only queued.  The outermost call runs the queue in order before it returns, and its count
includes the operations that the queued checks complete.

Keys that run user code
=======================

Hashing or comparing a key can run user code, which may end operations of this purgatory.  While a watcher list is
being changed (``WatcherLists.asking``), the removal of watches is therefore deferred, and a key may not submit an
operation.  A key that raises when its operation ends does not prevent the operation from ending: the error is
reported after the awaiters have their answer.

What user code may do
=====================

User code runs in ``try_complete``, in the callbacks, in observers, in the hash and the equality of keys, in the jitter
source, and in the clock.  It may park, end and check operations of this purgatory, close it, or raise.  Therefore:

1.  Nothing is half changed when user code is called.  Where that cannot be avoided, a flag says so (``asking``,
    ``queued.busy``), and what must wait is deferred until the flag is cleared.
2.  After the call, the state is read again: the operation may have ended, and the purgatory may have closed.
3.  An exception in ``contained`` fails one operation and nothing else.  Any other, such as KeyboardInterrupt, reaches
    the caller of the outermost method; the code on its way restores what holds between two calls.

What holds between two calls
============================

1.  Exactly the parked operations are on their keys, and exactly those of them that have a deadline are on the timer.
2.  The gauges ``parked``, ``watched`` and ``delayed`` equal the numbers of these, and the totals balance.
3.  ``depth`` is 0, no check is queued, no key is being hashed or compared, and no removal is deferred.
4.  The watchers of a key are in the order of their numbers ``_op_id``, which is the order of arrival.

:meth:`PurgatoryCore._check` asserts all of them; the tests call it after every step.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from mypy_extensions import i64

from purgatory.errors import PurgatoryClosed, PurgatoryError, PurgatoryFull
from purgatory.events import Event
from purgatory.texts import safe_repr, type_name

from .hooks import Hooks
from .operation.coroutines import is_coroutine, refusal
from .operation.lifecycle import (
    CANCELLED,
    COMPLETED,
    DEEP,
    EXPIRED,
    EXPIRED_BY_CLOSING,
    FAILED,
    FRAMES,
    PENDING,
    core_of,
    end,
    fail_tried,
    has_result,
    is_parked,
    is_true,
    validate_new,
)
from .operation.operation import FOREVER_MS, Operation, set_deadline
from .operation.private_key import shown_key
from .operation.stack_guard import ensure_stack
from .queued_checks import QueuedChecks
from .stats.counters import Counters
from .stats.observers import ObserverNotifier
from .timer.base_timer import BaseTimer, ceil_now, passed
from .timer.task import NOT_QUEUED, unlink
from .timer.thread_guard import ThreadGuard
from .timer.timer_core import TimerCore
from .timer.units import validated_fraction
from .watch.cursor import ReachedCursor, WatchCursor
from .watch.thresholds import ThresholdWatch, validated_value
from .watch.validation import UNLIMITED, validate_checked_key, validate_keys, validated_limit, validated_thresholds
from .watch.watch import Shard, Watch, WatchList
from .watch.watcher_lists import WatcherLists, as_watch

__all__ = ["PurgatoryCore", "no_operation"]

# A check with a limit looks up so many thresholds, and the limit, in the heap before it walks in the order of arrival.
_HEAP_LOOKUPS: Final = 64
_SLICE: Final = 1024  # the same for a check in slices


def no_operation(given: Any) -> TypeError:
    """Return the error for what is not an operation."""
    hint = "; for a function use wait_until() or wait_value()" if callable(given) else ""
    return TypeError(f"operation must be a DelayedOperation, got {safe_repr(given)}{hint}")


class PurgatoryCore:
    """Operations on keys and on a timer: the part of a purgatory that never waits.

    Users subclass :class:`BasePurgatory`, which wraps this class.  This class has no subclass, so the compiled core
    calls its methods directly.

    ``contained``: the exceptions that count as a failure of the operation; all others propagate.  The other parameters
    are the same as for :class:`purgatory.Purgatory`.

    ``depth``: the number of operations that are being ended or submitted, each in a callback of the previous one.
    ``queued``: the checks that callbacks request, see :mod:`.queued_checks`.

    Every call of a user that changes something validates the thread first, before it reads what another thread could be
    changing.  No method takes a lock: the guarantees rest on one thread and on the absence of an await.
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
        self._timer_core: TimerCore = timer._core
        self._guard: ThreadGuard = timer._guard
        self._contained = contained
        # The number of the latest arrival.  The watchers of a key are in the order of these numbers, and a check leaves
        # out the operations whose number is above the one at its beginning.
        self._last_id: i64 = 0
        self._trying: Operation | None = None  # the operation that a check tries
        # Operations that a check with a limit must also try, whatever it completes: key -> id -> operation.
        self._listeners: dict[Hashable, dict[int, Operation]] = {}
        self._key_errors: list[tuple[BaseException, Operation]] = []  # of keys that raised when their operation ended
        self._when_ended: dict[int, Callable[[], object]] = {}
        self._max_parked: i64 = validated_limit("max_parked", max_parked)
        self._max_parked_per_key: i64 = validated_limit("max_parked_per_key", max_parked_per_key)
        self._limited: bool = max_parked is not None or max_parked_per_key is not None  # else nothing is compared
        self._jitter: float = validated_fraction(expiry_jitter, "expiry_jitter")
        if self._jitter and not callable(jitter_source):
            raise TypeError(f"jitter_source must be callable, got {safe_repr(jitter_source)}")
        self._jitter_source: Any = jitter_source if self._jitter else None  # None: deadlines stay as they are
        self._notifier: ObserverNotifier = ObserverNotifier(name, observers, contained, self._observer_detached)

    # Submit: try once, else watch

    def submit(self, operation: Operation, keys: Any) -> bool:
        """See :meth:`BasePurgatory.try_complete_else_watch`.

        Steps 1 to 3 may raise, and leave no trace.  From step 4 to the end of step 6, an exception takes the operation
        out again, as new, unless the operation has an outcome.  From step 7 on the operation is parked: if that step
        raises, the operation ends CANCELLED, because no task will await it.  The state is read again after each piece
        of user code, because any of them may have ended the operation.
        """
        # 1. Whether this call may be made here and now.
        self._guard.validate()
        if self.closed or self.timer.closed:
            self.validate_open()
        lists = self.watcher_lists
        if lists.asking:
            raise PurgatoryError("a key must not submit an operation while it is hashed or compared")
        # 2. The keys: a single one, ``only``, is by far the most frequent case.  Hashing them may run user code.  So a
        # list is copied first: its length cannot change meanwhile.
        many: tuple[Hashable, ...] = ()
        plain = False
        only: Hashable = None
        shard: Shard | None = None
        thresholds: dict[Hashable, Any] | None = None
        # isinstance() of the abstract Mapping or Iterable takes longer than all the rest.
        if isinstance(keys, tuple):
            many = keys
        elif isinstance(keys, list):
            if len(keys) == 1:
                only = keys[0]
                shard = lists.shard(only)
            else:
                many = tuple(keys)
        else:
            thresholds = validated_thresholds(keys)
            many = tuple(keys if thresholds is None else thresholds)
        if len(many) == 1:
            only = many[0]
            shard = lists.shard(only)
        elif shard is None:
            plain = validate_keys(many)
        # 3. The operation, the stack and the clock: the last that may fail while nothing has changed.  The operation
        # comes after the keys, because the hash of a key could have parked or ended it.
        validate_new(operation)
        if self.depth >= DEEP:
            ensure_stack(FRAMES)
        parked_ms: i64 = ceil_now(self.timer)
        # 4. It enters.  From here on its end finds this purgatory, and checks that its callbacks request are queued.
        # It is not parked: a check does not find it, and its end leaves no key and no timer.
        counters = self.counters
        counters.submitted += 1
        self._last_id += 1
        operation._op_id = self._last_id
        operation._core = self
        operation._parked_ms = parked_ms
        if operation._delay_ms >= 0:
            operation._expiration_ms = NOT_QUEUED  # unless it is extended while it is tried
        queued = self.queued
        outermost = not queued.busy
        queued.busy = True
        self.depth += 1
        try:
            # 5. The one try, and the other user code that may end the operation before it is parked.  No await and no
            # user code comes between the answer of try_complete() and step 6, except where the next lines name it.
            self._first_try(operation)
            jitter = 0.0
            if self._jitter_source is not None and operation._state == PENDING:
                jitter = self._draw_jitter(operation)
            if operation._state == PENDING:
                # 6. Onto its keys, or, if that fails, out again as if nothing had been.  The limits are compared here
                # and not earlier, because an operation that completes at once needs no place.
                try:
                    if self.closed or self.timer.closed:
                        self.validate_open()  # its own try_complete() has closed the purgatory
                    if self._limited:
                        self._admit(many or (only,))
                    if operation._op_id != self._last_id:
                        # Its try_complete() has parked other operations, which therefore arrived first.
                        self._last_id += 1
                        operation._op_id = self._last_id
                    if thresholds is not None:
                        self._watch_thresholds(operation, thresholds)
                    elif shard is not None:
                        lists.add_operation(shard, only, operation)
                        counters.watched += 1
                    else:
                        self._watch_keys(operation, many, plain)
                except BaseException:
                    self._rollback(operation)
                    raise
                if lists.deferred:
                    self._unlink_deferred()
                # 7. Onto the timer, and to the observers.  The lists come first: an observer of step 7, and the reaper
                # that the timer may start, must find the operation complete.
                if operation._state == PENDING:
                    self._parked(operation, jitter)
                else:  # the comparison of a key has ended it, before leave() could see that it is on its keys
                    self._unwatch(operation)
            if operation._state == COMPLETED and not is_parked(operation):
                counters.immediate += 1
        finally:
            # 8. What user code has requested or done meanwhile: also after an exception, because the checks concern
            # other operations.  A nested call leaves them to the outermost one.
            self.depth -= 1
            if outermost:
                self.run_queued_checks()
            if self._key_errors:
                self._report_keys()
        return operation._state == COMPLETED

    def submit_and_wait(self, operation: Any, keys: Any) -> Any:
        """Submit the operation for a task that awaits it; return the future to await, or None if it has ended.

        An exception leaves nothing behind that the task would have had to withdraw: the task has no operation to await,
        so the operation is withdrawn here, or its result is given back.
        """
        if not isinstance(operation, Operation):
            raise no_operation(operation)
        fresh = core_of(operation) is None and operation._state == PENDING  # otherwise it belongs to another call
        try:
            self.submit(operation, keys)
        except BaseException:
            if fresh and is_parked(operation):
                end(operation, CANCELLED, None, True)  # a queued check was interrupted after it was parked
            elif fresh and has_result(operation):
                self.give_back(operation, operation._value)  # it has completed, but its task gets the exception
            raise
        if not is_parked(operation):
            return None
        # Made only now, because an operation that completes at once needs no future.  It is still parked, so no ending
        # has missed the future, and no other code runs before the future is in its place.
        try:
            future = operation._park_future = self.timer._loop.create_future()
        except BaseException:
            end(operation, CANCELLED, None, True)
            raise
        return future

    def try_without_parking(self, operation: Operation, keys: Any) -> Any:
        """Try the operation once, and let it expire if its condition does not hold: a wait of zero.  Return its result.

        It is not counted, no observer is notified, and neither a limit nor a closed purgatory refuses it.  Otherwise it
        raises like :meth:`submit`.

        The operation never enters the purgatory: ``_core`` stays None, so its end leaves no key, no timer and no gauge,
        and no check can find it.
        """
        self._guard.validate()
        thresholds = validated_thresholds(keys) if not isinstance(keys, (tuple, list)) else None
        validate_keys(tuple(keys if thresholds is None else thresholds))
        validate_new(operation)
        # 1. The one try.  An error fails the operation and reaches the caller; an interrupt leaves it as new.
        tried: Any = operation  # an override may return any type
        try:
            holds: Any = tried.try_complete()
            if holds is True or (holds is not False and is_true(holds, operation)):
                end(operation, COMPLETED, None, False)
        except BaseException as error:
            if operation._state == PENDING and self.contains(error):
                end(operation, FAILED, error, True)
                operation._delivered()
            raise
        # 2. The expiry, which does nothing if the try has ended the operation, in any way.
        try:
            end(operation, EXPIRED, None, False)
        except BaseException as error:
            if operation._state != EXPIRED or not self.contains(error):
                raise
            self._hooks.report(error, operation)  # on_expiration() raised: the outcome stands
        return operation.result()

    def give_back(self, operation: Operation, value: Any) -> None:
        """Call ``on_abandoned(value)``: no task receives this value.  Report an exception of it."""
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
        """Raise RuntimeError in a thread other than the event loop's, while that loop runs.

        Every public call that changes something asks this first.
        """
        self._guard.validate()

    def validate_open(self) -> None:
        """Raise PurgatoryClosed if no new operation is accepted."""
        if self.closed:
            raise PurgatoryClosed(f"purgatory {self.name!r} is closed")
        if self.timer.closed:
            raise PurgatoryClosed(f"the timer of purgatory {self.name!r} is closed")

    def _first_try(self, operation: Operation) -> None:
        """Try an operation that enters, and complete it if its condition holds.

        Whatever raises reaches the caller.  An error of the condition also fails the operation; an interrupt takes it
        out of the purgatory as new.  An error of ``on_complete`` has set the outcome already.
        """
        try:
            tried: Any = operation  # an override may return any type
            holds: Any = tried.try_complete()
            if holds is True or (holds is not False and is_true(holds, operation)):
                end(operation, COMPLETED, None, False)
        except BaseException as error:
            if operation._state == PENDING:
                if self.contains(error):
                    end(operation, FAILED, error, True)
                    operation._delivered()
                else:
                    self._rollback(operation)
            raise

    def _admit(self, keys: Iterable[Hashable]) -> None:
        """Raise PurgatoryFull, and count the refusal, if a limit is reached.

        The operation needs a place on each of its keys; the first key that has none is reported.  The refusal is not
        counted as submitted, because the caller takes the operation out again.
        """
        counters = self.counters
        # This operation is not counted as parked yet.
        if counters.parked >= self._max_parked:
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

    # Watch.  A key may run user code, and that may end the operation while only some of its keys have their watches.
    # So the operation gets its watches when all of them exist, or when a key has raised.  Until then it is not parked,
    # an ending takes it off no key, and submit() does so afterwards.

    def _watch_keys(self, operation: Operation, keys: tuple[Hashable, ...], plain: bool) -> None:
        """Put the operation on its keys.  ``plain``: whether all of them are plain.

        A key that occurs twice gets one watch: :meth:`WatcherLists.add` finds the first one at the end of the list.
        The watches are linked in reverse, the last key first, because that needs one field and no second pass.
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
                    lists.asking = True  # hashing the key must not submit another operation, which would come first
                    added = lists.add(lists.shard(key), watch)
                    lists.asking = False
                if added:
                    watch.sibling = last
                    last = watch
                    self.counters.watched += 1
        finally:
            operation._watch = last

    def _watch_thresholds(self, operation: Operation, thresholds: dict[Hashable, Any]) -> None:
        """Put the operation on its keys, each with its threshold; otherwise as :meth:`_watch_keys`."""
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
        """Put an operation that is on its watcher lists on the timer, and notify the observers.

        ``jitter``: the share of its remaining time by which the deadline is brought forward.

        Deadlines count from the time rounded up (``now_ms``), and have passed up to the time rounded down
        (``passed_ms``), so that none is early.  A deadline in the past is moved to ``passed_ms``: it is then due at the
        next turn of the reaper, not in this call, which therefore never expires the operation that it parks.
        """
        counters = self.counters
        counters.parked += 1
        try:
            now_ms = operation._parked_ms
            delay_ms = operation._delay_ms
            expiration_ms = operation._expiration_ms  # an absolute deadline, or of extend() while it was tried
            if delay_ms < 0 and expiration_ms != NOT_QUEUED:
                delay_ms = operation._delay_ms = max(0, expiration_ms - now_ms)
            if delay_ms >= 0:
                counters.delayed += 1
                passed_ms: i64 = passed(self.timer, now_ms)
                if expiration_ms == NOT_QUEUED:
                    expiration_ms = now_ms + delay_ms if delay_ms > 0 else passed_ms
                elif expiration_ms < passed_ms:
                    expiration_ms = passed_ms
                if jitter:
                    expiration_ms = max(passed_ms, expiration_ms - int(jitter * float(delay_ms)))
                due_ms = self._timer_core.schedule(operation, expiration_ms, passed_ms)
                if due_ms < self.timer._next_wake_ms:
                    self.timer._wake_earlier(due_ms)
            if self._notifier.active:
                self._notifier.parked(operation)
        except BaseException:
            end(operation, CANCELLED, None, True)  # an interrupt, or a clock that raises: no task will await it
            raise

    def _draw_jitter(self, operation: Operation) -> float:
        """Return the share of its remaining time by which the deadline of the operation is brought forward.

        The source is user code like ``try_complete()``, so it is asked before the operation is parked.
        """
        if operation._delay_ms < 0 and operation._expiration_ms == NOT_QUEUED:
            return 0.0
        try:  # as if try_complete() had raised: an error here leaves the operation as new
            return self._jitter * self._drawn()
        except BaseException:
            self._rollback(operation)
            raise

    def _drawn(self) -> float:
        """Return the next number of the source, cut to the range from 0 to 1.  TypeError and ValueError for others."""
        drawn: Any = self._jitter_source()
        if isinstance(drawn, bool) or not isinstance(drawn, (int, float)):
            raise TypeError(f"jitter_source must return a number from 0 to 1, got {safe_repr(drawn)}")
        if drawn != drawn:
            raise ValueError("jitter_source must return a number from 0 to 1, got NaN")
        return min(max(float(drawn), 0.0), 1.0)

    def _rollback(self, operation: Operation) -> None:
        """Undo the submission of an operation that could not be parked, unless the comparison of a key has ended it.

        Afterwards the operation can be submitted again.  A timeout then counts anew, and an absolute deadline stays.
        The number that the operation got is not used again.
        """
        self._unwatch(operation)
        if operation._state == PENDING:
            operation._core = None
            if operation._delay_ms >= 0:
                operation._expiration_ms = NOT_QUEUED
            self.counters.submitted -= 1

    def _unwatch(self, operation: Operation) -> None:
        """Take an operation that is not parked off its watcher lists."""
        self.watcher_lists.asking = False
        if self.watcher_lists.deferred:
            self._unlink_deferred()
        self._remove(operation)

    # Check

    def check(self, key: Hashable, value: Any, limit: i64) -> i64:
        """See :meth:`BasePurgatory.check_and_complete`; ``limit`` is UNLIMITED for no limit.

        1.  The arguments are validated, and the key is hashed, also where the check is only queued: the caller, and not
            the call that runs the queue, gets the error of a bad key.
        2.  If user code of this purgatory runs, the check is queued, and the outermost call counts what it completes.
        3.  Otherwise this is the outermost call: it checks the key, and then runs what has been queued meanwhile, also
            if the check is interrupted.
        """
        self._guard.validate()
        validate_checked_key(key)
        if value is not None:
            value = validated_value(value)
        entry = self.watcher_lists.entry(key)
        queued = self.queued
        if queued.busy:  # the entry is looked up again when the check runs: it may be another one by then
            queued.add(key, value, limit)
            return 0
        if entry is None:
            return 0
        queued.busy = True
        done: i64 = 0
        try:
            done = self._check_entry(entry, value, limit)
        finally:
            done += self.run_queued_checks()
        return done

    def run_queued_checks(self) -> i64:
        """Run the checks queued by user code that has returned; return how many operations they completed.

        Called by the outermost call that runs user code, and by no other, when nothing is half done.

        ``queued.busy`` stays set while the queue runs, so checks that its operations request are put at the end, and
        the loop below runs them, too: the stack does not grow.  If an interrupt ends a check, the rest of that check
        and all others move to the next turn of the event loop.  So it delays them, and loses none while a loop runs.
        """
        done: i64 = 0
        queued = self.queued
        if not queued.waiting:
            queued.busy = False
            return done
        try:
            while queued.waiting:
                key, value, limit = queued.pop()
                entry = self._entry_of_queued(key)
                if entry is not None:
                    try:
                        done += self._check_entry(entry, value, limit)
                    except BaseException:
                        queued.resume(key, value, limit)  # the operations behind it still need the check
                        raise
        finally:
            queued.busy = False
            if queued.waiting:
                self._postpone_queued_checks()
        return done

    def _postpone_queued_checks(self) -> None:
        """Move the queued checks to the next turn of the loop, because an interrupt propagates."""
        while self.queued.waiting:
            key, value, limit = self.queued.pop()
            try:
                self._hooks.check_later(key, value, None if limit == UNLIMITED else limit)
            except Exception as error:
                self._hooks.report_key(error, key)

    def _entry_of_queued(self, key: Hashable) -> Any:
        """Return the entry of a key whose check was queued.  If the key raises, report the error and return None."""
        try:
            return self.watcher_lists.entry(key)
        except BaseException as error:
            if not self.contains(error):
                raise
            self._hooks.report_key(error, key)
            return None

    def _check_entry(self, entry: Any, value: Any, limit: i64) -> i64:
        """Try the watchers of a key in the order of arrival; return how many operations are completed.

        Each operation that is parked on the key now is tried exactly once, unless it ends before its turn or has a
        threshold that the value does not reach.  One that arrives during the check is not tried here: its own
        submission tries it, after the change that this check is about.
        """
        if limit != UNLIMITED:
            return self._check_limited(as_watch(entry), value, limit)
        if not isinstance(entry, WatchList):
            operation: Operation | None = entry.operation if isinstance(entry, Watch) else entry
            return 1 if operation is not None and is_parked(operation) and self._try(operation) else 0
        done: i64 = 0
        if entry.thresholds is not None:
            cursor = self._cursor_along(entry, value, UNLIMITED)
            while (following := cursor.next()) is not None:
                if self._try(following):
                    done += 1
            return done
        newest = self._last_id  # the same without a cursor, for the most frequent list
        watch = entry.after
        while watch is not None and watch is not entry:
            operation = watch.operation
            assert operation is not None
            if operation._op_id > newest:
                break
            if is_parked(operation) and self._try(operation):
                done += 1
            watch = watch.after  # a removed watch still leads to the watches behind it: see Watch
        return done

    def _check_limited(self, entry: Watch, value: Any, limit: i64) -> i64:
        """Try the watchers in the order of arrival until ``limit`` of them are completed.

        Listeners are tried first and count nothing: a check with a limit reports a change to all of them, whatever it
        completes.  ``queued.left`` is updated even if ``_try`` raises, because an interrupted check is continued with
        what is left of its limit, and must not complete more than ``limit`` operations in all.
        """
        self.queued.left = limit
        if self._listeners:
            self._try_listeners(entry.key)
        cursor = self._cursor_along(entry, value, _HEAP_LOOKUPS + limit)
        # The queued checks of its callbacks run after this loop, so no other check changes ``left`` meanwhile.
        while self.queued.left > 0:
            operation = cursor.next()
            if operation is None:
                break
            if cursor.skips:  # its threshold is above the value
                continue
            try:
                self._try(operation)
            finally:
                if operation._state == COMPLETED:
                    self.queued.left -= 1
        return limit - self.queued.left

    def listen(self, operation: Operation, key: Hashable) -> None:
        """Make every check of the key try this operation first; it is parked on the key and never completes.

        A check without a limit tries it anyway, with the others.  One with a limit might stop before it.
        """
        self._listeners.setdefault(key, {})[operation._op_id] = operation

    def unlisten(self, operation: Operation, key: Hashable) -> None:
        """Undo :meth:`listen`."""
        listeners = self._listeners.get(key)
        if listeners is not None:
            listeners.pop(operation._op_id, None)
            if not listeners:
                del self._listeners[key]

    def _try_listeners(self, key: Hashable) -> None:
        """Try the operations that :meth:`listen` has named; a copy, because each of them may add or remove others."""
        listeners = self._listeners.get(key)
        if listeners is not None:
            for operation in list(listeners.values()):
                if is_parked(operation):
                    self._try(operation)

    def _try(self, operation: Operation) -> bool:
        """Try one parked operation; return whether it is completed now.

        An error of ``try_complete`` fails this operation and is reported if no task receives it; an error of
        ``on_complete`` is contained by :func:`end`.  Only an interrupt leaves this method, and then the operation is
        still parked, or has its outcome.  ``try_complete`` may have ended the operation itself, in any way, so the
        answer is read from the state and not from what ``try_complete`` returned.
        """
        self._trying = operation
        tried: Any = operation  # an override may return any type
        try:
            holds: Any = tried.try_complete()
            if holds is True or (holds is not False and is_true(holds, operation)):
                end(operation, COMPLETED, None, True)
        except BaseException as error:
            if not self.contains(error):
                raise
            answered = operation._state == PENDING and fail_tried(operation, error)
            if not answered:
                self._hooks.report(error, operation)
        finally:
            self._trying = None
        return operation._state == COMPLETED

    def is_trying(self, operation: Operation) -> bool:
        """Return whether a check is trying the operation now, as opposed to the call that submits it."""
        return self._trying is operation

    # Checks in slices

    def cursor(self, key: Hashable, value: Any) -> WatchCursor | None:
        """Return a cursor over the operations parked on the key now, or None if there are none.

        With a value, the cursor skips operations whose threshold is above the value.
        """
        entry = self.watcher_lists.watches(key)
        return None if entry is None else self._cursor_along(entry, value, _SLICE)

    def check_some(self, cursor: WatchCursor, number: int) -> int:
        """Take the next ``number`` steps of a cursor, or fewer at its end; return the number of steps taken.

        Between two calls the loop may do anything to the key: the cursor continues where it was.  An operation that is
        skipped counts as a step, so that the time of a call is bounded.
        """
        self.queued.busy = True
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
        """Expire up to ``number`` parked operations, because the purgatory closes; return the number that ended.

        That number includes operations that the callbacks end, and excludes those that had ended meanwhile, so it is
        taken from the gauge.  It is positive unless none is parked: the caller's loop always ends.
        """
        waiting = self.counters.parked
        # A callback may end operations that are still in this list: end() then returns False.
        for operation in self.watcher_lists.some(number):
            end(operation, EXPIRED_BY_CLOSING, None, True)
        return waiting - self.counters.parked

    def _cursor_along(self, entry: Watch, value: Any, most: i64) -> WatchCursor:
        """Return a cursor over the operations that are parked now and whose thresholds, if any, the value reaches.

        Without a value every operation is tried: the caller does not know whether a threshold is reached.
        """
        if value is not None and isinstance(entry, WatchList) and entry.thresholds is not None:
            return ReachedCursor(entry, self._last_id, value, most)
        return WatchCursor(entry, self._last_id)

    # The end of an operation: end() of the lifecycle calls leave() before the callback, and ended() after the answers

    def leave(self, operation: Operation, now_ms: i64) -> None:
        """Take a parked operation, which has its outcome and is off the timer, off its keys, and update the gauges.

        Step 4 of :func:`end`, between the change of the state and the callback.  Keys may run user code here; it finds
        an operation that has ended.  Nothing of it raises: the error of a key is kept for :meth:`_report_keys`, since
        the callback and the answers must follow in any case.  The observers' event needs the keys and the time, so both
        are noted before they are gone.
        """
        counters = self.counters
        if self._notifier.active:
            self._notifier.leaving(operation, now_ms)
        self._remove(operation)
        counters.parked -= 1
        counters.wait.record(now_ms - operation._parked_ms)
        if operation._delay_ms >= 0:
            counters.delayed -= 1
            # Only an operation whose deadline has passed is late: other code may call its run() before that, and a
            # purgatory that closes expires it with a state of its own.
            if operation._state == EXPIRED and now_ms >= operation._expiration_ms:
                counters.lateness.record(now_ms - operation._expiration_ms)
        if counters.parked == 0 and self.closed:
            self._hooks.emptied()

    def _remove(self, operation: Operation) -> None:
        """Remove the operation from its keys."""
        watch = operation._watch
        operation._watch = None  # first: it is not parked any more, whatever a key does while the watches are removed
        if operation._lone_key is not None:
            self.counters.watched -= 1
            self.watcher_lists.remove_operation(operation)
            return
        while watch is not None:
            self._unlink(watch, operation)
            watch = watch.sibling

    def _unlink(self, watch: Watch, operation: Operation) -> None:
        """Remove the watch.  A key that raises does not prevent its operation from ending.

        The error is stored for :meth:`_report_keys`, because reporting it may raise, and awaiters are answered first.
        """
        self.counters.watched -= 1
        lists = self.watcher_lists
        if lists.asking:  # a key ends the operation while it is hashed or compared
            lists.deferred.append(watch)
            return
        try:
            lists.remove(watch)
        except BaseException as error:
            lists.bury(watch)
            self._key_errors.append((error, operation))
        if lists.deferred:  # the key has ended other operations while it was hashed or compared
            self._unlink_deferred()

    def _unlink_deferred(self) -> None:
        """Remove the watches that could not be removed while a key was hashed or compared.

        Removing one hashes its key again, and that may defer further ones, hence the loop and no copy.
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

    def ended(self, operation: Operation) -> None:
        """Count an operation that has ended and whose awaiters are answered, and notify the observers.

        The count comes first, so that the statistics which an observer reads include this operation.  The errors of
        keys come last, because the report may raise.
        """
        self.counters.count(operation._state)
        if self._when_ended:
            self._call_when_ended(operation)
        if self._notifier.active:
            self._notifier.ended(operation)
        if self._key_errors:
            self._report_keys()

    def call_when_ended(self, operation: Operation, callback: Callable[[], object]) -> None:
        """Call ``callback()`` once, when the parked operation has ended in any way and its awaiters are answered.

        By number and not by operation, so that the entry keeps no operation alive.
        """
        self._when_ended[operation._op_id] = callback

    def _call_when_ended(self, operation: Operation) -> None:
        callback = self._when_ended.pop(operation._op_id, None)
        if callback is not None:
            try:
                callback()
            except Exception as error:
                self._hooks.report(error, operation)

    def _report_keys(self) -> None:
        """Report the errors of keys; an interrupt among them propagates.

        Those behind it stay in the list, and the next call reports them.
        """
        while self._key_errors:
            error, operation = self._key_errors.pop(0)
            if not self.contains(error):
                raise error
            self._hooks.report(error, operation)

    # Called by the lifecycle

    def ensure_stack(self) -> None:
        """Raise RecursionError if endings are nested so deeply that another one might not finish."""
        if self.depth >= DEEP:
            ensure_stack(FRAMES)

    def contains(self, error: BaseException) -> bool:
        """Return whether the exception is a failure of the operation, as opposed to an interrupt of the program.

        By the class alone: ``isinstance`` would run the ``__class__`` property of an exception that has one.
        """
        return issubclass(type(error), self._contained)

    def report(self, error: BaseException, operation: Operation) -> None:
        """Report an operation that failed while no task awaited it."""
        self._hooks.report(error, operation)

    def extend(self, operation: Operation, delay_ms: i64) -> None:
        """Move the deadline of an operation to ``delay_ms`` from now; a negative delay removes the deadline.

        In its first try the operation only notes the deadline, which counts from now and not from the parking.
        """
        self._guard.validate()
        now_ms: i64 = ceil_now(self.timer)
        if not is_parked(operation):  # in its first try: it is put on the timer when it is parked
            set_deadline(operation, delay_ms, NOT_QUEUED if delay_ms < 0 else now_ms + delay_ms)
        elif delay_ms < 0:
            self._reschedule(operation, delay_ms, NOT_QUEUED, 0)
        else:
            passed_ms: i64 = passed(self.timer, now_ms)
            self._reschedule(operation, delay_ms, now_ms + delay_ms if delay_ms > 0 else passed_ms, passed_ms)

    def extend_to(self, operation: Operation, at_ms: i64) -> None:
        """Move the deadline of an operation to ``at_ms`` on the timer's clock, or to now if that has passed."""
        self._guard.validate()
        if not is_parked(operation):  # in its first try
            set_deadline(operation, FOREVER_MS, at_ms)
            return
        now_ms: i64 = ceil_now(self.timer)
        passed_ms: i64 = passed(self.timer, now_ms)
        self._reschedule(operation, max(0, at_ms - now_ms), max(at_ms, passed_ms), passed_ms)

    def _reschedule(self, operation: Operation, delay_ms: i64, expiration_ms: i64, passed_ms: i64) -> None:
        """Give a parked operation another deadline, or none if ``delay_ms`` is negative.

        A closed timer refuses before anything has changed.  If the request of an earlier wake-up raises, the new
        deadline stands.
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
        """Return the ``parked`` event of an operation that is parked."""
        return self._notifier.parked_event(operation)

    def _observer_detached(self, error: BaseException, observer: object) -> None:
        """Count an observer that raised and report it; the operation that it was notified of is not affected."""
        self.counters.detached += 1
        self._hooks.report_observer(error, observer)

    def _check(self) -> None:
        """Assert the invariants of the whole purgatory.  For use between calls, not in a callback."""
        counters = self.counters
        assert self.watcher_lists._check() == counters.watched
        parked = self.watcher_lists.all_operations()
        assert len(parked) == counters.parked, f"{len(parked)} operations are parked, the counter has {counters.parked}"
        assert sum([len(operation.keys) for operation in parked]) == counters.watched
        delayed = [operation for operation in parked if operation._delay_ms >= 0]
        assert len(delayed) == counters.delayed, f"{len(delayed)} have a deadline, the counter has {counters.delayed}"
        for operation in parked:
            assert operation._state == PENDING, f"{operation!r} has ended and is still parked"
            assert operation._core is self
            assert operation.scheduled == (operation._delay_ms >= 0), f"{operation!r}: its deadline is not on the timer"
        assert self.depth == 0
        assert not self.queued.busy and not self.queued.waiting, f"{len(self.queued.waiting)} checks are still queued"
        counters._check()
        self.timer._check()
