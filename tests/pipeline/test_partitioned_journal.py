"""Reports and replays of a journal that is partitioned by date: the same as of the journal without folders."""

import asyncio
import pathlib
import random
import shutil
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory import Purgatory
from purgatory.journal import Journal, compact
from purgatory.journal import journal as journal_module
from purgatory.journal import writer as writer_module
from purgatory.journal.files import data_files
from purgatory.pipeline import journal_reader
from purgatory.pipeline.replay.what_if import what_if
from purgatory.pipeline.report.report import compute
from purgatory.pipeline.selected_rows import row_groups
from purgatory.pipeline.selection import EVERYTHING, Selection
from purgatory.testing import VirtualClock
from tests.journal.kit import Fetch

pytestmark = pytest.mark.timeout(170)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIDNIGHT_MS = 1_795_305_600_000  # 2026-11-22
START_MS = MIDNIGHT_MS - 13 * HOUR_MS
STEPS = 60  # of an hour
FULL_DISK = range(18, 30)  # the steps at which nothing can be written
DATES = [f"date=2026-11-{day}" for day in (21, 22, 23)]
SELECTIONS = {
    "everything": EVERYTHING,
    "a date": Selection.parse("2026-11-22", "2026-11-23"),
    "an hour on both sides of midnight": Selection.parse("2026-11-21T23:00", "2026-11-22T01:00"),
    "since a date": Selection.parse(since="2026-11-23"),
    "until noon": Selection.parse(until="2026-11-22T12:00"),
}

Journals = tuple[pathlib.Path, pathlib.Path]


async def _serve(flat: pathlib.Path, partitioned: pathlib.Path, patch: pytest.MonkeyPatch) -> None:
    """Record the same life twice: hours of waiting, a disk that is full over midnight, and waits at the end."""
    draw, clock, write = random.Random(5), VirtualClock(), writer_module.write_file
    full = False

    def write_unless_full(*arguments: Any) -> pathlib.Path:
        if full:
            raise OSError("the disk is full")
        return write(*arguments)

    patch.setattr(writer_module, "write_file", write_unless_full)
    options: dict[str, Any] = {"clock": clock, "epoch_ms": START_MS - clock.now_ms()}
    options |= {"rows_per_file": 20, "max_buffered": 40}
    async with (
        Journal(flat, **options) as one,
        Journal(partitioned, partition_by="date", **options) as two,
    ):
        purgatory = Purgatory[Fetch]("fetch", clock=clock, observers=[one, two])
        for step in range(STEPS):
            full = step in FULL_DISK
            for number in range(10):
                operation = Fetch(draw.choice([None, 60.0, 5_000.0, 30_000.0]))
                operation.ready = draw.random() < 0.1
                purgatory.try_complete_else_watch(operation, [f"key-{number % 4}", f"step-{step % 7}"])
                await clock.advance(360.0)
            if step % 3 == 2:
                purgatory.cancel_for_key(f"step-{draw.randrange(7)}")
            for journal in (one, two):
                await journal.flush()
    assert one.statistics().dropped == two.statistics().dropped > 0
    assert one.statistics().written == two.statistics().written


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Journals:
    """A journal without folders, and one that is partitioned by date, of the same operations."""
    path = tmp_path_factory.mktemp("partitioned")
    flat, partitioned = path / "flat", path / "partitioned"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "new_source", lambda: "server-1-a")
        asyncio.run(_serve(flat, partitioned, patch))
    assert sorted(folder.name for folder in partitioned.iterdir()) == DATES
    return flat, partitioned


def recorded(path: pathlib.Path) -> list[Any]:
    rows = [row for file in data_files(path) for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: (row["op_id"] is None, row["op_id"], row["parked_at"]))


def test_both_journals_have_the_same_rows(journals: Journals) -> None:
    """Every operation once, of every outcome, and the notes of the rows that were dropped while the disk was full."""
    flat, partitioned = (recorded(path) for path in journals)
    assert flat == partitioned
    assert {row["outcome"] for row in flat} == {"completed", "expired", "cancelled", "pending", "dropped"}
    crossed = [row for row in flat if row["finished_at"] and row["parked_at"].date() != row["finished_at"].date()]
    assert len(crossed) > 20


def tables(spark: Any, path: pathlib.Path, selection: Selection) -> dict[str, pa.Table]:
    return compute(spark, str(path), bucket_ms=HOUR_MS, selection=selection).tables


def same(one: dict[str, pa.Table], two: dict[str, pa.Table]) -> bool:
    assert list(one) == list(two)
    for name, table in one.items():
        assert table.to_pylist() == two[name].to_pylist(), name
    return True


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_report_has_the_same_tables(spark: Any, journals: Journals, name: str) -> None:
    """With and without a selection, whose borders are within a date, at midnight, and around it."""
    flat, partitioned = journals
    assert same(tables(spark, flat, SELECTIONS[name]), tables(spark, partitioned, SELECTIONS[name]))


def test_a_merged_journal_and_one_that_only_spark_lists_have_the_same_tables(
    spark: Any, journals: Journals, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``compact`` keeps the folders, and Spark finds the files in them also where the command cannot list them."""
    flat, partitioned = journals
    merged = tmp_path / "journal"
    shutil.copytree(partitioned, merged)
    done = compact(merged)
    assert done.before > done.after == len(DATES)
    selection = SELECTIONS["a date"]
    expected = tables(spark, flat, selection)
    assert same(expected, tables(spark, merged, selection))
    monkeypatch.setattr(journal_reader, "local_path", lambda _: None)
    assert same(expected, tables(spark, merged, selection))


def test_a_replay_has_the_same_outcomes(spark: Any, journals: Journals) -> None:
    """Each operation is replayed once; the selection decides which."""
    for selection in (EVERYTHING, SELECTIONS["a date"]):
        flat, partitioned = (what_if(spark, str(path), [1], [20], selection=selection) for path in journals)
        assert flat.changed == partitioned.changed == 0
        assert flat.operations == partitioned.operations > 0
        exact = [name for name in flat.table.column_names if "cpu" not in name]
        assert flat.table.select(exact).to_pylist() == partitioned.table.select(exact).to_pylist()


def test_a_selection_reads_no_file_of_later_dates(journals: Journals, tmp_path: pathlib.Path) -> None:
    """Nor of earlier dates whose operations have all ended, whatever the names of the folders are."""
    _, partitioned = journals

    def read(path: pathlib.Path, selection: Selection) -> set[str]:
        return {file.parent.name for file in data_files(path) if row_groups(pq.read_metadata(file), selection)}

    assert read(partitioned, Selection.parse(until="2026-11-22")) == {DATES[0]}
    assert read(partitioned, Selection.parse(until="2026-11-22T00:00:00.001")) == set(DATES[:2])
    assert DATES[2] not in read(partitioned, SELECTIONS["a date"])
    renamed = tmp_path / "journal"
    shutil.copytree(partitioned, renamed)
    for folder, other in zip(DATES, reversed(DATES), strict=True):
        (renamed / folder).rename(renamed / f"not-{other}")
    assert read(renamed, Selection.parse(until="2026-11-22")) == {f"not-{DATES[2]}"}


def test_the_folder_of_a_date_is_what_its_selection_selects(spark: Any, journals: Journals) -> None:
    """For Spark's own discovery of partitions, too: the column ``date`` is a date, and selects the same operations."""
    _, partitioned = journals
    frame = spark.read.parquet(str(partitioned))
    assert dict(frame.dtypes)["date"] == "date"
    of_date = frame.where("date = DATE'2026-11-22' AND outcome != 'dropped'").select("op_id").collect()
    parked = [
        row["op_id"] for row in recorded(partitioned) if row["parked_at"].day == 22 and row["outcome"] != "dropped"
    ]
    assert sorted(row["op_id"] for row in of_date) == parked
    report = compute(spark, str(partitioned), selection=SELECTIONS["a date"])
    assert report.operations == len(parked)
    assert compute(spark, str(partitioned / DATES[1])).operations == len(parked)
