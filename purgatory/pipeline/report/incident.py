"""Sentences about the worst interval of a journal: when, what, which purgatory and kind, and which keys.

The sentences are the same on the pages and in the terminal.  Spark is not used.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import hypot
from typing import Any, Final, NamedTuple

import pyarrow as pa

from purgatory.journal.schema import CANCELLED, EXPIRED, FAILED
from purgatory.pipeline.output.figures import label, seconds

from .unusual_intervals import OWN_THRESHOLD, REFUSED, Names, Row, TimeSteps, Within, figures_within
from .verdicts import LEAST_ABOVE, RESOLUTION_S, KeyShares, least_share

__all__ = [
    "TO_END",
    "Worst",
    "figure",
    "interval",
    "name_of",
    "not_judged",
    "summary",
    "time_of",
    "timeline",
    "worst_of",
]

TO_END: Final = "until the end of the journal"
_KEY_ERRORS: Final = 5.0  # standard errors, because there are a hundred keys
_MOST_NAMES: Final = 4
_MOST_DEPLOYS: Final = 8
_PART: Final = 0.25  # a kind is not affected if its change is less than this part of the interval's
_DIGITS: Final = 2  # the digits shown for a quantile of a step, which can be 1/128 too low
_MEASURES: Final = {"wait p50": "the median wait", "wait p99": "the p99 of the wait"}
_VERBS: Final = {EXPIRED: "expired", FAILED: "failed", CANCELLED: "were cancelled", REFUSED: "were refused"}


class Worst(NamedTuple):
    """The interval that affected the most operations.

    ``outcome``: the outcome that a greater share of its operations had, if the keys of such operations are known.
    """

    names: Names
    since: datetime
    until: datetime
    outcome: str | None


def worst_of(
    times: pa.Table,
    steps: TimeSteps,
    baseline: TimeSteps | None = None,
    threshold: float = OWN_THRESHOLD,
) -> Worst | None:
    """Return the interval that affected the most operations, or None if no step is worse.

    ``baseline`` and ``threshold``: those with which ``times`` were found.
    """
    worse = _by_names(times)
    if not worse:
        return None
    main = _main(worse, steps, baseline, threshold)
    rows = _together(worse[main])
    outcome = next((row["outcome"] for row in rows if row["outcome"] in _VERBS), None)
    return Worst(main, *_span(rows), None if outcome == REFUSED else outcome)


def summary(
    times: pa.Table,
    steps: TimeSteps,
    keys: KeyShares | None,
    deploys: Sequence[datetime],
    baseline: TimeSteps | None = None,
    threshold: float = OWN_THRESHOLD,
) -> list[str]:
    """Return sentences about the interval that affected the most operations, or an empty list if no step is worse.

    The first sentence gives the time, the purgatory and kind, and the figures.  The others name the purgatories and
    kinds that were not affected and those that may have been refused, the keys that stand out, and the new run of a
    server that began nearest to the interval.  ``keys``: the keys of the interval that :func:`worst_of` returns.
    ``baseline`` and ``threshold``: those with which ``times`` were found.
    """
    worse = _by_names(times)
    worst = worst_of(times, steps, baseline, threshold)
    if worst is None:
        return []
    main, since, until, outcome = worst
    together = _together(worse[main])
    found = [_sentence(main, together, since, until)]
    overlapping = [names for names, rows in worse.items() if _overlaps(rows, since, until)]
    # A purgatory is worse if one of its kinds is, but refused operations are known only for the whole purgatory.
    others = [
        names
        for names in overlapping
        if names != main and (names[1] is not None or not _divided(names, worse) or _refused(worse[names]))
    ]
    figures = figures_within(steps, [(since, until)], threshold, baseline, worse)
    divided = {purgatory for purgatory, kind in figures if kind is not None}
    alone = [names for names in figures if names[1] is not None or names[0] not in divided]
    others += [
        names
        for names in alone
        if names not in overlapping and any(each.verdict == "worse" for each in figures[names].values())
    ]
    if others:
        found.append(f"Also worse at that time: {_listed(map(name_of, others))}.")
    judged = {
        names: any(_much_less(row, figures[names]) for row in together)
        for names in alone
        if names not in overlapping and names not in others
    }
    found += _not_affected(steps, main, judged, since, until)
    if keys is not None and outcome is not None:
        found += _keys(keys, main, outcome)
    found += _nearest_deploy(deploys, since, _ended_at(together))
    return found


def not_judged(steps: TimeSteps) -> list[str]:
    """Return a sentence about refused operations, if their share is unknown because only some kinds are selected."""
    refused: dict[str, int] = {}
    for row in steps.over_time.to_pylist():
        if row[REFUSED] and not steps.every_kind:
            refused[row["purgatory"]] = refused.get(row["purgatory"], 0) + row[REFUSED]
    in_order = sorted(refused, key=lambda name: -refused[name])
    counts = [f"{refused[name]:,} by {label(name)}" for name in in_order]
    return [f"Refused operations of unknown kinds are not judged: {_listed(counts)}."] if counts else []


def timeline(
    times: pa.Table,
    steps: TimeSteps,
    deploys: Sequence[datetime],
    baseline: TimeSteps | None = None,
    threshold: float = OWN_THRESHOLD,
) -> list[str]:
    """Return what happened, in chronological order: intervals that are worse, and new runs of servers.

    ``baseline`` and ``threshold``: those with which ``times`` were found.
    """
    worse = [row for row in times.to_pylist() if row["verdict"] == "worse"]
    if not worse:
        return []
    by_names = _by_names(times)
    together = _together(by_names[_main(by_names, steps, baseline, threshold)])
    since, until = _span(together)[0], _ended_at(together)
    lines = [(row["since"], int(row["kind"] is None), interval(row)) for row in worse]  # kinds before their purgatory
    begun = "a new run of a server began"
    lines += [
        (at, 2, f"{at:%Y-%m-%d %H:%M:%S} UTC: {begun}, {_relative(at, since, until)}") for at in deploys[:_MOST_DEPLOYS]
    ]
    texts = [text for *_, text in sorted(lines, key=lambda line: line[:2])]
    if len(deploys) > _MOST_DEPLOYS:
        texts.append(f"and {len(deploys) - _MOST_DEPLOYS} more new runs of servers")
    return texts


def interval(row: Row) -> str:
    """Return an interval of :func:`~purgatory.pipeline.report.unusual_intervals.find_times` as one line."""
    what = f"{row['outcome']} share" if row["outcome"] else row["measure"]
    begin, end = row["since"], row["until"]
    times = f"UTC {TO_END}" if row["to_end"] else f"to {time_of(end, begin)} UTC"
    text = (
        f"{begin:%Y-%m-%d %H:%M:%S} {times}, {name_of((row['purgatory'], row['kind']))}: "
        f"{what} {figure(row, 'journal')} instead of {figure(row, 'baseline')}"
    )
    if figure(row, "extreme") != figure(row, "journal"):
        text += f" (at most {figure(row, 'extreme')}, at {time_of(row['extreme_at'], begin)})"
    return text


def figure(row: Row, column: str) -> str:
    """Return a figure of an interval as text."""
    value = row[column]
    return seconds(value, _DIGITS) if row["unit"] == "seconds" else f"{value:.2%}"


def time_of(at: datetime, said: datetime) -> str:
    """Return a time as text, with its date unless that is the date of a time which was ``said`` before."""
    return f"{at:%H:%M:%S}" if at.date() == said.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def name_of(names: Names) -> str:
    """Return a purgatory and its kind as text."""
    return " · ".join(label(name) for name in names if name is not None)


def _by_names(times: pa.Table) -> dict[Names, list[Row]]:
    """Return the intervals with the verdict ``worse``, by purgatory and kind."""
    found: dict[Names, list[Row]] = {}
    for row in times.to_pylist():
        if row["verdict"] == "worse":
            found.setdefault((row["purgatory"], row["kind"]), []).append(row)
    return found


def _main(worse: dict[Names, list[Row]], steps: TimeSteps, baseline: TimeSteps | None, threshold: float) -> Names:
    """Return the kind with the most affected operations, or the purgatory if none of its kinds is worse.

    A kind may have too few operations to be judged in each step.  So it is the purgatory as well if its interval is
    longer than that of the kind, contains it, and affected at least twice as many operations, and if some kind is worse
    in the remaining time.  If none is, the purgatory is worse there only because the mix of its kinds is different,
    unless operations were refused, whose kinds are unknown; then its interval need not contain that of the kind.
    """
    candidates = [names for names in worse if names[1] is not None or not _divided(names, worse)]
    main = max(candidates, key=lambda names: _affected(_together(worse[names])))
    whole = (main[0], None)
    if whole == main or whole not in worse:
        return main
    (begin, end), (since, until) = (_span(_together(worse[names])) for names in (main, whole))
    about = {row["outcome"] or row["measure"] for row in _together(worse[whole])}
    contains = since <= begin and end <= until and until - since > end - begin
    twice = tuple(2 * harm for harm in _affected(_together(worse[main])))
    if _affected(_together(worse[whole])) < twice:
        return main
    if REFUSED in about:
        return whole
    if not contains:
        return main
    remaining = figures_within(steps, [(since, begin), (end, until)], threshold, baseline, worse)
    verdicts = (
        figures[name].verdict
        for (purgatory, kind), figures in remaining.items()
        if purgatory == main[0] and kind is not None
        for name in about.intersection(figures)
    )
    return whole if "worse" in verdicts else main


def _divided(names: Names, worse: dict[Names, list[Row]]) -> bool:
    """Return whether a kind of this purgatory is worse at the time of the purgatory's worst interval."""
    since, until = _span(_together(worse[names]))
    return any(
        other[0] == names[0] and other[1] is not None and _overlaps(rows, since, until) for other, rows in worse.items()
    )


def _refused(rows: Sequence[Row]) -> bool:
    return any(row["outcome"] == REFUSED for row in rows)


def _together(rows: list[Row]) -> list[Row]:
    """Return the interval that affected the most operations, and the overlapping intervals of other measures."""
    worst = max(rows, key=lambda row: _affected([row]))
    return [row for row in rows if row["since"] < worst["until"] and worst["since"] < row["until"]]


def _affected(rows: Sequence[Row]) -> tuple[float, float]:
    """Return a measure of the harm: how many more operations ended badly, and how much longer all operations waited."""
    harm = {"share": 0.0, "seconds": 0.0}
    for row in rows:
        harm[row["unit"]] = max(harm[row["unit"]], (row["journal"] - row["baseline"]) * row["operations"])
    return harm["share"], harm["seconds"]


def _span(rows: Sequence[Row]) -> tuple[datetime, datetime]:
    return min(row["since"] for row in rows), max(row["until"] for row in rows)


def _ended_at(rows: Sequence[Row]) -> datetime | None:
    """Return when intervals ended, or None if they last until the end of the journal."""
    return None if any(row["to_end"] for row in rows) else _span(rows)[1]


def _overlaps(rows: Iterable[Row], since: datetime, until: datetime) -> bool:
    return any(row["since"] < until and since < row["until"] for row in rows)


def _sentence(names: Names, rows: Sequence[Row], since: datetime, until: datetime) -> str:
    clauses = []
    to_end = _ended_at(rows) is None
    for row in sorted(rows, key=lambda row: row["unit"] != "share"):
        here, usual = figure(row, "journal"), figure(row, "baseline")
        if row["unit"] == "share":
            clauses.append(f"{here} of the operations {_VERBS[row['outcome']]} instead of {usual}")
        else:
            clauses.append(f"{_MEASURES[row['measure']]} was {here} instead of {usual}")
        if to_end and row["to_end"]:
            if row["since"] != since:
                clauses[-1] += f" (from {time_of(row['since'], since)})"
        elif to_end or (row["since"], row["until"]) != (since, until):
            clauses[-1] += f" (from {time_of(row['since'], since)} to {time_of(row['until'], row['since'])})"
    end = until.strftime("%H:%M:%S" if until.second else "%H:%M")
    begin = since.strftime("%Y-%m-%d, from %H:%M:%S" if since.second else "%Y-%m-%d, from %H:%M")
    if until.date() != since.date():
        end = f"{until:%Y-%m-%d} {end}"
    times = f"UTC {TO_END}" if to_end else f"to {end} UTC"
    return f"On {begin} {times}, {name_of(names)} was worse: {', and '.join(clauses)}."


def _much_less(row: Row, figures: Mapping[str, Within]) -> bool:
    """Return whether a figure has certainly not changed by a quarter as much as in this interval."""
    here = figures.get(row["outcome"] or row["measure"])
    if here is None:
        return False
    if row["unit"] == "share":
        change = min(row["journal"] - row["baseline"], 1 - here.usual)
    else:
        change = max(here.usual, RESOLUTION_S) * (row["journal"] / max(row["baseline"], RESOLUTION_S) - 1)
    return bool(here.most < here.usual + _PART * change)


def _not_affected(
    steps: TimeSteps, main: Names, judged: Mapping[Names, bool], since: datetime, until: datetime
) -> list[str]:
    """Return sentences about purgatories and kinds that are not known to be worse.

    ``judged``: whether their operations are enough to show that the interval did not affect them.
    """
    step = timedelta(milliseconds=steps.step_ms)
    by_name = steps.by_name()
    refused = {
        names[0]: sum(row[REFUSED] for row in rows if since <= row["bucket"] < until)
        for names, rows in by_name.items()
        if names[1] is None
    }
    well: list[Names] = []
    few: list[Names] = []
    perhaps: dict[Names, str] = {}
    for names, shown in judged.items():
        within = [row for row in by_name[names] if since <= row["bucket"] < until]
        # The median of a step is judged if ten operations are above it.
        enough = (
            shown
            and len(within) * step >= until - since
            and all(row["operations"] - row["immediate"] - row["pending"] >= 2 * LEAST_ABOVE for row in within)
        )
        if enough and refused[names[0]] and (names[1] is not None or not steps.every_kind):
            perhaps[names] = name_of(names)  # the refused share of a purgatory is judged, but not that of a kind
        else:
            (well if enough else few).append(names)
    found = [f"Not affected: {_listed(map(name_of, well))}."] if well else []
    kinds = {
        names
        for names, rows in by_name.items()
        if names[0] == main[0] and names[1] is not None and any(since <= row["bucket"] < until for row in rows)
    }
    if main[1] is None and kinds and kinds.issubset(well):
        found.append(f"So the mix of the kinds of {label(main[0])} was different.")
    if perhaps:
        counts = [f"{refused[name]:,} by {label(name)}" for name in dict.fromkeys(name for name, _ in perhaps)]
        found.append(
            f"Perhaps affected: {_listed(perhaps.values())}. At that time, operations of unknown kinds were refused:"
            f" {_listed(counts)}."
        )
    return [*found, f"Too few operations to judge: {_listed(map(name_of, few))}."] if few else found


def _keys(shares: KeyShares, names: Names, outcome: str) -> list[str]:
    """Return a sentence about the keys whose share of an outcome is greater than that of the operations without them.

    An operation can have several keys, so all operations may have a key, which then cannot be compared.
    """
    keys, verb = shares.keys, _VERBS[outcome]
    if not keys or not shares.waited:
        return []
    of = f"operations of {name_of(names)}"
    if shares.at_once:
        of += " that had to wait"  # the first sentence also counts those that did not
    share = f"{shares.found / shares.waited:.1%}"
    in_order = sorted(keys, key=lambda key: -keys[key][0])
    without = {key: (shares.found - keys[key][0], shares.waited - keys[key][1]) for key in in_order}
    compared = [key for key in in_order if without[key][1] > 0]
    if not compared:
        which = f"the key{'s' if len(keys) > 1 else ''} {_listed(map(label, in_order))}"
        return [f"No key can be compared: at that time, all {of} had {which}, and {share} of them {verb}."]
    margins = {key: _margin(keys[key], without[key]) for key in compared}
    standing_out = [key for key in compared if margins[key] > 0]
    if standing_out:
        texts = [
            "{} ({:,} of {:,} {}, and {:,} of {:,} without it)".format(label(key), *keys[key], verb, *without[key])
            for key in standing_out
        ]
        return [f"Keys that stand out at that time: {_listed(texts)}; {share} of the {of} {verb}."]
    none = (
        f"none of its {len(keys)} busiest keys has a share that is higher by more than chance"
        if len(keys) > 1
        else "the share of its busiest key is not higher by more than chance"
    )
    above = [key for key in compared if keys[key][0] * without[key][1] > without[key][0] * keys[key][1]]
    nearest = max(above, key=margins.__getitem__, default=None)
    named = "" if nearest is None else " (the closest is {}, {:,} of {:,})".format(label(nearest), *keys[nearest])
    return [f"No key stands out: at that time, {share} of the {of} {verb}, and {none}{named}."]


def _margin(key: tuple[int, int], others: tuple[int, int]) -> float:
    """Return by how much more than chance a key's share is greater than that of the other operations.

    Chance can have increased the share of the key and decreased that of the others; the distances of both shares from
    their bounds are added like the errors of a difference (Newcombe's interval).
    """
    (found, of), (among, number) = key, others
    here, usual = found / of, 1.1 * among / number
    most = 1.1 * (1 - float(least_share(number - among, number, _KEY_ERRORS)))
    return here - usual - hypot(here - float(least_share(found, of, _KEY_ERRORS)), most - usual)


def _nearest_deploy(deploys: Sequence[datetime], since: datetime, until: datetime | None) -> list[str]:
    if not deploys:
        return ["No new run of a server began in the reported time."]
    nearest = min(deploys, key=lambda at: max(since - at, at - (until or at), timedelta(0)))
    which = "The nearest new run of a server" if len(deploys) > 1 else "A new run of a server"
    return [f"{which}, as with a deploy, began at {time_of(nearest, since)}, {_relative(nearest, since, until)}."]


def _relative(at: datetime, since: datetime, until: datetime | None) -> str:
    if at < since:
        return f"{_length(since - at)} before the change"
    if at == since:
        return "when the change began"
    if until is None or at < until:
        return f"{_length(at - since)} after the change began"
    return f"{_length(at - since)} after the change began, and {_length(at - until)} after it ended"


def _length(length: timedelta) -> str:
    return seconds(length.total_seconds())


def _listed(names: Iterable[Any]) -> str:
    every = list(names)
    return ", ".join(every[:_MOST_NAMES]) + (
        f", and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
    )
