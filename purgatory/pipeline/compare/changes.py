"""The figures of two reports side by side, and a verdict on each change.  This module does not use Spark.

=============  ==================================================================================================
verdict        meaning
=============  ==================================================================================================
``worse``      the change is at least the threshold and is more than chance; a lower figure would be better
``better``     the same in the other direction
``more``       the same as ``worse``, for a figure that is neither good nor bad, such as operations per second
``fewer``      the same in the other direction
``same``       the change is below the threshold, or may be due to chance
``unclear``    the change is at least the threshold, but there are too few operations to judge a quantile
``new``        only the journal has such operations
``gone``       only the baseline has such operations
=============  ==================================================================================================

The threshold is relative: 0.1 means a change of one tenth of the baseline.  If a figure is a share, the smaller of the
share and its complement is judged: if completions fall from 99.9% to 99%, ten times as many operations did *not*
complete.

A difference is more than chance if:

*   a **share** differs by at least three standard errors (a two-proportion z-test),
*   a **quantile** has at least ten operations above it in both journals, differs by more than a millisecond (the
    resolution of a journal), and has a logarithm that differs by at least three standard errors; the standard errors
    are estimated from the distance to the neighboring quantiles, ``sqrt(q (1 - q) / n)`` times the slope,
*   a **count** differs by at least three standard deviations of a Poisson distribution.

These rules assume independent operations.  They are a guard against reading too much into small numbers, not a proof.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Final

import pyarrow as pa

from purgatory.journal.schema import FAILED, PENDING
from purgatory.pipeline.report.aggregates import ENDS, QUANTILES
from purgatory.pipeline.report.unusual_intervals import REFUSED
from purgatory.pipeline.report.verdicts import (
    LEAST_ABOVE,
    RESOLUTION_S,
    STANDARD_ERRORS,
    share_verdict,
    standard_errors_between,
)

__all__ = ["VERDICTS", "Figures", "find_changes"]

VERDICTS: Final = ("worse", "better", "more", "fewer", "new", "gone", "unclear", "same")

_SCHEMA: Final = pa.schema(
    {
        "verdict": pa.string(),
        "measure": pa.string(),
        "purgatory": pa.string(),
        "kind": pa.string(),
        "outcome": pa.string(),
        "key": pa.string(),
        "unit": pa.string(),
        "baseline": pa.float64(),
        "journal": pa.float64(),
        "difference": pa.float64(),
        "ratio": pa.float64(),
        "baseline_operations": pa.int64(),
        "journal_operations": pa.int64(),
    }
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The tables of a report, and the number of seconds that the report covers.

    ``every_kind``: whether the tables have the operations of all kinds.  Otherwise, the share of refused operations is
    unknown, because their kinds are.
    """

    tables: Mapping[str, pa.Table]
    duration: float
    every_kind: bool = True


@dataclass(frozen=True, slots=True)
class _Pair:
    """A figure in both reports, with None for a report that lacks it.  ``operations``: the number of operations in each
    report.
    """

    measure: str
    unit: str
    baseline: float | None
    journal: float | None
    operations: tuple[int, int]
    where: Mapping[str, str | None]


def find_changes(baseline: Figures, journal: Figures, threshold: float) -> pa.Table:
    """Return one row for each figure that at least one report has.  ``threshold``: the smallest relative change."""
    rows = [
        *_outcomes(baseline, journal, threshold),
        *_refused(baseline, journal, threshold),
        *_waits(baseline, journal, threshold),
        *_lateness(baseline, journal, threshold),
        *_occupancy(baseline, journal, threshold),
        *_hot_keys(baseline, journal, threshold),
        *_dropped(baseline, journal, threshold),
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


# The figures


def _outcomes(baseline: Figures, journal: Figures, threshold: float) -> Iterator[dict[str, Any]]:
    before, after = (_by(side.tables["outcomes"], "purgatory", "kind", "outcome") for side in (baseline, journal))
    totals = [_sums(side.values(), "purgatory", "kind") for side in (before, after)]
    for names in sorted({key[:2] for key in (*before, *after)}):
        where: dict[str, str | None] = dict(zip(("purgatory", "kind"), names, strict=True))
        n = totals[0].get(names, 0), totals[1].get(names, 0)
        rates = [
            number / side.duration if number else None for number, side in zip(n, (baseline, journal), strict=True)
        ]
        yield _row(
            _Pair("operations", "per second", rates[0], rates[1], n, where),
            _count_verdict(n, baseline, journal, threshold),
        )
        for outcome in ENDS:
            counts = [side.get((*names, outcome), {}).get("operations", 0) for side in (before, after)]
            if not any(counts):
                continue
            shares = [count / total if total else None for count, total in zip(counts, n, strict=True)]
            pair = _Pair("share", "share", shares[0], shares[1], n, where | {"outcome": outcome})
            yield _row(pair, _share_verdict(pair, outcome, threshold))


def _refused(baseline: Figures, journal: Figures, threshold: float) -> Iterator[dict[str, Any]]:
    if not (baseline.every_kind and journal.every_kind):
        return
    before, after = (_by_refusal(side.tables["over_time"]) for side in (baseline, journal))
    for purgatory in sorted({*before, *after}):
        (first, first_of), (second, second_of) = (side.get(purgatory, (0, 0)) for side in (before, after))
        if first or second:
            shares = [found / of if of else None for found, of in ((first, first_of), (second, second_of))]
            where = {"purgatory": purgatory, "outcome": REFUSED}
            pair = _Pair("share", "share", shares[0], shares[1], (first_of, second_of), where)
            yield _row(pair, _share_verdict(pair, FAILED, threshold))  # a refused operation is as bad as a failed one


def _by_refusal(over_time: pa.Table) -> dict[str, tuple[int, int]]:
    """Return how many operations each purgatory refused, and how many were submitted to it."""
    found: dict[str, tuple[int, int]] = {}
    for row in over_time.to_pylist():
        if row["kind"] is None:
            refused, submitted = found.get(row["purgatory"], (0, 0))
            found[row["purgatory"]] = refused + row[REFUSED], submitted + row["operations"] + row[REFUSED]
    return found


def _waits(baseline: Figures, journal: Figures, threshold: float) -> Iterator[dict[str, Any]]:
    before, after = (_by(side.tables["waits"], "purgatory", "kind") for side in (baseline, journal))
    names = {*before, *after}
    kinds = {purgatory: [k for p, k in names if p == purgatory and k is not None] for purgatory, _ in names}
    for purgatory, kind in sorted(names, key=lambda pair: (pair[0], pair[1] or "")):
        if kind is not None or len(kinds[purgatory]) > 1:  # otherwise, the purgatory equals its only kind
            yield from _quantiles("wait", before, after, (purgatory, kind), threshold)


def _lateness(baseline: Figures, journal: Figures, threshold: float) -> Iterator[dict[str, Any]]:
    sides = []
    for side in (baseline, journal):
        rows = _by(side.tables["lateness"], "purgatory")
        sides.append({key: row | {"operations": row["expired"]} for key, row in rows.items()})
    for names in sorted({*sides[0], *sides[1]}):
        yield from _quantiles("lateness", sides[0], sides[1], names, threshold)


def _occupancy(baseline: Figures, journal: Figures, threshold: float) -> Iterator[dict[str, Any]]:
    before, after = (_by(side.tables["peaks"], "purgatory") for side in (baseline, journal))
    totals = [_sums(side.tables["outcomes"].to_pylist(), "purgatory") for side in (baseline, journal)]
    for names in sorted({*before, *after}):
        found = [side[names]["peak"] if names in side else None for side in (before, after)]
        n = totals[0].get(names, 0), totals[1].get(names, 0)
        pair = _Pair("peak", "operations", found[0], found[1], n, {"purgatory": names[0]})
        peaks = [peak or 0 for peak in found]
        clear = abs(peaks[1] - peaks[0]) >= STANDARD_ERRORS * sqrt(max(peaks))
        yield _row(pair, _verdict(pair, threshold, clear=clear))


def _hot_keys(baseline: Figures, journal: Figures, threshold: float) -> Iterator[dict[str, Any]]:
    before, after = (_by(side.tables["hot_keys"], "purgatory", "key") for side in (baseline, journal))
    most = {key: max(s[key]["operations"] for s in (before, after) if key in s) for key in (*before, *after)}
    for names in sorted(most, key=lambda key: (-most[key], key)):
        n = tuple(side.get(names, {}).get("operations", 0) for side in (before, after))
        where: dict[str, str | None] = dict(zip(("purgatory", "key"), names, strict=True))
        rates = [
            number / side.duration if number else None for number, side in zip(n, (baseline, journal), strict=True)
        ]
        pair = _Pair("operations of a key", "per second", rates[0], rates[1], (n[0], n[1]), where)
        yield _row(pair, _count_verdict((n[0], n[1]), baseline, journal, threshold))
        if all(n):
            waited = [side[names]["operations"] - side[names][PENDING] for side in (before, after)]
            found = [side[names]["p99"] for side in (before, after)]
            if found == [None, None]:
                continue
            pair = _Pair("wait of a key p99", "seconds", found[0], found[1], (waited[0], waited[1]), where)
            clear = _differs([side[names] for side in (before, after)], "p99", pair)
            yield _row(pair, _quantile_verdict(pair, 0.99, threshold, clear=clear))


def _dropped(baseline: Figures, journal: Figures, threshold: float) -> Iterator[dict[str, Any]]:
    sums = [
        [sum(side.tables["dropped"][name].to_pylist()) for name in ("operations", "dropped")]
        for side in (baseline, journal)
    ]
    if not any(lost for _, lost in sums):
        return
    n = tuple(written + lost for written, lost in sums)
    shares = [lost / total if total else 0.0 for (_, lost), total in zip(sums, n, strict=True)]
    pair = _Pair("dropped rows", "share", shares[0], shares[1], (n[0], n[1]), {})
    errors = standard_errors_between(pair.baseline, pair.journal, pair.operations)
    yield _row(pair, _verdict(pair, threshold, clear=errors >= STANDARD_ERRORS))


def _quantiles(
    measure: str, before: Mapping[Any, Any], after: Mapping[Any, Any], names: tuple[Any, ...], threshold: float
) -> Iterator[dict[str, Any]]:
    where = dict(zip(("purgatory", "kind"), names, strict=False))
    n = before.get(names, {}).get("operations", 0), after.get(names, {}).get("operations", 0)
    for name, share in QUANTILES:
        found = [side.get(names, {}).get(name) for side in (before, after)]
        if found == [None, None]:
            continue
        head = "p99.9" if name == "p999" else name
        pair = _Pair(f"{measure} {head}", "seconds", found[0], found[1], n, where)
        clear = _differs([side.get(names, {}) for side in (before, after)], name, pair)
        yield _row(pair, _quantile_verdict(pair, share, threshold, clear=clear))


# The verdicts


def _share_verdict(pair: _Pair, outcome: str, threshold: float) -> str:
    if pair.baseline is None or pair.journal is None:
        return _verdict(pair, threshold)
    return share_verdict(pair.baseline, pair.journal, pair.operations, outcome, threshold)


def _quantile_verdict(pair: _Pair, share: float, threshold: float, *, clear: bool) -> str:
    if pair.baseline is not None and pair.journal is not None:
        if abs(pair.journal - pair.baseline) <= RESOLUTION_S * (1 + 1e-9):
            return "same"
        enough = min(pair.operations) * (1 - share) >= LEAST_ABOVE * (1 - 1e-9)
        if not enough:
            return "same" if _verdict(pair, threshold) == "same" else "unclear"
    return _verdict(pair, threshold, clear=clear)


def _differs(rows: list[Mapping[str, Any]], name: str, pair: _Pair) -> bool:
    """Return whether the logarithms of a quantile differ by at least three standard errors."""
    if pair.baseline is None or pair.journal is None or not all(pair.operations):
        return True  # one of the figures is missing, or there is nothing to estimate from
    errors = [_error_of_log(row, name, number) for row, number in zip(rows, pair.operations, strict=True)]
    distance = abs(_log(pair.journal) - _log(pair.baseline))
    return distance >= STANDARD_ERRORS * sqrt(errors[0] ** 2 + errors[1] ** 2)


def _error_of_log(row: Mapping[str, Any], name: str, number: int) -> float:
    """Return the standard error of the logarithm of a quantile of ``number`` values.

    The slopes to both neighbors are measured against the share and against the logarithm of the share above the
    quantile; the steepest one is used.
    """
    at = [known for known, _ in QUANTILES].index(name)
    share = QUANTILES[at][1]
    slope = 0.0
    for other, other_share in QUANTILES[max(0, at - 1) : at + 2]:
        if other != name:
            rise = abs(_log(row[other]) - _log(row[name]))
            by_rest = abs(log((1 - other_share) / (1 - share))) * (1 - share)
            slope = max(slope, rise / abs(other_share - share), rise / by_rest)
    return sqrt(share * (1 - share) / number) * slope


def _log(seconds: float) -> float:
    # A wait is negative if a server's files are damaged or were written by another program.
    return log(max(seconds, 0.0) + RESOLUTION_S)


def _count_verdict(n: tuple[int, int], baseline: Figures, journal: Figures, threshold: float) -> str:
    rates = n[0] / baseline.duration, n[1] / journal.duration
    pair = _Pair("", "", rates[0] if n[0] else None, rates[1] if n[1] else None, n, {})
    deviation = sqrt(n[0] / baseline.duration**2 + n[1] / journal.duration**2)
    return _verdict(pair, threshold, clear=abs(rates[1] - rates[0]) >= STANDARD_ERRORS * deviation, neutral=True)


def _verdict(pair: _Pair, threshold: float, *, clear: bool = True, neutral: bool = False) -> str:
    if pair.baseline is None or pair.journal is None:
        return "new" if pair.baseline is None else "gone"
    change = pair.journal - pair.baseline
    if not change or not clear or abs(change) < threshold * abs(pair.baseline) * (1 - 1e-9):
        return "same"
    return ("more" if neutral else "worse") if change > 0 else ("fewer" if neutral else "better")


def _row(pair: _Pair, verdict: str) -> dict[str, Any]:
    both = pair.baseline is not None and pair.journal is not None
    difference = pair.journal - pair.baseline if both else None  # type: ignore[operator]  # both have it
    return {
        "verdict": verdict,
        "measure": pair.measure,
        **pair.where,
        "unit": pair.unit,
        "baseline": pair.baseline,
        "journal": pair.journal,
        "difference": difference,
        "ratio": pair.journal / pair.baseline if both and pair.baseline else None,  # type: ignore[operator]
        "baseline_operations": pair.operations[0],
        "journal_operations": pair.operations[1],
    }


def _by(table: pa.Table, *columns: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in columns): row for row in table.to_pylist()}


def _sums(rows: Iterable[dict[str, Any]], *columns: str) -> dict[tuple[Any, ...], int]:
    total: dict[tuple[Any, ...], int] = {}
    for row in rows:
        names = tuple(row[name] for name in columns)
        total[names] = total.get(names, 0) + row["operations"]
    return total
