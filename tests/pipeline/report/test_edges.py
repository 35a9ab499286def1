"""The tables of a small journal that holds what is rare: restarts, levels that fall at once, waits on a border."""

import pathlib
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal.files import ARROW_SCHEMA
from purgatory.pipeline.report.report import Report, compute

pytestmark = pytest.mark.timeout(170)
EPOCH_MS = 28_333_333 * 60_000  # the start of a minute
HOUR_MS = 3_600_000


def row(purgatory: str, op_id: int, parked: int, finished: int | None, source: str = "other") -> dict[str, Any]:
    """One operation; times in milliseconds after the start of the journal, ``finished`` None: it still waits."""
    made = dict.fromkeys(ARROW_SCHEMA.names) | {"source": source, "purgatory": purgatory, "kind": "Op"}
    made |= {"op_id": op_id, "keys": ["k"], "parked_at": EPOCH_MS + parked, "anchor_ms": EPOCH_MS}
    if finished is None:
        return made | {"outcome": "pending"}
    return made | {"outcome": "completed", "finished_at": EPOCH_MS + finished}


def restarts() -> list[dict[str, Any]]:
    """Five runs of an hour each, one after the other, each closed while ten operations waited."""
    rows = []
    for run in range(5):
        source, begin = f"run-{run}", run * HOUR_MS
        rows += [row("restarted", number, begin + number, None, source) for number in range(1, 11)]
        rows.append(row("restarted", 11, begin, begin + HOUR_MS // 2, source))
    return rows


def falls() -> list[dict[str, Any]]:
    """Fifteen wait in the first minute; four end at the first millisecond of the second, and none come later."""
    return [row("falling", number, number, 60_000 if number <= 4 else 70_000) for number in range(1, 16)]


def borders() -> list[dict[str, Any]]:
    """Waits of exactly a power of ten of milliseconds, and one millisecond less."""
    waits = [wait for power in range(1, 10) for wait in (10**power - 1, 10**power)]
    return [row("long", number, 0, wait) for number, wait in enumerate(waits, 1)]


def clock_set(change_ms: int) -> list[list[dict[str, Any]]]:
    """Two files: three wait for 8 seconds, until the last record.  The wall clock was set after the fourth, whose
    record then has a later time than they have, or a much earlier one."""
    before = [row("p", 4, 4_000, 4_000)]
    later = [*(row("p", number, 0, None) for number in range(1, 4)), row("p", 5, 8_000, 8_000)]
    for one in later:
        one |= {name: one[name] + change_ms for name in ("anchor_ms", "parked_at", "finished_at") if one[name]}
    return [before, later]


@pytest.fixture(scope="module")
def report(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Report:
    path: pathlib.Path = tmp_path_factory.mktemp("edges")
    rows = [*restarts(), *falls(), *borders()]
    pq.write_table(pa.Table.from_pylist(rows[::2], schema=ARROW_SCHEMA), path / "part-1.parquet")
    pq.write_table(pa.Table.from_pylist(rows[1::2], schema=ARROW_SCHEMA), path / "part-2.parquet")
    return compute(spark, str(path), bucket_ms=60_000)


def test_a_journal_of_a_century_has_at_most_2000_spans(spark: Any, tmp_path: pathlib.Path) -> None:
    """For example, of a device without a clock, whose first records are of 1970; a week would be too short."""
    rows = [row("p", number, parked, parked + 1) for number, parked in enumerate((0, 100 * 365 * 24 * HOUR_MS))]
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), tmp_path / "part-1.parquet")
    made = compute(spark, str(tmp_path))
    assert 1_000 < made.tables["occupancy"].num_rows <= 2_000
    assert made.bucket_ms % (7 * 24 * HOUR_MS) == 0


def found(report: Report, table: str, purgatory: str) -> list[dict[str, Any]]:
    return [r for r in report.tables[table].to_pylist() if r["purgatory"] == purgatory]


def at(ms: int) -> datetime:
    """The span of time in which it lies."""
    return datetime.fromtimestamp((EPOCH_MS + ms) // 60_000 * 60, UTC)


def test_what_waits_when_a_run_ends_waits_no_longer(report: Report) -> None:
    """Ten wait at the end of each of five runs: ten at once, not fifty, and none after the last record."""
    occupancy = found(report, "occupancy", "restarted")
    assert max(r["peak"] for r in occupancy) == 11
    assert occupancy[-1]["at_end"] == 0
    assert sum(r["ended"] for r in occupancy) == sum(r["parked"] for r in occupancy) == 55
    level = {r["bucket"]: r["at_end"] for r in occupancy}
    for run in range(5):
        last = run * HOUR_MS + HOUR_MS // 2
        assert level[at(last - 60_000)] == 11
        assert level[at(last)] == 0, "the run's last record was half an hour after its start"
    (peak,) = found(report, "peaks", "restarted")
    assert (peak["peak"], peak["bucket"]) == (11, at(0))


def test_a_level_that_falls_at_once_is_no_peak(report: Report) -> None:
    """Fifteen wait in the first span, eleven at most in the second, whose first millisecond ends four."""
    occupancy = {r["bucket"]: r["peak"] for r in found(report, "occupancy", "falling")}
    assert list(occupancy.values()) == [15, 11]


def test_a_wait_on_a_border_is_in_the_step_that_begins_there(report: Report) -> None:
    """Waits of 10 ms to 10^9 ms are each in the step that begins at them, and those a millisecond less in one below."""
    steps = {round(r["from"] * 1000): r["operations"] for r in found(report, "wait_histogram", "long")}
    for power in range(1, 10):
        assert steps.pop(10**power) == 1
    assert sum(steps.values()) == 9
    assert all(any(10**power / 1.5 < start < 10**power for power in range(1, 10)) for start in steps)


@pytest.mark.parametrize("change_ms", [60_000, -60_000])
def test_what_waits_at_the_end_does_so_until_the_last_record_on_the_clock_of_its_process(
    spark: Any, tmp_path: pathlib.Path, change_ms: int
) -> None:
    """Not until the latest time in the journal, which is that of an earlier record if the clock was set back."""
    for number, rows in enumerate(clock_set(change_ms)):
        pq.write_table(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA), tmp_path / f"part-{number}.parquet")
    occupancy = compute(spark, str(tmp_path), bucket_ms=1_000).tables["occupancy"].to_pylist()
    ended = {one["bucket"]: one["ended"] for one in occupancy if one["ended"]}
    assert ended == {
        datetime.fromtimestamp((EPOCH_MS + 4_000) // 1000, UTC): 1,
        datetime.fromtimestamp((EPOCH_MS + 8_000 + change_ms) // 1000, UTC): 4,
    }
