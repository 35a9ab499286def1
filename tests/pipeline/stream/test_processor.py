"""The processor as Spark calls it, without Spark's JVM: the engine's own tester stands in for it."""

import json
import pathlib
from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from purgatory.pipeline.stream.batch import process_groups, whole_groups
from purgatory.pipeline.stream.processor import STATE_NAME, ShardProcessor
from purgatory.pipeline.stream.traces import BEGIN_MS, disordered, trace

from .engines import End, Rows, by_group, ends_of_records, in_process, lines_of

DELAY_MS = 3000
SHARDS = 7


def event_ms(row: Row) -> int:
    """When a row that reaches the processor happened."""
    return int(row.line.split(" ")[0])


def new_tester() -> TwsTester:
    return TwsTester(ShardProcessor(), timeMode="EventTime", eventTimeExtractor=event_ms)


def by_shard(rows: Rows) -> dict[int, Rows]:
    """The rows of each shard; any fixed function of the group serves."""
    shards: dict[int, Rows] = {}
    for name, own in by_group(rows).items():
        shards.setdefault(sum(name.encode()) % SHARDS, []).extend(own)
    return shards


def rows_of(*rows: dict[str, Any]) -> list[Row]:
    return [Row(group=row["group"], line=line) for row, line in zip(rows, lines_of(list(rows)), strict=True)]


def through_the_processor(rows: Rows, batch_size: int) -> tuple[list[Any], TwsTester]:
    """What a stream makes of rows in the order of their arrival, in batches, with Spark's watermark."""
    spark = new_tester()
    records: list[Any] = []
    newest_ms = 0
    for start in range(0, len(rows), batch_size):
        arrived = rows[start : start + batch_size]
        for shard, own in by_shard(arrived).items():
            records += spark.test(shard, rows_of(*own))
        newest_ms = max(newest_ms, *(row["ts_ms"] for row in arrived))
        if newest_ms - DELAY_MS > spark.handle._currentWatermarkMs:
            records += spark.setWatermark(newest_ms - DELAY_MS)
    return records, spark


def in_batch(rows: Rows) -> list[End]:
    """What the function behind the batch equivalent makes of them, some groups at a time."""
    until_ms = max(row["ts_ms"] for row in rows)
    lines = [(name, line) for name, own in by_group(rows).items() for line in lines_of(own)]
    batches = [pa.RecordBatch.from_pydict(dict(zip(("group", "line"), zip(*part, strict=True), strict=True)))
               for part in (lines[start : start + 700] for start in range(0, len(lines), 700))]  # fmt: skip
    return ends_of_records(record for some in whole_groups(batches, 1000) for record in process_groups(some, until_ms))


@pytest.mark.parametrize(("seed", "batch_size"), [(1, 50), (2, 500), (3, 5000)])
async def test_stream_batch_and_library_agree_row_for_row(seed: int, batch_size: int) -> None:
    """Many groups in seven shards, several keys, ties, disorder within the delay, moved deadlines, failures from
    outside: three engines, the same ends."""
    rows = trace(seed, 150, every_kind=True)
    arriving = disordered(rows[:-1], DELAY_MS, seed) + rows[-1:]
    assert arriving[:-1] != rows[:-1]
    records, _ = through_the_processor(arriving, batch_size)
    expected = await in_process(rows)
    assert len(expected) == 900
    assert ends_of_records(records) == expected
    assert in_batch(rows) == expected
    assert not [record for record in records if record.record == "dead"]


async def test_thousands_of_groups_agree() -> None:
    """Two thousand groups, in a stream, in a batch and in the library on an event loop."""
    rows = trace(9, 2000, operations=2, every_kind=True)
    arriving = disordered(rows[:-1], DELAY_MS, 9) + rows[-1:]
    records, _ = through_the_processor(arriving, 4000)
    expected = await in_process(rows)
    assert len(expected) == 4000
    assert ends_of_records(records) == expected
    assert in_batch(rows) == expected


def test_nothing_is_kept_when_everyone_has_ended() -> None:
    """After the last end there is neither a state nor a timer, of any group."""
    rows = trace(5, 50, every_kind=True)
    records, spark = through_the_processor(disordered(rows[:-1], DELAY_MS, 5) + rows[-1:], 100)
    parked = sum(record.parked for record in records if record.record == "parked")
    assert parked == len(ends_of_records(records)) == 300
    assert spark.handle.value_states[STATE_NAME].state == {}
    assert list(spark.handle._timers.getAllKeysWithTimers()) == []


def park(ts_ms: int, **more: Any) -> dict[str, Any]:
    return {"kind": "park", "ts_ms": ts_ms, "group": "g", "op_id": "a", "keys": ["k"], "condition": "count(1)", **more}


def test_a_shard_has_one_timer_at_what_comes_next() -> None:
    """At the earliest row while rows are kept, at the earliest deadline after that; an earlier row moves it."""
    spark = new_tester()
    spark.test("g", rows_of(park(5000, timeout_ms=9000)))
    assert list(spark.handle._timers.listTimers("g")) == [5000]
    spark.test("g", rows_of(park(4000, op_id="b", timeout_ms=100)))
    assert list(spark.handle._timers.listTimers("g")) == [4000]
    assert [record.op_id for record in spark.setWatermark(5000) if record.record == "outcome"] == ["b"]
    assert list(spark.handle._timers.listTimers("g")) == [14_000]
    state = spark.peekValueState(STATE_NAME, "g")
    assert state is not None
    assert state[:2] == (14_000, 1)


def test_a_moved_deadline_moves_the_timer() -> None:
    """To the new deadline, earlier or later; without a deadline there is no timer."""
    spark = new_tester()
    extend = {"kind": "extend", "group": "g", "op_id": "a"}
    spark.test("g", rows_of(park(1000, timeout_ms=9000), {**extend, "ts_ms": 2000, "deadline_ms": 7000}))
    spark.setWatermark(2000)
    assert list(spark.handle._timers.listTimers("g")) == [7000]
    spark.test("g", rows_of({**extend, "ts_ms": 3000, "deadline_ms": 50_000}, {**extend, "ts_ms": 4000}))
    spark.setWatermark(3000)
    assert list(spark.handle._timers.listTimers("g")) == [4000]
    spark.setWatermark(8000)
    assert list(spark.handle._timers.listTimers("g")) == []
    spark.test("g", rows_of({**extend, "ts_ms": 9000, "timeout_ms": 500}))
    ends = [record for record in spark.setWatermark(20_000) if record.record == "outcome"]
    assert [(end.op_id, end.outcome, end.finished_ms, end.deadline_ms) for end in ends] == [
        ("a", "expired", 9500, 9500)
    ]
    assert spark.peekValueState(STATE_NAME, "g") is None


def test_a_failure_from_outside_is_an_outcome_with_its_reason() -> None:
    """The record has the outcome ``failed`` and, unchanged, the text of the row."""
    spark = new_tester()
    spark.test("g", rows_of(park(1000), {"kind": "fail", "ts_ms": 2000, "group": "g", "key": "k", "error": "moved"}))
    (end,) = [record for record in spark.setWatermark(3000) if record.record == "outcome"]
    assert (end.op_id, end.outcome, end.finished_ms, end.error) == ("a", "failed", 2000, "moved")


def test_a_timer_that_has_fired_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark deletes it by itself, and warns of every other attempt; one that has not fired is deleted here."""
    spark = new_tester()
    spark.test("g", rows_of(park(5000, timeout_ms=9000)))
    deleted: list[int] = []
    delete = spark.handle.deleteTimer

    def noted(at_ms: int) -> None:
        deleted.append(at_ms)
        delete(at_ms)

    monkeypatch.setattr(spark.handle, "deleteTimer", noted)
    spark.setWatermark(6000)
    assert deleted == []
    assert list(spark.handle._timers.listTimers("g")) == [14_000]
    spark.test("g", rows_of(park(7000, op_id="b", timeout_ms=100)))
    assert deleted == [14_000]
    assert list(spark.handle._timers.listTimers("g")) == [7000]


def test_a_row_behind_the_watermark_that_is_let_through_still_happens_in_its_place() -> None:
    """Spark drops what is behind the watermark of the batch before; what lies between that and the present one gets
    here, and is decided at once, in the order of its time."""
    spark = new_tester()
    spark.test("g", rows_of(park(1000, timeout_ms=2000)))
    signal = {"kind": "signal", "ts_ms": 2500, "group": "g", "key": "k"}
    spark._currentWatermarkMs = 4000  # the watermark has moved, and no timer has fired yet: rows come first
    spark.handle.setWatermark(4000)
    spark._eventTimeExtractor = lambda row: event_ms(row) + 10_000  # let it through
    records = spark.test("g", rows_of(signal))
    assert [(r.op_id, r.outcome, r.finished_ms) for r in records if r.record == "outcome"] == [("a", "completed", 2500)]
    assert spark._handleExpiredTimers() == []
    assert spark.peekValueState(STATE_NAME, "g") is None


def test_what_was_rejected_on_the_way_in_leaves_with_its_reason() -> None:
    """A line that is marked as bad is a dead letter at once and touches no state."""
    spark = new_tester()
    spark._eventTimeExtractor = lambda row: 10**15
    (dead,) = spark.test("g", [Row(group="g", line='!ts_ms is missing\n{"kind": "park"}')])
    assert (dead.record, dead.error, dead.text) == ("dead", "ts_ms is missing", '{"kind": "park"}')
    assert spark.handle.value_states[STATE_NAME].state == {}


def test_a_bad_row_is_a_dead_letter_when_its_time_comes() -> None:
    """A row that only the core recognizes as invalid becomes a dead letter, too, and the stream continues."""
    spark = new_tester()
    bad = park(1000, condition="sorcery(3)")
    spark.test("g", rows_of(bad, park(1000, timeout_ms=5)))
    records = spark.setWatermark(BEGIN_MS)
    (dead,) = [record for record in records if record.record == "dead"]
    assert "got 'sorcery'" in dead.error
    assert json.loads(dead.text) == bad
    assert [record.op_id for record in records if record.record == "outcome"] == ["a"]


def test_modules_with_conditions_are_imported_where_the_processor_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker knows a registered name because it is told the module, not because the driver knew it."""
    (tmp_path / "conditions_of_ours.py").write_text(
        "from purgatory.conditions import Count, register\nregister('ours', Count)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spark = TwsTester(ShardProcessor(("conditions_of_ours",)), timeMode="EventTime", eventTimeExtractor=event_ms)
    signal = {"kind": "signal", "ts_ms": 1500, "group": "g", "key": "k"}
    spark.test("g", rows_of(park(1000, condition="ours(1)", timeout_ms=2000), signal))
    assert [r.outcome for r in spark.setWatermark(2000) if r.record == "outcome"] == ["completed"]
