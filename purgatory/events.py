"""Outcomes, lifecycle events, and statistics: plain data.

An observer of your own needs only this module.  The core does not depend on any observer, and this module imports no
other module of the package.
"""

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

__all__ = ["Event", "Observer", "Outcome", "Quantiles", "Statistics"]

_CLASS_NAME: Final[Any] = type.__dict__["__name__"]  # the descriptor itself: a metaclass may have another ``__name__``


class Outcome(enum.Enum):
    """The state of an operation.  It changes exactly once, from PENDING to COMPLETED, EXPIRED, CANCELLED, or FAILED."""

    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Event:
    """An event in the life of an operation, as observers receive it.

    All times are read from the purgatory's clock (monotonic by default).  The ``*_ms`` fields are whole milliseconds,
    as the timer counts them; the properties return the same times in seconds.

    ======================  ====================================================================================
    field                   meaning
    ======================  ====================================================================================
    ``operation``           the operation; its ``result()`` is available once it is COMPLETED or EXPIRED
    ``purgatory``           the name of the purgatory
    ``op_id``               a number that increases in the order of parking, unique within one purgatory
    ``keys``                its keys, in the order given, without duplicates; empty if it completed at once
    ``parked_ms``           when it was submitted
    ``deadline_ms``         its deadline; None if it has no deadline
    ``finished_ms``         when it ended; None while it is parked
    ``outcome``             PENDING in a ``parked`` event, the outcome in all others
    ``error``               the exception of a FAILED operation, otherwise None
    ``instance``            the number of the purgatory, unique within this process even if names are not; or None
    ``reason``              the reason given to ``cancel()`` or ``cancel_for_key()``, otherwise None
    ``expired_by_closing``  whether it expired because its purgatory or its timer closed, not at its deadline
    ======================  ====================================================================================
    """

    __slots__ = (
        "_kind",
        "deadline_ms",
        "error",
        "expired_by_closing",
        "finished_ms",
        "instance",
        "keys",
        "op_id",
        "operation",
        "outcome",
        "parked_ms",
        "purgatory",
        "reason",
    )

    def __init__(
        self,
        operation: Any,
        purgatory: str,
        op_id: int,
        keys: tuple[Hashable, ...],
        parked_ms: int,
        deadline_ms: int | None,
        finished_ms: int | None,
        outcome: Outcome,
        error: BaseException | None,
        instance: int | None = None,
        reason: object = None,
        kind: str | None = None,
        expired_by_closing: bool = False,
    ) -> None:
        self.operation: Any = operation
        self.purgatory: str = purgatory
        self.op_id: int = op_id
        self.keys: tuple[Hashable, ...] = keys
        self.parked_ms: int = parked_ms
        self.deadline_ms: int | None = deadline_ms
        self.finished_ms: int | None = finished_ms
        self.outcome: Outcome = outcome
        self.error: BaseException | None = error
        self.instance: int | None = instance
        self.reason: object = reason
        self._kind = kind
        self.expired_by_closing: bool = expired_by_closing

    @property
    def kind(self) -> str:
        """The class name of the operation, or the ``kind`` argument of a wait."""
        if self._kind is not None:
            return self._kind
        name: str = _CLASS_NAME.__get__(type(self.operation))
        return name

    @property
    def parked_at(self) -> float:
        """When the operation was submitted, in seconds on the purgatory's clock."""
        return self.parked_ms / 1000

    @property
    def deadline(self) -> float | None:
        """The operation's deadline in seconds on the purgatory's clock, or None."""
        return None if self.deadline_ms is None else self.deadline_ms / 1000

    @property
    def finished_at(self) -> float | None:
        """When the operation ended, in seconds on the purgatory's clock, or None."""
        return None if self.finished_ms is None else self.finished_ms / 1000

    @property
    def wait(self) -> float | None:
        """The number of seconds from parking to the end; None while the operation is parked."""
        return None if self.finished_ms is None else (self.finished_ms - self.parked_ms) / 1000

    @property
    def lateness(self) -> float | None:
        """The number of seconds from the deadline to the end, never negative; None unless the operation has expired.

        If the operation expires because its purgatory closes, the value is None.
        """
        if self.outcome is not Outcome.EXPIRED or self.expired_by_closing:
            return None
        if self.deadline_ms is None or self.finished_ms is None:
            return None
        late_ms = self.finished_ms - self.deadline_ms
        return late_ms / 1000 if late_ms >= 0 else None

    def __repr__(self) -> str:
        return f"<Event {self.outcome.value} {self.kind} #{self.op_id} of {self.purgatory!r} on {list(self.keys)!r}>"


@runtime_checkable
class Observer(Protocol):
    """Receives the events of every operation, one method per kind of event.

    The methods run in the event loop's thread, so keep them short.  A subclass overrides the methods that it needs; an
    inherited method is never called and costs nothing.  An observer that raises is detached, and the error is reported;
    the operation is not affected.

    If an observer also has a method ``attached(purgatory)``, the purgatory calls that method when the purgatory is
    created.  Keep at most a weak reference to the purgatory.
    """

    # The methods return explicitly, because a type checker would treat a method with only a docstring as abstract.

    def parked(self, event: Event) -> None:
        """Called when the operation is parked, but not if it completes at once."""
        return

    def completed(self, event: Event) -> None:
        """Called when the operation completes, even if it completes at once."""
        return

    def expired(self, event: Event) -> None:
        """Called when the operation expires, at its deadline or because its purgatory closes; see
        ``event.expired_by_closing``.
        """
        return

    def cancelled(self, event: Event) -> None:
        """Called when the operation is withdrawn; see ``event.reason``."""
        return

    def failed(self, event: Event) -> None:
        """Called when the operation fails, because it raised an exception or because other code made it fail; see
        ``event.error``.
        """
        return


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of a duration in seconds; all zero while ``count`` is 0.

    They come from a log-linear histogram of whole milliseconds, so they are exact up to 64 ms and, above that, at most
    3.2% too high and never too low.  ``max`` is exact.
    """

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of a purgatory.

    Gauges: the numbers of ``parked`` operations (of which ``subscribed`` belong to :meth:`Purgatory.changes` and never
    complete), of ``watched`` (operation, key) pairs, of ``keys`` with at least one watcher, and of operations on the
    timer (``num_delayed``).  Totals since the start: the numbers of operations that were ``submitted``, ``completed``
    (of which ``immediate`` did not wait), ``expired`` at their deadline, ``expired_by_closing``, ``cancelled``, and
    ``failed``.  Between two callbacks, the counts always balance:
    ``submitted == completed + expired + expired_by_closing + cancelled + failed + parked``.  ``refused`` counts the
    operations that were refused with :class:`PurgatoryFull`; ``submitted`` does not include them.  ``refused_by_key``
    counts those refused because of ``max_parked_per_key``, and ``refused_by_client`` those refused because of
    ``per_client`` in :func:`purgatory.asgi.waiting`; the rest were refused because of ``max_parked``.  ``wait`` is the
    time from parking to the end, for the operations that were parked; ``lateness`` is the time from the deadline to the
    expiration, for the operations whose deadline passed.  ``observers_detached`` counts the observers that raised.
    """

    name: str
    parked: int
    watched: int
    keys: int
    num_delayed: int
    submitted: int
    immediate: int
    completed: int
    expired: int
    cancelled: int
    failed: int
    wait: Quantiles
    lateness: Quantiles
    observers_detached: int
    expired_by_closing: int = 0
    refused: int = 0
    refused_by_key: int = 0
    refused_by_client: int = 0
    subscribed: int = 0
