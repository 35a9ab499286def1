"""The steps of time in which a journal differs from the baseline as a whole.  No Spark.

A step is compared with the whole baseline, not with the same time of another day, so it shows when something began and
ended.  Neighboring steps with the same verdict are one interval.

More than chance means, of a step with ``n`` operations:

*   a **share** differs by at least ``z`` standard errors, and by at least ten operations,
*   a **quantile** ``q`` has at least ten operations of the step above it, ``n (1 - q)``, and of the baseline the share
    ``s``: this number differs from ``n s`` by ``z`` standard deviations of a Poisson distribution.

``z`` is 5, more than for the figures of whole journals, because there are hundreds of steps.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any, Final

import pyarrow as pa

from purgatory.journal.schema import CANCELLED, EXPIRED, FAILED

from .changes import LEAST_ABOVE, QUANTILES, RESOLUTION_S, share_verdict

__all__ = ["find_times"]

_WAITS: Final = (("wait p50", "wait_p50", "p50", 0.5), ("wait p99", "wait_p99", "p99", 0.99))
_REFUSED: Final = "refused"
_STANDARD_ERRORS: Final = 5.0
_ROUNDING: Final = 1 / 128  # a quantile of a step can be that much too low
_SCHEMA: Final = pa.schema(
    {
        **dict.fromkeys(("verdict", "measure", "purgatory", "kind", "outcome"), pa.string()),
        **dict.fromkeys(("since", "until"), pa.timestamp("us", tz="UTC")),
        "unit": pa.string(),
        **dict.fromkeys(("baseline", "journal"), pa.float64()),
        "operations": pa.int64(),
    }
)


def find_times(
    baseline: Mapping[str, pa.Table], journal: Mapping[str, pa.Table], step_ms: int, threshold: float
) -> pa.Table:
    """Return one row for each interval of the journal that is worse or better than the baseline.

    ``journal``: the extreme figure of the interval.  ``operations``: those that parked in it.
    """
    steps: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in journal["over_time"].to_pylist():
        steps.setdefault((row["purgatory"], row["kind"]), []).append(row)
    waits = {(row["purgatory"], row["kind"]): row for row in baseline["waits"].to_pylist()}
    counts = _counts(baseline["over_time"])
    kinds = {name: sum(1 for other, kind in steps if other == name and kind is not None) for name, _ in steps}
    rows: list[dict[str, Any]] = []
    for (purgatory, kind), some in steps.items():
        if kind is not None and kinds[purgatory] < 2:  # the purgatory is its only kind
            continue
        where = {"purgatory": purgatory, "kind": kind}
        names = purgatory, kind
        if names in waits:
            for measure, column, quantile, share in _WAITS:
                judged = _judged_waits(some, waits[names], column, quantile, share, threshold)
                rows += _intervals(judged, step_ms, {"measure": measure, "unit": "seconds", **where})
        if names in counts:
            for outcome in (EXPIRED, FAILED, CANCELLED, *((_REFUSED,) if kind is None else ())):
                found = _judged_shares(some, counts[names], outcome, threshold)
                about = {"measure": "share", "unit": "share", "outcome": outcome, **where}
                rows += _intervals(found, step_ms, about)
    rows.sort(key=lambda row: (row["verdict"] != "worse", row["since"], row["purgatory"], row["kind"] or ""))
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_Judged = Iterator[tuple[dict[str, Any], str, float, float]]  # a step, its verdict, the baseline, and its figure


def _counts(over_time: pa.Table) -> dict[tuple[str, str | None], dict[str, int]]:
    total: dict[tuple[str, str | None], dict[str, int]] = {}
    for row in over_time.to_pylist():
        mine = total.setdefault((row["purgatory"], row["kind"]), dict.fromkeys(("operations", *_COUNTED), 0))
        for name in mine:
            mine[name] += row[name]
    return total


_COUNTED: Final = (EXPIRED, FAILED, CANCELLED, _REFUSED)


def _judged_shares(steps: list[dict[str, Any]], before: Mapping[str, int], outcome: str, threshold: float) -> _Judged:
    def share(counts: Mapping[str, Any]) -> tuple[float, int]:
        whole = counts["operations"] + (counts[_REFUSED] if outcome == _REFUSED else 0)
        return (counts[outcome] / whole if whole else 0.0), whole

    usual, number = share(before)
    for row in steps:
        here, n = share(row)
        judged = FAILED if outcome == _REFUSED else outcome  # a refused operation is as bad as a failed one
        enough = n and number and abs(here - usual) * n >= LEAST_ABOVE
        verdict = share_verdict(usual, here, (number, n), judged, threshold, _STANDARD_ERRORS) if enough else "same"
        yield row, verdict, usual, here


def _judged_waits(
    steps: list[dict[str, Any]],
    before: Mapping[str, Any],
    column: str,
    quantile: str,
    share: float,
    threshold: float,
) -> _Judged:
    usual = before[quantile]
    for row in steps:
        here = row[column]
        n = row["operations"] - row["immediate"] - row["pending"]
        if here is None or n * (1 - share) < LEAST_ABOVE:
            yield row, "same", usual, here or 0.0
            continue
        far = abs(here - usual) > max(threshold * usual, RESOLUTION_S)
        fewer, more = _shares_above(n * (1 - share), n)
        verdict = "same"
        if far and here > _at_share(before, 1 - fewer):
            verdict = "worse"
        elif far and more < 1 and here * (1 + _ROUNDING) < _at_share(before, 1 - more):
            verdict = "better"
        yield row, verdict, usual, here


def _shares_above(above: float, n: int) -> tuple[float, float]:
    """Return the shares of a baseline for which ``above`` of ``n`` operations would be too many, and too few."""
    root = sqrt(_STANDARD_ERRORS**2 + 4 * above)
    return ((root - _STANDARD_ERRORS) / 2) ** 2 / n, ((root + _STANDARD_ERRORS) / 2) ** 2 / n


def _at_share(row: Mapping[str, Any], share: float) -> float:
    """Return a quantile for any share.

    Between the known ones, the logarithm of the wait is interpolated over the logarithm of the share above it.
    """
    known = [(at, float(row[name])) for name, at in QUANTILES]
    if share <= known[0][0]:
        return known[0][1] * share / known[0][0]
    for (low, start), (high, end) in pairwise(known):
        if share <= high:
            part = log((1 - share) / (1 - low)) / log((1 - high) / (1 - low))
            return exp(log(start + RESOLUTION_S) * (1 - part) + log(end + RESOLUTION_S) * part) - RESOLUTION_S
    return float(row["max"])


def _intervals(judged: _Judged, step_ms: int, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an interval for neighboring steps that have the same verdict, which is not ``same``."""
    step = timedelta(milliseconds=step_ms)
    held: dict[str, Any] | None = None
    for row, verdict, usual, here in judged:
        begin: datetime = row["bucket"]
        if held is not None and (verdict != held["verdict"] or begin != held["until"]):
            yield held
            held = None
        if verdict not in ("worse", "better"):
            continue
        number = row["operations"]
        if held is None:
            held = {"verdict": verdict, **about, "since": begin, "baseline": usual, "journal": here, "operations": 0}
        held["until"] = begin + step
        held["operations"] += number
        held["journal"] = max(held["journal"], here) if here > usual else min(held["journal"], here)
    if held is not None:
        yield held
