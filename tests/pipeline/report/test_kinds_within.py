"""What the first sentences say about kinds with too few operations to be judged in each minute, without Spark."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa

from purgatory.pipeline.report.aggregates import Aggregate, durations_within, quantiles, step_and_duration
from purgatory.pipeline.report.incident import summary, timeline, worst_of
from purgatory.pipeline.report.unusual_intervals import OWN_THRESHOLD, TimeSteps, find_own_times, find_times

BEGIN = datetime(2026, 11, 24, 14, tzinfo=UTC)
MINUTES = 60
COUNTS = ("operations", "immediate", "pending", "refused", "expired", "expired_by_closing", "failed", "cancelled")

Minute = tuple[int, Sequence[float]]  # the number of expired operations, and all waits in seconds


def spread(number: int, median: float = 0.3) -> list[float]:
    """Return waits around a median, from a third of it to three times as long."""
    return [median * 3.0 ** (2 * at / (number - 1) - 1) for at in range(number)]


def minutes(number: int, expired: Mapping[int, int] | None = None, slow: Mapping[int, float] | None = None) -> Any:
    """Return the minutes of a kind.  ``expired`` and ``slow``: how many expired, and the median, if not usual."""
    expired, slow = expired or {}, slow or {}
    return [(expired.get(minute, 0), spread(number, slow.get(minute, 0.3))) for minute in range(MINUTES)]


def during(of_kind: Sequence[Minute], part: range) -> list[Minute]:
    """Return the minutes of a kind that has operations only in a part of the hour."""
    return [each if minute in part else (0, []) for minute, each in enumerate(of_kind)]


def steps(**kinds: Sequence[Minute]) -> TimeSteps:
    """Return the steps of these kinds, and those of their purgatory; a minute without waits is no step."""
    whole = [
        (sum(each[0] for each in at), [wait for each in at for wait in each[1]])
        for at in zip(*kinds.values(), strict=True)
    ]
    rows: list[dict[str, Any]] = []
    waits: dict[tuple[str, str | None], Aggregate] = {}
    for kind, of_kind in ((None, whole), *kinds.items()):
        numbers = [int(BEGIN.timestamp()) // 60 + minute for minute in range(len(of_kind))]
        ms = [np.rint(np.array(here) * 1000).astype(np.int64) for _, here in of_kind]
        codes = [step_and_duration(np.full(len(here), number), here) for number, here in zip(numbers, ms, strict=True)]
        values, counts = np.unique(np.concatenate(codes), return_counts=True)
        waits["shop", kind] = Aggregate(values=values, counts=counts)
        for number, (expired, here) in zip(numbers, of_kind, strict=True):
            if not here:
                continue
            p50, p99 = quantiles(durations_within(waits["shop", kind], [number]), (0.5, 0.99))
            row = {"purgatory": "shop", "kind": kind, "bucket": datetime.fromtimestamp(number * 60, UTC)}
            row |= dict.fromkeys(COUNTS, 0) | {"operations": len(here), "expired": expired}
            rows.append(row | {"wait_p50": p50, "wait_p99": p99})
    return TimeSteps(pa.Table.from_pylist(rows), waits, 60_000)


def said(journal: TimeSteps) -> list[str]:
    """Return the sentences about one journal, apart from the last one, which is about deploys."""
    return summary(find_own_times(journal, OWN_THRESHOLD), journal, None, [])[:-1]


def test_a_partial_incident_of_small_kinds_is_that_of_their_purgatory() -> None:
    """In most minutes, fewer than ten operations of each kind expired, and none are usual."""
    partial = dict.fromkeys(range(25, 35), 8)
    journal = steps(A=minutes(60, partial | {33: 14, 34: 14}), B=minutes(60, partial))
    times = find_own_times(journal, OWN_THRESHOLD)
    assert said(journal) == [
        "On 2026-11-24, from 14:25 to 14:35 UTC, shop was worse: 14.33% of the operations expired instead of 0.00%.",
        "Also worse at that time: shop · A, shop · B.",
    ]
    worst = worst_of(times, journal)
    assert worst is not None
    assert (worst.names, worst.outcome) == (("shop", None), "expired")
    assert "2026-11-24 14:33:00 to 14:35:00 UTC, shop · A: expired share 23.33% instead of 0.00%" in timeline(
        times, journal, []
    )


def test_an_incident_of_one_kind_is_not_that_of_its_purgatory() -> None:
    """Even if the interval of the purgatory is longer."""
    journal = steps(A=minutes(60, dict.fromkeys(range(20, 30), 50) | {30: 8}), B=minutes(60, {30: 8}))
    times = find_own_times(journal, OWN_THRESHOLD)
    assert {(row["kind"], row["until"]) for row in times.to_pylist() if row["outcome"] == "expired"} == {
        (None, BEGIN + timedelta(minutes=31)),
        ("A", BEGIN + timedelta(minutes=30)),
    }
    assert said(journal)[0].startswith("On 2026-11-24, from 14:20 to 14:30 UTC, shop · A was worse: 83.33%")
    assert said(journal)[1:] == ["Not affected: shop · B."]


def test_a_kind_that_is_worse_in_the_interval_is_named_if_it_is_in_no_minute() -> None:
    """Two of sixty operations in each of ten minutes are not chance."""
    ten = range(20, 30)
    journal = steps(
        A=minutes(100, dict.fromkeys(ten, 90)), B=minutes(60, dict.fromkeys(ten, 2)), C=minutes(60, {20: 1, 29: 1})
    )
    assert said(journal)[1:] == ["Also worse at that time: shop · B.", "Not affected: shop · C."]


def test_a_kind_is_unaffected_only_if_a_quarter_of_the_change_would_show() -> None:
    """Of sixty operations, seven of B are too many; D, of which nine in ten always expire, cannot show a change.

    If one in five of the operations of the named kind expired, none of sixty can be chance.
    """
    usual = dict.fromkeys(range(MINUTES), 54)
    for share, unaffected, few in ((0.85, "shop · C", "shop · B, shop · D"), (0.2, "", "shop · B, shop · C, shop · D")):
        journal = steps(
            A=minutes(1_000, {20: round(share * 1_000)}), B=minutes(60, {20: 7}), C=minutes(60), D=minutes(60, usual)
        )
        expected = [f"Not affected: {unaffected}."] if unaffected else []
        assert said(journal)[1:] == [*expected, f"Too few operations to judge: {few}."]


def test_waits_of_a_kind_are_judged_over_the_interval() -> None:
    """B, with as many operations as C, is also slower; D, with fewer, may be."""
    ten = range(20, 30)
    journal = steps(
        A=minutes(2_000, slow=dict.fromkeys(ten, 0.6)),
        B=minutes(60, slow=dict.fromkeys(ten, 0.4)),
        C=minutes(100),
        D=minutes(20),
    )
    first, *others = said(journal)
    assert "shop · A was worse: the median wait was 600 ms instead of 300 ms" in first
    assert others == [
        "Also worse at that time: shop · B.",
        "Not affected: shop · C.",
        "Too few operations to judge: shop · D.",
    ]


def test_refused_operations_are_those_of_the_purgatory() -> None:
    """A full purgatory refuses operations of any kind for twenty minutes; in three of these, A also expires."""
    within = range(40, 43)
    journal = steps(A=minutes(200, dict.fromkeys(within, 60), dict.fromkeys(within, 0.3)), B=minutes(200))
    rows = journal.over_time.to_pylist()
    for row in rows:
        if row["kind"] is None and 30 <= row["bucket"].minute < 50:
            row["refused"] = 2_000
    first, *others = said(journal._replace(over_time=pa.Table.from_pylist(rows)))
    assert first.startswith("On 2026-11-24, from 14:30 to 14:50 UTC, shop was worse: 83.33% of the operations were ref")
    assert others[0] == "Also worse at that time: shop · A."


@pytest.mark.parametrize("longer", [0, 1])
def test_refused_operations_come_before_the_kinds_that_are_slower_meanwhile(longer: int) -> None:
    """Most operations of ten minutes are refused, and those that are not wait longer, also a minute later."""
    ten = range(30, 40)
    slow = range(30, 40 + longer)
    journal = steps(A=minutes(60, slow=dict.fromkeys(slow, 3.0)), B=minutes(300, slow=dict.fromkeys(ten, 0.6)))
    rows = journal.over_time.to_pylist()
    for row in rows:
        if row["kind"] is None and row["bucket"].minute in ten:
            row["refused"] = 2_000
    first, *others = said(journal._replace(over_time=pa.Table.from_pylist(rows)))
    assert first.startswith("On 2026-11-24, from 14:30 to 14:40 UTC, shop was worse: 84.75% of the operations were ref")
    assert others[0] == "Also worse at that time: shop · A, shop · B."


@pytest.mark.parametrize("known", [True, False])
def test_a_comparison_knows_what_is_usual_for_a_kind_although_every_minute_is_worse(known: bool) -> None:
    """No minute is left to compare with; of a kind that the baseline lacks, nothing is usual."""
    every = range(MINUTES)
    calm = {"A": minutes(200), "C": minutes(100)} | ({"B": minutes(60)} if known else {})
    journal = steps(
        A=minutes(200, dict.fromkeys(every, 180), dict.fromkeys(every, 5.0)),
        B=minutes(60, dict.fromkeys(every, 2)),
        C=minutes(100),
    )
    before = steps(**calm)
    times = find_times(before, journal, 0.1)
    found = summary(times, journal, None, [], before, 0.1)
    assert found[1:-1] == (
        ["Also worse at that time: shop · B.", "Not affected: shop · C."]
        if known
        else ["Not affected: shop · B, shop · C."]
    )


def test_the_incident_of_a_kind_that_runs_only_part_of_the_time_is_found_beside_a_kind_that_always_runs() -> None:
    """In all its minutes, the purgatory differs, because the mix of its kinds does."""
    night, incident = range(12, 24), range(18, 21)
    journal = steps(
        Interactive=minutes(200),
        Export=during(minutes(70, slow=dict.fromkeys(range(MINUTES), 30.0) | dict.fromkeys(incident, 120.0)), night),
    )
    first, *others = said(journal)
    assert first.startswith(
        "On 2026-11-24, from 14:18 to 14:21 UTC, shop · Export was worse: the median wait was 2 min"
    )
    assert others == ["Not affected: shop · Interactive."]


@pytest.mark.parametrize("expired", [True, False], ids=["expired", "longer waits"])
def test_the_incident_of_a_kind_that_improves_the_figures_of_its_purgatory_is_found(expired: bool) -> None:
    """Even in its incident, it is better than the other kind."""
    every, incident = range(MINUTES), range(35, 37)
    poll = minutes(100, dict.fromkeys(every, 90), dict.fromkeys(every, 5.0))
    checkout = (
        minutes(200, dict.fromkeys(incident, 120), dict.fromkeys(incident, 5.0))
        if expired
        else minutes(400, slow=dict.fromkeys(incident, 3.0))
    )
    journal = steps(Poll=poll, Checkout=during(checkout, range(22, 42)))
    first, *others = said(journal)
    assert first.startswith("On 2026-11-24, from 14:35 to 14:37 UTC, shop · Checkout was worse: ")
    assert ("60.00% of the operations expired instead of 0.00%" if expired else "was 3 s instead of 300 ms") in first
    assert others == ["Not affected: shop · Poll."]


@pytest.mark.parametrize("compared", [True, False])
def test_a_purgatory_is_not_named_for_a_time_in_which_only_the_mix_of_its_kinds_is_different(compared: bool) -> None:
    """Three in ten exports always expire, and nine in ten for three minutes; they run only part of the time."""
    part, incident = range(12, 24), range(18, 21)
    usual = dict.fromkeys(range(MINUTES), 21)
    other = minutes(200)
    journal = steps(Other=other, Export=during(minutes(70, usual | dict.fromkeys(incident, 63)), part))
    before = steps(Other=other, Export=during(minutes(70, usual), part)) if compared else None
    times = find_own_times(journal, OWN_THRESHOLD) if before is None else find_times(before, journal, OWN_THRESHOLD)
    assert any(
        row["kind"] is None and row["until"] - row["since"] == timedelta(minutes=len(part)) for row in times.to_pylist()
    )
    first, *others = summary(times, journal, None, [], before)[:-1]
    assert first.startswith("On 2026-11-24, from 14:18 to 14:21 UTC, shop · Export was worse: 90.00% of the operations")
    assert others == ["Not affected: shop · Other."]


def test_a_purgatory_is_worse_and_none_of_its_kinds_if_their_mix_is_different() -> None:
    """Nine in ten long polls always expire; for some minutes, there are ten times as many."""
    poll = [(540, spread(600, 5.0)) if 20 <= minute < 26 else (54, spread(60, 5.0)) for minute in range(MINUTES)]
    first, *others = said(steps(Get=minutes(600), Poll=poll))
    assert "from 14:20 to 14:26 UTC, shop was worse: 45.00% of the operations expired instead of 8.18%" in first
    assert others == ["Not affected: shop · Get, shop · Poll.", "So the mix of the kinds of shop was different."]


def test_a_kind_that_has_no_operations_makes_the_mix_different() -> None:
    """Nine in ten long polls always expire; in most minutes, other operations make the share lower."""
    poll = minutes(100, dict.fromkeys(range(MINUTES), 90))
    first, *others = said(steps(Poll=poll, Get=during(minutes(400), range(20, MINUTES))))
    assert "from 14:00 to 14:20 UTC, shop was worse: 90.00% of the operations expired instead of 18.00%" in first
    assert others == [
        "Not affected: shop · Poll.",
        "So the mix of the kinds of shop was different.",
        "Too few operations to judge: shop · Get.",
    ]


def test_a_kind_with_two_levels_is_not_worse_at_the_usual_higher_one() -> None:
    """Half of its minutes differ from the others."""
    b = minutes(600, slow=dict.fromkeys(range(MINUTES // 2), 0.2))
    for last in (41, 43, 45, 50):
        journal = steps(A=minutes(600, dict.fromkeys(range(40, last), 360)), B=b)
        assert said(journal)[1:] == ["Not affected: shop · B."]
