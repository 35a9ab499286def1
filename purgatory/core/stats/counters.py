"""The counters behind ``statistics()``."""

from mypy_extensions import i64

from purgatory.events import Statistics

from .histogram import Histogram

__all__ = ["Counters"]


class Counters:
    """Counters and histograms for one purgatory; they balance between any two callbacks (see :class:`Statistics`)."""

    __slots__ = (
        "cancelled",
        "completed",
        "delayed",
        "detached",
        "expired",
        "expired_by_closing",
        "failed",
        "immediate",
        "lateness",
        "parked",
        "refused",
        "refused_by_client",
        "refused_by_key",
        "submitted",
        "subscribed",
        "wait",
        "watched",
    )

    def __init__(self) -> None:
        self.submitted: i64 = 0
        self.immediate: i64 = 0
        self.parked: i64 = 0
        self.subscribed: i64 = 0
        self.watched: i64 = 0
        self.delayed: i64 = 0
        self.detached: i64 = 0
        self.completed: i64 = 0
        self.expired: i64 = 0
        self.expired_by_closing: i64 = 0
        self.cancelled: i64 = 0
        self.failed: i64 = 0
        self.refused: i64 = 0
        self.refused_by_key: i64 = 0
        self.refused_by_client: i64 = 0
        self.wait: Histogram = Histogram()
        self.lateness: Histogram = Histogram()

    def statistics(self, name: str, keys: int) -> Statistics:
        """Return a snapshot."""
        return Statistics(
            name=name,
            parked=self.parked,
            watched=self.watched,
            keys=keys,
            num_delayed=self.delayed,
            submitted=self.submitted,
            immediate=self.immediate,
            completed=self.completed,
            expired=self.expired,
            cancelled=self.cancelled,
            failed=self.failed,
            wait=self.wait.quantiles(),
            lateness=self.lateness.quantiles(),
            observers_detached=self.detached,
            expired_by_closing=self.expired_by_closing,
            refused=self.refused,
            refused_by_key=self.refused_by_key,
            refused_by_client=self.refused_by_client,
            subscribed=self.subscribed,
        )

    def _check(self) -> None:
        """Assert that the counters balance."""
        out = self.completed + self.expired + self.expired_by_closing + self.cancelled + self.failed
        assert self.submitted == out + self.parked, f"{self.submitted} submitted, {out} ended, {self.parked} parked"
