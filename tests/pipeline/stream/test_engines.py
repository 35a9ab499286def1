"""The same trace gives the same ends, row for row, whichever engine decides it: those that need no Spark."""

from collections import Counter

import pytest

pytest.importorskip("pyspark", "4.2")

from purgatory.pipeline.stream.input_rows import parse_row
from purgatory.pipeline.stream.traces import trace

from .engines import Rows, in_one_go, in_portions, in_process


def ties(rows: Rows) -> int:
    """How many signals fall on the very millisecond of a deadline of their group."""
    deadlines = {
        (row["group"], row["ts_ms"] + row["timeout_ms"] if "timeout_ms" in row else row["deadline_ms"])
        for row in rows
        if row["kind"] == "park" and ("timeout_ms" in row or "deadline_ms" in row)
    }
    return sum(row["kind"] == "signal" and (row["group"], row["ts_ms"]) in deadlines for row in rows)


def test_the_traces_hold_what_they_are_to_show() -> None:
    """Every outcome is frequent, and so are ties; otherwise the agreement below would say little."""
    rows = trace(1, 400, every_kind=True)
    outcomes = Counter(end[2] for end in in_one_go(rows))
    assert sum(outcomes.values()) == 2400
    assert min(outcomes[name] for name in ("completed", "expired", "cancelled", "failed")) > 40
    assert ties(rows) > 50
    assert sum(len(row.get("keys", ())) > 1 for row in rows) > 400
    conditions = Counter(row["condition"] for row in rows if row["kind"] == "park")
    assert len(conditions) == 7


def test_the_traces_move_deadlines_and_end_operations_from_outside() -> None:
    """Deadlines become earlier, later, past and none; operations end by name and by key; some have ended before."""
    rows = trace(1, 400, every_kind=True)
    parks = {row["op_id"]: row for row in rows if row["kind"] == "park"}
    ends = {end[1]: end for end in in_one_go(rows)}
    moved: Counter[str] = Counter()
    for row in map(parse_row, (row for row in rows if row["kind"] == "extend")):
        park, end = parse_row(parks[row.op_id]), ends[row.op_id]
        if end[4] <= row.ts_ms:
            moved["has ended" if end[4] < row.ts_ms else "ends now"] += 1
        elif row.deadline_ms is None or park.deadline_ms is None:
            moved["removed" if row.deadline_ms is None else "added"] += 1
        else:
            moved["later" if row.deadline_ms > park.deadline_ms else "earlier"] += 1
    assert set(moved) == {"has ended", "ends now", "removed", "added", "later", "earlier"}
    assert min(moved.values()) > 20
    assert sum(end[2] == "expired" and end[5] != parse_row(parks[end[1]]).deadline_ms for end in ends.values()) > 200
    for kind, name in (("fail", "failed"), ("cancel", "cancelled")):
        by_key = {(row["group"], row["ts_ms"]) for row in rows if row["kind"] == kind and "key" in row}
        ended = Counter((end[0], end[4]) for end in ends.values() if end[2] == name)
        assert sum((end[0], end[4]) in by_key for end in ends.values() if end[2] == name) > 40
        assert max(ended[where] for where in by_key) > 1, "one row ends several operations"


def test_rows_of_the_other_kinds_do_not_depend_on_every_kind() -> None:
    """With more kinds, a trace contains the same rows as without, so the figures of earlier traces still hold."""
    plain = [{**row, "seq": 0} for row in trace(4, 30)]
    more = [{**row, "seq": 0} for row in trace(4, 30, every_kind=True)]
    assert [row for row in more if row in plain] == plain
    assert len(more) > len(plain)


@pytest.mark.parametrize(("seed", "grid_ms"), [(0, 1), (1, 50), (2, 50), (3, 500)])
async def test_the_library_on_an_event_loop_and_the_core_in_one_go_agree(seed: int, grid_ms: int) -> None:
    """One Purgatory under a virtual clock and the groups of the stream, each by itself, come to the same ends."""
    rows = trace(seed, 150, grid_ms=grid_ms, every_kind=True)
    expected = await in_process(rows)
    assert len(expected) == 900
    assert in_one_go(rows) == expected


@pytest.mark.slow
@pytest.mark.parametrize("most_ms", [2, 300, 3000])
async def test_cutting_a_trace_changes_nothing(most_ms: int) -> None:
    """Put away and taken up again at any time, with rows that arrive early and in disorder, a group ends the same."""
    rows = trace(100 + most_ms, 60, every_kind=True)
    assert in_portions(rows, most_ms, most_ms) == await in_process(rows)
