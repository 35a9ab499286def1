"""The example with a quorum and a lock for each order, in virtual time."""

import asyncio
from pathlib import Path

import pytest

from examples import acknowledgements
from examples.acknowledgements import acknowledge, place
from purgatory import Purgatory, PurgatoryClosed
from purgatory.locks import KeyedLock
from purgatory.testing import VirtualClock


@pytest.fixture
def room(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Purgatory:
    """Give the example a purgatory in virtual time."""
    room = Purgatory("orders", clock=clock)
    monkeypatch.setattr(acknowledgements, "room", room)
    monkeypatch.setattr(acknowledgements, "locks", KeyedLock(room))
    return room


async def test_two_of_three_acknowledgements_are_enough(room: Purgatory, clock: VirtualClock) -> None:
    """A worker counts once, and the third one comes too late."""
    async with room:
        placed = asyncio.create_task(place("order-7"))
        await clock.advance(1)
        assert acknowledge("order-7", "worker-b")
        assert not acknowledge("order-7", "worker-b")
        await clock.advance(28.9)
        assert not placed.done()
        assert acknowledge("order-7", "worker-a")
        assert not acknowledge("order-7", "worker-c")
        assert await placed == ["worker-a", "worker-b"]
        assert not acknowledge("order-7", "worker-c")


async def test_one_acknowledgement_is_not_enough(room: Purgatory, clock: VirtualClock) -> None:
    """After 30 s the order fails, and nothing of it is left."""
    async with room:
        placed = asyncio.create_task(place("order-7"))
        await clock.settle()
        acknowledge("order-7", "worker-a")
        await clock.advance(30)
        with pytest.raises(TimeoutError, match="1 of 2 members"):
            await placed
        assert not acknowledgements.acks
        assert len(acknowledgements.locks) == 0


async def test_one_task_at_a_time_for_each_order(room: Purgatory, clock: VirtualClock) -> None:
    """A second task for the same order waits up to 5 s; other orders do not wait."""
    async with room:
        tasks = [asyncio.create_task(place(order)) for order in ("order-7", "order-7", "order-8")]
        await clock.advance(1)
        assert set(acknowledgements.acks) == {"order-7", "order-8"}
        for order in ("order-7", "order-8"):
            for worker in ("worker-a", "worker-b"):
                acknowledge(order, worker)
        await clock.settle()
        assert [task.done() for task in tasks] == [True, False, True]
        third = asyncio.create_task(place("order-7"))
        await clock.advance(5)
        with pytest.raises(TimeoutError, match="the lock on 'order-7'"):
            await third
    with pytest.raises(PurgatoryClosed):
        await tasks[1]


def test_it_has_at_most_25_lines() -> None:
    """Imports and blank lines count."""
    assert len(Path(acknowledgements.__file__).read_text(encoding="utf-8").splitlines()) <= 25
