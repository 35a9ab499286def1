"""Recorded operations on the real timer: what must come out again, and what is counted.  No Spark."""

import asyncio
import pathlib
import random
from dataclasses import asdict, replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from purgatory import Purgatory
from purgatory.journal import Journal
from purgatory.journal.files import ARROW_SCHEMA, data_files
from purgatory.journal.schema import OUTCOMES
from purgatory.pipeline.replay.pieces import Piece, impossible, trace_of
from purgatory.pipeline.replay.simulation import Script, Trace, first_impossible, recorded_lateness, replay
from purgatory.testing import VirtualClock
from tests.journal.kit import Fetch

SETTINGS = [(1, 20), (1, 2), (5, 64), (20, 512), (1_000, 20)]
COMPLETED, EXPIRED, FAILED, PENDING = 1, 2, 4, 0


def trace(*rows: tuple[int, int, int, int]) -> Trace:
    """Parked, deadline, finished, outcome of each."""
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Trace(*columns, np.ones(len(rows), dtype=bool))


def recorded(path: pathlib.Path, purgatory: str | None = None) -> Trace:
    """The operations of a journal, in the order of parking."""
    table = pa.concat_tables([pq.ParquetFile(file).read() for file in data_files(path)])
    if purgatory is not None:
        table = table.filter(pa.compute.equal(table["purgatory"], purgatory))
    table = table.filter(pa.compute.not_equal(table["outcome"], "dropped"))
    table = table.sort_by([("parked_at", "ascending"), ("op_id", "ascending")])
    anchor = table["anchor_ms"].to_numpy()
    times = [
        np.where(ms < 0, -1, ms - anchor)
        for ms in (table[n].cast(pa.int64()).fill_null(-1).to_numpy() for n in ("parked_at", "deadline", "finished_at"))
    ]
    outcomes = np.array([OUTCOMES.index(outcome) for outcome in table["outcome"].to_pylist()])
    return Trace(*times, outcomes, np.array([bool(keys) for keys in table["keys"].to_pylist()]))


def test_a_task_of_450_ms_cascades_twice() -> None:
    """The example of the timing wheel: level 3 to 2 to 1, three buckets, each pushed and popped once."""
    measured = replay(trace((0, 450, 450, EXPIRED)), 1, 20)
    assert (measured.cascades, measured.buckets, measured.heap_operations, measured.wakeups) == (2, 3, 6, 3)
    assert (measured.late_ms, measured.late_number, measured.changed) == ((0,), (1,), 0)


def test_a_coarse_tick_makes_late_and_never_early() -> None:
    """With a tick of 20 ms, deadlines at 450 and 460 are both answered at 460."""
    measured = replay(trace((0, 450, 450, EXPIRED), (0, 460, 460, EXPIRED)), 20, 20)
    assert (measured.late_ms, measured.late_number) == ((0, 10), (1, 1))
    assert measured.changed == 0


def test_a_completion_after_the_deadline_shows_that_the_timer_was_held() -> None:
    """It is completed again; who fell due meanwhile is not late because of the tick, but of the recording."""
    held = trace((0, 100, 130, COMPLETED), (0, 110, 131, EXPIRED), (0, 90, 90, EXPIRED))
    measured = replay(held, 1, 20)
    assert measured.changed == 0
    assert (measured.late_ms, measured.late_number) == ((0,), (2,))
    assert [column.tolist() for column in recorded_lateness(held)] == [[0, 21], [1, 1]]
    assert replay(held, 20, 20).late_ms == (10,), "both deadlines are 10 ms before a tick"


def test_the_lateness_of_a_tick_does_not_depend_on_stalls() -> None:
    """With long stalls in the recording, each setting has the lateness that its buckets have without them."""
    draw = random.Random(9)
    calm = [(at, at + draw.randrange(1, 400), EXPIRED) for at in range(0, 20_000, 7)]
    held = [(at, at + 10, at + draw.randrange(100, 900), COMPLETED) for at in range(0, 20_000, 1_000)]
    for tick_ms, wheel_size in SETTINGS:
        plain = replay(trace(*[(at, due, due, end) for at, due, end in calm]), tick_ms, wheel_size)
        stalled = replay(trace(*[(at, due, due + 300, end) for at, due, end in calm], *held), tick_ms, wheel_size)
        assert stalled.changed == plain.changed == 0
        assert (stalled.late_ms, stalled.late_number) == (plain.late_ms, plain.late_number)
        assert 0 <= min(plain.late_ms) <= max(plain.late_ms) < tick_ms


def test_an_operation_that_ends_before_it_parks_is_found() -> None:
    """No purgatory records one; one that is pending has no end."""
    assert first_impossible(trace((5, 9, 9, EXPIRED), (5, 9, -1, PENDING), (5, 9, 4, COMPLETED))) == 2
    assert first_impossible(trace((5, 9, 9, EXPIRED), (5, 9, 5, COMPLETED))) is None


@pytest.mark.parametrize("outcome", ["", "weird", None])
def test_an_outcome_that_is_not_in_the_schema_is_found(outcome: str | None) -> None:
    """The operation is named, as is one that ends before it parks."""
    row = dict.fromkeys(ARROW_SCHEMA.names) | {
        "op_id": 7,
        "keys": ["a"],
        "parked_at": 5,
        "finished_at": 9,
        "anchor_ms": 0,
    }
    piece = Piece(("h-1-a", "p", 1), 0, 100)

    def wrong(**figures: Any) -> str | None:
        schema = pa.schema([field.with_nullable(True) for field in ARROW_SCHEMA])
        table = pa.Table.from_pylist([row | {"outcome": "completed"}, row | {"op_id": 8} | figures], schema=schema)
        return impossible(table, trace_of(table), piece)

    assert wrong(outcome="completed") is None
    ends_early = wrong(outcome="completed", finished_at=4)
    assert ends_early == "operation 8 of purgatory 'p', source 'h-1-a', ends before it parks"
    unknown = wrong(outcome=outcome)
    assert unknown is not None
    assert unknown.startswith(
        f"operation 8 of purgatory 'p', source 'h-1-a', has the outcome {outcome!r}, which is none"
    )


def test_a_far_deadline_does_not_hide_that_the_timer_was_held() -> None:
    """Who arrives while only a far deadline is on the timer, and is completed late, is completed again."""
    measured = replay(trace((0, 900, 900, EXPIRED), (10, 20, 50, COMPLETED), (12, 30, 51, EXPIRED)), 1, 20)
    assert (measured.changed, measured.late_ms) == (0, (0,))


def test_who_was_pending_stays_pending() -> None:
    """An operation without an end is left waiting, even where others expire after it was recorded."""
    measured = replay(trace((0, 5_000, -1, PENDING), (0, -1, -1, PENDING), (10, 50, 50, EXPIRED)), 1, 20)
    assert (measured.changed, measured.expired) == (0, 1)


def test_an_outcome_that_cannot_be_is_counted_as_changed() -> None:
    """A forged end, one that is recorded as pending long after its deadline, does not go unnoticed."""
    measured = replay(trace((0, 100, -1, PENDING), (0, 500, 500, EXPIRED)), 1, 20)
    assert (measured.changed, measured.examples) == (1, (0,))


def test_settings_that_share_a_script_count_what_each_counts_alone() -> None:
    """Tasks that are still on the timer of one setting do not reach the next one."""
    found = trace((0, 5_000, -1, PENDING), (0, 100, 130, COMPLETED), (0, 110, 131, EXPIRED), (3, 70, 20, COMPLETED))
    script = Script(found)
    for setting in [*SETTINGS, *SETTINGS]:
        one, other = (asdict(replay(found, *setting, each)) for each in (script, None))
        assert one | {"cpu_s": 0} == other | {"cpu_s": 0}


def test_operations_that_never_waited_are_on_no_timer() -> None:
    """Neither their deadlines nor those of operations without one wake the timer up."""
    found = trace((0, 100, 0, COMPLETED), (5, 50, 5, FAILED), (7, -1, 9, COMPLETED))
    measured = replay(replace(found, waited=np.array([False, False, True])), 1, 20)
    assert (measured.operations, measured.changed, measured.wakeups, measured.heap_operations) == (3, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("tick_ms", "wheel_size"), SETTINGS)
def test_made_up_journals_come_out_as_they_were(made: Any, tick_ms: int, wheel_size: int) -> None:
    """Every outcome of 20 000 operations is the recorded one, with any tick and wheel size."""
    for purgatory in ("fetch", "produce"):
        found = recorded(made[0], purgatory)
        measured = replay(found, tick_ms, wheel_size)
        assert (measured.changed, measured.operations) == (0, len(found.waited))
        assert sum(measured.late_number) == measured.expired == (found.outcomes == EXPIRED).sum()
        assert 0 <= min(measured.late_ms) <= max(measured.late_ms) < tick_ms


async def test_a_recorded_purgatory_comes_out_as_it_was(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """A random life in virtual time, with every kind of ending and a closing, replays to the same outcomes."""
    draw = random.Random(3)
    async with (
        Journal(tmp_path, clock=clock, epoch_ms=0) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        alive: list[Fetch] = []
        for _ in range(400):
            operation = Fetch(draw.choice([None, draw.uniform(0, 3)]))
            operation.ready = draw.random() < 0.1
            purgatory.try_complete_else_watch(operation, [draw.randrange(9), "x"])
            alive.append(operation)
            await clock.advance(draw.uniform(0, 0.05))
            other = draw.choice(alive)
            match draw.randrange(6):
                case 0:
                    other.force_complete()
                case 1:
                    other.cancel()
                case 2:
                    purgatory.fail_for_key(draw.randrange(9), ValueError("no"))
    found = recorded(tmp_path)
    assert set(found.outcomes.tolist()) == {1, 2, 3, 4}
    for tick_ms, wheel_size in SETTINGS:
        assert replay(found, tick_ms, wheel_size).changed == 0


async def test_a_purgatory_in_real_time_comes_out_as_it_was(tmp_path: pathlib.Path) -> None:
    """So does one on a loop that is busy, where completions come after deadlines and expiries are late."""
    import time

    async with Journal(tmp_path) as journal, Purgatory[Fetch]("p", observers=[journal]) as purgatory:

        async def wait(number: int) -> None:
            operation = Fetch((number % 13) / 1000)
            await purgatory.park(operation, [number % 5])

        async def complete() -> None:
            for number in range(150):
                until = time.perf_counter() + 0.0015  # a loop that is busy, on purpose
                while time.perf_counter() < until:
                    pass
                for operation in purgatory.parked_events()[number % 3 :: 3]:
                    operation.operation.force_complete()
                await asyncio.sleep(0)

        await asyncio.gather(complete(), *(wait(number) for number in range(300)))
    found = recorded(tmp_path)
    assert len(found.waited) == 300
    assert replay(found, 1, 20).changed == 0
    assert replay(found, 5, 64).changed == 0
