"""The end of a journal: however many tasks wait for it or are cancelled, all rows are written or counted once."""

import asyncio
import pathlib
import shutil
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

from purgatory import Purgatory
from purgatory.journal import Journal
from purgatory.testing import VirtualClock
from tests.journal.kit import Fetch, rows


class Slow:
    """A journal with one row, whose thread waits until it may go on."""

    def __init__(self, path: pathlib.Path, clock: VirtualClock) -> None:
        self.go_on = threading.Event()
        self.journal = Journal(path, clock=clock, key_text=self.text)

    def text(self, key: object) -> str:
        assert self.go_on.wait(30)
        return str(key)


@pytest_asyncio.fixture
async def slow(tmp_path: pathlib.Path, clock: VirtualClock) -> AsyncIterator[Slow]:
    slow = Slow(tmp_path / "journal", clock)
    await slow.journal.__aenter__()
    async with Purgatory[Fetch]("p", clock=clock, observers=[slow.journal]) as purgatory:
        purgatory.try_complete_else_watch(Fetch(), ["a"])
    yield slow
    slow.go_on.set()
    await slow.journal.aclose()


def start(method: Any) -> asyncio.Task[None]:
    return asyncio.ensure_future(method())


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_second_call_waits_for_the_first(tmp_path: pathlib.Path, slow: Slow) -> None:
    """``aclose()`` and ``flush()`` return when the rows are written, in any order of the calls."""
    calls = [start(slow.journal.aclose)]
    await turns()
    calls += [start(slow.journal.aclose), start(slow.journal.flush)]
    await turns()
    assert not any(call.done() for call in calls)
    assert slow.journal.statistics().buffered == 1
    slow.go_on.set()
    await calls[1]
    assert slow.journal.statistics().written == 1
    await asyncio.gather(*calls)
    assert [row["op_id"] for row in rows(tmp_path)] == [1]


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_the_cancellation_of_one_call_leaves_the_other_waiting(
    tmp_path: pathlib.Path, slow: Slow, cancelled: int
) -> None:
    """The first or the second one; a third call waits too."""
    calls = [start(slow.journal.aclose)]
    await turns()
    calls.append(start(slow.journal.aclose))
    await turns()
    calls[cancelled].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[cancelled]
    third = start(slow.journal.aclose)
    await turns()
    assert not calls[1 - cancelled].done()
    assert not third.done()
    slow.go_on.set()
    await calls[1 - cancelled]
    assert slow.journal.statistics().written == 1
    await third
    assert [row["op_id"] for row in rows(tmp_path)] == [1]


async def test_rows_are_counted_when_all_calls_are_cancelled(
    tmp_path: pathlib.Path, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread counts and logs the rows that it cannot write."""
    closing = start(slow.journal.aclose)
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    shutil.rmtree(tmp_path / "journal")
    slow.go_on.set()
    await asyncio.get_running_loop().run_in_executor(None, slow.journal._writer._executor.shutdown)
    statistics = slow.journal.statistics()
    assert (statistics.recorded, statistics.written, statistics.dropped, statistics.buffered) == (1, 0, 1, 0)
    assert caplog.text.count("has dropped 1 rows") == 1


async def test_flush_after_the_end_has_nothing_to_do(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Nor before the journal is entered."""
    journal = Journal(tmp_path, clock=clock)
    await journal.flush()
    async with journal, Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory:
        purgatory.try_complete_else_watch(Fetch(), ["a"])
    await journal.flush()
    await journal.aclose()
    assert (journal.statistics().written, journal.statistics().failures) == (1, 0)


async def test_closing_a_journal_that_was_not_entered_does_nothing(tmp_path: pathlib.Path) -> None:
    """It cannot be entered afterwards."""
    journal = Journal(tmp_path / "journal")
    await journal.aclose()
    await journal.aclose()
    await journal.flush()
    with pytest.raises(RuntimeError, match="already been entered"):
        await journal.__aenter__()
    assert not (tmp_path / "journal").exists()


async def test_an_interrupt_while_the_journal_closes_is_not_its_end(
    tmp_path: pathlib.Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call writes the rows, each once."""
    journal = Journal(tmp_path, clock=clock)
    await journal.__aenter__()
    async with Purgatory[Fetch]("p", clock=clock, observers=[journal]) as purgatory:
        purgatory.try_complete_else_watch(Fetch(), ["a"])

        def interrupt(*_arguments: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(journal._writer, "close", interrupt)
            with pytest.raises(KeyboardInterrupt):
                await journal.aclose()
        await journal.aclose()
    assert [row["outcome"] for row in rows(tmp_path)] == ["pending"]
