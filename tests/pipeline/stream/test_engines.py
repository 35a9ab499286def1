"""The same trace gives the same ends, row for row, whichever engine decides it: those that need no Spark."""

from collections import Counter

import pytest

pytest.importorskip("pyspark", "4.2")

from purgatory.pipeline.stream.traces import trace

from .engines import Rows, in_one_go, in_portions, in_process


def ties(rows: Rows) -> int:
    """How many signals fall on the very millisecond of a deadline of their group."""
    deadlines = {
        (row["group"], row["ts_ms"] + row["timeout_ms"] if "timeout_ms" in row else row["deadline_ms"])
        for row in rows
        if "timeout_ms" in row or "deadline_ms" in row
    }
    return sum(row["kind"] == "signal" and (row["group"], row["ts_ms"]) in deadlines for row in rows)


def test_the_traces_hold_what_they_are_to_show() -> None:
    """Every outcome is frequent, and so are ties; otherwise the agreement below would say little."""
    rows = trace(1, 400)
    outcomes = Counter(end[2] for end in in_one_go(rows))
    assert sum(outcomes.values()) == 2400
    assert min(outcomes[name] for name in ("completed", "expired", "cancelled")) > 40
    assert ties(rows) > 50
    assert sum(len(row.get("keys", ())) > 1 for row in rows) > 400
    conditions = Counter(row["condition"] for row in rows if row["kind"] == "park")
    assert len(conditions) == 7


@pytest.mark.parametrize(("seed", "grid_ms"), [(0, 1), (1, 50), (2, 50), (3, 500)])
async def test_the_library_on_an_event_loop_and_the_core_in_one_go_agree(seed: int, grid_ms: int) -> None:
    """One Purgatory under a virtual clock and the groups of the stream, each by itself, come to the same ends."""
    rows = trace(seed, 150, grid_ms=grid_ms)
    expected = await in_process(rows)
    assert len(expected) == 900
    assert in_one_go(rows) == expected


@pytest.mark.parametrize("most_ms", [2, 300, 3000])
async def test_cutting_a_trace_changes_nothing(most_ms: int) -> None:
    """Put away and taken up again at any time, with rows that arrive early and in disorder, a group ends the same."""
    rows = trace(100 + most_ms, 60)
    assert in_portions(rows, most_ms, most_ms) == await in_process(rows)
