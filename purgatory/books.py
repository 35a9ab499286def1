"""The books of a purgatory: what went in, what came out, how long it took.  Floor 3."""

from .events import Statistics
from .histogram import Histogram
from .operation import CANCELLED, COMPLETED, EXPIRED, FAILED

__all__ = ["Books"]


class Books:
    """Counters and histograms; they balance between any two callbacks (see :class:`Statistics`)."""

    __slots__ = ("delayed", "detached", "ended", "immediate", "lateness", "parked", "submitted", "wait", "watched")

    def __init__(self) -> None:
        self.submitted: int = 0
        self.immediate: int = 0
        self.parked: int = 0
        self.watched: int = 0
        self.delayed: int = 0
        self.detached: int = 0
        self.ended: list[int] = [0, 0, 0, 0, 0]  # by the state it ended in
        self.wait: Histogram = Histogram()
        self.lateness: Histogram = Histogram()

    def statistics(self, name: str, keys: int) -> Statistics:
        """A snapshot for people and for metrics."""
        return Statistics(
            name=name,
            parked=self.parked,
            watched=self.watched,
            keys=keys,
            num_delayed=self.delayed,
            submitted=self.submitted,
            immediate=self.immediate,
            completed=self.ended[COMPLETED],
            expired=self.ended[EXPIRED],
            cancelled=self.ended[CANCELLED],
            failed=self.ended[FAILED],
            wait=self.wait.quantiles(),
            lateness=self.lateness.quantiles(),
            observers_detached=self.detached,
        )

    def _check(self) -> None:
        """Assert that the books balance."""
        out = sum(self.ended)
        assert self.submitted == out + self.parked, (
            f"{self.submitted} went in, {out} came out, {self.parked} are parked"
        )
