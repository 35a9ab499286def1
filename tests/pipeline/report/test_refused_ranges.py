"""The time of refused operations, which is known only to the range of the note that reports their number."""

import pathlib
import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from fractions import Fraction
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.compare import compare
from purgatory.pipeline.report import one_pass, unusual_intervals
from purgatory.pipeline.report.report import Report, compute
from purgatory.pipeline.report.unusual_intervals import OWN_THRESHOLD, find_own_times
from purgatory.pipeline.selection import EVERYTHING, Selection

pytestmark = pytest.mark.timeout(170)
BEGIN_MS = 28_333_320 * 60_000  # the start of an hour
BLANK = dict.fromkeys(ARROW_SCHEMA.names) | {"source": "run", "anchor_ms": BEGIN_MS, "purgatory": "p"}


def operation(at_ms: int) -> dict[str, Any]:
    one = {"kind": "K", "op_id": at_ms, "keys": ["k"], "outcome": "completed"}
    return BLANK | one | {"parked_at": BEGIN_MS + at_ms, "finished_at": BEGIN_MS + at_ms + 90}


def note(first_ms: int, last_ms: int, number: int, purgatory: str = "p") -> dict[str, Any]:
    """A note that so many operations were refused in this range."""
    times = {"parked_at": BEGIN_MS + first_ms, "finished_at": BEGIN_MS + last_ms}
    return BLANK | {"outcome": "dropped", "purgatory": purgatory, "refused": number} | times


def written(path: pathlib.Path, rows: list[dict[str, Any]]) -> str:
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), path / "part-1.parquet")
    return str(path)


def steady(seconds: int, every_s: int, per_s: int, *, rush: range = range(0), burst_s: int = 1) -> list[dict[str, Any]]:
    """A fifth of the operations is refused at all times, and half of them in a rush; notes begin between two seconds.

    All operations of ``burst_s`` seconds come in the first of these seconds.
    """
    draw, rows, refused = random.Random(1), [], Counter[int]()
    for second in range(0, seconds, burst_s):
        rows += [operation(second * 1_000 + draw.randrange(1_000)) for _ in range(per_s * burst_s)]
        share = per_s if second in rush else per_s // 4
        refused[(second * 1_000 + 500 + 1_000 * every_s) // (1_000 * every_s)] += share * burst_s
    notes = ((number * every_s - every_s) * 1_000 + 500 for number in sorted(refused))
    rows += [
        note(max(0, first), first + every_s * 1_000, refused[number])
        for number, first in zip(sorted(refused), notes, strict=True)
    ]
    return rows


def refused_in(rows: list[dict[str, Any]], step_ms: int, selection: Selection) -> dict[tuple[str, int], int]:
    """Return how many operations each purgatory refused in each step, evenly spaced one by one in the notes."""
    found: Counter[tuple[str, int]] = Counter()
    for row in rows:
        length = row["finished_at"] - row["parked_at"]
        for number in range(row["refused"] or 0):
            at = row["parked_at"] + Fraction(2 * number + 1, 2 * row["refused"]) * length
            after = selection.since_ms is None or at >= selection.since_ms
            if after and (selection.until_ms is None or at < selection.until_ms):
                found[row["purgatory"], int(at // step_ms) * step_ms] += 1
    return dict(found)


def in_table(report: Report) -> dict[tuple[str, int], int]:
    rows = report.tables["over_time"].to_pylist()
    assert not any(row["refused"] for row in rows if row["kind"] is not None)
    return {(row["purgatory"], _ms(row["bucket"])): row["refused"] for row in rows if row["refused"]}


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


@pytest.mark.parametrize("files", [True, False], ids=["files", "rows from Spark"])
def test_refused_operations_are_spread_evenly_over_the_range_of_their_note(
    spark: Any, tmp_path: pathlib.Path, files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adjacent selections divide them; a range can be empty, in one step, or over many."""
    monkeypatch.setattr(one_pass, "reads_files", lambda *_: files)
    draw = random.Random(2)
    rows = [operation(at_ms) for at_ms in range(0, 100_000, 250)]
    for _ in range(60):
        first = draw.randrange(90_000)
        length = draw.choice((0, 1, 7, 999, 1_000, 4_000, 5_003, 10_000))
        rows.append(note(first, first + length, draw.choice((1, 2, 3, 10, 49, 777)), draw.choice("pq")))
    journal = written(tmp_path / "journal", rows)
    since_ms, until_ms = BEGIN_MS + 31_234, BEGIN_MS + 62_001
    total = 0
    for selection in (
        EVERYTHING,
        Selection(until_ms=since_ms),
        Selection(since_ms, until_ms),
        Selection(until_ms),
        Selection(since_ms, until_ms, ("p",)),
    ):
        report = compute(spark, journal, step_ms=1_000, selection=selection)
        expected = refused_in(rows, 1_000, selection)
        found = in_table(report)
        assert found == {names: n for names, n in expected.items() if names[0] in (selection.purgatories or "pq")}
        total += 0 if selection.purgatories else sum(found.values())
    assert total == 2 * sum(row["refused"] or 0 for row in rows)


JOURNALS = {
    "steps of a second, ranges of 5 s": (180, 5, 40, 1),
    "steps of 15 s, ranges of a minute": (1_200, 60, 40, 1),
    "steps of 5 s, ranges of 5 s": (900, 5, 40, 1),
    "bursts, and nothing between them": (180, 5, 40, 5),
}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_steady_journal_has_no_interval(spark: Any, tmp_path: pathlib.Path, name: str) -> None:
    """Neither alone nor against itself, whatever part of it is selected."""
    seconds, every_s, per_s, burst_s = JOURNALS[name]
    journal = written(tmp_path / "journal", steady(seconds, every_s, per_s, burst_s=burst_s))
    whole = compute(spark, journal)
    part = Selection(BEGIN_MS + seconds * 500 + 1_700, BEGIN_MS + seconds * 900 + 2_300)
    for report in (whole, compute(spark, journal, selection=part)):
        assert find_own_times(report.steps, OWN_THRESHOLD).to_pylist() == []
        comparison = compare(spark, whole, report)
        assert comparison.times.to_pylist() == []
        (share,) = [row for row in comparison.changes.to_pylist() if row["outcome"] == "refused"]
        assert share["verdict"] == "same"
        assert share["journal"] == pytest.approx(0.2, abs=0.01)


RUSHES = {"ranges in steps": (3_600, 5, 12), "steps in ranges": (600, 20, 40)}


@pytest.mark.parametrize("name", RUSHES)
def test_a_rush_has_an_interval_that_is_not_longer_than_known(spark: Any, tmp_path: pathlib.Path, name: str) -> None:
    """Its steps are within a window of the rush, and its figure is that of the steps, added up."""
    seconds, every_s, per_s = RUSHES[name]
    rush = range(seconds // 4, seconds // 2)
    calm = compute(spark, written(tmp_path / "calm", steady(seconds, every_s, per_s)))
    report = compute(spark, written(tmp_path / "rush", steady(seconds, every_s, per_s, rush=rush)))
    for times in (find_own_times(report.steps, OWN_THRESHOLD), compare(spark, calm, report).times):
        (row,) = times.to_pylist()
        assert (row["verdict"], row["outcome"]) == ("worse", "refused")
        since, until = (_ms(row[at]) - BEGIN_MS for at in ("since", "until"))
        within = list(_within(report, row["since"], row["until"]))
        refused, parked = (sum(step[what] for step in within) for what in ("refused", "operations"))
        assert row["journal"] == pytest.approx(refused / (refused + parked), rel=1e-12)
        assert (row["operations"], row["baseline"]) == (parked, pytest.approx(0.2, abs=0.01))
        length = max(report.step_ms, 8 * every_s * 1_000)
        assert abs(since - rush.start * 1_000) < length
        assert abs(until - rush.stop * 1_000) < length
    better = compare(spark, report, calm).times.to_pylist()
    assert {row["verdict"] for row in better} == {"better"}


def _within(report: Report, since: datetime, until: datetime) -> Iterator[dict[str, Any]]:
    for row in report.tables["over_time"].to_pylist():
        if row["kind"] is None and since <= row["bucket"] < until:
            yield row


@pytest.mark.parametrize("longest_ms", [300, 3_000, 20_000])
@pytest.mark.parametrize("part", [False, True], ids=["everything", "a part"])
def test_windows_have_the_operations_that_were_surely_or_perhaps_refused_in_them(
    spark: Any, tmp_path: pathlib.Path, longest_ms: int, part: bool
) -> None:
    """Counted note by note, in the shortest windows that contain three quarters of what whole notes report."""
    draw = random.Random(longest_ms)
    rows = [operation(at_ms) for at_ms in range(0, 100_000, 250)]
    for _ in range(80):
        first = draw.randrange(80_000)
        rows.append(note(first, first + draw.randrange(1, longest_ms), draw.randrange(1, 99)))
    selection = Selection(BEGIN_MS + 20_300, BEGIN_MS + 70_700) if part else EVERYTHING
    report = compute(spark, written(tmp_path / "journal", rows), step_ms=1_000, selection=selection)
    since_ms, until_ms = selection.since_ms or 0, selection.until_ms or 1 << 50
    ranges = [(row["parked_at"], row["finished_at"], row["refused"]) for row in rows if row["refused"]]
    ranges = [(first, end, n) for first, end, n in ranges if first < until_ms and end > since_ms]
    whole = [(first, end, n) for first, end, n in ranges if first >= since_ms and end <= until_ms]

    def within(window_ms: int) -> Counter[int]:
        found: Counter[int] = Counter()
        for first, end, n in whole:
            if first // window_ms == (end - 1) // window_ms:
                found[first // window_ms] += n
        return found

    total = sum(n for *_, n in whole)
    window_ms = next(ms for ms in (1_000 << k for k in range(8)) if within(ms).total() >= 0.75 * total)
    steps = [row for row in report.tables["over_time"].to_pylist() if row["kind"] is None]
    windows = unusual_intervals._windows(steps, report.steps, "p")
    assert len(windows) == len({_ms(row["bucket"]) // window_ms for row in steps})
    for window in windows:
        number = _ms(window["bucket"]) // window_ms
        perhaps = sum(n for first, end, n in ranges if first // window_ms <= number <= (end - 1) // window_ms)
        assert (window["least refused"], window["most refused"]) == (within(window_ms)[number], perhaps)
        assert window["least refused"] <= window["refused"] <= window["most refused"]
    for name in ("refused", "operations"):
        assert sum(window[name] for window in windows) == sum(step[name] for step in steps)
