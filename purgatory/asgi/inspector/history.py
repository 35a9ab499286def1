"""The last minutes of a purgatory: samples of its counters and histograms, and the figures for a window of time.

``statistics()`` counts from the start of the process, but an operator wants to know about the last minute.  Therefore,
while the purgatory's timer runs, a task on that timer samples the counters and copies the histograms every ten seconds.
Each sample takes about 20 µs.  The difference between two samples yields the rates and quantiles for the time between
them.
"""

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from purgatory import Outcome, Purgatory, PurgatoryClosed, Quantiles, TimerTask
from purgatory.core.stats.histogram import quantiles_between
from purgatory.core.timer.units import to_seconds

from .loops import other_loop

if TYPE_CHECKING:
    from purgatory.relay import Relay

__all__ = ["INTERVAL", "TOTALS", "WAITED", "History", "Sample"]

INTERVAL: Final = 10.0
"""The number of seconds between two samples, on the timer's clock."""
TOTALS: Final = (
    "submitted",
    "immediate",
    *[outcome.value for outcome in Outcome if outcome is not Outcome.PENDING],
    "expired_by_closing",
    "refused",
    "refused_by_client",
)
WAITED: Final = "waited"
"""The name for operations that completed after waiting rather than at once."""
_RECENT: Final = 12  # samples taken for frames, for the rates over the last few seconds


class Sample:
    """The counters and histograms of a purgatory, and the counters of its relays, at one moment."""

    __slots__ = ("at_ms", "late_cells", "late_max_ms", "parked", "subscribed", "totals", "wait_cells", "wait_max_ms")

    def __init__(self, room: Purgatory[Any], relays: Sequence["Relay"]) -> None:
        counters = room._core.counters
        self.at_ms: int = room.timer.clock.now_ms()
        self.parked: int = counters.parked
        self.subscribed: int = counters.subscribed
        self.totals: dict[str, int] = {name: getattr(counters, name) for name in TOTALS}
        self.totals[WAITED] = counters.completed - counters.immediate
        self.totals["losses"] = sum([relay._losses for relay in relays])
        self.totals["reads"] = sum([relay._refresher.reads for relay in relays])
        self.totals["failed_reads"] = sum([relay._refresher.failed_reads for relay in relays])
        self.wait_cells: list[int] = counters.wait.cells()
        self.wait_max_ms: int = counters.wait.max_ms
        self.late_max_ms: int = counters.lateness.max_ms
        self.late_cells: list[int] = counters.lateness.cells()


class History:
    """The samples of a purgatory over the last ``seconds``.

    If ``seconds`` is 0, none are taken while no viewer is connected.
    """

    def __init__(self, room: Purgatory[Any], relays: Sequence["Relay"], seconds: float) -> None:
        self._room = room
        self._relays = relays
        self.seconds = seconds
        self._samples: deque[Sample] = deque(maxlen=max(1, math.ceil(seconds / INTERVAL)) + 1)
        self._recent: deque[Sample] = deque(maxlen=_RECENT)
        self.sample()
        if seconds > 0:
            loop = other_loop(room)
            if loop is None:
                _sample_later(self)
            else:
                loop.call_soon_threadsafe(_sample_later, self, context=Context())

    def sample(self) -> None:
        """Add a sample to the history."""
        self._samples.append(Sample(self._room, self._relays))

    def look(self) -> Sample:
        """Take a sample for a frame and return it."""
        sample = Sample(self._room, self._relays)
        if not self._recent or sample.at_ms - self._recent[-1].at_ms >= 500:
            self._recent.append(sample)
        return sample

    def forget_recent(self) -> None:
        """Drop the samples that were taken for frames: they grow stale when no viewer is connected."""
        self._recent.clear()

    def rates(self, now: Sample) -> dict[str, float | None]:
        """Return the endings and refusals per second on the clock, over the last ten seconds or so."""
        before = self._before(now, INTERVAL)
        span = 0.0 if before is None else to_seconds(now.at_ms - before.at_ms)
        if before is None or span <= 0:
            return dict.fromkeys(now.totals)
        return {name: round((total - before.totals[name]) / span, 3) for name, total in now.totals.items()}

    def window(self, now: Sample, seconds: float) -> dict[str, Any]:
        """Return the totals and quantiles for the last ``seconds``, or for the whole history if it is shorter."""
        before = self._samples[0]
        for sample in self._samples:
            if to_seconds(now.at_ms - sample.at_ms) < seconds:
                break
            before = sample
        return {
            "seconds": to_seconds(now.at_ms - before.at_ms),
            "parked_before": before.parked,
            "subscribed_before": before.subscribed,
            **{name: total - before.totals[name] for name, total in now.totals.items()},
            "wait": _plain(quantiles_between(before.wait_cells, now.wait_cells, now.wait_max_ms)),
            "lateness": _plain(quantiles_between(before.late_cells, now.late_cells, now.late_max_ms)),
        }

    def lines(self, now: Sample) -> dict[str, Any]:
        """Return the points of the history for a chart: the rates between samples, and the parked operations."""
        samples = [*self._samples, now]
        pairs = [(old, new) for old, new in pairwise(samples) if new.at_ms > old.at_ms]
        return {
            "ago": [round(to_seconds(now.at_ms - new.at_ms), 1) for _, new in pairs],
            "parked": [new.parked for _, new in pairs],
            **{
                name: [
                    round((new.totals[name] - old.totals[name]) / to_seconds(new.at_ms - old.at_ms), 2)
                    for old, new in pairs
                ]
                for name in (WAITED, "immediate", "expired", "failed", "refused")
            },
        }

    def _before(self, now: Sample, seconds: float) -> Sample | None:
        """Return the oldest sample within ``seconds`` before ``now``; if there is none, return the most recent earlier
        sample, or None.
        """
        samples = [sample for sample in (*self._samples, *self._recent) if sample.at_ms < now.at_ms]
        if not samples:
            return None
        within = [sample for sample in samples if to_seconds(now.at_ms - sample.at_ms) <= seconds]
        return min(within, key=_at_ms) if within else max(samples, key=_at_ms)


def _at_ms(sample: Sample) -> int:
    return sample.at_ms


def _plain(quantiles: Quantiles) -> dict[str, float]:
    return {"count": quantiles.count, "p50": quantiles.p50, "p99": quantiles.p99, "max": quantiles.max}


class _NextSample(TimerTask):
    """Adds a sample every ten seconds, for as long as the history exists and the timer is open.

    A process may fork with this task on the timer, as a preloading server does: both processes then take samples.
    """

    __slots__ = ("_history",)

    def __init__(self, history: History) -> None:
        super().__init__(round(INTERVAL * 1000))
        self._history = weakref.ref(history)
        history._room.timer._binding.shared_tasks.add(self)

    def begin(self, history: History) -> None:
        with contextlib.suppress(PurgatoryClosed):
            history._room.timer.add(self)

    def run(self) -> None:
        history = self._history()
        if history is not None:
            history.sample()
            self.begin(history)


def _sample_later(history: History) -> None:
    """Begin to sample, in the thread of the timer's loop."""
    _NextSample(history).begin(history)
