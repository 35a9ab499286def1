"""Waiting in a test until requests are parked."""

import asyncio
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock, parked
from tests.helpers import Op


async def test_it_returns_when_enough_operations_are_parked(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """At least this number; at once if they are parked already."""
    waiting = [asyncio.create_task(parked(purgatory, number)) for number in (1, 3)]
    for number in range(3):
        await clock.settle()
        assert [task.done() for task in waiting] == [number > 0, False]
        purgatory.try_complete_else_watch(Op(), ["a"])
    await asyncio.gather(*waiting)
    await parked(purgatory, 2)
    purgatory.cancel_for_key("a")


async def test_zero_waits_until_none_is_parked(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """However the last operation ends."""
    await parked(purgatory, 0)
    endings = (Op.force_complete, Op.cancel, lambda _: purgatory.fail_for_key("a", ValueError()))
    for end in endings:
        operation = Op()
        purgatory.try_complete_else_watch(operation, ["a"])
        waiting = asyncio.create_task(parked(purgatory, 0))
        await clock.settle()
        assert not waiting.done()
        end(operation)  # type: ignore[no-untyped-call]
        await waiting
    purgatory.try_complete_else_watch(Op(1.0), ["a"])
    waiting = asyncio.create_task(parked(purgatory, 0))
    await clock.advance(1.0)
    await waiting


async def test_it_leaves_no_observer(purgatory: Purgatory[Any]) -> None:
    """Also when its task is cancelled."""
    waiting = asyncio.create_task(parked(purgatory))
    await asyncio.sleep(0)
    assert len(purgatory._core._notifier.observers()) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert purgatory._core._notifier.observers() == []


async def test_a_relay_stands_for_its_purgatory(purgatory: Purgatory[Any]) -> None:
    """The relay parks in its purgatory."""
    await parked(Relay(purgatory, MemoryTransport()), 0)


@pytest.mark.parametrize(("room", "number"), [(3, 1), (None, -1), (None, 1.5), (None, True)])
async def test_bad_arguments_are_refused(purgatory: Purgatory[Any], room: Any, number: Any) -> None:
    """The error names the argument."""
    with pytest.raises((TypeError, ValueError), match="must be"):
        await parked(purgatory if room is None else room, number)


async def test_another_loop_is_refused() -> None:
    """The error names the call that is right, whether the purgatory's loop runs already or starts later."""
    room = Purgatory[Any]("other")
    waiting = asyncio.create_task(parked(room))
    await asyncio.sleep(0)

    async def other() -> None:
        async with room:
            room.try_complete_else_watch(Op(), ["a"])
            with pytest.raises(RuntimeError, match=r"client\.portal\.call\(parked, room\)"):
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(parked(room), here))
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.wait([waiting]), here))

    here = asyncio.get_running_loop()
    await asyncio.to_thread(asyncio.run, other())
    with pytest.raises(RuntimeError, match="is running in another thread"):
        await waiting


async def test_a_purgatory_that_closes_ends_the_wait() -> None:
    """No operation can be parked any longer, but waiting until none is parked is still possible."""
    async with Purgatory[Any]("closing") as room:
        waiting = asyncio.create_task(parked(room))
        await asyncio.sleep(0)
    with pytest.raises(PurgatoryClosed):
        await waiting
    with pytest.raises(PurgatoryClosed):
        await parked(room)
    await parked(room, 0)
