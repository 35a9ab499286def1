"""The progress of a streaming job as OpenTelemetry metrics.

===============================  =========  ==============  ====================================================
``purgatory.stream.rows``        counter    ``{row}``       rows that the job has read
``purgatory.stream.outcomes``    counter    ``{operation}``  operations that have ended
``purgatory.stream.dead``        counter    ``{row}``       dead letters
``purgatory.stream.late``        counter    ``{row}``       rows that arrived after the delay, and were dropped
``purgatory.stream.live``        gauge      ``{operation}``  operations that wait after the latest batch
``purgatory.stream.lag``         gauge      ``s``           from the watermark to the newest row of the latest batch
``purgatory.stream.batch``       histogram  ``s``           length of a batch
===============================  =========  ==============  ====================================================
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .job import BatchProgress

__all__ = ["count_progress"]


def count_progress(meter: Any, report: "Callable[[BatchProgress], None]") -> "Callable[[BatchProgress], None]":
    """Return a function for :func:`~purgatory.pipeline.stream.job.run` that counts a batch and then calls ``report``.

    ``meter``: an OpenTelemetry meter.
    """
    rows = meter.create_counter("purgatory.stream.rows", "{row}", "Rows that the job has read")
    outcomes = meter.create_counter("purgatory.stream.outcomes", "{operation}", "Operations that have ended")
    dead = meter.create_counter("purgatory.stream.dead", "{row}", "Dead letters")
    late = meter.create_counter("purgatory.stream.late", "{row}", "Rows that came too late and were dropped")
    live = meter.create_gauge("purgatory.stream.live", "{operation}", "Operations that wait")
    lag = meter.create_gauge("purgatory.stream.lag", "s", "Time from the watermark to the newest row")
    length = meter.create_histogram("purgatory.stream.batch", "s", "Length of a batch")

    def count(progress: "BatchProgress") -> None:
        rows.add(progress.rows)
        outcomes.add(progress.outcomes)
        dead.add(progress.dead_letters)
        late.add(progress.dropped)
        live.set(progress.live)
        if progress.lag is not None:
            lag.set(progress.lag)
        length.record(progress.seconds)
        report(progress)

    return count
