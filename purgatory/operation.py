"""The delayed operation: a request that waits, and is answered exactly once.  Floor 3.

The life of an operation
========================

An operation is made, handed to a purgatory, tried once, and if its condition does not hold yet it is *parked*: linked
into the watch list of each of its keys and, if it has a deadline, put on the timer.  Then one of the things in the
table :data:`ENDINGS` happens, and whichever comes first decides.

The rules
=========

1.  ``PENDING`` is left once.  Every ending goes through a check of the state and the change of it with nothing in
    between that could run other code, so on one event loop no lock is needed and the second to come gets False.
2.  The operation is off the timer and off every watch list *before* its callback runs: whatever the callback does,
    it meets a house in order.
3.  ``on_complete`` runs at most once; where it raises, ``COMPLETED`` or ``EXPIRED`` turns into ``FAILED`` before anyone
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

from collections.abc import Callable, Generator, Hashable
from typing import Any, Final, NamedTuple

from mypy_extensions import i64, mypyc_attr

from .errors import OperationCancelled, PurgatoryError
from .events import Outcome
from .timer.task import TimerTask
from .units import duration_ms
from .watch import Watch

__all__ = [
    "CANCELLED",
    "COMPLETED",
    "ENDINGS",
    "EXPIRED",
    "FAILED",
    "FOREVER_MS",
    "PENDING",
    "Ending",
    "Holder",
    "Operation",
    "end",
    "fail",
    "finish",
    "new_waiter",
    "set_running_loop",
]

PENDING: Final = 0
COMPLETED: Final = 1
EXPIRED: Final = 2
CANCELLED: Final = 3
FAILED: Final = 4
_OUTCOMES = (Outcome.PENDING, Outcome.COMPLETED, Outcome.EXPIRED, Outcome.CANCELLED, Outcome.FAILED)


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

FOREVER_MS: Final = -1  # the delay of an operation without a deadline


def _no_loop() -> Any:
    raise RuntimeError("an operation can be awaited only where an event loop is at hand: import purgatory")


class _Waiters:
    """Where futures come from: the floor that knows the event loop says here how to find the one that runs."""

    def __init__(self) -> None:
        self.running_loop: Callable[[], Any] = _no_loop


_waiters = _Waiters()


def set_running_loop(running_loop: Callable[[], Any]) -> None:
    """Tell this floor how to find the event loop that runs."""
    _waiters.running_loop = running_loop


def new_waiter() -> Any:
    """A future of the running event loop."""
    return _waiters.running_loop().create_future()


class Holder:
    """What an operation knows of the purgatory that it is parked in: enough to leave it."""

    __slots__ = ()

    def release(self, operation: "Operation") -> None:
        """Take it off the timer and off every watch list, and out of the gauges."""
        raise NotImplementedError

    def ended(self, operation: "Operation") -> None:
        """It has its outcome: count it, and tell the observers."""
        raise NotImplementedError

    def enter(self) -> bool:
        """User code is about to run: checks are queued from here on.  True iff this is the outermost."""
        raise NotImplementedError

    def leave(self) -> i64:
        """The outermost user code has returned: run the queued checks; return how many operations they completed."""
        raise NotImplementedError

    def contains(self, error: BaseException) -> bool:
        """Whether the exception is an operation's own failure, as against an order to the whole program."""
        raise NotImplementedError

    def report(self, error: BaseException, operation: "Operation") -> None:
        """An operation failed and nobody waits for it."""
        raise NotImplementedError

    def is_trying(self, operation: "Operation") -> bool:
        """Whether the operation is being tried by a check, not by the caller who hands it over."""
        raise NotImplementedError

    def extend(self, operation: "Operation", delay_ms: int) -> None:
        """Move its deadline."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Operation(TimerTask):
    """What is compiled of :class:`DelayedOperation`, which see: everything but the type of its result.

    A class that the compiler derives from ``Generic`` gets places for weak references that it never clears, so the
    generic class is an interpreted one on top of this.
    """

    __slots__ = ("_awaiters", "_holder", "_op_id", "_parked_ms", "_parker", "_state", "_value", "_watch")

    def __init__(self, timeout: Any) -> None:
        super().__init__(FOREVER_MS if timeout is None else duration_ms(timeout, "timeout"))
        self._state: i64 = PENDING
        self._holder: Holder | None = None
        self._watch: Watch | None = None  # its place on its last key; the siblings lead to the first
        self._value: Any = None  # the result, or the exception of a failed one
        self._parker: Any = None  # the future of the task in park()
        self._awaiters: list[Any] | None = None  # the futures of everyone else
        self._parked_ms: i64 = 0
        self._op_id: i64 = 0

    # What a subclass says

    def try_complete(self) -> bool:
        """Whether the condition holds.  Called when it is handed over, and on every check of one of its keys.

        It may call :meth:`force_complete` itself, as in Kafka, but need not: True is enough.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say when it is complete: override try_complete()")

    def on_complete(self) -> Any:
        """Make the result.  Called exactly once, on completion and on expiry (see :attr:`expired`)."""
        return None

    def on_expiration(self) -> None:
        """Called after :meth:`on_complete`, only on expiry.  What it raises is reported; the outcome stands."""

    # How it ends

    def force_complete(self) -> bool:
        """Complete it now, whether or not the condition holds.  True iff this call completed it.

        What :meth:`on_complete` raises reaches the caller (and every awaiter), and the operation has failed.
        """
        holder = self._holder
        return finish(self, COMPLETED, holder is not None and holder.is_trying(self))

    def cancel(self) -> bool:
        """Withdraw it: off the timer and off every watch list; :meth:`on_complete` is not called.

        True iff this call ended it.  Its awaiters get :class:`OperationCancelled`.
        """
        return end(self, CANCELLED, None)

    def extend(self, timeout: Any) -> bool:
        """Move the deadline to ``timeout`` seconds from now; None takes it away.  True iff the operation still waits.

        O(1); it stays where it is on its watch lists.  A later deadline only changes a number: the timer finds out when
        the old one comes up.  For an operation that is not parked yet it replaces the timeout.
        """
        delay_ms = FOREVER_MS if timeout is None else duration_ms(timeout, "timeout")
        if self._state != PENDING:
            return False
        holder = self._holder
        if holder is None:
            self.delay_ms = delay_ms
        else:
            holder.extend(self, delay_ms)
        return True

    def run(self) -> None:
        """The deadline has passed: the timer calls this."""
        finish(self, EXPIRED, True)

    def _abandon(self, error: BaseException) -> None:
        # The timer is gone, so no deadline would ever come: the end is an answer.
        finish(self, EXPIRED, True)

    # How it stands

    @property
    def outcome(self) -> Outcome:
        """How it stands."""
        return _OUTCOMES[self._state]

    @property
    def expired(self) -> bool:
        """Whether its deadline decided.  True within :meth:`on_complete` already."""
        return self._state == EXPIRED

    @property
    def is_completed(self) -> bool:
        """Whether it was answered: COMPLETED or EXPIRED."""
        return self._state == COMPLETED or self._state == EXPIRED

    @property
    def timeout(self) -> float | None:
        """The timeout it was given, in seconds, rounded up to a millisecond; None: no deadline."""
        return None if self.delay_ms < 0 else self.delay_ms / 1000

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys on which it is parked now, in the order given; empty if it is not."""
        keys: list[Hashable] = []
        watch = self._watch
        while watch is not None:
            keys.append(watch.key)
            watch = watch.sibling
        keys.reverse()
        return tuple(keys)

    def result(self) -> Any:
        """What :meth:`on_complete` returned.

        Raises the exception of a FAILED operation, :class:`OperationCancelled` for a CANCELLED one, and
        :class:`PurgatoryError` while it is PENDING.
        """
        if self._state == COMPLETED or self._state == EXPIRED:
            return self._value
        if self._state == PENDING:
            raise PurgatoryError(f"{self!r} has no result yet")
        raise _exception(self)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the end; the value of :meth:`on_complete`, or the exception that :meth:`result` would raise."""
        waiter = new_waiter()
        if self._state != PENDING:
            _answer(self, waiter)
        else:
            awaiters = self._awaiters
            if awaiters is None:
                self._awaiters = [waiter]
            else:
                if len(awaiters) >= 8 and len(awaiters) & (len(awaiters) - 1) == 0:
                    # Those who gave up waiting stay in the list until it has doubled, not for ever.
                    awaiters[:] = [other for other in awaiters if not other.done()]
                awaiters.append(waiter)
        return waiter.__await__()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parts = [type(self).__name__, self.outcome.name]
        if self._holder is not None:
            parts.append(f"on {list(self.keys)!r}")
        parts.append("for ever" if self.delay_ms < 0 else f"timeout={self.delay_ms / 1000:g}")
        if self._state == FAILED:
            parts.append(f"error={self._value!r}")
        return f"<{' '.join(parts)}>"


# How an operation ends, as functions: the compiler calls a function without asking whether a subclass has another.


def finish(operation: Operation, state: i64, contained: bool) -> bool:
    """Complete or expire the operation.  True iff this call did.

    ``contained``: an exception from ``on_complete`` is the operation's own affair (a check or an expiry); else it
    reaches the caller.
    """
    if operation._state != PENDING:
        return False
    parker = operation._parker
    if parker is not None and parker.cancelled():
        end(operation, CANCELLED, None)  # the hard case, a)
        return False
    # From here to on_complete() nothing runs but this library: whoever comes second finds the state changed.
    operation._state = state
    holder = operation._holder
    if holder is None:
        _complete(operation, None, contained)
    else:
        holder.release(operation)
        outermost = holder.enter()
        try:
            _complete(operation, holder, contained)
        finally:
            if outermost:
                holder.leave()
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
    operation._state = state
    operation._value = None if error is None else _for_awaiters(error, True)
    holder = operation._holder
    if holder is not None:
        holder.release(operation)
    _settle(operation, holder)
    return True


def fail(operation: Operation, error: BaseException) -> bool:
    """The operation raised while it was tried.  True iff somebody waited and was told."""
    waits = _someone_waits(operation)
    return end(operation, FAILED, error) and waits


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
        told = _answer(operation, parker)
    if awaiters is not None:
        operation._awaiters = None
        for waiter in awaiters:
            if _answer(operation, waiter):
                told = True
    if holder is not None:
        operation._holder = None
        holder.ended(operation)
    return told


def _answer(operation: Operation, waiter: Any) -> bool:
    """Give the future what it waits for.  False if it has been cancelled, or if its loop is closed."""
    try:
        if operation._state == COMPLETED or operation._state == EXPIRED:
            waiter.set_result(operation._value)
        else:
            waiter.set_exception(_exception(operation))
    except Exception:
        # InvalidStateError: it is cancelled.  RuntimeError: its loop is closed, and nobody will ever read it.
        return False
    return True


def _exception(operation: Operation) -> BaseException:
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
