"""The intervals of a journal that differ from a baseline, without Spark."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa

from purgatory.pipeline.report.aggregates import Aggregate, step_and_duration
from purgatory.pipeline.report.unusual_intervals import TimeSteps, find_own_times, find_times

BEGIN = datetime(2026, 11, 24, 14, tzinfo=UTC)
MINUTE_MS = 60_000
COUNTS = ("operations", "completed", "expired", "expired_by_closing", "cancelled", "failed", "pending", "refused")


def step(minute: int, waits: list[float], *, purgatory: str = "p", kind: str | None = None, **counts: int) -> Any:
    """A step in which as many operations completed as there are waits, and others ended as ``counts`` says."""
    spread = np.quantile(waits, (0.5, 0.99)).tolist() if waits else (None, None)
    row = {"purgatory": purgatory, "kind": kind, "bucket": BEGIN + timedelta(minutes=minute), "immediate": 0}
    row |= dict.fromkeys(COUNTS, 0) | {"completed": len(waits)} | counts
    row["operations"] = sum(row[name] for name in COUNTS if name not in ("operations", "refused"))
    return row | {"wait_p50": spread[0], "wait_p99": spread[1], "waits": waits}


def steps_of(rows: list[Any]) -> TimeSteps:
    """The steps of a report, with the waits behind them."""
    waits: dict[tuple[str, str | None], list[int]] = {}
    for row in rows:
        number = round(row["bucket"].timestamp() * 1000) // MINUTE_MS
        ms = np.rint(np.array(row["waits"]) * 1000).astype(np.int64)
        codes = step_and_duration(np.full(len(ms), number), ms)
        waits.setdefault((row["purgatory"], row["kind"]), []).extend(codes.tolist())
    found = {names: np.unique(np.array(codes, np.int64), return_counts=True) for names, codes in waits.items()}
    histograms = {names: Aggregate(values=values, counts=counts) for names, (values, counts) in found.items()}
    return TimeSteps(pa.Table.from_pylist(rows), histograms, MINUTE_MS)


def drawn(seed: int, number: int, factor: float = 1.0) -> list[float]:
    draw = random.Random(seed)
    return [factor * draw.lognormvariate(-1, 0.8) for _ in range(number)]


USUAL = [drawn(minute, 1_500) for minute in range(60)]
BASELINE = steps_of([step(minute, waits, expired=15) for minute, waits in enumerate(USUAL)])


def found(steps: list[Any]) -> list[tuple[Any, ...]]:
    rows = find_times(BASELINE, steps_of(steps), 0.1).to_pylist()
    return [
        (row["verdict"], row["measure"], row["outcome"], *(_minute(row[name]) for name in ("since", "until")))
        for row in rows
    ]


def _minute(at: datetime) -> int:
    return round((at - BEGIN) / timedelta(minutes=1))


def test_a_journal_like_the_baseline_has_no_interval() -> None:
    """Hundreds of steps differ by chance only."""
    assert found([step(minute, drawn(1_000 + minute, 1_500), expired=15) for minute in range(300)]) == []


def test_an_incident_has_its_begin_and_its_end() -> None:
    """Ten slow minutes are one interval for each measure; a pause in the journal divides an interval."""
    steps = []
    for minute in range(40):
        slow = 10 <= minute < 20 and minute != 15
        if minute != 15:
            waits = drawn(2_000 + minute, 1_500, 4.0 if slow else 1.0)
            steps.append(step(minute, waits, expired=400 if slow else 15))
    assert sorted(found(steps)) == sorted(
        ("worse", measure, outcome, *times)
        for measure, outcome in (("wait p50", None), ("wait p99", None), ("share", "expired"))
        for times in ((10, 15), (16, 20))
    )


def test_refusals_and_fast_times_are_found_and_few_operations_are_not_judged() -> None:
    """A refused operation is worse; closing is neither; a step with a few operations shows nothing."""
    steps = [step(minute, drawn(3_000 + minute, 1_500), expired=15) for minute in range(5)]
    steps.append(step(5, drawn(1, 1_500), expired=15, refused=300, expired_by_closing=40))
    steps.append(step(6, drawn(2, 1_500, 0.3), expired=15))
    steps.append(step(7, [90.0] * 9, failed=3))
    assert found(steps) == [
        ("worse", "share", "refused", 5, 6),
        ("better", "wait p50", None, 6, 7),
        ("better", "wait p99", None, 6, 7),
    ]


def test_kinds_have_intervals_of_their_own_if_there_are_several() -> None:
    """Otherwise, the purgatory is its only kind."""
    for kinds in (["A"], ["A", "B"]):
        usual = [step(m, [], kind=kind, completed=1_000) for kind in (None, *kinds) for m in range(9)]
        here = [step(m, [], kind=kind, completed=500, failed=500) for kind in (None, *kinds) for m in range(3)]
        rows = find_times(steps_of(usual), steps_of(here), 0.1).to_pylist()
        expected = [None] if len(kinds) == 1 else [None, "A", "B"]
        assert [(row["kind"], row["outcome"], row["journal"]) for row in rows] == [(k, "failed", 0.5) for k in expected]


def test_the_figure_of_an_interval_is_that_of_all_its_operations() -> None:
    """The worst step is apart: four of ten operations failed in the interval, six of ten in its second minute."""
    steps = [step(minute, drawn(minute, 1_500), expired=15) for minute in range(8)]
    waits = [2.0] * 600, [8.0] * 400
    steps[3] = step(3, waits[0], failed=200)
    steps[4] = step(4, waits[1], failed=600)
    rows = find_times(BASELINE, steps_of(steps), 0.1).to_pylist()
    (share,) = [row for row in rows if row["outcome"] == "failed"]
    assert share["journal"] == pytest.approx(800 / 1_800)
    assert share["extreme"] == pytest.approx(600 / 1_000)
    assert share["extreme_at"] == BEGIN + timedelta(minutes=4)
    (wait,) = [row for row in rows if row["measure"] == "wait p50"]
    assert (wait["journal"], wait["extreme"]) == (pytest.approx(2.0, rel=1 / 64), 8.0)
    assert wait["operations"] == 1_800


@pytest.mark.parametrize("slow", [range(20, 30), range(25)], ids=["a sixth", "nearly half"])
def test_a_journal_without_a_baseline_has_the_interval_that_differs_from_its_other_steps(slow: range) -> None:
    """The bad minutes do not count as usual, so the shares of the others are not better than theirs."""
    steps = []
    for minute in range(60):
        here = minute in slow
        steps.append(step(minute, drawn(minute, 300, 12.0 if here else 1.0), expired=200 if here else 0))
    rows = find_own_times(steps_of(steps), 0.1).to_pylist()
    found = {(row["measure"], row["outcome"], _minute(row["since"]), _minute(row["until"])) for row in rows}
    assert {
        (measure, outcome, slow.start, slow.stop) for measure, outcome in (("wait p50", None), ("share", "expired"))
    } <= found
    assert {(since, until) for *_, since, until in found} == {(slow.start, slow.stop)}
    assert next(row["baseline"] for row in rows if row["outcome"] == "expired") == 0.0


def test_a_journal_without_a_usual_step_has_no_interval_of_its_own() -> None:
    """Every step differs from the others, so there is nothing that one of them is worse than."""
    steps = [step(minute, [0.01 * 2**minute] * 100) for minute in range(12)]
    assert find_own_times(steps_of(steps), 0.1).num_rows == 0
    assert find_own_times(steps_of([step(0, [])]), 0.1).num_rows == 0
    steps = [step(minute, drawn(minute, 900), expired=9) for minute in range(60)]
    assert find_own_times(steps_of(steps), 0.1).num_rows == 0


def test_waits_that_end_at_a_timeout_are_no_longer_in_a_step_by_chance() -> None:
    """About one in a hundred operations of each minute waits until its timeout, which is then often the p99."""
    late = [5, 14, 9, 6, 12, 8, 13, 4, 11, 9]
    waits = [drawn(minute, 1_000 - late[minute % 10]) + [8.0] * late[minute % 10] for minute in range(60)]
    waits = [[min(wait, 8.0) for wait in here] for here in waits]
    p99 = [np.quantile(here, 0.99) for here in waits]
    assert min(p99) < 4.0
    assert max(p99) == 8.0
    assert find_own_times(steps_of([step(minute, here) for minute, here in enumerate(waits)]), 0.1).num_rows == 0


def test_waits_that_end_at_a_timeout_are_as_long_as_in_the_baseline() -> None:
    """The usual median is a few percent below the timeout; in a minute with few operations, it is often the timeout."""
    draw = random.Random(3)

    def polls(number: int) -> list[float]:
        return [min(draw.expovariate(1 / 42), 30.0) for _ in range(number)]

    usual = steps_of([step(minute, polls(200)) for minute in range(200)])
    for seed in range(20):
        draw = random.Random(seed)
        steps = [step(minute, polls(draw.choice((25, 60, 200)))) for minute in range(200)]
        assert find_times(usual, steps_of(steps), 0.01).num_rows == 0


def test_a_small_baseline_is_known_no_better_than_its_operations_show() -> None:
    """Its median differs by chance from that of a journal with a hundred times as many operations."""
    for seed in range(40):
        usual = steps_of([step(minute, drawn(100 * seed + minute, 20)) for minute in range(6)])
        steps = steps_of([step(minute, drawn(7_000 + minute, 6_000)) for minute in range(4)])
        assert find_times(usual, steps, 0.01).num_rows == 0


def test_negative_waits_of_damaged_rows_are_compared_as_no_wait() -> None:
    """As in a comparison; half of the operations end before they park."""
    damaged = [[-1.0 if at % 2 else wait for at, wait in enumerate(waits)] for waits in USUAL]
    baseline = steps_of([step(m, waits) for m, waits in enumerate(damaged)])
    steps = [step(m, [5.0] * 1_500 if 20 <= m < 30 else waits) for m, waits in enumerate(USUAL)]
    rows = find_times(baseline, steps_of(steps), 0.1).to_pylist()
    assert any(row["verdict"] == "worse" and row["measure"] == "wait p50" for row in rows)


def test_an_interval_that_nothing_ends_lasts_to_the_end_of_the_journal() -> None:
    """After it, operations expired only because the purgatory closed, or are pending; a completion ends the interval,
    and so does the end of a selected time.
    """
    usual = [step(minute, USUAL[minute], expired=15) for minute in range(40)]
    hang = [step(minute, [], expired=1_500) for minute in range(40, 48)]
    closed = [step(48, [], expired=4, expired_by_closing=1_490), step(49, [], expired_by_closing=900, pending=3)]

    def lasts(*after: Any, whole: bool = True) -> set[tuple[int, bool]]:
        journal = steps_of([*usual, *hang, *after])._replace(whole=whole)
        found = find_own_times(journal, 0.1).to_pylist()
        found += [row for row in find_times(BASELINE, journal, 0.1).to_pylist() if row["outcome"] == "expired"]
        return {((row["until"] - BEGIN).seconds // 60, row["to_end"]) for row in found}

    assert lasts() == lasts(*closed) - {(49, True)} == {(48, True)}
    assert lasts(*closed, whole=False) == {(48, False)}
    assert lasts(step(48, USUAL[48], expired=15)) == {(48, False)}
    assert lasts(*closed, step(50, [0.3])) == {(48, False)}
    other = [step(minute, USUAL[minute], purgatory="q") for minute in range(60)]
    assert lasts(*closed, *other) == {(48, False)}, "there are later rows, so nothing is known about p"
