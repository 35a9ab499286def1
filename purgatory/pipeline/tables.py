"""The tables of a report; see :mod:`purgatory.pipeline.report.tables`."""

from .report.tables import (
    dropped,
    endings,
    hot_keys,
    lateness,
    occupancy,
    operations,
    outcomes,
    wait_histogram,
    waits,
)

__all__ = [
    "dropped",
    "endings",
    "hot_keys",
    "lateness",
    "occupancy",
    "operations",
    "outcomes",
    "wait_histogram",
    "waits",
]
