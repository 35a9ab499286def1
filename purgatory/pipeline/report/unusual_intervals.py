"""The intervals of time in which a journal is worse or better than usual; Spark is not used.

A step is compared with a whole baseline or with the other steps of the same journal, not with the same time on another
day.  An interval therefore shows when something began and ended.  Neighboring steps with the same verdict form one
interval.

For a step with ``n`` operations, a difference is more than chance if:

*   a **share** differs by at least ``z`` standard errors and by at least ten operations,
*   a **quantile** ``q`` of the step and of the usual operations has at least ten operations above it, and their number
    in the step, ``n (1 - q)``, differs from ``n s`` by ``z`` standard deviations of a Poisson distribution; ``s`` is
    the share of the usual operations above the same wait.  For a baseline with ``m`` operations, ``n`` is replaced by
    ``n m / (n + m)``, because the baseline differs by chance, too.

``z`` is 5, a higher value than for the figures of whole journals, because there are hundreds of steps.

A note of refused operations covers a range of time.  Where in this range they were refused is unknown, so the share of
refused operations is judged in **windows** of 1, 2, 4, ... steps: the shortest ones in which at least three quarters of
the refused operations have ranges that do not extend beyond a window.  A window is worse if it is worse even without
the refused operations whose ranges extend beyond it, and better if it is better even with all of these.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import sqrt
from operator import itemgetter
from statistics import median
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from purgatory.journal.schema import CANCELLED, EXPIRED, FAILED, PENDING

from .aggregates import BY_CLOSING, Aggregate, covered_steps, durations_within, quantiles
from .verdicts import LEAST_ABOVE, RESOLUTION_S, least_share, share_verdict

__all__ = [
    "OWN_THRESHOLD",
    "REFUSED",
    "TIMES",
    "Names",
    "Row",
    "TimeSteps",
    "Within",
    "figures_within",
    "find_own_times",
    "find_times",
]

Names = tuple[str, str | None]  # purgatory and kind; without a kind, the whole purgatory
REFUSED: Final = "refused"
OWN_THRESHOLD: Final = 0.1  # the smallest change of a report's own intervals, as a share of the usual figure
_WAITS: Final = (("wait p50", "wait_p50", 0.5), ("wait p99", "wait_p99", 0.99))
_OUTCOMES: Final = (EXPIRED, FAILED, CANCELLED)
_STANDARD_ERRORS: Final = 5.0
_ROUNDING: Final = 1 / 128  # a quantile, of a step or usual, can be too low by this share
_MOST_ROUNDS: Final = 5
_OFTEN: Final = 0.25  # a figure that is at least half as far above the usual one in this share of the runs is not worse
_WITHIN_A_WINDOW: Final = 0.75  # the least share of refused operations whose ranges do not extend beyond a window
TIMES: Final = pa.schema(
    {
        **dict.fromkeys(("verdict", "measure", "purgatory", "kind", "outcome"), pa.string()),
        **dict.fromkeys(("since", "until"), pa.timestamp("us", tz="UTC")),
        "to_end": pa.bool_(),
        "unit": pa.string(),
        **dict.fromkeys(("baseline", "journal", "extreme"), pa.float64()),
        "extreme_at": pa.timestamp("us", tz="UTC"),
        "operations": pa.int64(),
    }
)

Row = dict[str, Any]


class TimeSteps(NamedTuple):
    """The table ``over_time`` of a report, the waits from which it is computed, and the length of a step.

    ``waits``: for each purgatory and kind, a histogram from
    :func:`~purgatory.pipeline.report.aggregates.step_and_duration`.  ``whole``: whether the steps reach the end of the
    journal; False if a selected time ends before it.  ``every_kind``: whether the steps have the operations of all
    kinds.  Otherwise, the share of refused operations is unknown, because their kinds are.  ``notes``: for each
    purgatory, the steps that its notes of refused operations cover, for
    :func:`~purgatory.pipeline.report.aggregates.covered_steps`.  Without an entry, the steps of the refused operations
    are known.
    """

    over_time: pa.Table
    waits: Mapping[Names, Aggregate]
    step_ms: int
    whole: bool = True
    every_kind: bool = True
    notes: Mapping[str, Aggregate] = MappingProxyType({})

    def by_name(self) -> dict[Names, list[Row]]:
        """Return the steps of each purgatory, and of each kind if the purgatory has several."""
        steps = _rows_of(self)
        kinds = [purgatory for purgatory, kind in steps if kind is not None]
        return {names: rows for names, rows in steps.items() if names[1] is None or kinds.count(names[0]) > 1}

    def number_of(self, at: datetime) -> int:
        """Return the number of the step that begins at this time."""
        return round(at.timestamp() * 1000) // self.step_ms


def find_times(baseline: TimeSteps, journal: TimeSteps, threshold: float) -> pa.Table:
    """Return one row for each interval of the journal that is worse or better than the whole baseline.

    ``journal``: the figure of the interval.  ``extreme``: the figure of its most unusual step, which begins at
    ``extreme_at``.  ``operations``: the number of operations that parked in the interval.  ``to_end``: whether the
    interval lasts until the end of the journal; ``until`` is then the end of its last step.
    """
    usual = _rows_of(baseline)
    rows: list[Row] = []
    for names, steps in journal.by_name().items():
        if names in usual:
            for wait in _WAITS:
                judged = _judged_waits(steps, usual[names], journal, names, wait, threshold, baseline)
                rows += _intervals(judged, journal, {"measure": wait[0], "unit": "seconds"}, names)
            for outcome in _outcomes(names, journal):
                parts = _windows(steps, journal, names[0]) if outcome == REFUSED else steps
                judged = _judged_shares(parts, outcome, threshold, usual[names])
                rows += _intervals(judged, journal, {"measure": "share", "unit": "share", "outcome": outcome}, names)
    return _table(rows, journal)


class Within(NamedTuple):
    """A figure of all operations of an interval: its verdict, the usual figure, and the highest that chance may hide.

    ``most``: three standard errors above the figure for a share, and five for a wait.
    """

    verdict: str
    usual: float
    most: float


def figures_within(
    journal: TimeSteps,
    spans: Sequence[tuple[datetime, datetime]],
    threshold: float,
    baseline: TimeSteps | None = None,
    unusual: Mapping[Names, Sequence[Row]] = MappingProxyType({}),
) -> dict[Names, dict[str, Within]]:
    """Judge each purgatory and kind by all its operations of some ``spans`` of time, as if they were one step.

    A kind may have too few operations to be judged in each step, but enough in all of them.  A figure has the name of
    its outcome or measure.  Without a ``baseline``, the steps before the first span and those after the last one are
    usual, apart from the ``unusual`` intervals.  A figure is then not worse if it is nearly as high in a quarter of the
    usual runs of as many steps, as with a daily rhythm.
    """
    before = {} if baseline is None else _rows_of(baseline)
    found: dict[Names, dict[str, Within]] = {}
    for names, steps in journal.by_name().items():
        aside = [(spans[0][0], spans[-1][1]), *((row["since"], row["until"]) for row in unusual.get(names, ()))]
        usual = (
            [row for row in steps if not any(begin <= row["bucket"] < end for begin, end in aside)]
            if baseline is None
            else before.get(names, [])
        )
        within = [row for row in steps if any(since <= row["bucket"] < until for since, until in spans)]
        whole = _as_one_step(journal, names, within)
        judges: dict[str, Callable[[list[Row]], Iterable[_Judged]]] = {
            outcome: partial(_judged_shares, outcome=outcome, threshold=threshold, before=usual)
            for outcome in _OUTCOMES
        }
        figures = found[names] = {}
        for outcome in (*_OUTCOMES, REFUSED):
            (each,) = _judged_shares([whole], outcome, threshold, usual)
            most = 1 - float(least_share(each.of - each.found, each.of)) if each.of else 1.0
            # It is not certain in which steps operations were refused.
            figures[outcome] = Within("same" if outcome == REFUSED else each.verdict, each.usual, most)
        waits = _waits_of(journal, names, within)
        n = int(waits.counts.sum())
        for wait in _WAITS:
            measure, _, share = wait
            if n * (1 - share) < LEAST_ABOVE or (baseline is not None and names not in baseline.waits):
                continue
            fewer, _ = _shares_above(n * (1 - share), n)
            judges[measure] = partial(
                _judged_waits,
                usual=usual,
                journal=journal,
                names=names,
                wait=wait,
                threshold=threshold,
                baseline=baseline,
            )
            (each,) = judges[measure]([whole])
            figures[measure] = Within(each.verdict, each.usual, quantiles(waits, [1 - fewer])[0] or 0.0)
        worse = [name for name, each in figures.items() if each.verdict == "worse"]
        if worse and baseline is None:
            length = len(within)
            runs = [_as_one_step(journal, names, usual[at : at + length]) for at in range(0, len(usual), length)]
            for name in worse:
                each, *others = judges[name]([whole, *runs])
                high = sum(2 * (other.here - other.usual) >= each.here - each.usual for other in others)
                if high >= _OFTEN * len(others):
                    figures[name] = figures[name]._replace(verdict="same")
    return found


def _waits_of(journal: TimeSteps, names: Names, steps: Iterable[Row]) -> Aggregate:
    numbers = [journal.number_of(row["bucket"]) for row in steps]
    return durations_within(journal.waits.get(names, Aggregate()), numbers)


def _as_one_step(journal: TimeSteps, names: Names, steps: list[Row]) -> Row:
    columns = ("operations", "immediate", "pending", *_OUTCOMES, REFUSED)
    found = quantiles(_waits_of(journal, names, steps), [share for *_, share in _WAITS])
    return {column: sum(row[column] for row in steps) for column in columns} | {
        column: value for (_, column, _), value in zip(_WAITS, found, strict=True)
    }


def find_own_times(journal: TimeSteps, threshold: float) -> pa.Table:
    """Return the intervals of a journal that are worse than its other steps, in the form that :func:`find_times` uses.

    Steps that differ from the middle half of the steps are set aside, until the remaining steps are alike.  If half of
    the steps or more are set aside, no step is usual, and the journal has no interval.  A step of a kind may have too
    few operations to be judged, so the steps that are worse for the whole purgatory are set aside for its kinds, too.
    They are not if a kind would then have less than half of its steps: a kind that runs only part of the time can be
    the reason why the purgatory differs.
    """
    rows: list[Row] = []
    differs: dict[tuple[str, str], set[datetime]] = {}

    def add(names: Names, parts: list[Row], judge: _Judge, figure: Callable[[Row], float | None], about: Row) -> None:
        of = (names[0], about.get("outcome") or about["measure"])
        judged = _set_aside(parts, judge, figure, differs.get(of, set()))
        if names[1] is None:  # a purgatory comes before its kinds
            differs[of] = {each.row["bucket"] for each in judged if each.verdict == "worse"}
        rows.extend(_intervals(judged, journal, about, names))

    for names, steps in journal.by_name().items():
        for wait in _WAITS:
            by_waits = partial(_judged_waits, steps, journal=journal, names=names, wait=wait, threshold=threshold)
            add(names, steps, by_waits, itemgetter(wait[1]), {"measure": wait[0], "unit": "seconds"})
        for outcome in _outcomes(names, journal):
            parts = _windows(steps, journal, names[0]) if outcome == REFUSED else steps
            by_share = partial(_judged_shares, parts, outcome, threshold)
            share = partial(_share_of, outcome=outcome)
            add(names, parts, by_share, share, {"measure": "share", "unit": "share", "outcome": outcome})
    return _table([row for row in rows if row["verdict"] == "worse"], journal)


class _Judged(NamedTuple):
    """A step, its verdict, the usual figure, the figure of the step, and the numbers from which a share is computed."""

    row: Row
    verdict: str
    usual: float
    here: float
    found: int = 0
    of: int = 0


def _rows_of(journal: TimeSteps) -> dict[Names, list[Row]]:
    """Return the steps of each purgatory and of each kind."""
    rows: dict[Names, list[Row]] = {}
    for row in journal.over_time.to_pylist():
        rows.setdefault((row["purgatory"], row["kind"]), []).append(row)
    return rows


def _outcomes(names: Names, journal: TimeSteps) -> tuple[str, ...]:
    # The kind of a refused operation is not known.
    return (*_OUTCOMES, REFUSED) if names[1] is None and journal.every_kind else _OUTCOMES


def _table(rows: list[Row], journal: TimeSteps) -> pa.Table:
    steps = journal.by_name() if rows else {}
    lasts = [each[-1]["bucket"] for each in steps.values()]
    for row in rows:
        own = steps[row["purgatory"], row["kind"]]
        near_end = max(lasts) - own[-1]["bucket"] <= timedelta(milliseconds=journal.step_ms)
        row["to_end"] = journal.whole and near_end and not _has_ended(row, own)
    rows.sort(key=lambda row: (row["verdict"] != "worse", row["since"], row["purgatory"], row["kind"] or ""))
    return pa.Table.from_pylist(rows, schema=TIMES)


def _has_ended(interval: Row, steps: Iterable[Row]) -> bool:
    """Return whether a later operation shows that the interval has ended.

    An operation does not show this if it has the outcome of the interval (``expired`` for an interval of waits), if it
    still waited, or if it expired because its purgatory closed.
    """
    bad = interval.get("outcome", EXPIRED)
    alike = {BY_CLOSING, PENDING, *([] if bad == REFUSED else [bad])}
    later = (row for row in steps if row["bucket"] >= interval["until"])
    return any(row["operations"] > sum(row[name] for name in alike) for row in later)


_Judge = Callable[[list[Row]], Iterable[_Judged]]


def _set_aside(
    steps: list[Row], judge: _Judge, figure: Callable[[Row], float | None], differs: set[datetime]
) -> list[_Judged]:
    """Judge the steps by the usual ones among them.

    ``differs``: the beginnings of steps that are not usual; without effect if they are more than half of the steps.
    """
    known = [(value, number) for number, row in enumerate(steps) if (value := figure(row)) is not None]
    if len({value for value, _ in known}) < 2:
        return []  # no step differs
    remaining = [(value, number) for value, number in known if steps[number]["bucket"] not in differs]
    if 2 * len(remaining) < len(known):
        differs, remaining = set(), known
    middle = median(value for value, _ in remaining)
    nearest = sorted(remaining, key=lambda pair: (abs(pair[0] - middle), pair[1]))[: -(-len(remaining) // 2)]
    usual = [steps[number] for number in sorted(number for _, number in nearest)]
    judged: list[_Judged] = []
    for _ in range(_MOST_ROUNDS):
        judged = list(judge(usual))
        same = [each.row for each in judged if each.verdict == "same"]
        if 2 * len(same) <= len(steps):
            return []
        alike = [row for row in same if row["bucket"] not in differs]
        if alike == usual:
            break
        usual = alike
    return judged


def _share(rows: Iterable[Row], outcome: str) -> tuple[int, int]:
    found = whole = 0
    for row in rows:
        found += row[outcome]
        whole += row["operations"] + (row[REFUSED] if outcome == REFUSED else 0)
    return found, whole


def _share_of(row: Row, outcome: str) -> float | None:
    found, whole = _share([row], outcome)
    return found / whole if whole else None


def _judged_shares(steps: Sequence[Row], outcome: str, threshold: float, before: Sequence[Row]) -> Iterator[_Judged]:
    known, number = _share(before, outcome)
    usual = known / number if number else 0.0
    judged = FAILED if outcome == REFUSED else outcome  # a refused operation is as bad as a failed one

    def judge(found: int, n: int) -> str:
        here = found / n if n else 0.0
        enough = n and number and abs(here - usual) * n >= LEAST_ABOVE
        return share_verdict(usual, here, (number, n), judged, threshold, _STANDARD_ERRORS) if enough else "same"

    for row in steps:
        found, n = _share([row], outcome)
        verdict = judge(found, n)
        if verdict != "same" and outcome == REFUSED and _LEAST in row:
            surely = row[_LEAST if verdict == "worse" else _MOST]
            if judge(surely, row["operations"] + surely) != verdict:
                verdict = "unclear"
        yield _Judged(row, verdict, usual, found / n if n else 0.0, found, n)


_LEAST: Final = "least refused"  # only the refused operations whose ranges do not extend beyond the window
_MOST: Final = "most refused"  # all refused operations whose ranges overlap the window


def _windows(steps: list[Row], journal: TimeSteps, purgatory: str) -> list[Row]:
    """Return windows of the steps of a purgatory, for the share of refused operations."""
    if purgatory not in journal.notes:
        return steps
    notes = journal.notes[purgatory]
    first, last, beyond = covered_steps(notes)
    numbers = [journal.number_of(row["bucket"]) for row in steps]
    length = 1
    while length < numbers[-1] - numbers[0] + 1:
        inside = (first // length == last // length) & ~beyond
        if notes.counts[inside].sum() >= _WITHIN_A_WINDOW * notes.counts[~beyond].sum():
            break
        length *= 2
    step = timedelta(milliseconds=journal.step_ms)
    end = steps[-1]["bucket"] + step
    found: dict[int, Row] = {}
    for number, row in zip(numbers, steps, strict=True):
        window = found.get(number // length)
        if window is None:
            begin = row["bucket"] - number % length * step
            window = found[number // length] = {
                "bucket": max(begin, steps[0]["bucket"]),
                "until": min(begin + length * step, end),
                **dict.fromkeys(("operations", REFUSED), 0),
            }
        for name in ("operations", REFUSED):
            window[name] += row[name]
    inside = (first // length == last // length) & ~beyond
    for number, window in found.items():
        here = (first // length <= number) & (number <= last // length)
        window[_LEAST] = int(notes.counts[here & inside].sum())
        window[_MOST] = int(notes.counts[here].sum())
    return list(found.values())


def _judged_waits(
    steps: Sequence[Row],
    usual: Iterable[Row],
    journal: TimeSteps,
    names: Names,
    wait: Any,
    threshold: float,
    baseline: TimeSteps | None = None,
) -> Iterator[_Judged]:
    """Judge the waits of steps by those of the ``usual`` steps, which are steps of the ``baseline``, if any."""
    _, column, share = wait
    spread = _waits_of(baseline or journal, names, usual)
    if not len(spread.values):
        yield from (_Judged(row, "same", 0.0, 0.0) for row in steps)
        return
    upto = np.cumsum(spread.counts)

    def at_share(share: float) -> float:
        return float(spread.values[np.searchsorted(upto, share * (upto[-1] - 1), side="right")]) / 1000

    number = int(upto[-1])
    middle = quantiles(spread, [share])[0] or 0.0
    for row in steps:
        here = row[column]
        n = row["operations"] - row["immediate"] - row["pending"]
        if here is None or min(n, number) * (1 - share) < LEAST_ABOVE:
            yield _Judged(row, "same", middle, here or 0.0)
            continue
        far = abs(here - middle) > max(threshold * middle, RESOLUTION_S)
        # Chance moves the quantiles of a baseline, too; those of the same journal come from most of its steps.
        by_chance = n if baseline is None else n * number / (n + number)
        fewer, more = _shares_above(by_chance * (1 - share), by_chance)
        verdict = "same"
        if far and here > at_share(1 - fewer) * (1 + _ROUNDING):
            verdict = "worse"
        elif far and more < 1 and here * (1 + _ROUNDING) < at_share(1 - more):
            verdict = "better"
        yield _Judged(row, verdict, middle, here)


def _shares_above(above: float, n: float) -> tuple[float, float]:
    """Return two shares for a step in which ``above`` of ``n`` operations waited longer than some wait.

    If the share of the baseline that waited longer is below the first one, ``above`` is too many; if it is above the
    second one, ``above`` is too few.
    """
    root = sqrt(_STANDARD_ERRORS**2 + 4 * above)
    return ((root - _STANDARD_ERRORS) / 2) ** 2 / n, ((root + _STANDARD_ERRORS) / 2) ** 2 / n


def _intervals(judged: Iterable[_Judged], journal: TimeSteps, about: Row, names: Names) -> Iterator[Row]:
    """Yield an interval for each sequence of neighboring steps that are all worse, or all better."""
    step = timedelta(milliseconds=journal.step_ms)
    held: list[_Judged] = []
    for each in judged:
        if held and (each.verdict != held[0].verdict or each.row["bucket"] != _until(held[-1].row, step)):
            yield _interval(held, step, journal, about, names)
            held = []
        if each.verdict in ("worse", "better"):
            held.append(each)
    if held:
        yield _interval(held, step, journal, about, names)


def _interval(held: list[_Judged], step: timedelta, journal: TimeSteps, about: Row, names: Names) -> Row:
    usual = held[0].usual
    extreme = max(held, key=lambda each: abs(each.here - usual))
    if "outcome" in about:
        figure = sum(each.found for each in held) / sum(each.of for each in held)
    else:
        share = next(share for measure, _, share in _WAITS if measure == about["measure"])
        within = durations_within(journal.waits[names], [journal.number_of(each.row["bucket"]) for each in held])
        figure = quantiles(within, [share])[0] or 0.0
    return {
        "verdict": held[0].verdict,
        **about,
        "purgatory": names[0],
        "kind": names[1],
        "since": held[0].row["bucket"],
        "until": _until(held[-1].row, step),
        "baseline": usual,
        "journal": figure,
        "extreme": extreme.here,
        "extreme_at": extreme.row["bucket"],
        "operations": sum(each.row["operations"] for each in held),
    }


def _until(row: Row, step: timedelta) -> datetime:
    """Return the end of a step or of a window."""
    until: datetime = row.get("until", row["bucket"] + step)
    return until
