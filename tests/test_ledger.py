"""Rows instead of events."""

from typing import Any

import pytest

from purgatory import Observer, Purgatory
from purgatory.ledger import Ledger, note_in
from purgatory.testing import VirtualClock
from tests.helpers import Op


class Pages(Ledger):
    """Turns the page every so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.pages: list[list[Any]] = []
        self.turn_at = rows * 8

    def turn(self) -> None:
        self.pages.append(self.cells)
        self.cells = []


class Interrupted(Ledger):
    def turn(self) -> None:
        raise KeyboardInterrupt


class Broken(Ledger):
    def turn(self) -> None:
        raise RuntimeError("no")


async def test_each_ending_is_a_row_and_full_pages_are_turned(clock: VirtualClock) -> None:
    """Eight cells per ending, in the order of the endings; turn() is called when the list is long enough."""
    ledger = Pages(2)
    async with Purgatory[Any]("p", clock=clock, observers=[ledger]) as purgatory:
        operations = [Op(timeout=2.0) for _ in range(5)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["a", "b"])
        await clock.advance(1.0)
        operations[1].force_complete()
        operations[0].cancel()
        purgatory.fail_for_key("a", ValueError("no"))
    parked_ms = 1_000_000
    cells = [cell for page in ledger.pages for cell in page] + ledger.cells
    rows = [tuple(cells[start : start + 8]) for start in range(0, len(cells), 8)]
    common = (("a", "b"), parked_ms, parked_ms + 2_000, parked_ms + 1_000)
    states = [(1, 2), (3, 1), (4, 3), (4, 4), (4, 5)]
    assert rows == [(state, "p", Op, op_id, *common) for state, op_id in states]
    assert [len(page) for page in ledger.pages] == [16, 16]


async def test_a_ledger_that_raises_is_detached(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """It is reported, counted, and given nothing more; the operations end as they should."""
    broken, sound = Broken(), Pages(100)
    async with Purgatory[Any]("p", clock=clock, observers=[broken, sound]) as purgatory:
        for _ in range(2):
            operation = Op(timeout=None)
            purgatory.try_complete_else_watch(operation, ["a"])
            assert operation.force_complete()
        assert purgatory.statistics().observers_detached == 1
    assert len(broken.cells) == 8
    assert len(sound.cells) == 16
    assert reported[0]["observer"] is broken
    with pytest.raises(NotImplementedError):
        Ledger().turn()


async def test_an_observer_may_know_where_it_is_attached(clock: VirtualClock) -> None:
    """attached() is called with the purgatory, which can tell who waits without having told it all the time."""

    class Guest(Observer):
        def completed(self, event: Any) -> None:
            """Heard, and of no interest."""

        def attached(self, purgatory: Any) -> None:
            self.purgatory = purgatory

    guest = Guest()
    async with Purgatory[Any]("p", clock=clock, observers=[guest]) as purgatory:
        assert guest.purgatory is purgatory
        purgatory.try_complete_else_watch(Op(timeout=2.0), ["a", "b"])
        purgatory.try_complete_else_watch(Op(timeout=None), ["c"])
        events = purgatory.parked_events()
        assert [(event.op_id, event.keys, event.deadline, event.finished_at) for event in events] == [
            (1, ("a", "b"), 1002.0, None),
            (2, ("c",), None, None),
        ]


async def test_an_interrupt_passes_through_and_the_ledger_stays(clock: VirtualClock) -> None:
    """KeyboardInterrupt is an order to the program, not a fault of the ledger: it keeps being filled."""
    ledger = Interrupted()
    purgatory = Purgatory[Any]("p", clock=clock, observers=[ledger])
    for rows in (1, 2):
        operation = Op()
        purgatory.try_complete_else_watch(operation, ["a"])
        with pytest.raises(KeyboardInterrupt):
            operation.cancel()
        assert len(ledger.cells) == 8 * rows
    assert purgatory.statistics().observers_detached == 0
    purgatory._check()


async def test_what_a_ledger_raises_is_reported(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """The loop's handler gets the error and the ledger, once; a ledger that was never changed turns at each row."""
    ledger = Broken()
    assert ledger.turn_at == 1
    async with Purgatory[Any]("p", clock=clock, observers=[ledger]) as purgatory:
        for _ in range(2):
            operation = Op()
            purgatory.try_complete_else_watch(operation, ["a"])
            operation.cancel()
    (context,) = reported
    assert isinstance(context["exception"], RuntimeError)
    assert context["observer"] is ledger


def test_a_row_may_be_noted_by_hand() -> None:
    """Whoever writes rows of another kind into the same pages appends them as the house does."""
    ledger = Pages(2)
    for op_id in (1, 2, 3):
        note_in(ledger, 1, "by hand", Op, op_id, ("a",), 5, 6, 7)
    assert [len(page) for page in ledger.pages] == [16]
    assert ledger.cells == [1, "by hand", Op, 3, ("a",), 5, 6, 7]
