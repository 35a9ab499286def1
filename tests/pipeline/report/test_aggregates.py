"""Aggregates as they go from task to task, without Spark."""

import collections
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from purgatory.journal import JournalError
from purgatory.pipeline.report.aggregates import (
    HOT_OUTCOMES,
    Aggregate,
    Aggregates,
    _net,
    durations_by_step,
    durations_within,
    step_and_duration,
)
from purgatory.pipeline.report.report import _check_outcomes, _check_times
from purgatory.pipeline.report.time_span import TimeSpan
from purgatory.pipeline.report.verdicts import least_share


def of_keys(keys: list[str]) -> Aggregates:
    """One operation of each key."""
    made = Aggregates()
    texts = [pa.array(["p"] * len(keys), pa.string()), pa.array(keys, pa.string())]
    numbers = [pa.array([number] * len(keys), pa.int64()) for number in (1, 20, 0)]
    names = ["purgatory", "key", "operations", "wait_ms", "expired"]
    made.keys.add(pa.Table.from_arrays([*texts, *numbers], names))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 16])
def test_many_distinct_keys_are_sent_once(parts: int) -> None:
    """What goes to the next task is little more than the keys themselves, whatever chunks they are in."""
    keys = [f"request-{number:012d}" for number in range(200_000)]
    cells = [cell for _, cell in of_keys(keys).cells(parts)]
    assert sum(map(len, cells)) < 1.5 * sum(len(key) + 1 + 4 + 4 + 3 * 8 for key in keys)
    total = Aggregates()
    total.add_cells(cells)
    assert total.keys.table().num_rows == len(keys)
    assert total.keys.top(2)["key"].to_pylist() == keys[:2]


@given(st.lists(st.text(max_size=3), max_size=40), st.integers(1, 5))
def test_the_parts_have_all_keys(keys: list[str], parts: int) -> None:
    """Each key is in one part, the same one in every task, with the number of its operations."""
    cells = [cell for some in (keys[::2], keys[1::2]) for cell in of_keys(some).cells(parts)]
    total = Aggregates()
    part_of: dict[str, int] = {}
    for part, cell in cells:
        total.add_cells([cell])
        alone = Aggregates()
        alone.add_cells([cell])
        for key in alone.keys.table()["key"].to_pylist():
            assert part_of.setdefault(key, part) == part < parts
    counted = {row["key"]: row["operations"] for row in total.keys.table().to_pylist()}
    assert counted == {key: keys.count(key) for key in keys}


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 10**15)), max_size=50))
def test_durations_of_a_step_keep_their_first_eight_bits(pairs: list[tuple[int, int]]) -> None:
    """Below 256 ms they are exact, above less than 1 in 128 too short, and never too long."""
    steps, ms = (np.array(column, dtype=np.int64) for column in (zip(*pairs, strict=True) if pairs else ([], [])))
    made = Aggregates()
    for step, duration in pairs:
        made.add(("x",), values=step_and_duration(np.array([step]), np.array([duration])), counts=[1])
    found = dict(durations_by_step(one)) if (one := next((one for _, one in made.of("x")), None)) else {}
    assert sorted(found) == sorted(set(steps.tolist()))
    for step, histogram in found.items():
        kept = np.repeat(histogram.values, histogram.counts)
        exact = np.sort(ms[steps == step])
        assert len(kept) == len(exact)
        assert (kept <= exact).all()
        assert ((exact - kept) * 128 < np.maximum(exact, 1)).all() or (exact[exact < 256] == kept[exact < 256]).all()
        assert (exact[exact < 256] == kept[: (exact < 256).sum()]).all()


def test_keys_are_ranked_by_three_figures() -> None:
    """The most operations, the longest total wait, and the greatest share of expired ones with enough operations."""
    made = Aggregates()
    rows = [("busy", 90, 10, 9), ("slow", 30, 900, 0), ("late", 20, 50, 15), ("rare", 19, 5, 19), ("calm", 40, 0, 0)]
    table = [{"purgatory": "p", "key": k, "operations": n, "wait_ms": w, "expired": e} for k, n, w, e in rows]
    made.keys.add(pa.Table.from_pylist(table))
    assert made.keys.top(2)["key"].to_pylist() == ["busy", "calm"]
    assert made.keys.top(2, "wait")["key"].to_pylist() == ["slow", "late"]
    assert made.keys.top(9, "expired")["key"].to_pylist() == ["late", "busy"]
    made.finish(1_000, 1)
    assert sorted(made.keys.table()["key"].to_pylist()) == ["busy", "late", "slow"]


def test_a_rare_key_needs_more_than_chance_to_be_first() -> None:
    """Four of thirty is a greater share than 37 of 406, but proves less; one of one proves nothing."""
    made = Aggregates()
    counted = {"one": (1, 1), "rare": (30, 4), "busy": (406, 37), "certain": (2_000, 1_000), "never": (500, 0)}
    texts = [pa.array(["p"] * len(counted)), pa.array(list(counted))]
    operations, expired = (pa.array(numbers) for numbers in zip(*counted.values(), strict=True))
    columns = [*texts, operations, pa.array([0] * len(counted)), expired]
    made.keys.add(pa.Table.from_arrays(columns, ["purgatory", "key", "operations", "wait_ms", "expired"]))
    assert made.keys.top(9, "expired")["key"].to_pylist() == ["certain", "busy", "rare"]


def test_the_least_share_is_a_bound() -> None:
    """It is below the share, closer with more operations, and never negative."""
    bounds = [least_share(n // 10, n) for n in (10, 100, 1_000, 100_000)]
    assert bounds == sorted(bounds)
    assert 0 <= bounds[0] < 0.05
    assert 0.095 < bounds[-1] < 0.1
    assert least_share(0, 5) == pytest.approx(0.0, abs=1e-12)
    assert least_share(1, 1) == pytest.approx(0.1)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**7)), min_size=1, max_size=50), st.sets(st.integers(0, 9))
)
def test_the_durations_within_some_steps_are_those_of_these_steps(
    pairs: list[tuple[int, int]], steps: set[int]
) -> None:
    """As if the durations of each step were put together."""
    codes = step_and_duration(*(np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)))
    values, counts = np.unique(codes, return_counts=True)
    histogram = Aggregate(values=values, counts=counts)
    found = durations_within(histogram, steps)
    expected: dict[int, int] = {}
    for step, one in durations_by_step(histogram):
        if step in steps:
            for ms, number in zip(one.values.tolist(), one.counts.tolist(), strict=True):
                expected[ms] = expected.get(ms, 0) + number
    assert dict(zip(found.values.tolist(), found.counts.tolist(), strict=True)) == expected
    assert found.values.tolist() == sorted(expected)


@pytest.mark.parametrize("outcome", ["", "weird", "None"])
def test_an_unknown_outcome_is_an_error_with_its_name(outcome: str) -> None:
    """A journal from another program; the tables have a column for each outcome of the schema."""
    aggregates = Aggregates()
    for name in (*HOT_OUTCOMES, outcome):
        aggregates.add(("outcome", "p", "K", name), [1, 0])
    with pytest.raises(
        JournalError, match=f"the journal there has the outcome '{outcome}', which is none of pending, completed"
    ):
        _check_outcomes("there", aggregates)


def test_a_time_before_the_first_step_is_an_error() -> None:
    """Python has no time before the year 1; a step may begin before its first record."""
    first_ms = -62_135_596_800_000 + 1_000
    span = TimeSpan()
    span.add("a", first_ms, 0, 0)
    _check_times("there", span, 1_000)
    with pytest.raises(JournalError, match=f"the journal there has a time that is too close to the year 1: {first_ms}"):
        _check_times("there", span, 1_000, 604_800_000)


@pytest.mark.parametrize("length", [1, 5_000, 60_000, 3_600_000])
def test_few_changes_cost_no_array_of_every_millisecond(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes are those of a plain count, without zeros, and sorted.  An array is at most four times as long as
    the changes, and some thousands, because each purgatory of a file has one."""
    rng = np.random.default_rng(length)
    arrivals = np.sort(rng.integers(0, length, 200)) + 1_790_000_000_000
    ends = np.concatenate([arrivals[:100] + rng.integers(0, 30, 100), arrivals[100:]])
    plain: collections.Counter[int] = collections.Counter(arrivals.tolist())
    plain.subtract(ends.tolist())
    lengths: list[int] = []
    bincount = np.bincount

    def counted(values: Any, minlength: int = 0) -> Any:
        lengths.append(minlength)
        return bincount(values, minlength=minlength)

    monkeypatch.setattr(np, "bincount", counted)
    at, net = _net(arrivals, ends)
    assert dict(zip(at.tolist(), net.tolist(), strict=True)) == {ms: change for ms, change in plain.items() if change}
    assert (np.diff(at) > 0).all()
    assert max(lengths, default=0) <= 12_000
