"""The lifecycle of an operation: the one place where an outcome is decided.

The life of an operation
========================

An operation is created, submitted to a purgatory, and tried once.  If its condition does not hold yet, it is *parked*:
linked into the watcher list of each of its keys and, if it has a deadline, put on the timer.  The first event in
:data:`ENDINGS` that happens then decides the outcome.

How an operation ends
=====================

All code that ends an operation calls :func:`end`, which takes these steps in this order::

    PENDING?  no: False
       |
    stack, task, clock   may fail: nothing has changed
       |
    the state            decided: every other ending is False from here on
       |
    off the timer, off its keys, gauges
       |
    on_complete()        unless it is CANCELLED or FAILED; if it raises: FAILED
       |
    the awaiters are answered
       |
    counters, observers, errors from keys
       |
    on_expiration()      if it expired
       |
    the checks that these callbacks have requested, unless an outer call runs them

The rules
=========

1.  An operation leaves ``PENDING`` only once.  Every call to :func:`end` checks and changes the state without running
    other code in between, so on one event loop, no lock is needed and a second call returns False.
2.  The operation is removed from the timer and from every watcher list *before* its callback runs, so the callback sees
    consistent state.
3.  Everything that may fail happens before the state changes: the clock is read and, if endings are nested in callbacks
    of other endings, the remaining stack is checked.  At the interpreter's recursion limit, :func:`end` raises
    RecursionError, and the operation stays parked.
4.  ``on_complete`` runs at most once.  If it raises, ``COMPLETED`` or ``EXPIRED`` becomes ``FAILED`` before any code
    other than the callback itself can see the first outcome.

The hard case: the awaiting task is cancelled
=============================================

``task.cancel()`` and the end of the operation can happen in the same turn of the loop.  There are two orders:

a)  *Cancelled, then the condition holds.*  ``task.cancel()`` has cancelled the future that ``park()`` awaits, but the
    task has not run yet.  The next attempt to complete or expire the operation finds that the future is cancelled and
    withdraws the operation instead: it ends CANCELLED, ``on_complete`` does not run, and no result is created for a
    task that no longer waits.
b)  *Completed, then cancelled.*  The outcome stands.  The task still receives its CancelledError, as asyncio requires
    (a swallowed cancellation breaks timeouts and task groups).  The result, which no task received, is given back:
    ``park()`` calls ``on_abandoned(result)`` before it raises the CancelledError.

The task's event loop may also have been closed without cancelling the task, which then never runs again.  The outcome
stands, and :func:`_settle` gives the result back.

These are functions, not methods, because the compiler calls functions directly but looks up the methods of a class that
has subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mypy_extensions import i16, i64

from purgatory.core.timer.base_timer import now
from purgatory.core.timer.coroutines import COROUTINE, is_coroutine, refusal, refuse_coroutine_function
from purgatory.core.timer.event_loop import event_loop
from purgatory.core.timer.task import unlink
from purgatory.core.timer.thread_guard import FOREIGN_THREAD
from purgatory.errors import OperationCancelled, PurgatoryError
from purgatory.events import Outcome
from purgatory.texts import safe_repr, type_name

from .private_key import shown_key
from .stack_guard import ensure_stack

if TYPE_CHECKING:
    from collections.abc import Hashable

    from purgatory.core.purgatory import PurgatoryCore
    from purgatory.core.stats.counters import Counters

    from .operation import Operation

__all__ = [
    "CANCELLED",
    "COMPLETED",
    "DEEP",
    "ENDINGS",
    "EXPIRED",
    "EXPIRED_BY_CLOSING",
    "FAILED",
    "FRAMES",
    "OUTCOMES",
    "PENDING",
    "Ending",
    "Failure",
    "answer",
    "end",
    "error_of",
    "exception_of",
    "expire_on_timer",
    "fail_externally",
    "fail_tried",
    "has_expired",
    "has_result",
    "is_new",
    "is_parked",
    "is_true",
    "keys_of",
    "not_new",
    "outcome_of",
    "result_of",
    "task_was_cancelled",
    "validate_awaiters",
    "validated_error",
]

PENDING: Final = 0
COMPLETED: Final = 1
EXPIRED: Final = 2
CANCELLED: Final = 3
FAILED: Final = 4
EXPIRED_BY_CLOSING: Final = 5  # the outcome is EXPIRED; its purgatory or its timer has closed
DEEP: Final = 8  # from this many nested endings on, each call first checks the remaining stack
FRAMES: Final = 80  # the frames that one ending and the loop's exception handler may need
# The outcome of each state.  RecordBuffer makes the numbers of the states public, so a new state must be appended.
OUTCOMES: Final = (
    Outcome.PENDING,
    Outcome.COMPLETED,
    Outcome.EXPIRED,
    Outcome.CANCELLED,
    Outcome.FAILED,
    Outcome.EXPIRED,  # by closing
)
_TRACEBACK: Final[Any] = BaseException.__dict__["__traceback__"]  # the descriptor; a subclass may override it


class Ending(NamedTuple):
    """One way in which an operation can end."""

    outcome: Outcome
    how: str
    runs: str
    awaiters: str


ENDINGS: Final = (
    Ending(Outcome.COMPLETED, "try_complete() returns True, or force_complete()", "on_complete()", "its value"),
    Ending(
        Outcome.EXPIRED,
        "its deadline passes, or its purgatory closes",
        "on_complete(), then on_expiration()",
        "its value",
    ),
    Ending(
        Outcome.CANCELLED,
        "cancel(), cancel_for_key(), or park() is cancelled",
        "nothing",
        "OperationCancelled",
    ),
    Ending(Outcome.FAILED, "a callback raises, or fail_for_key()", "nothing more", "that exception"),
)
"""The ways in which an operation can leave ``PENDING``: the source of the picture.  The code is :func:`end`."""


def not_new(operation: Operation) -> ValueError:
    """Return the error for an operation that is already parked or has ended."""
    problem = "is parked already" if operation._op_state == PENDING else "has ended: make a new one for each wait"
    return ValueError(f"operation must be new, got {safe_repr(operation)}, which {problem}")


def outcome_of(state: i16) -> Outcome:
    """Return the outcome that users see for the state."""
    return OUTCOMES[state]


def is_parked(operation: Operation) -> bool:
    """Return whether the operation is on its keys and is therefore counted, found by checks, and shown in dumps.

    During its first try, it is not parked, although its purgatory is already known.
    """
    return operation._watch is not None


def has_result(operation: Operation) -> bool:
    """Return whether the operation has ended COMPLETED or EXPIRED."""
    return operation._op_state == COMPLETED or has_expired(operation)


def has_expired(operation: Operation) -> bool:
    """Return whether the operation has ended EXPIRED, at its deadline or because its purgatory closed."""
    return operation._op_state == EXPIRED or operation._op_state == EXPIRED_BY_CLOSING


def is_new(operation: Operation) -> bool:
    """Return whether the operation is neither parked nor ended.

    Raises RuntimeError if its class did not call ``super().__init__()``.
    """
    try:
        return operation._core is None and operation._op_state == PENDING
    except AttributeError:
        raise RuntimeError(f"{type_name(operation)}.__init__() must call super().__init__(timeout)") from None


def end(operation: Operation, state: i16, why: Any, contained: bool = True) -> bool:
    """End the operation.  Return True if this call ended it in the given state.

    Every ending takes this path: completion, expiration, cancellation, failure, and closing.

    ``state``: the new state; if ``on_complete`` raises, the state becomes FAILED instead.  ``why``: the exception if
    the operation fails, or the reason (any object or None) if it is cancelled.  ``contained``: True if an exception
    from ``on_complete`` only makes the operation fail, as in a check or an expiration; False if it also reaches the
    caller.
    """
    # 1. The first ending decides the outcome.
    if operation._op_state != PENDING:
        return False
    core = operation._core
    if core is None:
        return _end_without_purgatory(operation, state, why, contained)
    calls_back = state != CANCELLED and state != FAILED
    # 2. Everything that may fail: the stack, the cancelled task, and the clock.  If any of these fails, nothing has
    # changed.
    if calls_back:
        if core.depth >= DEEP:
            ensure_stack(FRAMES)
        if operation._park_future is not None and task_was_cancelled(operation):
            end(operation, CANCELLED, None)  # the hard case, a)
            return False
    now_ms: i64 = 0
    parked = is_parked(operation)
    if parked:
        now_ms = now(core.timer)
        if operation._op_state != PENDING:  # the clock runs user code, which has ended the operation
            return False
    # 3. The outcome.  Only library code runs from here to the callback, so a second ending finds that the state has
    # changed.
    operation._op_state = state
    keys: tuple[Hashable, ...] = ()
    if not calls_back:
        operation._value = _for_awaiters(why, True) if state == FAILED else why
        if state == CANCELLED and (operation._park_future is not None or operation._awaiters is not None):
            keys = keys_of(operation)  # for the OperationCancelled
    core.depth += 1
    try:
        # 4. Remove the operation from the timer and its keys before the callback, which may check these keys or park on
        # them.  None of these steps can fail: if a key raises, the error is kept until the awaiters have their answers.
        if parked:
            _leave(operation, core, now_ms)
        elif operation._list is not None:
            unlink(operation)
        # 5. The callback, the answers, the observers.
        # 6. The checks that these have requested, unless an outer call is going to run them.
        if calls_back:
            queued = core.queued
            outermost = queued.busy <= 0
            queued.busy = 1
            try:
                _call_back(operation, core, contained)
            finally:
                if outermost:
                    if queued.any:
                        core.run_queued_checks()
                    else:
                        queued.busy = queued.rest
        else:
            _settle(operation, core, keys)
    finally:
        core.depth -= 1
    return operation._op_state == state


def _end_without_purgatory(operation: Operation, state: i16, why: Any, contained: bool) -> bool:
    """Do the same as :func:`end` for an operation without a purgatory: one that is only tried, or one that was added to
    a timer as a task."""
    operation._op_state = state
    if operation._list is not None:
        unlink(operation)
    calls_back = state != CANCELLED and state != FAILED
    if calls_back:
        _call_back(operation, None, contained)
    else:
        operation._value = _for_awaiters(why, True) if state == FAILED else why
        _settle(operation, None, ())
    return operation._op_state == state


def _leave(operation: Operation, core: PurgatoryCore, now_ms: i64) -> None:
    """Remove a parked operation from the timer and its keys, and update the gauges; its outcome has been decided.

    If a key runs user code here, that code finds that the operation has ended.  This function never raises: if a key
    raises, the error is kept for later, because the callback and the answers must follow in any case.  The observers'
    event needs the keys and the time, so both are recorded before they are lost.
    """
    counters = core.counters
    if core._notifier.active:
        core._notifier.leaving(operation, now_ms)
    if operation._list is not None:
        unlink(operation)
    if operation._lone_key is not None:
        counters.watched -= 1
        core.watcher_lists.remove_operation(operation)
    else:
        core.leave_keys(operation)
    counters.parked -= 1
    counters.wait.record(now_ms - operation._parked_ms)
    if operation._delay_ms >= 0:
        counters.delayed -= 1
        # Only an operation whose deadline has passed is late.  Other code may call run() earlier, and when the
        # purgatory closes, the operation expires with a different state.
        if operation._op_state == EXPIRED and now_ms >= operation._expiration_ms:
            counters.lateness.record(now_ms - operation._expiration_ms)
    if counters.parked == 0 and core.closed:
        core._hooks.emptied()


def _call_back(operation: Operation, core: PurgatoryCore | None, contained: bool) -> None:
    """Call ``on_complete`` and answer the awaiters; if the operation expired, then call ``on_expiration``.

    If ``on_complete`` raises, the outcome changes once more here, to FAILED.  Only ``on_complete`` itself could have
    seen the first outcome: no awaiter has been answered, and no observer has been notified.  ``on_expiration`` runs
    after all answers, so an exception that it raises changes nothing and is only reported.
    """
    expired = operation._op_state != COMPLETED
    try:
        value = operation.on_complete()
        if type(value) is COROUTINE:
            raise refusal(value, f"{type_name(operation)}.on_complete() must return the result")
        operation._value = value
    except BaseException as error:
        own = issubclass(type(error), Exception) if core is None else core.contains(error)
        operation._op_state = FAILED
        operation._value = _for_awaiters(error, own)
        answered = _settle(operation, core, ())
        if not contained or not own:
            raise
        if not answered and core is not None:
            core.report(error, operation)
        return
    _settle(operation, core, ())
    if expired:
        try:
            returned = operation.on_expiration()
            if type(returned) is COROUTINE:
                raise refusal(returned, f"{type_name(operation)}.on_expiration() must return None")
        except BaseException as error:
            if core is None or not core.contains(error):
                raise
            core.report(error, operation)


def fail_tried(operation: Operation, error: BaseException) -> bool:
    """End the operation as FAILED because its try raised.  Return True if an awaiter received the exception."""
    awaited = _is_awaited(operation)
    return end(operation, FAILED, error) and awaited


def expire_on_timer(operation: Operation, state: i16) -> None:
    """Expire an operation that was added to a timer directly, as a timer task, without a purgatory.

    ``state``: see :func:`end`.
    If ``on_complete`` raises and no task awaits the operation, raise the exception, which the timer reports.
    """
    awaited = _is_awaited(operation)
    end(operation, state, None)
    if operation._op_state == FAILED and not awaited:
        raise error_of(operation)


def validated_error(error: Any) -> Any:
    """Return ``error``: an exception, or a function that returns a new exception for each operation that fails.

    Raises TypeError for any other object.
    """
    if _is_exception(error):
        return error
    if not callable(error) or (issubclass(type(error), type) and not issubclass(error, Exception)):
        raise TypeError(f"error must be an exception or a function that returns one, got {safe_repr(error)}")
    refuse_coroutine_function("error", error)
    return error


def fail_externally(operation: Operation, error: Any) -> bool:
    """Make the operation fail with an exception from other code; its awaiters receive that exception.  Return True if
    this call made it fail.

    ``error``: the result of :func:`validated_error`.  A function is called only if the operation is going to fail.

    An operation whose task was cancelled is withdrawn instead, as in every other ending; see hard case a).
    """
    if operation._op_state != PENDING:
        return False
    if not _is_exception(error) and not task_was_cancelled(operation):
        error = _exception_from(error, operation)
    if task_was_cancelled(operation):
        end(operation, CANCELLED, None)
        return False
    return end(operation, FAILED, error)


def _is_exception(thing: Any) -> bool:
    """Return whether the object can be raised: ``isinstance`` would believe an object that only claims its class."""
    return issubclass(type(thing), Exception)


def _exception_from(function: Any, operation: Operation) -> Any:
    """Return the exception with which the operation fails: the one that the function returns.

    If the function raises an exception, or returns anything else, that error is returned, because the operation must
    not be left without an answer.  An interrupt propagates after the operation has failed.
    """
    core = operation._core
    assert core is not None
    core.ensure_stack()  # the function may fail further operations; if this raises, nothing has changed
    core.depth += 1
    try:
        error: Any = function()
        if _is_exception(error):
            return error
        what = "error must return an exception"
        raise refusal(error, what) if is_coroutine(error) else TypeError(f"{what}, got {safe_repr(error)}")
    except BaseException as raised:
        if core.contains(raised):
            return raised
        end(operation, FAILED, _for_awaiters(raised, False).error)
        raise
    finally:
        core.depth -= 1


def task_was_cancelled(operation: Operation) -> bool:
    """Return whether the task that awaits the operation in ``park()`` was cancelled; see the hard case, a)."""
    return operation._park_future is not None and operation._park_future.cancelled()


def _is_awaited(operation: Operation) -> bool:
    """Return whether a task is going to receive the outcome; a cancelled task will not."""
    if operation._park_future is not None and not operation._park_future.done():
        return True
    return operation._awaiters is not None and not all([waiter.done() for waiter in operation._awaiters])


def _settle(operation: Operation, core: PurgatoryCore | None, keys: tuple[Hashable, ...]) -> bool:
    """Answer every awaiter of an operation whose outcome has been decided; then detach the operation from the purgatory
    and notify the observers.

    Return whether any awaiter was answered.  ``keys``: see :func:`exception_of`.

    Answering an awaiter schedules its task but runs no code of the task.  If one awaiter cannot be answered, the others
    are still answered: the error is reported at the end, or raised if no purgatory could report it.
    """
    park_future = operation._park_future
    awaiters = operation._awaiters
    answered = False
    failed: Exception | None = None
    if park_future is not None:
        operation._park_future = None
        try:
            answered = answer(operation, park_future, keys)
        except Exception as error:
            failed = error
    if awaiters is not None:
        operation._awaiters = None
        for waiter in awaiters:
            try:
                if answer(operation, waiter, keys):
                    answered = True
            except Exception as error:
                failed = error
    if core is not None:
        operation._core = None
        # Counting comes first so that the statistics that an observer reads include this operation.  Errors from keys
        # are reported last, because the report may raise.
        _count(core.counters, operation._op_state)
        if core._when_ended:
            _notify_after_callback(operation, core)
        elif core._notifier.active:
            core._notifier.ended(operation)
        if core._key_errors:
            core.report_keys()
    if park_future is not None and not answered and core is not None and _never_runs(operation, park_future):
        operation._park_future = park_future  # park() must not give the result back again
        core.give_back(operation, operation._value)
    if failed is not None:  # all others have their answers now
        if core is None:
            raise failed
        core.report(failed, operation)
    return answered


def _notify_after_callback(operation: Operation, core: PurgatoryCore) -> None:
    """Run the library's callback for the end of the operation, if there is one, and notify the observers even if that
    callback is interrupted."""
    try:
        core.run_when_ended(operation)
    finally:
        if core._notifier.active:
            core._notifier.ended(operation)


def _count(counters: Counters, state: i16) -> None:
    """Count an operation that has ended in this state."""
    if state == COMPLETED:
        counters.completed += 1
    elif state == EXPIRED:
        counters.expired += 1
    elif state == CANCELLED:
        counters.cancelled += 1
    elif state == EXPIRED_BY_CLOSING:
        counters.expired_by_closing += 1
    else:
        assert state == FAILED, f"an operation cannot end in state {state}"
        counters.failed += 1


def answer(operation: Operation, waiter: Any, keys: tuple[Hashable, ...]) -> bool:
    """Set the future's result or exception.  Return False if the future was cancelled or its loop is closed.

    In debug mode, an event loop raises RuntimeError in a thread other than its own.
    """
    # The exception is created outside the try: an error swallowed there would leave the future pending forever.
    if has_result(operation):
        try:
            waiter.set_result(operation._value)
        except Exception:
            if _is_lost(waiter):
                return False
            raise
        return True
    error = exception_of(operation, keys)
    try:
        waiter.set_exception(error)
    except Exception:
        if _is_lost(waiter):
            return False
        raise
    return True


def _is_lost(waiter: Any) -> bool:
    """Return whether no task will read the future, because it was cancelled or its loop is closed."""
    return bool(waiter.cancelled() or waiter.get_loop().is_closed())


def _never_runs(operation: Operation, waiter: Any) -> bool:
    """Return whether the result is for a task that was not cancelled but whose loop is closed."""
    return has_result(operation) and not waiter.cancelled() and bool(waiter.get_loop().is_closed())


def validate_awaiters(operation: Operation) -> None:
    """Raise RuntimeError if a task that awaits the unparked operation belongs to a loop that runs in another thread.

    A parked operation needs no such check, because it is awaited in its purgatory's loop.
    """
    if operation._awaiters is not None:
        running: Any = event_loop.current_loop()
        for waiter in operation._awaiters:
            loop: Any = waiter.get_loop()
            if loop is not running and loop.is_running() and not waiter.done():
                raise RuntimeError(FOREIGN_THREAD)


def exception_of(operation: Operation, keys: tuple[Hashable, ...]) -> BaseException:
    """Return the exception for the awaiters of a CANCELLED or FAILED operation, without running user code.

    ``keys``: the keys on which a CANCELLED operation was parked.  Each time an exception is raised, its traceback
    grows.  The traceback of a FAILED operation's exception is therefore cut back to the length that it had when the
    operation failed; futures do the same.
    """
    if operation._op_state == CANCELLED:
        message = f"{type_name(operation)} was cancelled before it completed"
        return OperationCancelled(message, keys=keys, reason=operation._value)
    failure: Failure = operation._value
    error = failure.error
    raised = _TRACEBACK.__get__(error)
    surplus = _length(raised) - failure.depth
    if surplus > 0:
        for _ in range(surplus):
            raised = raised.tb_next
        _TRACEBACK.__set__(error, raised)
    return error


def result_of(operation: Operation) -> Any:
    """Return the result, or raise as :meth:`Operation.result` does.

    The library calls this function, not the method, because a subclass may store its answer in an attribute named
    ``result``.
    """
    if operation._op_state == PENDING or operation._core is not None:
        raise PurgatoryError(f"{safe_repr(operation)} has no result yet")
    if has_result(operation):
        return operation._value
    try:
        raise exception_of(operation, ())
    finally:
        operation._delivered()


def error_of(operation: Operation) -> Any:
    """Return the exception of a FAILED operation."""
    failure: Failure = operation._value
    return failure.error


def keys_of(operation: Operation) -> tuple[Hashable, ...]:
    """Return the keys on which the operation is parked, as users see them, in the order in which they were given.

    This function runs no user code: it calls no method of a key or of the operation.
    """
    if operation._lone_key is not None:
        return (shown_key(operation._lone_key),)
    keys: list[Hashable] = []
    watch = operation._watch
    while watch is not None:
        keys.append(shown_key(watch.key))
        watch = watch.sibling
    keys.reverse()
    return tuple(keys)


def is_true(value: Any, operation: Operation) -> bool:
    """Return the truth value of a result of ``try_complete()`` that is not a bool.

    Raises TypeError if the value is a coroutine.
    """
    if not value:
        return False
    if is_coroutine(value):
        raise refusal(value, f"{type_name(operation)}.try_complete() must return whether the condition holds")
    return True


class Failure:
    """The exception for the awaiters of a failed operation, and the length of its traceback when the operation failed.

    The length is stored rather than the traceback: a stored traceback would keep its frames alive after the user has
    dropped it.
    """

    __slots__ = ("depth", "error")

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException = error
        self.depth: i64 = _length(_TRACEBACK.__get__(error))


def _length(traceback: Any) -> i64:
    length: i64 = 0
    while traceback is not None:
        length += 1
        traceback = traceback.tb_next
    return length


def _for_awaiters(error: BaseException, contained: bool) -> Failure:
    """Return a failure with an exception that awaiters can receive.

    A future cannot carry StopIteration, and KeyboardInterrupt is only for the code that was interrupted.  Only the
    exception's class is examined, because the exception itself may run user code.
    """
    if contained and not issubclass(type(error), StopIteration):
        return Failure(error)
    wrapped = PurgatoryError(f"the operation was interrupted by {type_name(error)}")
    wrapped.__cause__ = error
    return Failure(wrapped)
