"""The journal of a live purgatory: what it writes, and its behavior when it cannot write."""

import asyncio
import contextlib
import gc
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

import pyarrow.parquet as pq

from purgatory import Event, Observer, Purgatory, PurgatoryFull, ThresholdPurgatory
from purgatory.journal import SCHEMA_VERSION, Journal, JournalError, files
from purgatory.journal.files import ARROW_SCHEMA, data_files
from purgatory.journal.schema import VERSION_KEY
from purgatory.testing import VirtualClock
from tests.journal.kit import Fetch, Produce, rows

EPOCH_MS = 1_700_000_000_000


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(seconds=seconds)


def virtual_journal(path: pathlib.Path, clock: VirtualClock, **options: Any) -> Journal:
    return Journal(path, clock=clock, epoch_ms=EPOCH_MS, **options)


async def test_every_ending_becomes_a_row(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Completed, expired, cancelled, failed and immediate operations are written with times, keys and kinds."""
    async with (
        virtual_journal(tmp_path, clock) as journal,
        Purgatory[Fetch]("fetch", clock=clock, observers=[journal]) as purgatory,
    ):
        completed, expired, cancelled, failed = Fetch(30.0), Fetch(2.0), Produce(None), Fetch(9.0, ValueError("no"))
        purgatory.try_complete_else_watch(completed, ["a", "b"])
        purgatory.try_complete_else_watch(expired, ["c"])
        purgatory.try_complete_else_watch(cancelled, [("topic", 0)])
        purgatory.try_complete_else_watch(failed, [b"d"])
        immediate = Produce(1.0)
        immediate.ready = True
        assert purgatory.try_complete_else_watch(immediate, ["e"])
        await clock.advance(1.5)
        completed.ready = True
        assert purgatory.check_and_complete("b") == 1
        await clock.advance(1.0)
        cancelled.cancel()
        purgatory.fail_for_key(b"d", ValueError("no"))
    found = {row["op_id"]: row for row in rows(tmp_path)}
    assert [found[i]["outcome"] for i in range(1, 6)] == ["completed", "expired", "cancelled", "failed", "completed"]
    assert [found[i]["kind"] for i in range(1, 6)] == ["Fetch", "Fetch", "Produce", "Fetch", "Produce"]
    assert [found[i]["keys"] for i in range(1, 6)] == [["a", "b"], ["c"], ["('topic', 0)"], ["d"], []]
    assert {found[i]["parked_at"] for i in found} == {at(1000.0)}
    deadlines = [found[i]["deadline"] for i in range(1, 6)]
    assert deadlines == [at(1030.0), at(1002.0), None, at(1009.0), at(1001.0)]
    ends = [found[i]["finished_at"] for i in range(1, 6)]
    assert ends == [at(1001.5), at(1002.0), at(1002.5), at(1002.5), at(1000.0)]
    assert [found[i]["lateness"] for i in range(1, 6)] == [None, 0.0, None, None, None]
    assert {row["purgatory"] for row in found.values()} == {"fetch"}
    assert {row["anchor_ms"] for row in found.values()} == {EPOCH_MS}
    assert len({row["source"] for row in found.values()}) == 1


async def test_purgatories_that_are_gone_leave_nothing_in_the_journal(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """A journal refers only to the purgatories that exist, however many it has observed."""
    async with virtual_journal(tmp_path, clock) as journal:
        for _ in range(3):
            async with Purgatory[Fetch]("short", clock=clock, observers=[journal]):
                assert len(journal._observed) == 1
            gc.collect()
        assert len(journal._observed) == 0
        async with Purgatory[Fetch]("kept", clock=clock, observers=[journal]) as kept:
            kept.try_complete_else_watch(Fetch(None), ["a"])
            await journal.aclose()
    assert [row["outcome"] for row in rows(tmp_path)] == ["pending"]


async def test_a_purgatory_that_cannot_be_referred_to_weakly(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Its waiting operations are written as pending, too."""

    class Slotted:
        __slots__ = ("parked_events",)

    async with virtual_journal(tmp_path, clock) as journal, Purgatory[Fetch]("test", clock=clock) as purgatory:
        purgatory.try_complete_else_watch(Fetch(None), ["a"])
        slotted = Slotted()
        slotted.parked_events = purgatory.parked_events
        journal.attached(slotted)
        await journal.aclose()
    assert [row["outcome"] for row in rows(tmp_path)] == ["pending"]


async def test_operations_that_wait_when_the_journal_closes_are_written_as_pending(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """Operations that wait at the end have a row without an end, from each observed purgatory."""
    journal = virtual_journal(tmp_path, clock)
    async with Purgatory[Fetch]("one", clock=clock, observers=[journal]) as one:
        async with journal, Purgatory[Fetch]("two", clock=clock, observers=[journal]) as two:
            one.try_complete_else_watch(Fetch(5.0), ["a", "b"])
            one.try_complete_else_watch(Fetch(None), ["c"])
            two.try_complete_else_watch(Fetch(5.0), ["a"])
        found = sorted(rows(tmp_path), key=lambda row: (row["purgatory"], row["op_id"]))
        assert [(row["purgatory"], row["outcome"]) for row in found] == [
            ("one", "pending"),
            ("one", "pending"),
            ("two", "expired"),
        ]
        assert [row["finished_at"] for row in found] == [None, None, at(1000.0)]
        assert [row["deadline"] for row in found] == [at(1005.0), None, at(1005.0)]
        assert found[0]["keys"] == ["a", "b"]
        assert found[2]["lateness"] is None, "it was expired by the closing, before its deadline"


async def test_a_relative_path_is_that_of_the_directory_in_which_the_journal_was_made(
    tmp_path: pathlib.Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that changes its directory later, as a daemon does, writes all rows to the same place."""
    monkeypatch.chdir(tmp_path)
    for name, changes_before in (("one", False), ("two", True)):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        journal = virtual_journal(pathlib.Path(name), clock)
        assert journal.path == tmp_path / name
        if changes_before:
            monkeypatch.chdir(tmp_path / "elsewhere")
        async with journal, Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory:
            monkeypatch.chdir(tmp_path / "elsewhere")
            purgatory.try_complete_else_watch(Fetch(), ["a"])
        assert (journal.statistics().written, journal.statistics().failures) == (1, 0)
        assert len(rows(tmp_path / name)) == 1
        assert list((tmp_path / "elsewhere").iterdir()) == []
        monkeypatch.chdir(tmp_path)


async def test_the_files_carry_the_schema_and_its_version(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """The files have the documented schema and contain its version."""
    async with (
        virtual_journal(tmp_path, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        purgatory.try_complete_else_watch(Fetch(), ["a"])
    (file,) = data_files(tmp_path)
    schema = pq.read_schema(file)
    assert schema.equals(ARROW_SCHEMA)
    assert schema.metadata[VERSION_KEY.encode()] == str(SCHEMA_VERSION).encode()


async def test_a_file_is_handed_over_when_it_has_its_rows(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """With ``rows_per_file=10``, 25 endings fill two files, and closing writes the rest; the statistics match."""
    async with (
        virtual_journal(tmp_path, clock, rows_per_file=10) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        for number in range(25):
            operation = Fetch()
            purgatory.try_complete_else_watch(operation, [number])
            operation.force_complete()
        assert journal.statistics().recorded == 25
    statistics = journal.statistics()
    assert (statistics.written, statistics.files, statistics.buffered, statistics.dropped) == (25, 3, 0, 0)
    files = data_files(tmp_path)
    assert [pq.read_metadata(file).num_rows for file in files] == [10, 10, 5]
    assert [row["op_id"] for row in rows(tmp_path)] == list(range(1, 26))


async def test_rows_are_written_after_the_interval(tmp_path: pathlib.Path) -> None:
    """A partial buffer is written after the interval, and nothing is scheduled afterwards."""
    loop = asyncio.get_running_loop()
    begun = asyncio.Event()

    def text(key: object) -> str:
        loop.call_soon_threadsafe(begun.set)
        return str(key)

    async with (
        Journal(tmp_path, interval=0.01, key_text=text) as journal,
        Purgatory[Fetch]("p", observers=[journal]) as purgatory,
    ):
        operation = Fetch()
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.force_complete()
        await begun.wait()
        await journal.flush()
        assert [row["op_id"] for row in rows(tmp_path)] == [1]
        assert journal._timer is None


async def test_failed_attempts_are_repeated_although_no_row_follows(tmp_path: pathlib.Path) -> None:
    """The last rows before a pause are retried every interval, as documented, until they are written."""
    loop = asyncio.get_running_loop()
    attempts = asyncio.Semaphore(0)

    def text(key: object) -> str:
        loop.call_soon_threadsafe(attempts.release)
        return str(key)

    directory = tmp_path / "journal"
    async with (
        Journal(directory, interval=0.01, key_text=text) as journal,
        Purgatory[Fetch]("p", observers=[journal]) as purgatory,
    ):
        directory.rename(tmp_path / "away")
        operation = Fetch()
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.force_complete()
        async with asyncio.timeout(10):
            for _ in range(3):
                await attempts.acquire()
        assert journal.statistics().buffered == 1
        (tmp_path / "away").rename(directory)
        await journal.flush()
        assert [row["op_id"] for row in rows(directory)] == [1]


async def test_wall_clock_times_are_those_of_the_machine(tmp_path: pathlib.Path) -> None:
    """The monotonic times of events are written as wall-clock times."""
    before = datetime.now(UTC)
    async with Journal(tmp_path) as journal, Purgatory[Fetch]("p", observers=[journal]) as purgatory:
        purgatory.try_complete_else_watch(Fetch(60.0), ["a"])
    after = datetime.now(UTC)
    (row,) = rows(tmp_path)
    slack = timedelta(milliseconds=3)
    assert before - slack <= row["parked_at"] <= row["finished_at"] <= after + slack
    assert row["deadline"] - row["parked_at"] == timedelta(seconds=60)


async def test_a_disk_that_fails_costs_no_operation_and_the_journal_resumes(
    tmp_path: pathlib.Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows wait while the directory is missing; failures are counted and logged once; all rows are written later."""
    directory = tmp_path / "journal"
    async with (
        virtual_journal(directory, clock, rows_per_file=1) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        shutil.rmtree(directory)
        for number in range(3):
            operation = Fetch()
            purgatory.try_complete_else_watch(operation, [number])
            assert operation.force_complete()
            await journal.flush()
        statistics = journal.statistics()
        assert (statistics.written, statistics.buffered, statistics.dropped) == (0, 3, 0)
        assert statistics.failures >= 3
        assert statistics.last_error is not None
        assert "FileNotFoundError" in statistics.last_error
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
        directory.mkdir()
        await journal.flush()
        assert journal.statistics().written == 3
    assert [row["op_id"] for row in rows(directory)] == [1, 2, 3]


async def test_a_full_buffer_drops_and_counts(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Rows that do not fit are dropped; the statistics and a separate row contain their number."""
    directory = tmp_path / "journal"
    async with (
        virtual_journal(directory, clock, rows_per_file=2, max_buffered=4) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        shutil.rmtree(directory)
        for number in range(10):
            operation = Fetch()
            purgatory.try_complete_else_watch(operation, [number])
            await clock.advance(1.0)
            operation.force_complete()
        await journal.flush()
        statistics = journal.statistics()
        assert (statistics.recorded, statistics.buffered, statistics.dropped) == (10, 4, 6)
        directory.mkdir()
        await journal.flush()
    found = rows(directory)
    assert [row["op_id"] for row in found if row["outcome"] == "completed"] == [1, 2, 3, 4]
    (gap,) = [row for row in found if row["outcome"] == "dropped"]
    assert (gap["dropped"], gap["parked_at"], gap["finished_at"]) == (6, at(1005.0), at(1010.0))
    statistics = journal.statistics()
    assert statistics.recorded == statistics.written + statistics.dropped == 10


async def test_rows_that_do_not_fit_at_the_end_are_counted_in_the_journal(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """If the operations that still wait are more than the buffer holds, a row contains the number of the others; and
    the refused operations are counted, although their rows would have been in the file that did not fit."""
    directory = tmp_path / "journal"
    async with contextlib.AsyncExitStack() as ended_last:
        async with virtual_journal(directory, clock, rows_per_file=4, max_buffered=4) as journal:
            room = Purgatory[Fetch]("p", clock=clock, observers=[journal], max_parked=9)
            purgatory = await ended_last.enter_async_context(room)
            for number in range(9):
                purgatory.try_complete_else_watch(Fetch(), [number])
            with pytest.raises(PurgatoryFull):
                purgatory.try_complete_else_watch(Fetch(), [9])
        statistics = journal.statistics()
        assert statistics.recorded == statistics.written + statistics.dropped == 9
        found = rows(directory)
        assert len([row for row in found if row["outcome"] == "pending"]) == statistics.written < 9
        assert sum(row["dropped"] or 0 for row in found) == statistics.dropped
        assert sum(row["refused"] or 0 for row in found) == 1


async def test_rows_that_cannot_be_written_at_the_end_are_counted(
    tmp_path: pathlib.Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing never raises: rows that cannot be written are dropped, counted and logged."""
    directory = tmp_path / "journal"
    async with virtual_journal(directory, clock) as journal:
        async with Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory:
            purgatory.try_complete_else_watch(Fetch(), ["a"])
        shutil.rmtree(directory)
    statistics = journal.statistics()
    assert (statistics.recorded, statistics.written, statistics.dropped, statistics.buffered) == (1, 0, 1, 0)
    assert "has dropped 1 rows" in caplog.text


async def test_a_place_that_cannot_be_written_is_an_error_at_the_start(tmp_path: pathlib.Path) -> None:
    """The error contains the path: a file, a path below a file, or one where nothing can be created."""
    file = tmp_path / "file"
    file.write_text("here")
    for path, why in (
        (file, "must be a directory, got a file"),
        (file / "below", "cannot be created"),
        (pathlib.Path("/proc/j"), "cannot be"),
    ):
        with pytest.raises(JournalError, match=why) as caught:
            await Journal(path).__aenter__()
        assert str(path) in str(caught.value)


async def test_bad_arguments_are_refused(tmp_path: pathlib.Path) -> None:
    """The error contains the name of the argument, and nothing is created on disk."""
    path = tmp_path / "journal"
    for options, error in (
        ({"rows_per_file": 0}, ValueError),
        ({"rows_per_file": 2.5}, TypeError),
        ({"rows_per_file": 100, "max_buffered": 99}, ValueError),
        ({"interval": 0}, ValueError),
        ({"interval": float("nan")}, ValueError),
        ({"clock": 5}, TypeError),
        ({"epoch_ms": 1.5}, TypeError),
        ({"epoch_ms": -1}, ValueError),
        ({"key_text": "x"}, TypeError),
        ({"partition_by": "day"}, ValueError),
        ({"partition_by": ["date"]}, ValueError),
    ):
        with pytest.raises(error, match=list(options)[-1]):
            Journal(path, **options)
    with pytest.raises(TypeError):
        Journal(None)  # type: ignore[arg-type]
    assert not path.exists()


async def test_key_text_decides_how_keys_become_text(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """A key without a text, or with a lone surrogate, affects no other row."""

    def text(key: object) -> str:
        if key == 13:
            raise RuntimeError("no")
        return f"<{key}>"

    async with (
        virtual_journal(tmp_path, clock, key_text=text) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        for key in (12, 13, "s\udc80"):
            purgatory.try_complete_else_watch(Fetch(), [key])
    found = sorted(rows(tmp_path), key=lambda row: row["op_id"])
    assert [row["keys"] for row in found] == [["<12>"], ["<int: RuntimeError>"], ["<s\\udc80>"]]


async def test_events_after_the_journal_has_closed_count_as_dropped(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """A purgatory that outlives its journal is not affected, and the lost rows are counted."""
    journal = virtual_journal(tmp_path, clock)
    async with Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory:
        async with journal:
            pass
        purgatory.try_complete_else_watch(Fetch(), ["a"])
    assert purgatory.statistics().observers_detached == 0
    assert journal.statistics().dropped == 1
    await journal.aclose()
    with pytest.raises(RuntimeError, match="already been entered"):
        await journal.__aenter__()


async def test_a_journal_keeps_no_purgatory_and_no_operation_alive(
    tmp_path: pathlib.Path, clock: VirtualClock, no_gc: None
) -> None:
    """Rows contain only keys and classes, and the journal holds only a weak reference to the purgatory."""
    import weakref

    async with virtual_journal(tmp_path, clock) as journal:
        purgatory = Purgatory[Fetch]("p", clock=clock, observers=[journal])
        operation = Fetch()
        purgatory.try_complete_else_watch(operation, ["a"])
        operation.force_complete()
        gone = weakref.ref(operation)
        del operation
        assert gone() is None
        assert journal.statistics().buffered == 1


async def test_events_may_be_recorded_by_hand(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """The journal has the methods of an observer, and writes the same rows for events that are passed by hand."""
    seen: list[Any] = []

    class Keep(Observer):
        def completed(self, event: Any) -> None:
            seen.append(event)

        def expired(self, event: Any) -> None:
            seen.append(event)

    async with (
        virtual_journal(tmp_path, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[Keep(), journal]) as purgatory,
    ):
        for timeout in (1.0, None):
            purgatory.try_complete_else_watch(Fetch(timeout), ["a", "b"])
        await clock.advance(1.0)
        for operation in purgatory.parked_events():
            operation.operation.force_complete()
        journal.expired(seen[0])
        journal.completed(seen[1])
    found = rows(tmp_path)
    assert found[:2] == found[2:]
    assert [row["outcome"] for row in found[:2]] == ["expired", "completed"]


async def test_a_deadline_beyond_all_dates_costs_no_row(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Rows with the longest timeouts are written, with the end of the year 9999 as the deadline."""
    timeouts = [1e15, 9.3e12, 9.2e12, 9e6, 3.0]
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    most = (last - at(1000.0)) // timedelta(seconds=1)
    async with (
        virtual_journal(tmp_path, clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        for timeout in (*timeouts, most + 1, None):
            purgatory.try_complete_else_watch(Fetch(timeout), ["a"])
        await clock.advance(4.0)
    found = sorted(rows(tmp_path), key=lambda row: row["op_id"])
    assert [row["deadline"] for row in found[:3]] == [last] * 3
    assert [row["deadline"] for row in found[3:]] == [at(1000.0 + 9e6), at(1003.0), last, None]
    assert [row["lateness"] for row in found] == [None] * 4 + [0.0] + [None] * 2
    assert (journal.statistics().written, journal.statistics().dropped) == (7, 0)


async def test_an_operation_written_as_pending_is_not_dropped_when_it_ends(
    tmp_path: pathlib.Path, clock: VirtualClock
) -> None:
    """A journal that closes first has a row for each waiting operation; later operations are lost."""
    journal = virtual_journal(tmp_path, clock)
    async with (
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as other,
    ):
        early = [Fetch() for _ in range(4)]
        async with journal:
            for operation in early:
                purgatory.try_complete_else_watch(operation, ["a"])
            early[2].force_complete()
        assert (journal.statistics().recorded, journal.statistics().written) == (4, 4)
        early[1].force_complete()
        assert journal.statistics().dropped == 0
        other.try_complete_else_watch(Fetch(), ["a"])
        assert other.cancel_for_key("a")
        assert journal.statistics().dropped == 1, "the other purgatory's first operation has no row"
        late = Fetch()
        purgatory.try_complete_else_watch(late, ["a"])
        late.force_complete()
        assert journal.statistics().dropped == 2
    statistics = journal.statistics()
    assert (statistics.recorded, statistics.written, statistics.dropped, statistics.buffered) == (6, 4, 2, 0)
    assert sorted(row["outcome"] for row in rows(tmp_path)) == ["completed", "pending", "pending", "pending"]


async def test_two_purgatories_of_one_name_are_distinguished(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Source, purgatory, instance and number identify one operation, whatever wrote its row."""
    events: list[Any] = []

    class Keep(Observer):
        def cancelled(self, event: Any) -> None:
            events.append(event)

    async with virtual_journal(tmp_path, clock) as journal:
        one, two = (Purgatory[Fetch]("same", clock=clock, observers=[journal, Keep()]) for _ in range(2))
        for purgatory in (one, two):
            for _ in range(2):
                purgatory.try_complete_else_watch(Fetch(), ["a"])
            purgatory.try_complete_else_watch(Fetch(), ["b"])
            purgatory.cancel_for_key("b")
    found = rows(tmp_path)
    assert sorted(row["outcome"] for row in found) == ["cancelled"] * 2 + ["pending"] * 4
    assert len({(row["source"], row["purgatory"], row["op_id"]) for row in found}) == 3
    assert len({(row["source"], row["purgatory"], row["instance"], row["op_id"]) for row in found}) == 6
    assert [event.instance for event in events] == sorted({row["instance"] for row in found})


async def test_a_wait_for_a_predicate_has_a_kind_that_users_know(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """In the journal, events and dumps, the kind is ``wait_until``."""
    async with virtual_journal(tmp_path, clock) as journal, Purgatory[Any]("p", clock=clock, observers=[journal]) as p:
        waiting = asyncio.ensure_future(p.wait_until(lambda: False, keys=["a"], timeout=1.0))
        await asyncio.sleep(0)
        assert [event.kind for event in p.parked_events()] == ["wait_until"]
        assert [operation["kind"] for operation in p.dump()["operations"]] == ["wait_until"]
        assert "_Condition" not in str(p.dump())
        await clock.advance(1.0)
        assert await waiting is False
    assert [row["kind"] for row in rows(tmp_path)] == ["wait_until"]


async def test_two_journals_of_one_moment_do_not_overwrite_each_other(
    tmp_path: pathlib.Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two journals of one process have different sources, also if they are created in the same millisecond."""
    monkeypatch.setattr(files, "time", SimpleNamespace(time_ns=lambda: EPOCH_MS * 1_000_000))
    one, two, three = (virtual_journal(tmp_path, clock) for _ in range(3))
    for journal in (one, two, three):
        async with journal, Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory:
            purgatory.try_complete_else_watch(Fetch(), ["a"])
    assert len({row["source"] for row in rows(tmp_path)}) == len(rows(tmp_path)) == 3


FORKING = textwrap.dedent(
    """
    import asyncio, os, sys
    from purgatory import Purgatory
    from purgatory.journal import Journal
    from tests.journal.kit import Fetch

    journal = Journal(sys.argv[1], rows_per_file=10)

    async def worker(name):
        async with journal, Purgatory(name, observers=[journal]) as purgatory:
            for _ in range(20):
                purgatory.try_complete_else_watch(Fetch(), ["a"])
                purgatory.cancel_for_key("a")

    for name in ("one", "two"):
        pid = os.fork()
        if pid == 0:
            asyncio.run(worker(name))
            os._exit(0)
        os.waitpid(pid, 0)
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_workers_that_are_forked_after_the_journal_was_created_keep_all_rows(tmp_path: pathlib.Path) -> None:
    """A server with a preloaded application: each worker enters the journal and is a run of its own."""
    subprocess.run([sys.executable, "-c", FORKING, str(tmp_path)], cwd=os.getcwd(), check=True)
    found = sorted((row["purgatory"], row["op_id"]) for row in rows(tmp_path))
    assert found == [(name, number) for name in ("one", "two") for number in range(1, 21)]
    assert len({row["source"] for row in rows(tmp_path)}) == 2


ENTERED_BEFORE_THE_FORK = textwrap.dedent(
    """
    import asyncio, logging, os, sys
    from purgatory import Purgatory
    from purgatory.journal import Journal
    from tests.journal.kit import Fetch

    async def use(journal, purgatory):
        purgatory.try_complete_else_watch(Fetch(), ["a"])
        purgatory.cancel_for_key("a")
        await journal.flush()

    async def child():
        async with purgatory:
            await use(journal, purgatory)
            await journal.aclose()
        print(repr(journal), journal.statistics().recorded, flush=True)

    async def parent():
        async with journal, purgatory:
            await use(journal, purgatory)
            purgatory.try_complete_else_watch(Fetch(), ["b"])
            purgatory.cancel_for_key("b")  # its row is in the buffer
            yield
            await use(journal, purgatory)
        print(repr(journal))

    async def main():
        steps = parent()
        await anext(steps)
        pid = await asyncio.to_thread(fork)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        await anext(steps, None)

    def fork():
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(asyncio.wait_for(child(), 30))
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
    journal = Journal("journal")
    purgatory = Purgatory("p", observers=[journal])
    asyncio.run(main())
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_the_copy_in_a_forked_process_is_closed(tmp_path: pathlib.Path) -> None:
    """Its thread is the parent's: the child's rows are dropped and counted, and no call waits for the thread."""
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", ENTERED_BEFORE_THE_FORK]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    warning, child, parent = ran.stdout.splitlines()
    place = tmp_path.resolve() / "journal"
    assert warning.startswith(
        f"WARNING the journal {place} was entered before this process was forked and records nothing"
    )
    assert [child, parent] == [
        f"<Journal closed '{place}' written=0 buffered=0 dropped=1> 1",
        f"<Journal closed '{place}' written=3 buffered=0 dropped=0>",
    ]
    assert [row["op_id"] for row in rows(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("pending", [False, True], ids=["idle", "with a row"])
def test_a_journal_that_outlives_its_loop_goes_on_in_the_next(tmp_path: pathlib.Path, pending: bool) -> None:
    """Its timer runs in the loop that records the rows, whether or not the timer of the last loop was pending."""
    converted = threading.Event()

    def text(key: object) -> str:
        converted.set()
        return str(key)

    journal = Journal(tmp_path, key_text=text, rows_per_file=2, interval=3600.0)
    purgatory = Purgatory[Fetch]("p", observers=[journal])

    def use() -> None:
        purgatory.try_complete_else_watch(Fetch(), ["a"])
        purgatory.cancel_for_key("a")

    async def first() -> None:
        await journal.__aenter__()
        if pending:
            use()

    async def second() -> None:
        if pending:
            use()  # the file is full
            await journal.flush()
            converted.clear()
        use()
        assert await asyncio.to_thread(converted.wait, 10)
        await journal.aclose()
        await purgatory.aclose()

    asyncio.run(first())
    journal.interval = 0.001
    asyncio.run(second())
    assert [row["op_id"] for row in rows(tmp_path)] == ([1, 2, 3] if pending else [1])


async def test_refused_operations_of_an_empty_purgatory_are_noted(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """The refusals of a purgatory in which nothing waits any more are in the journal all the same."""
    journal = Journal(tmp_path, clock=clock)
    purgatory = Purgatory[Any]("empty", clock=clock, max_parked=1, observers=[journal])
    async with journal, purgatory:
        operation = Fetch(1.0)
        purgatory.try_complete_else_watch(operation, ["a"])
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(Fetch(1.0), ["a"])
        operation.cancel()
        assert len(purgatory) == 0
        await journal.flush()
    assert [row["refused"] for row in rows(tmp_path)] == [None, 1]


async def test_refused_operations_are_noted_with_the_next_file(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """One row per purgatory and file that has some: how many, and from when to when.  They are no operations."""
    async with virtual_journal(tmp_path, clock) as journal:
        full = Purgatory[Fetch]("full", clock=clock, observers=[journal], max_parked=1)
        calm = Purgatory[Fetch]("calm", clock=clock, observers=[journal])
        async with full, calm:
            full.try_complete_else_watch(Fetch(None), ["a"])
            for number in (3, 0, 2):
                for _ in range(number):
                    with pytest.raises(PurgatoryFull):
                        full.try_complete_else_watch(Fetch(None), ["a"])
                await clock.advance(10.0)
                await journal.flush()
            assert journal.statistics().recorded == 0
    notes = [row for row in rows(tmp_path) if row["refused"] is not None]
    assert [(row["purgatory"], row["outcome"], row["refused"], row["dropped"]) for row in notes] == [
        ("full", "dropped", 3, None),
        ("full", "dropped", 2, None),
    ]
    assert [(row["parked_at"], row["finished_at"]) for row in notes] == [
        (at(1_000), at(1_010)),
        (at(1_020), at(1_030)),
    ]
    assert [row["outcome"] for row in rows(tmp_path) if row["refused"] is None] == ["expired"]


@pytest.mark.parametrize("refused_first", [False, True])
async def test_the_range_of_refused_operations_begins_after_an_idle_time(
    tmp_path: pathlib.Path, clock: VirtualClock, refused_first: bool
) -> None:
    """It begins with the first row of the file, unless operations have been refused before."""

    def refuse() -> None:
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(Fetch(None), ["a"])

    async with virtual_journal(tmp_path, clock, interval=5.0) as journal:
        purgatory = Purgatory[Fetch]("full", clock=clock, observers=[journal], max_parked=1)
        async with purgatory:
            await clock.advance(3600.0)
            operation = Fetch(None)
            purgatory.try_complete_else_watch(operation, ["a"])
            if refused_first:
                refuse()
            operation.cancel()
            purgatory.try_complete_else_watch(Fetch(None), ["a"])
            await clock.advance(1.0)
            refuse()
            await clock.advance(4.0)
            await journal.flush()
    (note,) = [row for row in rows(tmp_path) if row["refused"] is not None]
    begin = at(1_000) if refused_first else at(4_600)
    assert (note["refused"], note["parked_at"], note["finished_at"]) == (1 + refused_first, begin, at(4_605))


async def test_a_wait_for_a_threshold_has_a_kind_that_users_know(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """In the journal and in dumps, the kind is ``wait``, as the method is."""
    async with (
        virtual_journal(tmp_path, clock) as journal,
        ThresholdPurgatory("p", clock=clock, observers=[journal]) as p,
    ):
        waiting = asyncio.ensure_future(p.wait("a", 5, timeout=1.0))
        await asyncio.sleep(0)
        assert [operation["kind"] for operation in p.purgatory.dump()["operations"]] == ["wait"]
        assert p.maybe_complete("a", 5) == 1
        await waiting
    assert [row["kind"] for row in rows(tmp_path)] == ["wait"]


async def test_closing_and_deadlines_are_told_apart(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Both are ``expired``; ``expired_by_closing`` is true for one of them, in recorded rows and in observed events."""
    recorded, by_hand = virtual_journal(tmp_path / "recorded", clock), virtual_journal(tmp_path / "by-hand", clock)

    class Forward(Observer):
        def expired(self, event: Event) -> None:
            by_hand.expired(event)

    async with recorded, by_hand, Purgatory[Fetch]("f", clock=clock, observers=[recorded, Forward()]) as purgatory:
        for timeout in (1.0, 5.0, None):
            purgatory.try_complete_else_watch(Fetch(timeout), ["a"])
        await clock.advance(1.0)
    for journal in (recorded, by_hand):
        found = sorted(rows(journal.path), key=lambda row: row["op_id"])
        assert [(row["outcome"], row["expired_by_closing"], row["lateness"]) for row in found] == [
            ("expired", False, 0.0),
            ("expired", True, None),
            ("expired", True, None),
        ]


async def test_the_kind_of_a_wait(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """``kind=`` is the kind in recorded rows, in pending rows, and in observed events."""
    recorded, by_hand = virtual_journal(tmp_path / "recorded", clock), virtual_journal(tmp_path / "by-hand", clock)

    class Forward(Observer):
        def expired(self, event: Event) -> None:
            by_hand.expired(event)

    async with Purgatory[Any]("p", clock=clock, observers=[recorded, Forward()]) as purgatory, recorded, by_hand:
        tasks = [
            asyncio.create_task(purgatory.wait_value(lambda: None, key="a", timeout=time, kind="GET /jobs/{id}"))
            for time in (1.0, None)
        ]
        await clock.advance(1.0)
    assert [(row["kind"], row["outcome"]) for row in rows(recorded.path)] == [
        ("GET /jobs/{id}", "expired"),
        ("GET /jobs/{id}", "pending"),
    ]
    assert [row["kind"] for row in rows(by_hand.path)] == ["GET /jobs/{id}"]
    assert await asyncio.gather(*tasks) == [None, None]


@pytest.mark.parametrize("path", ["", b""])
def test_an_empty_path_is_not_the_current_directory(path: Any) -> None:
    """It usually comes from a variable that is not set."""
    with pytest.raises(ValueError, match=r"path must be the path of a directory, got b?''"):
        Journal(path)
