"""The delayed operation: a request that waits, and is answered exactly once.  Floor 3.

The life of an operation
========================

An operation is made, handed to a purgatory, tried once, and if its condition does not hold yet it is *parked*: linked
into the watch list of each of its keys and, if it has a deadline, put on the timer.  Then one of the things in the
table :data:`purgatory.endings.ENDINGS` happens, and whichever comes first decides.
"""

from collections.abc import Callable, Generator, Hashable
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from .endings import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    OUTCOMES,
    PENDING,
    Holder,
    answer,
    end,
    exception_of,
    finish,
)
from .errors import PurgatoryError
from .events import Outcome
from .timer.task import TimerTask
from .units import duration_ms
from .watch import Watch

__all__ = ["FOREVER_MS", "Operation", "new_waiter", "set_running_loop"]

FOREVER_MS: Final = -1  # the delay of an operation without a deadline


class _Waiters:
    """Where futures come from: the floor that knows the event loop says here how to find the one that runs."""

    def __init__(self) -> None:
        self.running_loop: Callable[[], Any] | None = None


_waiters = _Waiters()


def set_running_loop(running_loop: Callable[[], Any]) -> None:
    """Tell this floor how to find the event loop that runs."""
    _waiters.running_loop = running_loop


def new_waiter() -> Any:
    """A future of the running event loop."""
    running_loop = _waiters.running_loop
    assert running_loop is not None, "the floor of the event loop says on import how to find it"
    return running_loop().create_future()


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
        holder = self._holder
        if holder is not None:
            holder.feel()
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
        return OUTCOMES[self._state]

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
        :class:`PurgatoryError` while it is PENDING and while :meth:`on_complete` runs.
        """
        if self._state == PENDING or self._holder is not None:
            raise PurgatoryError(f"{self!r} has no result yet")
        if self._state == COMPLETED or self._state == EXPIRED:
            return self._value
        raise exception_of(self)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the end; the value of :meth:`on_complete`, or the exception that :meth:`result` would raise."""
        waiter = new_waiter()
        if self._state != PENDING and self._holder is None:
            answer(self, waiter)
        else:  # its holder is there until there is an answer: an eager task may ask while that is made
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
