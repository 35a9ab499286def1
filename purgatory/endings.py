"""How an operation ends: the one place where an outcome is decided.  Floor 3.

The rules
=========

1.  ``PENDING`` is left once.  Every ending goes through a check of the state and the change of it with nothing in
    between that could run other code, so on one event loop no lock is needed and the second to come gets False.
2.  The operation is off the timer and off every watch list *before* its callback runs: whatever the callback does,
    it meets a house in order.
3.  What may fail comes before the change: the clock is read, and where callbacks end operations whose callbacks end
    operations, the stack is felt for.  At the interpreter's limit of recursion the ending is refused with
    RecursionError, and the operation still waits.
4.  ``on_complete`` runs at most once; where it raises, ``COMPLETED`` or ``EXPIRED`` turns into ``FAILED`` before anyone
    but the callback itself could have seen it.

The hard case: the awaiting task is cancelled
=============================================

``task.cancel()`` and the end of the operation can fall into one turn of the loop.  There are two orders:

a)  *Cancelled, then the condition holds.*  ``task.cancel()`` has cancelled the future that ``park()`` waits on, but the
    task has not run yet.  Whoever now tries to complete or expire the operation finds the future cancelled and
    withdraws the operation instead: it ends CANCELLED, ``on_complete`` does not run, and nothing is handed to a caller
    who has left.
b)  *Completed, then cancelled.*  The outcome stands.  The task still gets its CancelledError, as asyncio wants it (a
    swallowed cancellation breaks timeouts and task groups); the result stays in the operation, where ``result()`` has
    it for whoever cleans up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mypy_extensions import i64

from .errors import OperationCancelled, PurgatoryError
from .events import Outcome
from .headroom import need_stack

if TYPE_CHECKING:
    from .operation import Operation

__all__ = [
    "CANCELLED",
    "COMPLETED",
    "ENDINGS",
    "EXPIRED",
    "FAILED",
    "OUTCOMES",
    "PENDING",
    "Ending",
    "Holder",
    "answer",
    "end",
    "exception_of",
    "fail",
    "finish",
    "has_left",
    "refuse",
]

PENDING: Final = 0
COMPLETED: Final = 1
EXPIRED: Final = 2
CANCELLED: Final = 3
FAILED: Final = 4
OUTCOMES: Final = (Outcome.PENDING, Outcome.COMPLETED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED)


_DEEP: Final = 8  # from so many endings within endings on, each makes sure that it can be carried through
_FRAMES: Final = 80  # what an ending and the loop's exception handler may need of the interpreter's stack


class Ending(NamedTuple):
    """One way in which an operation can end."""

    outcome: Outcome
    how: str
    runs: str
    awaiters: str


ENDINGS: Final = (
    Ending(Outcome.COMPLETED, "try_complete() is true, or force_complete()", "on_complete()", "its value"),
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
"""How an operation can leave ``PENDING``; the documentation draws its picture from here."""


class Holder:
    """What an operation knows of the purgatory that it is parked in: enough to leave it.

    ``depth``: how many operations are being ended or handed over right now, each from within a callback of the one
    before: its own or an observer's.
    """

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth: i64 = 0

    def time_ms(self) -> i64:
        """The time, for the books."""
        raise NotImplementedError

    def release(self, operation: Operation, now_ms: i64) -> None:
        """Take it off the timer and off every watch list, and out of the gauges."""
        raise NotImplementedError

    def ended(self, operation: Operation) -> None:
        """It has its outcome: count it, and tell the observers."""
        raise NotImplementedError

    def feel(self) -> None:
        """Raise RecursionError where operations are ended in each other's callbacks down to the limit of the stack."""
        if self.depth >= _DEEP:
            need_stack(_FRAMES)

    def enter(self) -> bool:
        """User code is about to run: checks are queued from here on.  True iff this is the outermost."""
        raise NotImplementedError

    def leave(self) -> i64:
        """The outermost user code has returned: run the queued checks; return how many operations they completed."""
        raise NotImplementedError

    def contains(self, error: BaseException) -> bool:
        """Whether the exception is an operation's own failure, as against an order to the whole program."""
        raise NotImplementedError

    def report(self, error: BaseException, operation: Operation) -> None:
        """An operation failed and nobody waits for it."""
        raise NotImplementedError

    def is_trying(self, operation: Operation) -> bool:
        """Whether the operation is being tried by a check, not by the caller who hands it over."""
        raise NotImplementedError

    def extend(self, operation: Operation, delay_ms: int) -> None:
        """Move its deadline."""
        raise NotImplementedError


# How an operation ends, as functions: the compiler calls a function without asking whether a subclass has another.


def finish(operation: Operation, state: i64, contained: bool) -> bool:
    """Complete or expire the operation.  True iff this call did.

    ``contained``: an exception from ``on_complete`` is the operation's own affair (a check or an expiry); else it
    reaches the caller.
    """
    if operation._state != PENDING:
        return False
    holder = operation._holder
    if holder is None:
        operation._state = state
        _complete(operation, None, contained)
        return operation._state != FAILED
    holder.feel()
    if operation._parker is not None and has_left(operation):
        end(operation, CANCELLED, None)  # the hard case, a)
        return False
    now_ms: i64 = holder.time_ms() if operation._watch is not None else 0
    # What could fail for want of stack or of a clock has not.  From here to on_complete() nothing runs but this
    # library: whoever comes second finds the state changed.
    operation._state = state
    holder.depth += 1
    try:
        holder.release(operation, now_ms)
        outermost = holder.enter()
        try:
            _complete(operation, holder, contained)
        finally:
            if outermost:
                holder.leave()
    finally:
        holder.depth -= 1
    return operation._state != FAILED


def _complete(operation: Operation, holder: Holder | None, contained: bool) -> None:
    expired = operation._state == EXPIRED
    try:
        operation._value = operation.on_complete()
    except BaseException as error:
        own = isinstance(error, Exception) if holder is None else holder.contains(error)
        operation._state = FAILED
        operation._value = _for_awaiters(error, own)
        told = _settle(operation, holder)
        if not contained or not own:
            raise
        if not told and holder is not None:
            holder.report(error, operation)
        return
    _settle(operation, holder)
    if expired:
        try:
            operation.on_expiration()
        except BaseException as error:
            if holder is None or not holder.contains(error):
                raise
            holder.report(error, operation)


def end(operation: Operation, state: i64, error: BaseException | None) -> bool:
    """Cancel or fail the operation, without a callback.  True iff this call did."""
    if operation._state != PENDING:
        return False
    holder = operation._holder
    now_ms: i64 = holder.time_ms() if holder is not None and operation._watch is not None else 0
    operation._state = state
    operation._value = None if error is None else _for_awaiters(error, True)
    if holder is None:
        _settle(operation, None)
        return True
    holder.depth += 1
    try:
        holder.release(operation, now_ms)
        _settle(operation, holder)
    finally:
        holder.depth -= 1
    return True


def fail(operation: Operation, error: BaseException) -> bool:
    """The operation raised while it was tried.  True iff somebody waited and was told."""
    waits = _someone_waits(operation)
    return end(operation, FAILED, error) and waits


def refuse(operation: Operation, error: BaseException) -> bool:
    """Fail the operation from outside, for those who wait.  True iff this call did.

    One whose own task has been cancelled is withdrawn, as by every other ending: the hard case, a).
    """
    if has_left(operation):
        end(operation, CANCELLED, None)
        return False
    return end(operation, FAILED, error)


def has_left(operation: Operation) -> bool:
    """Whether the task that parked it has been cancelled: the hard case, a)."""
    return operation._parker is not None and operation._parker.cancelled()


def _someone_waits(operation: Operation) -> bool:
    if operation._parker is not None and not operation._parker.done():
        return True
    return operation._awaiters is not None and not all([waiter.done() for waiter in operation._awaiters])


def _settle(operation: Operation, holder: Holder | None) -> bool:
    """The outcome stands: answer everyone and let go of the purgatory.  True iff somebody waited."""
    parker = operation._parker
    awaiters = operation._awaiters
    told = False
    if parker is not None:
        operation._parker = None
        told = answer(operation, parker)
    if awaiters is not None:
        operation._awaiters = None
        for waiter in awaiters:
            if answer(operation, waiter):
                told = True
    if holder is not None:
        operation._holder = None
        holder.ended(operation)
    return told


def answer(operation: Operation, waiter: Any) -> bool:
    """Give the future what it waits for.  False if it has been cancelled, or if its loop is closed."""
    try:
        if operation._state == COMPLETED or operation._state == EXPIRED:
            waiter.set_result(operation._value)
        else:
            waiter.set_exception(exception_of(operation))
    except Exception:
        # InvalidStateError: it is cancelled.  RuntimeError: its loop is closed, and nobody will ever read it.
        return False
    return True


def exception_of(operation: Operation) -> BaseException:
    """The exception for awaiters of a CANCELLED or FAILED operation."""
    if operation._state == CANCELLED:
        return OperationCancelled(f"{operation!r} was withdrawn before it was answered")
    return operation._value  # type: ignore[no-any-return]


def _for_awaiters(error: BaseException, contained: bool) -> BaseException:
    """The exception as its awaiters may have it.

    A future cannot carry StopIteration, and KeyboardInterrupt is for the one who was interrupted.
    """
    if contained and not isinstance(error, StopIteration):
        return error
    wrapped = PurgatoryError(f"the operation was interrupted by {error!r}")
    wrapped.__cause__ = error
    return wrapped
