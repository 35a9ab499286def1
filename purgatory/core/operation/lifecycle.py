"""The lifecycle of an operation: the one place where an outcome is decided.

The life of an operation
========================

An operation is created, submitted to a purgatory and tried once.  If its condition does not hold yet, it is *parked*:
linked into the watcher list of each of its keys and, if it has a deadline, put on the timer.  Then one row of
:data:`ENDINGS` happens, and the first one decides.

The path of an ending
=====================

Whatever ends an operation calls :func:`end`, which takes these steps in this order::

    PENDING?  no: False
       |
    stack, task, clock   may fail: nothing has changed
       |
    the state            decided: every other ending is False from here on
       |
    off the timer, off its keys, gauges        PurgatoryCore.leave()
       |
    on_complete()        unless it is CANCELLED or FAILED; if it raises: FAILED
       |
    the awaiters are answered
       |
    counters, observers, errors of keys        PurgatoryCore.ended()
       |
    on_expiration()      of one that expired
       |
    the checks that these callbacks have requested, if no caller above runs them

The rules
=========

1.  ``PENDING`` is left once.  Every ending checks the state and changes it with nothing in between that could run other
    code, so on one event loop no lock is needed, and the second ending returns False.
2.  The operation is off the timer and off every watcher list *before* its callback runs: the callback sees consistent
    state.
3.  Everything that may fail happens before the change of state: the clock is read and, where callbacks end operations
    whose callbacks end operations, the remaining stack is checked.  At the interpreter's recursion limit the ending is
    refused with RecursionError, and the operation is still parked.
4.  ``on_complete`` runs at most once.  If it raises, ``COMPLETED`` or ``EXPIRED`` becomes ``FAILED`` before any code
    but the callback itself could have seen it.

The hard case: the awaiting task is cancelled
=============================================

``task.cancel()`` and the end of the operation can happen in the same turn of the loop.  There are two orders:

a)  *Cancelled, then the condition holds.*  ``task.cancel()`` has cancelled the future that ``park()`` awaits, but the
    task has not run yet.  The next attempt to complete or expire the operation finds the future cancelled and
    withdraws the operation instead: it ends CANCELLED, ``on_complete`` does not run, and no result is made for a task
    that is gone.
b)  *Completed, then cancelled.*  The outcome stands.  The task still gets its CancelledError, as asyncio requires (a
    swallowed cancellation breaks timeouts and task groups).  The result that no task received is given back: ``park()``
    calls ``on_abandoned(result)`` before it raises the CancelledError.

These are functions, not methods, because the compiler calls a function directly, but looks up a method of a class that
has subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mypy_extensions import i64

from purgatory.core.timer.base_timer import now
from purgatory.core.timer.event_loop import event_loop
from purgatory.core.timer.task import unlink
from purgatory.core.timer.thread_guard import FOREIGN_THREAD
from purgatory.errors import OperationCancelled, PurgatoryError
from purgatory.events import Outcome
from purgatory.texts import safe_repr, type_name

from .coroutines import COROUTINE, is_coroutine, refusal
from .private_key import shown_key
from .stack_guard import ensure_stack

if TYPE_CHECKING:
    from collections.abc import Hashable

    from purgatory.core.purgatory import PurgatoryCore

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
    "core_of",
    "end",
    "error_of",
    "exception_of",
    "fail_externally",
    "fail_tried",
    "has_expired",
    "has_result",
    "is_parked",
    "is_true",
    "keys_of",
    "outcome_of",
    "task_was_cancelled",
    "validate_awaiters",
    "validate_new",
]

PENDING: Final = 0
COMPLETED: Final = 1
EXPIRED: Final = 2
CANCELLED: Final = 3
FAILED: Final = 4
EXPIRED_BY_CLOSING: Final = 5  # the outcome is EXPIRED: see outcome_of()
DEEP: Final = 8  # from this many nested endings on, each first checks the remaining stack
FRAMES: Final = 80  # the frames that an ending and the loop's exception handler may need
OUTCOMES: Final = (Outcome.PENDING, Outcome.COMPLETED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED)


_TRACEBACK: Final[Any] = BaseException.__dict__["__traceback__"]  # the descriptor: a subclass may have another one


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
"""How an operation can leave ``PENDING``: documentation, from which the picture is drawn.  :func:`end` is the code."""


def validate_new(operation: Operation) -> None:
    """Raise ValueError unless the operation is new: neither parked nor ended."""
    core = core_of(operation)
    if operation._state != PENDING:
        raise ValueError(f"operation must be new, got {safe_repr(operation)}, which has ended: make one for each wait")
    if core is not None:
        raise ValueError(f"operation must be new, got {safe_repr(operation)}, which is parked already")


def outcome_of(state: i64) -> Outcome:
    """Return the outcome that users see for a state."""
    return Outcome.EXPIRED if state == EXPIRED_BY_CLOSING else OUTCOMES[state]


def is_parked(operation: Operation) -> bool:
    """Return whether the operation is on its keys, and so counted, found by checks and shown in dumps.

    It is not while it is tried for the first time, although its purgatory is known by then.
    """
    return operation._watch is not None


def has_result(operation: Operation) -> bool:
    """Return whether the operation has ended COMPLETED or EXPIRED."""
    return operation._state == COMPLETED or has_expired(operation)


def has_expired(operation: Operation) -> bool:
    """Return whether the operation has ended EXPIRED: at its deadline, or because its purgatory closed."""
    return operation._state == EXPIRED or operation._state == EXPIRED_BY_CLOSING


def core_of(operation: Operation) -> PurgatoryCore | None:
    """Return the core in which the operation is.  Raises RuntimeError if its class forgot ``super().__init__()``."""
    try:
        return operation._core
    except AttributeError:
        raise RuntimeError(f"{type_name(operation)}.__init__() must call super().__init__(timeout)") from None


def end(operation: Operation, state: i64, why: Any, contained: bool) -> bool:
    """End the operation.  Return True if this call did, and in this state.

    This is the one path of every ending: completion, expiry, cancellation, failure and closing.

    ``state``: what it becomes; one whose ``on_complete`` raises becomes FAILED instead.  ``why``: the exception of one
    that fails; the reason of one that is cancelled, any object or None.  ``contained``: whether an exception from
    ``on_complete`` only fails the operation, as in a check or an expiry, or also reaches the caller.
    """
    # 1. The first ending decides.
    if operation._state != PENDING:
        return False
    core = operation._core
    calls_back = state != CANCELLED and state != FAILED
    # 2. All that may fail: the stack, the task that is gone, the clock.  Nothing has changed if it does.
    now_ms: i64 = 0
    parked = False
    if core is not None:
        if calls_back:
            if core.depth >= DEEP:
                ensure_stack(FRAMES)
            if operation._park_future is not None and task_was_cancelled(operation):
                end(operation, CANCELLED, None, True)  # the hard case, a)
                return False
        parked = is_parked(operation)
        if parked:
            now_ms = now(core.timer)
    # 3. The outcome.  From here to the callback only this library runs: a second ending finds the state changed.
    operation._state = state
    if core is None:
        if calls_back:
            _call_back(operation, None, contained)
        else:
            _fill(operation, why)
            _settle(operation, None, ())
        return operation._state == state
    keys: tuple[Hashable, ...] = ()
    if not calls_back:
        _fill(operation, why)
        if state == CANCELLED and (operation._park_future is not None or operation._awaiters is not None):
            keys = keys_of(operation)  # for the message of the OperationCancelled
    core.depth += 1
    try:
        # 4. Off the timer and off its keys, before the callback, which may check these keys or park on them.  None of
        # this fails: an error of a key is kept until the awaiters have their answers.
        if operation._list is not None:
            unlink(operation)
        if parked:
            core.leave(operation, now_ms)
        # 5. The callback, the answers, the observers.
        # 6. The checks that these have requested, unless a call above is going to run them.
        if calls_back:
            queued = core.queued
            outermost = not queued.busy
            queued.busy = True
            try:
                _call_back(operation, core, contained)
            finally:
                if outermost:
                    core.run_queued_checks()
        else:
            _settle(operation, core, keys)
    finally:
        core.depth -= 1
    return operation._state == state


def _fill(operation: Operation, why: Any) -> None:
    """Store what the awaiters of a CANCELLED or FAILED operation get."""
    operation._value = _for_awaiters(why, True) if operation._state == FAILED else why


def _call_back(operation: Operation, core: PurgatoryCore | None, contained: bool) -> None:
    """Make the result, answer, and call ``on_expiration`` of an operation that expired.

    The outcome changes once more here, to FAILED, if ``on_complete`` raises.  Only ``on_complete`` itself could have
    seen the first one: no awaiter has been answered, and no observer notified.  ``on_expiration`` comes after all
    answers, so an exception of it changes nothing and is only reported.
    """
    expired = operation._state != COMPLETED
    try:
        value = operation.on_complete()
        if type(value) is COROUTINE:
            raise refusal(value, f"{type_name(operation)}.on_complete() must return the result")
        operation._value = value
    except BaseException as error:
        own = issubclass(type(error), Exception) if core is None else core.contains(error)
        operation._state = FAILED
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
    """Fail an operation that raised while it was tried.  Return True if an awaiter got the exception."""
    awaited = _is_awaited(operation)
    return end(operation, FAILED, error, True) and awaited


def fail_externally(operation: Operation, error: BaseException) -> bool:
    """Fail the operation with an exception from outside, for its awaiters.  Return True if this call did.

    An operation whose task was cancelled is withdrawn, as by every other ending: the hard case, a).
    """
    if task_was_cancelled(operation):
        end(operation, CANCELLED, None, True)
        return False
    return end(operation, FAILED, error, True)


def task_was_cancelled(operation: Operation) -> bool:
    """Whether the task that awaits the operation in ``park()`` was cancelled: the hard case, a)."""
    return operation._park_future is not None and operation._park_future.cancelled()


def _is_awaited(operation: Operation) -> bool:
    """Return whether a task is going to receive the outcome: one that was cancelled is not."""
    if operation._park_future is not None and not operation._park_future.done():
        return True
    return operation._awaiters is not None and not all([waiter.done() for waiter in operation._awaiters])


def _settle(operation: Operation, core: PurgatoryCore | None, keys: tuple[Hashable, ...]) -> bool:
    """Answer every awaiter of an operation that has its outcome, then leave the purgatory and notify the observers.

    Return whether any awaiter was answered.  ``keys``: see :func:`exception_of`.

    Answering an awaiter schedules its task and runs no code of it.  An awaiter that cannot be answered keeps no other
    from its answer: the error is reported at the end, or raised if no purgatory could report it.
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
        core.ended(operation)
    if failed is not None:  # all others have their answer now
        if core is None:
            raise failed
        core.report(failed, operation)
    return answered


def answer(operation: Operation, waiter: Any, keys: tuple[Hashable, ...]) -> bool:
    """Set the result or the exception of the future.  False if it was cancelled, or if its loop is closed.

    An event loop in debug mode raises RuntimeError in another thread than its own.
    """
    # The error is made outside the try: an error hidden there would leave the future pending forever.
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
    """Return whether no task will read the future: it was cancelled, or its loop is closed."""
    return bool(waiter.cancelled() or waiter.get_loop().is_closed())


def validate_awaiters(operation: Operation) -> None:
    """Raise RuntimeError if the loop of a task that awaits the operation, which is not parked, runs in another thread.

    A parked operation needs no such question: it is awaited in the loop of its purgatory.
    """
    if operation._awaiters is not None:
        running: Any = event_loop.current_loop()
        for waiter in operation._awaiters:
            loop: Any = waiter.get_loop()
            if loop is not running and loop.is_running() and not waiter.done():
                raise RuntimeError(FOREIGN_THREAD)


def exception_of(operation: Operation, keys: tuple[Hashable, ...]) -> BaseException:
    """Return the exception for awaiters of a CANCELLED or FAILED operation.  It runs no user code.

    ``keys``: the keys that a CANCELLED operation was parked on.  Raising an exception lengthens its traceback each
    time; the one of a FAILED operation is cut back to its length when the operation failed, as a future does.
    """
    if operation._state == CANCELLED:
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


def error_of(operation: Operation) -> Any:
    """Return the exception of a FAILED operation."""
    failure: Failure = operation._value
    return failure.error


def keys_of(operation: Operation) -> tuple[Hashable, ...]:
    """Return the keys that the operation is parked on, in the order in which they were given, as users see them.

    This runs no user code: no method of a key or of the operation is called.
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
    """Return the truth of what ``try_complete()`` returned, if it is not a bool.

    Raises TypeError if it is a coroutine.
    """
    if not value:
        return False
    if is_coroutine(value):
        raise refusal(value, f"{type_name(operation)}.try_complete() must return whether the condition holds")
    return True


class Failure:
    """The exception for the awaiters of a failed operation, and the length of its traceback when the operation failed.

    The length, not the traceback, which would keep its frames alive after the user has dropped it.
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
    """Return the failure with an exception that awaiters can receive.

    A future cannot carry StopIteration, and KeyboardInterrupt is only for the code that was interrupted.  Only the
    class of the exception is used, because the exception itself may run user code.
    """
    if contained and not issubclass(type(error), StopIteration):
        return Failure(error)
    wrapped = PurgatoryError(f"the operation was interrupted by {type_name(error)}")
    wrapped.__cause__ = error
    return Failure(wrapped)
