"""Odd classes, names and keys, and rows that cannot be written: the other rows of the file are not affected."""

import asyncio
import pathlib
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra 'journal' is not installed")

from purgatory import Purgatory
from purgatory.events import Event, Outcome
from purgatory.journal import Journal
from purgatory.testing import VirtualClock
from tests.journal.kit import Fetch, rows


class NameRaises(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class NameIsInt(type):
    __name__ = 5  # type: ignore[assignment]


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]


class HashRaises(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")


class EqRaises(type):
    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("no equality")

    def __hash__(cls) -> int:
        return hash(Fetch)


ODD = [NameRaises, NameIsInt, Unhashable, HashRaises, EqRaises]


def end(purgatory: Purgatory[Any], operation: Fetch, key: Any = "a") -> None:
    purgatory.try_complete_else_watch(operation, [key])
    operation.force_complete()


@pytest.mark.parametrize("metaclass", ODD, ids=lambda metaclass: type.__dict__["__name__"].__get__(metaclass))
async def test_the_class_of_an_operation_may_be_odd(
    tmp_path: pathlib.Path, clock: VirtualClock, metaclass: Any
) -> None:
    """Its name is its real name, and a metaclass that raises costs no row."""
    odd = metaclass("Odd", (Fetch,), {})
    async with (
        Journal(tmp_path, clock=clock) as journal,
        Purgatory[Any]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        for kind in (Fetch, odd, Fetch):
            end(purgatory, kind())
    assert [row["kind"] for row in rows(tmp_path)] == ["Fetch", "Odd", "Fetch"]
    assert (journal.statistics().written, journal.statistics().failures) == (3, 0)


@pytest.mark.parametrize("metaclass", ODD, ids=lambda metaclass: type.__dict__["__name__"].__get__(metaclass))
@pytest.mark.parametrize("has_text", [True, False])
async def test_the_class_of_a_key_may_be_odd(
    tmp_path: pathlib.Path, clock: VirtualClock, metaclass: Any, has_text: bool
) -> None:
    """Also if the key has no text, which names its class."""

    def text(_key: object) -> str:
        if has_text:
            return "odd"
        raise ValueError("no text")

    key = metaclass("Key", (), {"__repr__": text})()
    async with (
        Journal(tmp_path, clock=clock) as journal,
        Purgatory[Any]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory, Fetch(), "a")
        end(purgatory, Fetch(), key)
    assert [row["keys"] for row in rows(tmp_path)] == [["a"], ["odd" if has_text else "<Key: ValueError>"]]
    assert (journal.statistics().written, journal.statistics().failures) == (2, 0)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_the_text_of_a_key_may_raise_anything(
    tmp_path: pathlib.Path, clock: VirtualClock, error: type[BaseException]
) -> None:
    """An error that ends other programs does not end the journal."""

    class Key:
        def __repr__(self) -> str:
            raise error

    async with (
        Journal(tmp_path, clock=clock) as journal,
        Purgatory[Any]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory, Fetch(), Key())
        await journal.flush()
        end(purgatory, Fetch(), "a")
    assert [row["keys"] for row in rows(tmp_path)] == [[f"<Key: {error.__name__}>"], ["a"]]
    assert (journal.statistics().written, journal.statistics().failures) == (2, 0)


async def test_a_key_may_be_a_str_with_methods_of_its_own(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """A lone surrogate is written as its escape sequence without a method of the key."""

    class Key(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self

        def encode(self, *arguments: Any, **more: Any) -> bytes:
            raise RuntimeError("no encoding")

    async with (
        Journal(tmp_path, clock=clock) as journal,
        Purgatory[Any]("p", clock=clock, observers=[journal]) as purgatory,
    ):
        end(purgatory, Fetch(), Key("s\udc80"))
    assert [row["keys"] for row in rows(tmp_path)] == [["s\\udc80"]]


async def test_a_purgatory_may_have_a_name_with_a_lone_surrogate(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """The journal contains the escape sequence, as for keys."""
    async with (
        Journal(tmp_path, clock=clock) as journal,
        Purgatory[Any]("caf\udce9", clock=clock, observers=[journal]) as odd,
        Purgatory[Any]("plain", clock=clock, observers=[journal]) as plain,
    ):
        for purgatory in (odd, plain):
            end(purgatory, Fetch())
    assert [row["purgatory"] for row in rows(tmp_path)] == ["caf\\udce9", "plain"]
    assert journal.statistics().failures == 0


async def test_a_purgatory_may_have_a_name_that_cannot_be_hashed(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """A subclass of str is written as its text; two purgatories are distinguished although the names are equal."""

    class Name(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise RuntimeError("no hash")

    async with Journal(tmp_path, clock=clock) as journal:
        for _ in range(2):
            purgatory = Purgatory[Any](Name("name"), clock=clock, observers=[journal])
            end(purgatory, Fetch())
            await purgatory.aclose()
    found = rows(tmp_path)
    assert [row["purgatory"] for row in found] == ["name"] * 2
    assert len({row["instance"] for row in found}) == 2
    assert journal.statistics().failures == 0


def by_hand(op_id: Any, parked_ms: Any, finished_ms: Any) -> Event:
    return Event(Fetch(), "p", op_id, ("a",), parked_ms, None, finished_ms, Outcome.COMPLETED, None, 1)


@pytest.mark.parametrize("partition_by", [None, "date"])
async def test_rows_that_cannot_be_written_are_a_gap_in_the_journal(
    tmp_path: pathlib.Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture, partition_by: Any
) -> None:
    """They are counted as dropped at once, in a ``dropped`` row too, and the log does not promise a retry."""
    async with Journal(tmp_path, clock=clock, epoch_ms=0, partition_by=partition_by) as journal:
        journal.completed(by_hand(1, 1_000, 2_000))
        await journal.flush()
        for op_id, finished_ms in ((2, 3_000), (1 << 70, 9_000)):
            journal.completed(by_hand(op_id, 2_000, finished_ms))
        await journal.flush()
        statistics = journal.statistics()
        assert (statistics.written, statistics.dropped, statistics.buffered) == (1, 2, 0)
        assert statistics.failures == 1
        assert "OverflowError" in str(statistics.last_error)
        journal.completed(by_hand(4, 4_000, 5_000))
    (one, gap, four) = rows(tmp_path)
    assert (one["op_id"], four["op_id"]) == (1, 4)
    assert (gap["outcome"], gap["dropped"], gap["source"]) == ("dropped", 2, one["source"])
    assert [gap[name].timestamp() for name in ("parked_at", "finished_at")] == [3.0, 9.0]
    assert journal.statistics().written == 2
    (error,) = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert "has dropped 2 rows that cannot be written: OverflowError" in error
    assert "retried" not in caplog.text
    assert "again" not in caplog.text


async def test_a_gap_stands_for_all_rows_that_were_lost_until_then(tmp_path: pathlib.Path, clock: VirtualClock) -> None:
    """Rows that did not fit, and the rows with which the note about them could not be written."""
    directory = tmp_path / "journal"
    async with Journal(directory, clock=clock, epoch_ms=0, rows_per_file=2, max_buffered=3) as journal:
        directory.rename(tmp_path / "away")
        for op_id in (0, 1, 2, 3, "no number"):
            journal.completed(by_hand(op_id, 1_000, 3_000 if op_id == 2 else 7_000))
        (tmp_path / "away").rename(directory)
        await journal.flush()
        assert (journal.statistics().written, journal.statistics().dropped) == (2, 3)
    gaps = [row for row in rows(directory) if row["outcome"] == "dropped"]
    assert [(row["dropped"], row["parked_at"].timestamp(), row["finished_at"].timestamp()) for row in gaps] == [
        (3, 3.0, 7.0)
    ]


@pytest.mark.parametrize("when", [None, 1 << 70])
async def test_rows_without_a_time_are_counted(
    tmp_path: pathlib.Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture, when: Any
) -> None:
    """Rows by hand without a time are a gap at the clock's zero; a time that no column can contain has no gap."""
    async with Journal(tmp_path, clock=clock, epoch_ms=0) as journal:
        journal.completed(by_hand("no number", when, when))
        await journal.flush()
        assert (journal.statistics().dropped, journal.statistics().buffered) == (1, 0)
        journal.completed(by_hand(2, 1_000, 1_000))
    found = [(row["outcome"], row["parked_at"].timestamp()) for row in rows(tmp_path)]
    gap = [("dropped", 0.0)] if when is None else []
    assert found == [*gap, ("completed", 1.0)]
    assert ("cannot note that rows were dropped" in caplog.text) == (when is not None)
    assert (journal.statistics().written, journal.statistics().dropped) == (1, 1)
