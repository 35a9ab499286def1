"""What other settings would have changed, without Spark: certain where a journal knows it, and bounds elsewhere."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from purgatory.pipeline.replay.bounds import Bounds, Scenario, Waits, estimate, summed
from purgatory.pipeline.replay.estimates import Estimates

PENDING, COMPLETED, EXPIRED, CANCELLED = range(4)


def waits(*rows: tuple[int, int, int, int], keys: Any = None, kinds: Any = None) -> Waits:
    """Parked, deadline, finished, and outcome of each."""
    columns = (
        [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)] if rows else [np.empty(0, int)] * 4
    )
    on_deadline = (columns[3] == EXPIRED) & (columns[1] >= 0) & (columns[2] >= columns[1])
    return Waits(*columns, on_deadline, kinds or ["K"] * len(rows), keys or [["a"]] * len(rows))  # type: ignore[arg-type]


def one(recorded: Waits, **settings: Any) -> Bounds:
    (found,) = estimate(recorded, Scenario(**settings))
    return found


RECORDED = waits((0, 100, 40, COMPLETED), (0, 100, 100, EXPIRED), (10, 110, 90, CANCELLED), (20, -1, 95, COMPLETED))


def test_the_recorded_settings_give_what_was_recorded() -> None:
    """No figure has bounds that differ."""
    assert one(RECORDED) == Bounds(4, (2, 2), (1, 1), (0, 0), (4, 4), (295, 295))


def test_a_shorter_timeout_is_certain() -> None:
    """What ended later would have expired; what has no timeout is as it was."""
    assert one(RECORDED, timeout_ms=50) == Bounds(4, (2, 2), (2, 2), (0, 0), (4, 4), (215, 215))
    assert one(RECORDED, timeout_ms=30).expired == (3, 3)


def test_a_longer_timeout_has_bounds() -> None:
    """An operation that expired could have completed at once, or not at all."""
    found = one(RECORDED, timeout_ms=400)
    assert (found.expired, found.completed, found.total_ms) == ((0, 1), (2, 3), (295, 296))
    far = waits((0, 100, 100, EXPIRED), (900, 1_000, 950, COMPLETED))
    assert one(far, timeout_ms=400).total_ms == (150, 450)


def test_a_limit_refuses_what_would_have_to_wait() -> None:
    """The third of three, in each process; without its wait, the later ones have room."""
    recorded = waits(
        (0, 100, 50, COMPLETED), (1, 100, 60, COMPLETED), (2, 100, 70, COMPLETED), (55, 100, 65, COMPLETED)
    )
    found = one(recorded, max_parked=2)
    assert (found.refused, found.completed, found.peak) == ((1, 1), (3, 3), (2, 2))
    assert one(recorded, max_parked=3).refused == (0, 0)
    at_once = waits((0, 100, 50, COMPLETED), (50, 100, 60, COMPLETED))
    assert one(at_once, max_parked=1).refused == (0, 1), "the order within a millisecond is unknown"


def test_a_limit_per_key_counts_every_key() -> None:
    """An operation without keys never waits, so nothing refuses it."""
    rows = [(0, 100, 50, COMPLETED)] * 4
    recorded = waits(*rows, keys=[["a"], ["a", "b"], ["b"], []])
    assert one(recorded, max_parked_per_key=1).refused == (1, 1)
    assert one(recorded, max_parked_per_key=2).refused == (0, 0)


def test_a_purgatory_that_is_split_has_two_estimates() -> None:
    """By kind, or by halves of the keys; an operation with keys in both halves cannot be divided."""
    rows = [(0, 100, 50, COMPLETED)] * 4
    recorded = waits(*rows, kinds=["A", "B", "A", "A"])
    first, second = estimate(recorded, Scenario(split="B", max_parked=2))
    assert (first.operations, first.refused, second.operations, second.refused) == (3, (1, 1), 1, (0, 0))
    keys = [[f"k{n}"] for n in range(40)] + [[f"k{n}" for n in range(40)]]
    first, second = estimate(waits(*[rows[0]] * 41, keys=keys), Scenario(split="key"))
    assert first.operations + second.operations == 41
    assert 10 < second.operations < 31
    assert (first.undivided, second.undivided) == (1, 0)


def test_with_a_limit_and_a_longer_timeout_the_figures_are_no_bounds() -> None:
    """One of three expired operations may have lasted until its new deadline and the others not: more operations are
    refused than in both extreme cases, or fewer.  The estimate states it."""
    recorded = waits(
        (0, 100, 100, EXPIRED), (150, 250, 160, COMPLETED), (1_000, 1_100, 1_100, EXPIRED),
        (1_150, 1_250, 1_249, COMPLETED), (1_210, 1_310, 1_215, COMPLETED), (1_220, 1_320, 1_230, COMPLETED),
    )  # fmt: skip
    assert one(recorded, timeout_ms=200, max_parked=1).refused == (2, 2), "1 to 3 are possible"
    made = Estimates("j", pa.table({}), 6, (), datetime(2026, 11, 22, tzinfo=UTC), limited=True)
    assert "They are not bounds" in made.caveats[0]


OPERATION = st.tuples(st.integers(0, 60), st.sampled_from((-1, 5, 20)), st.integers(0, 40), st.sampled_from((1, 3, 2)))


@given(st.lists(OPERATION, max_size=25), st.integers(1, 50), st.integers(1, 4))
def test_the_bounds_hold(operations: list[tuple[int, int, int, int]], timeout_ms: int, limit: int) -> None:
    """Lower bounds are at most upper ones, everything is counted once, and no limit is exceeded."""
    rows = []
    for parked, timeout, wait, outcome in sorted(operations):
        deadline = -1 if timeout < 0 else parked + timeout
        expired = timeout >= 0 and wait >= timeout
        rows.append((parked, deadline, deadline if expired else parked + wait, EXPIRED if expired else min(outcome, 3)))
        if outcome == EXPIRED and not expired:
            rows[-1] = (*rows[-1][:3], COMPLETED)
    recorded = waits(*rows)
    found = one(recorded, timeout_ms=timeout_ms, max_parked=limit)
    assert found.peak[1] <= limit
    for name in ("completed", "expired", "refused", "peak", "total_ms"):
        low, high = getattr(found, name)
        assert 0 <= low <= high
    free = one(recorded, timeout_ms=timeout_ms)
    certain = sum(d >= 0 and (p + timeout_ms < f or (o == EXPIRED and p + timeout_ms <= f)) for p, d, f, o in rows)
    assert free.expired[0] == certain
    assert free.expired[1] == certain + sum(o == EXPIRED and p + timeout_ms > f for p, d, f, o in rows)


def test_processes_are_summed_and_peaks_are_not() -> None:
    """A limit is one of a process, so the peak is the highest of one."""
    a, b = Bounds(3, (1, 2), (0, 1), (0, 0), (5, 6), (10, 20)), Bounds(4, (1, 1), (2, 2), (1, 1), (3, 9), (1, 1), 2)
    assert list(summed([("p", 0, a), ("p", 0, b), ("q", 0, a)])) == [
        ("p", 0, Bounds(7, (2, 3), (2, 3), (1, 1), (5, 9), (11, 21), 2)),
        ("q", 0, a),
    ]


@pytest.mark.parametrize("name", ["timeout_ms", "max_parked", "max_parked_per_key"])
def test_settings_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Scenario(**{name: 0})


# No operation ends in the millisecond in which it parks: its order among the others of that millisecond is unknown.
ANY_TIME = st.tuples(
    st.integers(0, 60), st.sampled_from((-1, 5, 20, 45)), st.integers(1, 40), st.sampled_from((0, 1, 3))
)


@given(
    st.lists(ANY_TIME, max_size=25),
    st.integers(0, 90),
    st.sampled_from((0, 7, 50)),
    st.sampled_from((None, 3, 30)),
    st.sampled_from((None, 1, 2, 4)),
)
def test_operations_that_parked_before_the_selected_time_only_wait(
    operations: list[tuple[int, int, int, int]],
    since_ms: int,
    more_ms: int,
    timeout_ms: int | None,
    limit: int | None,
) -> None:
    """As in a simulation of every millisecond: they are part of the peak, of the sum of waits from the selected time
    on, and of what a limit counts; no other figure counts them.  The simulation lets operations park first and wait as
    long as they can, or end first and as early as they can.  Pending operations wait until the last record of the
    process, which may be that of another purgatory, and nothing waits longer."""
    rows = []
    for parked, timeout, wait, outcome in sorted(operations):
        expired = 0 <= timeout <= wait
        end = parked + (timeout if expired else wait)
        rows.append((parked, parked + timeout if timeout >= 0 else -1, end, EXPIRED if expired else outcome))
        if rows[-1][3] == PENDING:
            rows[-1] = (*rows[-1][:2], -1, PENDING)
    known = max([0, *(parked for parked, *_ in rows), *(end for _, _, end, _ in rows)])
    last = known + more_ms
    recorded = dataclasses.replace(waits(*rows), since_ms=since_ms, process_last_ms=last)
    found = one(recorded, timeout_ms=timeout_ms, max_parked=limit)
    # What expired and would wait longer does so as long as anything is known to have waited in the selected time.
    longest = last if any(outcome == PENDING for *_, outcome in rows) else min(last, max(known, since_ms))
    sides = [simulated(rows, since_ms, timeout_ms, limit, last, longest, upper=upper) for upper in (False, True)]
    expected = [(min(pair), max(pair)) for pair in zip(*sides, strict=True)]
    assert found.operations == sum(parked >= since_ms for parked, *_ in rows)
    assert [found.completed, found.expired, found.refused, found.peak, found.total_ms] == expected


def test_a_pending_operation_waits_as_long_as_its_process() -> None:
    """If the process had ended before the selected time, nothing waits; neither do operations that expired and would
    have waited longer.  If it went on, a shorter timeout would have come first."""
    recorded = waits((0, -1, -1, PENDING), (2, 90, -1, PENDING), (5, 15, 15, EXPIRED))
    ended = dataclasses.replace(recorded, since_ms=21, process_last_ms=19)
    for timeout_ms in (None, 500):
        assert one(ended, timeout_ms=timeout_ms) == Bounds(0, (0, 0), (0, 0), (0, 0), (0, 0), (0, 0))
    still = dataclasses.replace(recorded, since_ms=20, process_last_ms=20)
    assert (one(still).peak, one(still).total_ms) == ((2, 2), (2, 2))
    assert (one(still, timeout_ms=500).peak, one(still, max_parked=1).peak) == ((2, 3), (1, 1))
    longer = dataclasses.replace(recorded, process_last_ms=50)
    assert (one(longer).total_ms, one(longer, timeout_ms=30).total_ms) == ((110, 110), (91, 111))
    assert one(longer, timeout_ms=30).expired == (1, 2)


def simulated(
    rows: list[tuple[int, int, int, int]],
    since_ms: int,
    timeout_ms: int | None,
    limit: int | None,
    last: int,
    longest: int,
    *,
    upper: bool,
) -> tuple[int, int, int, int, int]:
    """Completed, expired, and refused operations, the peak, and the sum of the waits."""
    ends, late = [], []
    for parked, deadline, finished, outcome in rows:
        end = last + 1 if outcome == PENDING else finished
        due = parked + timeout_ms if timeout_ms is not None and deadline >= 0 else None
        expired = outcome == EXPIRED
        if due is not None and due < end:
            end, expired = due, True
        elif due is not None and expired and due > end:
            end, expired = (min(due, longest + 1), True) if upper else (end, False)
        ends.append(end)
        late.append(expired)
    inside: set[int] = set()
    refused: set[int] = set()
    peak = total = 0
    for now in range(last + 2):
        ending = {number for number, end in enumerate(ends) if end == now}
        if not upper:
            inside -= ending
        for number, (parked, *_) in enumerate(rows):
            if parked == now and ends[number] >= since_ms:
                if limit is not None and len(inside) >= limit:
                    refused.add(number)
                else:
                    inside.add(number)
        inside -= ending
        if now >= since_ms:
            peak = max(peak, len(inside))
            total += len(inside)
    counted = [n for n, (parked, *_) in enumerate(rows) if parked >= since_ms and n not in refused]
    expired_number = sum(late[n] for n in counted)
    completed = sum(not late[n] and rows[n][3] in (COMPLETED, EXPIRED) for n in counted)
    return completed, expired_number, sum(rows[n][0] >= since_ms for n in refused), peak, total
