"""A load of a journal as OpenTelemetry metrics.

=================================  =========  ===============  ================================================
``purgatory.load.rows``            counter    ``{row}``        rows that the load has written
``purgatory.load.expired``         counter    ``{operation}``  operations among them that expired at their deadline
``purgatory.load.dropped``         counter    ``{row}``        rows that the servers had dropped
``purgatory.load.skipped``         counter    ``{file}``       files that could not be read
``purgatory.load.lateness``        gauge      ``s``            mean lateness of the expired operations
``purgatory.load.lateness.max``    gauge      ``s``            the highest lateness
``purgatory.load.duration``        histogram  ``s``            length of the load
=================================  =========  ===============  ================================================
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lake import Loaded

__all__ = ["count_load"]


def count_load(meter: Any, loaded: "Loaded", seconds: float) -> None:
    """Record a load and its duration in seconds.  ``meter``: an OpenTelemetry meter."""
    for name, unit, meaning, number in (
        ("rows", "{row}", "Rows that the load has written", loaded.rows),
        ("expired", "{operation}", "Operations that expired at their deadline", loaded.expired),
        ("dropped", "{row}", "Rows that the servers had dropped", loaded.dropped),
        ("skipped", "{file}", "Files that could not be read", len(loaded.skipped)),
    ):
        meter.create_counter(f"purgatory.load.{name}", unit, meaning).add(number)
    if loaded.expired:
        mean = meter.create_gauge("purgatory.load.lateness", "s", "Mean lateness of the expired operations")
        mean.set(loaded.lateness_s)
        meter.create_gauge("purgatory.load.lateness.max", "s", "Highest lateness").set(loaded.latest_s)
    meter.create_histogram("purgatory.load.duration", "s", "Length of a load").record(seconds)
