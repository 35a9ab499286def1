"""The delayed operation: a request that waits and is answered exactly once.  :mod:`.lifecycle` describes its life."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64, mypyc_attr

from purgatory.core.timer.coroutines import is_coroutine, refusal
from purgatory.core.timer.event_loop import event_loop
from purgatory.core.timer.task import COMPILED, NOT_QUEUED, TimerTask, set_up, validate_class, validated_class
from purgatory.core.timer.units import deadline_ms, duration_ms, to_seconds
from purgatory.events import Outcome
from purgatory.texts import safe_repr, type_name

from .lifecycle import (
    CANCELLED,
    COMPLETED,
    DEEP,
    EXPIRED,
    EXPIRED_BY_CLOSING,
    FAILED,
    PENDING,
    answer,
    end,
    error_of,
    expire_on_timer,
    has_expired,
    has_result,
    keys_of,
    outcome_of,
    result_of,
    validate_awaiters,
)

if TYPE_CHECKING:
    from purgatory.core.purgatory import PurgatoryCore
    from purgatory.core.watch.watch import Watch

__all__ = ["FOREVER_MS", "MISSING", "Operation", "new_future", "set_deadline", "withdraw"]

FOREVER_MS: Final = -1  # the delay if there is no deadline, or if the deadline is absolute and not yet on the timer
MISSING: Final[Any] = object()
"""The default for parameters for which None has a meaning."""

# This is a string because inspect and mocks can read a compiled function's signature only if each default is a literal.
_OMITTED: Final = "required"


def new_future() -> Any:
    """Return a new future that belongs to the running event loop."""
    return event_loop.running_loop().create_future()


@mypyc_attr(allow_interpreted_subclasses=True)
class Operation(TimerTask):
    """The compiled part of :class:`DelayedOperation`: everything except the type of its result.

    A compiled class derived from ``Generic`` has slots for weak references that are never cleared, so the generic class
    is an interpreted subclass of this class.
    """

    __slots__ = (
        "_awaiters",
        "_core",
        "_is_set_up",
        "_lone_key",
        "_op_id",
        "_op_state",
        "_park_future",
        "_parked_ms",
        "_value",
        "_watch",
    )

    _core: PurgatoryCore | None
    _watch: Watch | None  # the last key's watch, whose siblings lead to the first, or the shard's lone watch
    _lone_key: Hashable  # its only key, if the operation is itself the entry of that key; otherwise None
    _value: Any  # the result, the Failure if it failed, or the reason if it was cancelled
    _park_future: Any  # the future of the task in park()
    _awaiters: list[Any] | None  # the futures of all other awaiters
    _parked_ms: i64
    _op_id: i64  # 0 until it is submitted

    def __init__(self, timeout: Any = _OMITTED) -> None:
        _begin(self, timeout)

    def DelayedOperation(self, timeout: Any = _OMITTED) -> None:  # noqa: N802 - errors about its arguments show the name
        """The constructor of :class:`DelayedOperation`, which takes the method from this class."""
        _begin(self, timeout)

    # What a subclass overrides

    def try_complete(self) -> Any:
        """Return whether the condition holds.  Called when the operation is submitted, and whenever one of its keys is
        checked.

        Calling :meth:`force_complete` here, as Kafka does, also works.
        """
        raise NotImplementedError(f"{type(self).__name__} must override try_complete()")

    def on_complete(self) -> Any:
        """Return the result.  Called exactly once, when the operation completes or expires (see :attr:`expired`)."""
        return None

    def on_expiration(self) -> Any:
        """Called after :meth:`on_complete`, only on expiration.  If the method raises, the exception is reported, and
        the outcome stands.
        """

    def on_abandoned(self, result: Any) -> Any:
        """Take back a result that the task in :meth:`Purgatory.park` did not receive because it was cancelled.

        Called at most once, with the result of :meth:`on_complete`, if the operation has ended COMPLETED or EXPIRED
        (see :attr:`expired`) and the task was cancelled in the same turn of the loop.  The method runs in the cancelled
        task and in that task's context, before ``park()`` raises the CancelledError; it must not await.  If the method
        raises, the exception is reported to the loop's exception handler.

        If the client disconnected in that turn, :meth:`purgatory.asgi.Wait.park` also calls the method, before
        ``Wait.park`` raises :class:`purgatory.asgi.ClientDisconnected`.

        The method is not called for an operation that ends CANCELLED or FAILED.  Nor is it called for an operation that
        was submitted with :meth:`Purgatory.try_complete_else_watch`, which keeps its result.  For an operation that
        completes at once, the method is called only if ``park()`` nevertheless raises, for example because an observer
        was interrupted.  It is called even if other tasks await the operation and receive the
        result: such a result has several owners.
        """

    # Ending it

    def force_complete(self) -> bool:
        """Complete the operation now, whether or not the condition holds.  Return True if this call completed it.

        If :meth:`on_complete` raises, the exception reaches the caller and every awaiter, and the operation fails.
        """
        core = self._core
        _validate_thread(self)
        return end(self, COMPLETED, None, core is not None and core.is_trying(self))

    def cancel(self, reason: Any = None) -> bool:
        """Withdraw the operation from the timer and from every key; :meth:`on_complete` is not called.

        Return True if this call ended the operation.  Its awaiters receive :class:`OperationCancelled`, and observers
        receive an event; both carry the ``reason``, which may be any object.
        """
        _validate_thread(self)
        core = self._core
        if core is not None and core.depth >= DEEP:
            core.ensure_stack()
        return end(self, CANCELLED, reason)

    def extend(self, timeout: Any) -> bool:
        """Move the deadline to ``timeout`` seconds from now; None removes it.  Return True if the operation is PENDING.

        The cost is O(1), and the operation keeps its place on its keys.  A later deadline only changes a number: the
        timer moves the task when the old deadline passes.  If the operation is not parked yet, the call replaces its
        timeout.  Raises ValueError for an operation that is on a timer as a task (:meth:`SystemTimer.add`).
        """
        delay_ms = FOREVER_MS if timeout is None else duration_ms(timeout, "timeout")
        if self._op_state != PENDING:
            return False
        core = self._core
        if core is None:
            _validate_off_timer(self)
            set_deadline(self, delay_ms, NOT_QUEUED)
        else:
            core.extend(self, delay_ms)
        return self._op_state == PENDING  # reading the clock may have ended the operation

    def extend_to(self, deadline: Any) -> bool:
        """Move the deadline to a time on the timer's clock; None removes it.  Return True if the operation is PENDING.

        ``deadline``: a time in seconds on the timer's clock (:meth:`SystemTimer.time`), rounded up to a millisecond and
        to the timer's tick.  If the deadline has already passed, the operation expires in the timer's next turn, and
        its lateness counts from this call.  If the operation is not parked yet, the call replaces its timeout, the
        deadline is on the clock of the purgatory in which the operation will be parked, and any lateness counts from
        when it is parked.

        Raises TypeError unless the deadline is a number or None, and ValueError unless it is from -1e15 to 1e15 or
        infinity, which is the latest time.  Also raises ValueError for an operation that is on a timer as a task.
        """
        if deadline is None:
            return self.extend(None)
        at_ms = deadline_ms(deadline, "deadline")
        if self._op_state != PENDING:
            return False
        core = self._core
        if core is None:
            _validate_off_timer(self)
            set_deadline(self, FOREVER_MS, at_ms)
        else:
            core.extend_to(self, at_ms)
        return self._op_state == PENDING  # reading the clock may have ended the operation

    def run(self) -> None:
        """Expire the operation, as the timer does when the deadline passes."""
        _validate_thread(self)
        end(self, EXPIRED, None)

    def _fire(self) -> None:
        if self._core is None:
            expire_on_timer(self, EXPIRED)
        else:
            end(self, EXPIRED, None)

    def _expiration_from(self, now_ms: i64, passed_ms: i64) -> i64:
        if self._core is not None:
            raise ValueError(f"task must not be parked, got {safe_repr(self)}: extend() moves its deadline")
        if self._delay_ms > 0:
            return now_ms + self._delay_ms
        if self._delay_ms == 0:
            return passed_ms
        if self._expiration_ms == NOT_QUEUED:
            raise ValueError(f"task must have a deadline, got {safe_repr(self)}")
        return max(passed_ms, self._expiration_ms)

    def _timer_closed(self) -> None:
        # The timer has closed, so the deadline would never be noticed: answer the awaiters now.
        if self._core is None:
            expire_on_timer(self, EXPIRED_BY_CLOSING)
        else:
            end(self, EXPIRED_BY_CLOSING, None)

    def _delivered(self) -> None:
        """Called when the task or the caller has the exception.

        If no other code can reach the operation, it then drops the exception.
        """

    # Its state

    @property
    def outcome(self) -> Outcome:
        """The outcome; PENDING until the operation ends."""
        return outcome_of(self._op_state)

    @property
    def expired(self) -> bool:
        """Whether the operation expired.  It is already True within :meth:`on_complete`."""
        return has_expired(self)

    @property
    def expired_by_closing(self) -> bool:
        """Whether the operation expired because its purgatory or its timer closed, rather than at its deadline.

        If so, :attr:`expired` is also True.  Both are already True within :meth:`on_complete`.
        """
        return self._op_state == EXPIRED_BY_CLOSING

    @property
    def is_completed(self) -> bool:
        """Whether the operation has a result: COMPLETED or EXPIRED."""
        return has_result(self)

    @property
    def delay_ms(self) -> int:
        """The timeout in milliseconds, or -1 if :attr:`timeout` is None.  It cannot be assigned."""
        return self._delay_ms

    @delay_ms.setter
    def delay_ms(self, delay_ms: Any) -> None:
        # The parked operations that have a deadline are counted, and this count must stay exact.
        raise AttributeError("delay_ms of an operation cannot be assigned: extend() and extend_to() move its deadline")

    @property
    def timeout(self) -> float | None:
        """The timeout in seconds, rounded up to the next millisecond, or None if there is no deadline.

        Also None if the deadline is absolute (:meth:`extend_to`) and the operation is not parked yet.
        """
        return None if self._delay_ms < 0 else to_seconds(self._delay_ms)

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys on which the operation is parked, in the order given; empty if it is not parked."""
        return keys_of(self)

    def result(self) -> Any:
        """Return the result of :meth:`on_complete`.

        Raises the exception of a FAILED operation, :class:`OperationCancelled` for a CANCELLED one, and
        :class:`PurgatoryError` while the operation is PENDING or :meth:`on_complete` is running.
        """
        return result_of(self)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait until the operation ends; then return the result or raise the exception, as :meth:`result` does.

        While the operation waits in its purgatory, raises RuntimeError if called from a thread other than the event
        loop's.
        """
        core = self._core
        if core is not None:
            core.validate_thread()
        waiter = new_future()
        if self._op_state != PENDING and self._core is None:
            answer(self, waiter, ())
        else:  # _core is set until the awaiters have been answered: an eager task may await while on_complete() runs
            awaiters = self._awaiters
            if awaiters is None:
                self._awaiters = [waiter]
            else:
                if len(awaiters) >= 8 and len(awaiters) & (len(awaiters) - 1) == 0:
                    # The futures of cancelled awaiters stay in the list only until the list has doubled in length, not
                    # forever.
                    awaiters[:] = [other for other in awaiters if not other.done()]
                awaiters.append(waiter)
        return waiter.__await__()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parts = [type_name(self), outcome_of(self._op_state).name]
        if self._op_state == EXPIRED_BY_CLOSING:
            parts.append("by closing")
        if self._core is not None:
            parts.append(f"on {safe_repr(list(keys_of(self)))}")
        if self._delay_ms < 0 and self._expiration_ms != NOT_QUEUED:
            parts.append(f"deadline={to_seconds(self._expiration_ms):g}")
        else:
            parts.append("timeout=None" if self._delay_ms < 0 else f"timeout={to_seconds(self._delay_ms):g}")
        if self._op_state == FAILED:
            parts.append(f"error={safe_repr(error_of(self))}")
        return f"<{' '.join(parts)}>"


def _begin(operation: Operation, timeout: Any) -> None:
    """Set every field of a new operation."""
    kind: Any = type(operation)
    if COMPILED and kind is not validated_class.kind:
        validate_class(kind)
    again = operation._is_set_up != 0 if COMPILED else getattr(operation, "_is_set_up", 0) != 0
    if again and operation._core is not None:
        raise ValueError(f"operation must be new, got {safe_repr(operation)}, which is parked already")
    if again and operation._list is not None:
        raise ValueError(f"operation must be new, got {safe_repr(operation)}, which is on a timer")
    if timeout is _OMITTED:
        raise TypeError(f"{kind.__name__}() takes a timeout in seconds, got none: timeout=None waits forever")
    set_up(operation, FOREVER_MS if timeout is None else duration_ms(timeout, "timeout"))
    operation._op_state = PENDING
    operation._core = None
    operation._watch = None
    operation._lone_key = None
    operation._value = None
    operation._park_future = None
    operation._awaiters = None
    operation._parked_ms = 0
    operation._op_id = 0
    operation._is_set_up = 1


def _validate_thread(operation: Operation) -> None:
    """Raise RuntimeError if the operation's event loop is running in another thread."""
    if operation._core is None:
        validate_awaiters(operation)
        if operation._list is not None:
            operation._list.counter.guard.validate()
    else:
        operation._core._guard.validate()


def _validate_off_timer(operation: Operation) -> None:
    """Raise ValueError if the operation, which is not parked, is on a timer as a task.

    Such an operation does not refer to the timer, so its deadline cannot be moved; changing only the number would put
    the operation into a bucket that does not exist.
    """
    if operation._list is not None:
        raise ValueError(
            f"operation must not be on a timer as a task, got {safe_repr(operation)}: extend() moves the deadline of a"
            " parked operation"
        )


def set_deadline(operation: Operation, delay_ms: i64, expiration_ms: i64) -> None:
    """Replace the delay of an operation that is neither parked nor on a timer.

    If ``delay_ms`` is FOREVER_MS, ``expiration_ms`` is the operation's absolute deadline, or NOT_QUEUED if it has none.
    """
    operation._delay_ms = delay_ms
    operation._expiration_ms = expiration_ms


def withdraw(operation: Operation) -> None:
    """Call ``cancel()`` on a pending operation for which no task waits any longer; if the operation is still pending
    afterward, end it as CANCELLED.

    An override may raise, take other parameters, or not call ``super().cancel()``.  The operation ends in any case, and
    then the override's exception propagates.
    """
    hooked: Any = operation  # an override may return anything
    try:
        returned: Any = hooked.cancel()
        if returned is not True and returned is not False and is_coroutine(returned):
            raise refusal(returned, f"{type_name(operation)}.cancel() must return whether it ended the operation")
    finally:
        if operation._op_state == PENDING:
            Operation.cancel(operation)
