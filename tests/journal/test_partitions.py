"""A journal that is partitioned by date: which row is in which folder, and what happens around midnight."""

import asyncio
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from purgatory import Purgatory
from purgatory.journal import Journal, JournalError, compact
from purgatory.journal import journal as module
from purgatory.journal.batch import OP_ID, WIDTH, Batch, Gap, Refused, by_date, to_table
from purgatory.journal.files import data_files, date_folder, merge_notes
from purgatory.testing import VirtualClock
from tests.journal.kit import Fetch, rows

DAY_MS = 86_400_000
MIDNIGHT = datetime(2026, 11, 22, tzinfo=UTC)
MIDNIGHT_MS = round(MIDNIGHT.timestamp() * 1000)
BEFORE, AFTER = "date=2026-11-21", "date=2026-11-22"


def partitioned(path: pathlib.Path, clock: VirtualClock, to_midnight: float = 10.0, **options: Any) -> Journal:
    """A journal whose clock shows this many seconds before midnight."""
    epoch_ms = MIDNIGHT_MS - round(to_midnight * 1000) - clock.now_ms()
    return Journal(path, clock=clock, epoch_ms=epoch_ms, partition_by="date", **options)


def folders(path: pathlib.Path) -> dict[str, list[int]]:
    """The numbers of the operations in each folder, in the order of the files."""
    return {folder.name: [row["op_id"] for row in rows(folder)] for folder in sorted(path.iterdir())}


def end(purgatory: Purgatory[Fetch], number: int = 1) -> None:
    for _ in range(number):
        operation = Fetch()
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.force_complete()


async def test_a_row_is_in_the_folder_of_the_date_on_which_its_operation_parked(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """One file that spans midnight becomes two; an operation that waits over midnight belongs to the first date."""
    async with partitioned(tmp_path, clock) as journal:
        purgatory = Purgatory[Fetch]("p", clock=clock, observers=[journal])
        over_midnight, pending = Fetch(15.0), Fetch()
        purgatory.try_complete_else_watch(over_midnight, ["a"])
        purgatory.try_complete_else_watch(pending, ["a"])
        await clock.advance(9.999)
        end(purgatory)
        await clock.advance(0.001)
        end(purgatory)
        await clock.advance(10.0)
        assert over_midnight.expired
    assert folders(tmp_path) == {BEFORE: [3, 1, 2], AFTER: [4]}
    found = {row["op_id"]: row for row in rows(tmp_path)}
    assert found[1]["finished_at"] == MIDNIGHT + timedelta(seconds=5)
    assert found[2]["outcome"] == "pending"
    assert (found[3]["parked_at"], found[4]["parked_at"]) == (MIDNIGHT - timedelta(milliseconds=1), MIDNIGHT)
    assert (journal.statistics().written, journal.statistics().files) == (4, 2)


async def test_a_file_of_one_date_is_not_divided(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Rotation is that of a journal without folders, and the numbers of the files continue across folders."""
    async with (
        partitioned(tmp_path, clock, rows_per_file=10) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory, 15)
        await clock.advance(10.0)
        end(purgatory, 15)
    files = data_files(tmp_path)
    assert [file.parent.name for file in files] == [BEFORE] * 2 + [AFTER] * 2
    assert [file.stem[-6:] for file in files] == ["000000", "000001", "000002", "000003"]
    assert [pq.read_metadata(file).num_rows for file in files] == [10, 5, 5, 10]
    assert [row["op_id"] for row in rows(tmp_path)] == list(range(1, 31))


async def test_programs_that_read_the_names_of_folders_see_the_date(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """The names are those of Hive; the column ``date`` of such a program is the UTC date of ``parked_at``."""
    async with (
        partitioned(tmp_path, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        for _ in range(20):
            purgatory.try_complete_else_watch(Fetch(50_000.0), ["a"])
            await clock.advance(10_000.0)
    found = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().to_pylist()
    assert len(found) == 20
    assert {row["date"] for row in found} == {"2026-11-21", "2026-11-22", "2026-11-23", "2026-11-24"}
    assert all(row["date"] == row["parked_at"].date().isoformat() for row in found)


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process is in the time zone that is farthest from UTC."""
    if not hasattr(time, "tzset"):
        pytest.skip("the time zone of a process cannot be set")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("epoch_ms", "date"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (MIDNIGHT_MS - 1, "2026-11-21"),
        (MIDNIGHT_MS, "2026-11-22"),
        (253_402_300_799_999, "9999-12-31"),
        (253_402_300_800_000, "9999-12-31"),
        (1 << 200, "9999-12-31"),
        (-(1 << 200), "0001-01-01"),
    ],
)
def test_the_date_of_a_folder_is_in_utc(epoch_ms: int, date: str, far_from_utc: None) -> None:
    """In any time zone of the process.  A time beyond all dates is in the folder of the first or the last one."""
    assert date_folder(epoch_ms) == f"date={date}"


@given(
    parked=st.lists(st.integers(0, 3 * DAY_MS), max_size=30),
    gap=st.none() | st.integers(0, 3 * DAY_MS),
    noted=st.lists(st.integers(0, 3 * DAY_MS), max_size=3),
    anchor_ms=st.integers(0, 2 * DAY_MS),
)
def test_a_batch_is_divided_into_dates(parked: list[int], gap: int | None, noted: list[int], anchor_ms: int) -> None:
    """Each row, the gap, and each note about refused operations are in exactly one part.

    Each part has one date, and its rows keep their order.
    """
    if not parked and gap is None and not noted:
        return
    values = [value for n, ms in enumerate(parked) for value in (1, ("p", 1), Fetch, n, ("a",), ms, None, ms)]
    notes = tuple(Refused("p", 2, ms, ms + 5) for ms in noted)
    batch = Batch(values, anchor_ms, None if gap is None else Gap(3, gap, gap + DAY_MS), refused=notes)
    parts = by_date(batch)
    dates = [part.folder for part in parts]
    assert dates == sorted(set(dates), key=str)
    assert sum(part.rows for part in parts) == len(parked)
    assert sorted(note for part in parts for note in part.refused) == sorted(notes)
    assert [part.gap for part in parts if part.gap is not None] == ([] if gap is None else [Gap(3, gap, gap + DAY_MS)])
    for part in parts:
        numbers = part.values[OP_ID::WIDTH]
        assert numbers == sorted(numbers)
        table = to_table(part, "s", str)
        assert table.num_rows == part.rows + (part.gap is not None) + len(part.refused) > 0
        assert {f"date={at.date()}" for at in table["parked_at"].to_pylist()} == {part.folder}


async def test_a_note_of_dropped_rows_is_in_the_folder_of_the_first_one(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """Rows were dropped from before midnight on, and the note is written with rows of the next date."""
    directory = tmp_path / "journal"
    async with (
        partitioned(directory, clock, rows_per_file=2, max_buffered=2) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        shutil.rmtree(directory)
        end(purgatory, 2)
        await journal.flush()
        await clock.advance(9.0)
        end(purgatory)
        await clock.advance(2.0)
        end(purgatory)
        directory.mkdir()
        await journal.flush()
        assert (journal.statistics().written, journal.statistics().dropped) == (2, 2)
        end(purgatory)
    assert folders(directory) == {BEFORE: [1, 2, None], AFTER: [5]}
    (note,) = (row for row in rows(directory) if row["outcome"] == "dropped")
    assert (note["dropped"], note["parked_at"]) == (2, MIDNIGHT - timedelta(seconds=1))
    assert note["finished_at"] == MIDNIGHT + timedelta(seconds=1)


async def test_a_retry_after_midnight_writes_no_row_twice(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """The folder of the second date cannot be created: the rows of the first are written, the others wait."""
    async with (
        partitioned(tmp_path, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        (tmp_path / AFTER).write_text("in the way")
        end(purgatory, 2)
        await clock.advance(10.0)
        end(purgatory, 3)
        for _ in range(2):
            await journal.flush()
            statistics = journal.statistics()
            assert (statistics.written, statistics.buffered, statistics.dropped) == (2, 3, 0)
        assert statistics.last_error is not None
        assert AFTER in statistics.last_error
        (tmp_path / AFTER).unlink()
        await journal.flush()
        assert journal.statistics().written == 5
    assert folders(tmp_path) == {BEFORE: [1, 2], AFTER: [3, 4, 5]}


async def test_a_folder_that_cannot_be_written_holds_up_no_other(
    tmp_path: pathlib.Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows wait in their order; those of other dates are written; each folder is logged once."""
    async with (
        partitioned(tmp_path, clock, rows_per_file=10, max_buffered=40) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        (tmp_path / BEFORE).write_text("in the way")
        early = [Fetch() for _ in range(3)]
        for operation in early:
            purgatory.try_complete_else_watch(operation, ["a"])
        await clock.advance(10.0)
        for operation in early:
            operation.force_complete()
            for _ in range(5):
                end(purgatory, 20)
                await journal.flush()
        statistics = journal.statistics()
        assert (statistics.recorded, statistics.written, statistics.buffered, statistics.dropped) == (303, 300, 3, 0)
        assert BEFORE in str(statistics.last_error)
        assert caplog.text.count(f"{BEFORE} cannot be written and will be retried") == 1
        assert "again" not in caplog.text
        (tmp_path / BEFORE).unlink()
        await journal.flush()
        assert journal.statistics().written == 303
        assert caplog.text.count(f"{BEFORE} can be written again") == 1
    assert folders(tmp_path) == {BEFORE: [1, 2, 3], AFTER: list(range(4, 304))}


async def test_rows_that_wait_for_one_folder_count_for_the_bound_of_all(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """``max_buffered`` bounds the memory: once one folder fills it, rows of every date are dropped and counted."""
    async with (
        partitioned(tmp_path, clock, rows_per_file=2, max_buffered=4) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        (tmp_path / BEFORE).write_text("in the way")
        end(purgatory, 4)
        await clock.advance(10.0)
        end(purgatory, 3)
        await journal.flush()
        statistics = journal.statistics()
        assert (statistics.recorded, statistics.written, statistics.buffered, statistics.dropped) == (7, 0, 4, 3)
        (tmp_path / BEFORE).unlink()
        await journal.flush()
        end(purgatory)
    assert folders(tmp_path) == {BEFORE: [1, 2, 3, 4], AFTER: [None, 8]}
    statistics = journal.statistics()
    assert (statistics.recorded, statistics.written, statistics.buffered, statistics.dropped) == (8, 5, 0, 3)


async def test_rows_of_one_date_that_cannot_be_written_at_the_end_are_counted(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """The rows of the other date are written and are not counted as dropped."""
    async with (
        partitioned(tmp_path, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        (tmp_path / AFTER).write_text("in the way")
        end(purgatory, 2)
        await clock.advance(10.0)
        end(purgatory, 3)
    statistics = journal.statistics()
    assert (statistics.recorded, statistics.written, statistics.dropped, statistics.buffered) == (5, 2, 3, 0)
    assert [row["op_id"] for row in rows(tmp_path / BEFORE)] == [1, 2]


async def test_folders_that_are_removed_are_created_again_but_not_the_directory(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """A missing directory can be a file system that is not mounted, so its rows wait; a date may be deleted."""
    directory = tmp_path / "journal"
    async with (
        partitioned(directory, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory)
        await journal.flush()
        shutil.rmtree(directory / BEFORE)
        end(purgatory)
        await journal.flush()
        assert folders(directory) == {BEFORE: [2]}
        shutil.rmtree(directory)
        end(purgatory)
        await journal.flush()
        assert not directory.exists()
        assert journal.statistics().buffered == 1
        directory.mkdir()
    assert folders(directory) == {BEFORE: [3]}


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
async def test_a_new_folder_has_the_permissions_of_the_directory(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Processes of several users that share the directory share the folders, whichever creates one first."""
    directory = tmp_path / "journal"
    directory.mkdir()
    directory.chmod(0o2770)
    async with (
        partitioned(directory, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory)
        await journal.flush()
        assert stat.S_IMODE((directory / BEFORE).stat().st_mode) == 0o2770
        (directory / BEFORE).chmod(0o700)
        end(purgatory)
    assert stat.S_IMODE((directory / BEFORE).stat().st_mode) == 0o700, "a folder that exists is left as it is"


async def test_a_wall_clock_that_is_set_back_moves_rows_to_the_date_that_they_show(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a row is always the date of its ``parked_at``, also if the date repeats."""
    wall = SimpleNamespace(ns=(MIDNIGHT_MS + 5_000) * 1_000_000)
    fake = SimpleNamespace(time_ns=lambda: wall.ns, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(module, "time", fake)
    async with (
        Journal(tmp_path, partition_by="date") as journal,
        Purgatory[Fetch]("p", observers=[journal]) as purgatory,
    ):
        for seconds in (5, -3_600, 7_200):
            wall.ns = (MIDNIGHT_MS + seconds * 1000) * 1_000_000
            end(purgatory)
            await journal.flush()
    assert folders(tmp_path) == {BEFORE: [2], AFTER: [1, 3]}
    for folder in (BEFORE, AFTER):
        assert {f"date={row['parked_at'].date()}" for row in rows(tmp_path / folder)} == {folder}


async def test_a_journal_with_and_without_folders_is_one_journal(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Files of earlier runs without folders stay where they are; readers and ``compact`` see all rows once."""
    for run in range(4):
        options: dict[str, Any] = {"partition_by": "date" if run % 2 else None}
        async with (
            Journal(tmp_path, clock=clock, epoch_ms=MIDNIGHT_MS + run, rows_per_file=5, **options) as journal,
            Purgatory[Fetch](f"run {run}", clock=clock, observers=[journal]) as purgatory,
        ):
            end(purgatory, 10)
    before = sorted((row["purgatory"], row["op_id"]) for row in rows(tmp_path))
    assert before == [(f"run {run}", number) for run in range(4) for number in range(1, 11)]
    assert sorted({str(file.parent.relative_to(tmp_path)) for file in data_files(tmp_path)}) == [".", AFTER]
    done = compact(tmp_path)
    assert (done.before, done.after) == (8, 4)
    assert sorted((row["purgatory"], row["op_id"]) for row in rows(tmp_path)) == before
    assert {row["purgatory"] for row in rows(tmp_path / AFTER)} == {"run 1", "run 3"}


WORKER = textwrap.dedent(
    """
    import asyncio, sys
    from purgatory import Purgatory
    from purgatory.journal import Journal
    from purgatory.testing import VirtualClock
    from tests.journal.kit import Fetch

    async def main():
        clock = VirtualClock()
        print("ready", flush=True)
        sys.stdin.readline()
        journal = Journal(sys.argv[1], rows_per_file=7, clock=clock, epoch_ms=0, partition_by="date")
        async with journal, Purgatory("p", clock=clock, observers=[journal]) as purgatory:
            for _ in range(100):
                operation = Fetch()
                purgatory.try_complete_else_watch(operation, ["a"])
                await clock.advance(3_600.0)
                operation.force_complete()

    asyncio.run(main())
    """
)


def test_several_processes_write_to_the_same_folders(tmp_path: pathlib.Path) -> None:
    """Each creates the folders that are missing, and no row of any process is lost or doubled."""
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.getcwd())
        for _ in range(2)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.communicate("go\n", timeout=60)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0]
    found = rows(tmp_path)
    sources = {row["source"] for row in found}
    assert len(sources) == 2
    for source in sources:
        assert sorted(row["op_id"] for row in found if row["source"] == source) == list(range(1, 101))
    assert [folder.name for folder in sorted(tmp_path.iterdir())] == [f"date=1970-01-0{day}" for day in range(1, 6)]
    assert {row["parked_at"].date().isoformat() for row in rows(tmp_path / "date=1970-01-03")} == {"1970-01-03"}


async def test_cancelling_the_end_loses_nothing(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """A cancelled ``aclose`` leaves the thread every row of every date."""
    journal = partitioned(tmp_path, clock)
    await journal.__aenter__()
    async with Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory:
        end(purgatory)
        await clock.advance(10.0)
        end(purgatory)
        closing = asyncio.ensure_future(journal.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    await asyncio.get_running_loop().run_in_executor(None, journal._writer._executor.shutdown)
    assert folders(tmp_path) == {BEFORE: [1], AFTER: [2]}


async def test_a_folder_that_is_a_link_belongs_to_the_journal(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """An archived date, for example: Spark follows the link too.  Its files and its notes are listed, and its files are
    merged; a link that is broken, or that leads back to the journal, is an error."""
    journal, archive = tmp_path / "journal", tmp_path / "archive"
    async with (
        partitioned(journal, clock, rows_per_file=1) as written,
        Purgatory[Fetch]("p", clock=clock, observers=[written]) as purgatory,
    ):
        end(purgatory, 3)
        await clock.advance(20.0)
        end(purgatory)
    (journal / BEFORE).rename(archive)
    (journal / BEFORE).symlink_to(archive)
    first, *others = sorted(archive.glob("*.parquet"))
    assert [file.parent.name for file in data_files(journal)] == [BEFORE] * 3 + [AFTER]
    note = {"unfinished": ".x", "merged": first.name, "replaced": [file.name for file in others[1:]]}
    (archive / "_merge").mkdir()
    (archive / "_merge" / "x.json").write_text(json.dumps(note))
    assert merge_notes(journal) == [journal / BEFORE / "_merge" / "x.json"]
    (archive / "_merge" / "x.json").unlink()
    assert (compact(journal).before, len(list(archive.glob("*.parquet")))) == (4, 1)
    back = archive / "back"
    back.symlink_to(journal)
    with pytest.raises(JournalError, match=f"{BEFORE}/back is a link to a folder that contains it"):
        data_files(journal)
    back.unlink()
    (archive / "itself").symlink_to(archive / "itself")
    assert len(data_files(journal)) == 2
    archive.rename(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match=f"{BEFORE} is a link to {archive}, which is missing"):
        data_files(journal)
