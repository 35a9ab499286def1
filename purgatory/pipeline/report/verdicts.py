"""What differs by more than chance: shares, and the rules for quantiles.  Spark is not used."""

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from purgatory.journal.schema import CANCELLED, COMPLETED, EXPIRED, FAILED

__all__ = [
    "LEAST_ABOVE",
    "RESOLUTION_S",
    "STANDARD_ERRORS",
    "KeyShares",
    "least_share",
    "share_verdict",
    "standard_errors_between",
]

STANDARD_ERRORS: Final = 3.0
LEAST_ABOVE: Final = 10
RESOLUTION_S: Final = 0.001
_GOOD: Final[Mapping[str, bool]] = {COMPLETED: True, EXPIRED: False, CANCELLED: False, FAILED: False}


class KeyShares(NamedTuple):
    """How many operations of an interval ended with one outcome.

    ``keys``: for each of the busiest keys, the number of its operations with the outcome, and the number of all its
    operations.  ``found`` and ``waited``: the same two numbers for all operations that waited.  ``at_once``: the number
    of operations that did not have to wait, which have no keys.
    """

    keys: Mapping[str, tuple[int, int]]
    found: int
    waited: int
    at_once: int = 0


def share_verdict(
    baseline: float,
    journal: float,
    operations: tuple[int, int],
    outcome: str,
    threshold: float,
    standard_errors: float = STANDARD_ERRORS,
) -> str:
    """Judge the smaller of two shares: the share of the outcome, or the share of all other outcomes.

    If completions fall from 99.9% to 99%, ten times as many operations do not complete; if they fall from 11.4% to
    9.2%, a fifth fewer complete.
    """
    change = journal - baseline
    smaller = baseline if baseline + journal <= 1 else 1 - baseline
    clear = standard_errors_between(baseline, journal, operations) >= standard_errors
    if not change or not clear or abs(change) < threshold * smaller * (1 - 1e-9):
        return "same"
    if outcome in _GOOD:
        return "better" if (change > 0) == _GOOD[outcome] else "worse"
    return "more" if change > 0 else "fewer"


def standard_errors_between(baseline: float | None, journal: float | None, operations: tuple[int, int]) -> float:
    """Return, in standard errors, the difference between two shares."""
    if baseline is None or journal is None or not all(operations):
        return 0.0
    one, other = operations
    together = (baseline * one + journal * other) / (one + other)
    error = sqrt(max(0.0, together * (1 - together)) * (1 / one + 1 / other))
    difference = abs(journal - baseline)
    return difference / error if error else (inf if difference else 0.0)


def least_share(found: Any, operations: Any, standard_errors: float = STANDARD_ERRORS) -> Any:
    """Return the least share for which ``found`` of ``operations`` is no more than chance: Wilson's lower bound.

    For 1 of 1, the share is 100%, but the bound is 10%; for 300 of 1,000, the bound is 26%.  The function also accepts
    arrays.  ``operations`` must be more than 0.
    """
    z = standard_errors**2
    share = found / operations
    root = standard_errors * np.sqrt(share * (1 - share) / operations + z / (4.0 * operations * operations))
    return np.maximum(0.0, (share + z / (2.0 * operations) - root) / (1 + z / operations))
