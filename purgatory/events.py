"""What the house says about itself: outcomes, lifecycle events, statistics.  Floor 0: imports nothing of the house.

Everything here is plain data.  The journal, the metrics and a user's own observers are written against this module and
against nothing else, so they live in rooms of their own and the core knows none of them.
"""

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["Event", "Observer", "Outcome", "Quantiles", "Statistics"]


class Outcome(enum.Enum):
    """How an operation stands.  It leaves PENDING exactly once."""

    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Event:
    """One moment in the life of an operation, as an observer sees it.

    All times come from the purgatory's clock (monotonic by default).  The ``*_ms`` fields are whole milliseconds, as
    the timer counts them; the properties give the same in seconds.

    ``operation``    the operation itself; its ``result()`` can be read once it is completed or expired
    ``purgatory``    the name of the purgatory
    ``op_id``        a number, increasing in the order of parking, unique within one purgatory
    ``keys``         the keys it was parked on, in the order given, without duplicates; empty if it never had to wait
    ``parked_ms``    when it was handed over
    ``deadline_ms``  when it falls due, or None: it waits for ever
    ``finished_ms``  when it ended, or None: it is still parked
    ``outcome``      how it stands: PENDING in a ``parked`` event, the ending in every other
    ``error``        the exception of a FAILED operation, else None
    """

    __slots__ = (
        "deadline_ms",
        "error",
        "finished_ms",
        "keys",
        "op_id",
        "operation",
        "outcome",
        "parked_ms",
        "purgatory",
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

    @property
    def kind(self) -> str:
        """The class name of the operation."""
        return type(self.operation).__name__

    @property
    def parked_at(self) -> float:
        """When it was handed over, in seconds of the purgatory's clock."""
        return self.parked_ms / 1000

    @property
    def deadline(self) -> float | None:
        """When it falls due, in seconds of the purgatory's clock, or None."""
        return None if self.deadline_ms is None else self.deadline_ms / 1000

    @property
    def finished_at(self) -> float | None:
        """When it ended, in seconds of the purgatory's clock, or None."""
        return None if self.finished_ms is None else self.finished_ms / 1000

    @property
    def wait(self) -> float | None:
        """Seconds from parking to the end, or None while it is parked."""
        return None if self.finished_ms is None else (self.finished_ms - self.parked_ms) / 1000

    @property
    def lateness(self) -> float | None:
        """Seconds from the deadline to the moment the expiry was carried out; None unless it expired on its deadline.

        It is never negative for a deadline that was reached; an operation that is expired early because its purgatory
        closes has none.
        """
        if self.outcome is not Outcome.EXPIRED or self.deadline_ms is None or self.finished_ms is None:
            return None
        late_ms = self.finished_ms - self.deadline_ms
        return late_ms / 1000 if late_ms >= 0 else None

    def __repr__(self) -> str:
        return f"<Event {self.outcome.value} {self.kind} #{self.op_id} of {self.purgatory!r} on {list(self.keys)!r}>"


@runtime_checkable
class Observer(Protocol):
    """Told of every operation's life, one method per event; called in the loop's thread, so be brief.

    A subclass overrides what it wants to hear; an inherited method is never called, so what is not heard costs
    nothing.  An observer that raises is detached and reported, and never breaks an operation.

    An observer that also has a method ``attached(purgatory)`` is told which purgatory it listens to, when that is
    made; it should keep no more than a weak reference.
    """

    # The methods return explicitly: one with nothing but a docstring would be abstract to a type checker.

    def parked(self, event: Event) -> None:
        """The operation now waits; not sent for one that completes at once."""
        return

    def completed(self, event: Event) -> None:
        """Its condition held; also sent for one that never had to wait."""
        return

    def expired(self, event: Event) -> None:
        """Its deadline passed, or its purgatory closed."""
        return

    def cancelled(self, event: Event) -> None:
        """It was withdrawn."""
        return

    def failed(self, event: Event) -> None:
        """It raised, or was failed from outside."""
        return


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of a duration in seconds; all zero while ``count`` is 0.

    They are read from a log-linear histogram of whole milliseconds: exact up to 64 ms, within 3.2 % above, never below
    the true value; ``max`` is exact.
    """

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of a purgatory.

    Gauges: ``parked`` operations, ``watched`` (operation, key) pairs, ``keys`` with at least one watcher,
    ``num_delayed`` operations on the timer.  Totals since the start: ``submitted`` operations, of which ``immediate``
    completed without waiting (they count as completed, too), ``completed``, ``expired``, ``cancelled``, ``failed``.
    The books balance at every moment between two callbacks:
    ``submitted == completed + expired + cancelled + failed + parked``.
    ``wait`` is the time from parking to the end of those that were parked, ``lateness`` the time from the deadline to
    the expiry of those whose deadline passed.  ``observers_detached`` counts observers that raised.
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
