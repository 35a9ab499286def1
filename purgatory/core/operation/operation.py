"""The delayed operation: a request that waits, and is answered exactly once.  See :mod:`.lifecycle` for its life."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64, mypyc_attr

from purgatory.core.timer.event_loop import event_loop
from purgatory.core.timer.task import NOT_QUEUED, TimerTask, set_up, validate_class, validated_class
from purgatory.core.timer.units import deadline_ms, duration_ms
from purgatory.errors import PurgatoryError
from purgatory.events import Outcome
from purgatory.texts import safe_repr, type_name

from .lifecycle import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    EXPIRED_BY_CLOSING,
    FAILED,
    PENDING,
    answer,
    end,
    error_of,
    exception_of,
    has_expired,
    has_result,
    keys_of,
    outcome_of,
    validate_awaiters,
)

if TYPE_CHECKING:
    from purgatory.core.purgatory import PurgatoryCore
    from purgatory.core.watch.watch import Watch

__all__ = ["FOREVER_MS", "MISSING", "Operation", "new_future", "set_deadline"]

FOREVER_MS: Final = -1  # the delay of an operation without a deadline, or with an absolute one that is not parked yet
MISSING: Final[Any] = object()
"""The default of parameters for which None has a meaning."""

# A text, because compiled functions have a signature for inspect and mocks only if each default is a literal.
_OMITTED: Final = "required"


def new_future() -> Any:
    """Return a new future of the running event loop."""
    return event_loop.running_loop().create_future()


_COMPILED: Final = not isinstance(new_future, FunctionType)


@mypyc_attr(allow_interpreted_subclasses=True)
class Operation(TimerTask):
    """The compiled part of :class:`DelayedOperation`: everything but the type of its result.

    A compiled class derived from ``Generic`` has slots for weak references that are never cleared, so the generic class
    is an interpreted one on top of this.
    """

    __slots__ = (
        "_awaiters",
        "_core",
        "_lone_key",
        "_op_id",
        "_park_future",
        "_parked_ms",
        "_state",
        "_value",
        "_watch",
    )

    _state: i64
    _core: PurgatoryCore | None
    _watch: Watch | None  # the watch on its last key; siblings lead to the first; LONE without a watch
    _lone_key: Hashable  # its only key, if it is the entry of that key itself; else None
    _value: Any  # the result, the Failure of a failed one, or the reason of a cancelled one
    _park_future: Any  # the future of the task in park()
    _awaiters: list[Any] | None  # the futures of all other awaiters
    _parked_ms: i64

    def __init__(self, timeout: Any = _OMITTED) -> None:
        _begin(self, timeout)

    def DelayedOperation(self, timeout: Any = _OMITTED) -> None:  # noqa: N802 - errors about its arguments show it
        """The constructor of :class:`DelayedOperation`, which takes it from this class."""
        _begin(self, timeout)

    # What a subclass overrides

    def try_complete(self) -> bool:
        """Return whether the condition holds.  Called when the operation is submitted, and on every check of one of its
        keys.

        Calling :meth:`force_complete` here, as Kafka does, also works.
        """
        raise NotImplementedError(f"{type(self).__name__} must override try_complete()")

    def on_complete(self) -> Any:
        """Return the result.  Called exactly once, on completion or on expiry (see :attr:`expired`)."""
        return None

    def on_expiration(self) -> Any:
        """Called after :meth:`on_complete`, only on expiry.  An exception is reported, and the outcome stands."""

    def on_abandoned(self, result: Any) -> Any:
        """Take back a result that the task in :meth:`Purgatory.park` did not receive, because it was cancelled.

        Called at most once, with the result of :meth:`on_complete`, if the operation has ended COMPLETED or EXPIRED
        (see :attr:`expired`) and the task was cancelled in the same turn of the loop.  It runs in the cancelled task
        and in the context of that task, before ``park()`` raises the CancelledError; it must not await.  An exception
        is reported to the loop's exception handler.

        It is also called, in the same way, by :meth:`purgatory.asgi.Wait.park` if the client disconnected in that turn,
        before ``park`` raises :class:`purgatory.asgi.ClientDisconnected`.

        It is not called for an operation that ends CANCELLED or FAILED, or that was submitted with
        :meth:`Purgatory.try_complete_else_watch`: there the result stays in the operation.  For an operation that
        completes at once, it is called only if ``park()`` raises nevertheless, for example because of an interrupt in
        an observer.  It is called even if other tasks await the operation, and these tasks receive the result: such a
        result has several owners.
        """

    # How it ends

    def force_complete(self) -> bool:
        """Complete the operation now, whether or not the condition holds.  Return True if this call completed it.

        An exception from :meth:`on_complete` reaches the caller and every awaiter, and the operation has failed.
        """
        core = self._core
        _validate_thread(self)
        return end(self, COMPLETED, None, core is not None and core.is_trying(self))

    def cancel(self, reason: Any = None) -> bool:
        """Withdraw the operation from the timer and from every key; :meth:`on_complete` is not called.

        Return True if this call ended it.  Its awaiters get :class:`OperationCancelled`, and observers an event; both
        carry the ``reason``, any object.
        """
        _validate_thread(self)
        if self._core is not None:
            self._core.ensure_stack()
        return end(self, CANCELLED, reason, True)

    def extend(self, timeout: Any) -> bool:
        """Move the deadline to ``timeout`` seconds from now; None removes it.  Return True if the operation is PENDING.

        O(1); the operation keeps its place on its keys.  A later deadline only changes a number: the timer moves the
        task when the old deadline comes up.  For an operation that is not parked yet, this replaces the timeout.
        """
        delay_ms = FOREVER_MS if timeout is None else duration_ms(timeout, "timeout")
        if self._state != PENDING:
            return False
        core = self._core
        if core is None:
            set_deadline(self, delay_ms, NOT_QUEUED)
        else:
            core.extend(self, delay_ms)
        return True

    def extend_to(self, deadline: Any) -> bool:
        """Move the deadline to a time on the timer's clock; None removes it.  Return True if the operation is PENDING.

        ``deadline``: a time in seconds on the timer's clock (:meth:`SystemTimer.time`), rounded up to a millisecond and
        to the timer's tick.  A deadline that has passed expires the operation on the timer's next turn, and its
        lateness counts from this call, or from parking.  For an operation that is not parked yet, this replaces the
        timeout; the time is read from the clock of the purgatory in which it parks.

        Raises TypeError unless the deadline is a number or None; ValueError unless it is from -1e15 to 1e15, or
        infinity, which is the latest time.
        """
        if deadline is None:
            return self.extend(None)
        at_ms = deadline_ms(deadline, "deadline")
        if self._state != PENDING:
            return False
        core = self._core
        if core is None:
            set_deadline(self, FOREVER_MS, at_ms)
        else:
            core.extend_to(self, at_ms)
        return True

    def run(self) -> None:
        """Expire the operation, as the timer does when the deadline has passed."""
        _validate_thread(self)
        end(self, EXPIRED, None, True)

    def _fire(self) -> None:
        end(self, EXPIRED, None, True)

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

    def _timer_closed(self, error: BaseException) -> None:
        # The timer has closed, so the deadline would never come: answer the awaiters now.
        end(self, EXPIRED, None, True)

    def _delivered(self) -> None:
        """The task or the caller has the exception of the operation.  One that no other code can ask lets go of it."""

    # Its state

    @property
    def outcome(self) -> Outcome:
        """The outcome; PENDING until the operation ends."""
        return outcome_of(self._state)

    @property
    def expired(self) -> bool:
        """Whether the operation expired.  Already True within :meth:`on_complete`."""
        return has_expired(self)

    @property
    def expired_by_closing(self) -> bool:
        """Whether the operation expired because its purgatory closed, and not at its deadline.

        Then :attr:`expired` is True, too.  Already True within :meth:`on_complete`.
        """
        return self._state == EXPIRED_BY_CLOSING

    @property
    def is_completed(self) -> bool:
        """Whether the operation has a result: COMPLETED or EXPIRED."""
        return has_result(self)

    @property
    def timeout(self) -> float | None:
        """The timeout in seconds, rounded up to a millisecond; None: no deadline.

        Also None for an operation with an absolute deadline (:meth:`extend_to`) until it is parked.
        """
        return None if self._delay_ms < 0 else self._delay_ms / 1000

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys that the operation is parked on, in the order given; empty if it is not parked."""
        return keys_of(self)

    def result(self) -> Any:
        """Return the result of :meth:`on_complete`.

        Raises the exception of a FAILED operation, :class:`OperationCancelled` for a CANCELLED one, and
        :class:`PurgatoryError` while it is PENDING and while :meth:`on_complete` runs.
        """
        if self._state == PENDING or self._core is not None:
            raise PurgatoryError(f"{safe_repr(self)} has no result yet")
        if has_result(self):
            return self._value
        raise exception_of(self, ())

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the end; then return the result, or raise the exception, as :meth:`result` does.

        Raises RuntimeError in a thread other than the event loop's, while the operation waits in its purgatory.
        """
        core = self._core
        if core is not None:
            core.validate_thread()
        waiter = new_future()
        if self._state != PENDING and self._core is None:
            answer(self, waiter, ())
        else:  # _core is set until the awaiters are answered: an eager task may await while the result is made
            awaiters = self._awaiters
            if awaiters is None:
                self._awaiters = [waiter]
            else:
                if len(awaiters) >= 8 and len(awaiters) & (len(awaiters) - 1) == 0:
                    # Futures of cancelled awaiters stay in the list until it has doubled, not forever.
                    awaiters[:] = [other for other in awaiters if not other.done()]
                awaiters.append(waiter)
        return waiter.__await__()  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        parts = [type_name(self), outcome_of(self._state).name]
        if self._state == EXPIRED_BY_CLOSING:
            parts.append("by closing")
        if self._core is not None:
            parts.append(f"on {safe_repr(list(keys_of(self)))}")
        if self._delay_ms < 0 and self._expiration_ms != NOT_QUEUED:
            parts.append(f"deadline={self._expiration_ms / 1000:g}")
        else:
            parts.append("timeout=None" if self._delay_ms < 0 else f"timeout={self._delay_ms / 1000:g}")
        if self._state == FAILED:
            parts.append(f"error={safe_repr(error_of(self))}")
        return f"<{' '.join(parts)}>"


def _begin(operation: Operation, timeout: Any) -> None:
    """Set every field of a new operation."""
    kind: Any = type(operation)
    if kind is not validated_class.kind:
        validate_class(kind)
    begun = operation._op_id != 0 if _COMPILED else getattr(operation, "_op_id", 0) != 0
    if begun and operation._core is not None:
        raise ValueError(f"operation must be new, got {safe_repr(operation)}, which is parked already")
    if timeout is _OMITTED:
        raise TypeError(f"{kind.__name__}() takes a timeout in seconds, got none: timeout=None waits for ever")
    set_up(operation, FOREVER_MS if timeout is None else duration_ms(timeout, "timeout"))
    operation._state = PENDING
    operation._core = None
    operation._watch = None
    operation._lone_key = None
    operation._value = None
    operation._park_future = None
    operation._awaiters = None
    operation._parked_ms = 0
    operation._op_id = 0


def _validate_thread(operation: Operation) -> None:
    """Raise RuntimeError if the event loop in which the operation waits is running in another thread."""
    if operation._core is None:
        validate_awaiters(operation)
    else:
        operation._core.validate_thread()


def set_deadline(operation: Operation, delay_ms: i64, expiration_ms: i64) -> None:
    """Replace the delay of an operation that is not parked.

    If ``delay_ms`` is FOREVER_MS, ``expiration_ms`` is the absolute deadline of the operation, if it has one.
    """
    operation._delay_ms = delay_ms
    operation._expiration_ms = expiration_ms
