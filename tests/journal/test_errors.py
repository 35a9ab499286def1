"""Errors in the journal's thread: none ends it, each is counted and logged, and closing does not raise."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

import pyarrow as pa

from purgatory import Purgatory
from purgatory.journal import Journal, batch, files, writer
from purgatory.testing import VirtualClock
from tests.journal.kit import Fetch, rows


def end(purgatory: Purgatory[Fetch]) -> None:
    operation = Fetch()
    purgatory.try_complete_else_watch(operation, ["a"])
    operation.force_complete()


def fails_once(function: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """The function, which raises this error when it is called for the first time."""
    errors = [error]

    def called(*arguments: Any, **more: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*arguments, **more)

    return called


def fails_while(function: Callable[..., Any], error: BaseException, failing: list[bool]) -> Callable[..., Any]:
    """The function, which raises this error as long as the list is not empty."""

    def called(*arguments: Any, **more: Any) -> Any:
        if failing:
            raise error
        return function(*arguments, **more)

    return called


@pytest.mark.parametrize("name", ["by_date", "to_table", "create_folder", "write_file"])
async def test_rows_wait_while_there_is_no_memory(
    tmp_path: pathlib.Path,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """A lack of memory is handled like a full disk, at each step: counted, logged, and retried."""
    failing = [True]
    monkeypatch.setattr(writer, name, fails_while(getattr(writer, name), MemoryError(), failing))
    async with (
        Journal(tmp_path, clock=clock, partition_by="date") as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory)
        await journal.flush()
        statistics = journal.statistics()
        assert (statistics.written, statistics.buffered, statistics.dropped) == (0, 1, 0)
        assert statistics.failures >= 1
        assert "MemoryError" in str(statistics.last_error)
        assert caplog.text.count("cannot be written and will be retried: MemoryError") == 1
        failing.clear()
        await journal.flush()
        assert journal.statistics().written == 1
    assert [row["op_id"] for row in rows(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("by_date", RuntimeError("no date")),
        ("to_table", SystemExit()),
        ("write_file", pa.ArrowInvalid("no file")),
        ("write_file", pa.ArrowNotImplementedError("no file")),
    ],
)
async def test_rows_that_an_error_keeps_from_the_disk_are_a_gap(
    tmp_path: pathlib.Path,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    error: BaseException,
) -> None:
    """The other rows are written."""
    monkeypatch.setattr(writer, name, fails_once(getattr(writer, name), error))
    async with (
        Journal(tmp_path, clock=clock, partition_by="date") as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory)
        await journal.flush()
        assert (journal.statistics().dropped, journal.statistics().failures) == (1, 1)
        end(purgatory)
    assert [(row["outcome"], row["op_id"], row["dropped"]) for row in rows(tmp_path)] == [
        ("dropped", None, 1),
        ("completed", 2, None),
    ]
    assert (journal.statistics().written, journal.statistics().dropped, journal.statistics().buffered) == (1, 1, 0)
    assert "has dropped 1 rows that cannot be written" in caplog.text


async def test_a_step_that_always_fails_costs_its_rows_and_no_more(
    tmp_path: pathlib.Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the gap can be written: the rows are counted as dropped once, and closing does not raise."""

    def refuse(*_arguments: Any) -> None:
        raise pa.ArrowInvalid("no file")

    monkeypatch.setattr(writer, "write_file", refuse)
    async with (
        Journal(tmp_path, clock=clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        for _ in range(3):
            end(purgatory)
            await journal.flush()
    statistics = journal.statistics()
    assert (statistics.recorded, statistics.dropped, statistics.written, statistics.buffered) == (3, 3, 0, 0)
    assert statistics.failures == 6
    assert rows(tmp_path) == []


async def test_an_error_outside_all_steps_ends_one_attempt_only(
    tmp_path: pathlib.Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no memory to drop the rows either: they wait for the next attempt."""
    failing = [True]
    monkeypatch.setattr(writer, "to_table", fails_while(batch.to_table, RuntimeError("no"), failing))
    monkeypatch.setattr(batch.Batch, "as_gap", fails_while(batch.Batch.as_gap, MemoryError(), failing))
    async with (
        Journal(tmp_path, clock=clock) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory)
        await journal.flush()
        assert (journal.statistics().buffered, journal.statistics().dropped) == (1, 0)
        failing.clear()
        end(purgatory)
        await journal.flush()
        assert journal.statistics().written == 2
    assert [row["op_id"] for row in rows(tmp_path)] == [1, 2]


async def test_batches_that_were_set_aside_survive_such_an_error(
    tmp_path: pathlib.Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written by the next attempt, before the batch with the error."""
    failing = [True]
    async with (
        Journal(tmp_path, clock=clock, epoch_ms=0, partition_by="date") as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        (tmp_path / "date=1970-01-01").write_text("in the way")
        for _ in range(3):
            end(purgatory)
            await journal.flush()
        monkeypatch.setattr(writer, "to_table", fails_while(batch.to_table, RuntimeError("no"), failing))
        monkeypatch.setattr(batch.Batch, "as_gap", fails_while(batch.Batch.as_gap, MemoryError(), failing))
        await clock.advance(86_400.0)
        end(purgatory)
        await journal.flush()
        assert (journal.statistics().buffered, journal.statistics().dropped) == (4, 0)
        failing.clear()
        (tmp_path / "date=1970-01-01").unlink()
    assert [row["op_id"] for row in rows(tmp_path)] == [1, 2, 3, 4]
    assert (journal.statistics().written, journal.statistics().dropped) == (4, 0)


@pytest.mark.parametrize("always", [False, True])
async def test_a_thread_that_cannot_start_detaches_no_journal(
    tmp_path: pathlib.Path,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    always: bool,
) -> None:
    """The attempt has failed: counted, logged, and retried; when the journal closes, the rows are dropped."""
    async with (
        Journal(tmp_path, clock=clock, rows_per_file=1) as journal,
        Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        error = RuntimeError("can't start new thread")
        submit = fails_once(journal._writer._executor.submit, error)

        def refuse(*_arguments: Any) -> None:
            raise error

        monkeypatch.setattr(journal._writer._executor, "submit", refuse if always else submit)
        end(purgatory)
        assert purgatory.statistics().observers_detached == 0
        assert (journal.statistics().buffered, journal.statistics().failures) == (1, 1)
        await journal.flush()
        assert journal.statistics().written == 1 - always
    statistics = journal.statistics()
    assert (statistics.written, statistics.dropped, statistics.buffered) == (1 - always, int(always), 0)
    assert "will be retried: RuntimeError: can't start new thread" in caplog.text


async def test_an_interrupt_while_rows_are_handed_over_leaves_them_for_the_next_attempt(
    tmp_path: pathlib.Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt propagates."""
    async with Journal(tmp_path, clock=clock) as journal, Purgatory[Fetch]("p", clock=clock, observers=[journal]) as p:
        end(p)
        submit = fails_once(journal._writer._executor.submit, KeyboardInterrupt())
        monkeypatch.setattr(journal._writer._executor, "submit", submit)
        with pytest.raises(KeyboardInterrupt):
            await journal.flush()
        await journal.flush()
        assert journal.statistics().written == 1


def test_a_file_that_cannot_be_finished_leaves_nothing_behind(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error: its name is not used again."""
    table = files.ARROW_SCHEMA.empty_table()
    for error in (OSError(), MemoryError(), KeyboardInterrupt()):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fails_once(os.replace, error))
            with pytest.raises(type(error)):
                files.write_file(table, tmp_path, "s", 0)
        assert list(tmp_path.iterdir()) == []
