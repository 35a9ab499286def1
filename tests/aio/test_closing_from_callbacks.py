"""Closing started from a callback of an operation, and callbacks that act while the purgatory closes."""

import asyncio
import sys
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed
from purgatory.testing import VirtualClock
from tests.helpers import Op, check, park_in_tasks


@pytest.mark.parametrize("how", ["check", "expiry", "park"])
async def test_closing_from_inside_on_complete(clock: VirtualClock, how: str) -> None:
    """``on_complete`` starts the closing; its own operation keeps its outcome, and the others are answered."""
    purgatory = Purgatory[Op]("test", clock=clock)
    closing: list[asyncio.Task[None]] = []

    def close(_: Op) -> None:
        closing.append(asyncio.create_task(purgatory.aclose()))

    op = Op(5, name="closer", on_complete=close)
    others = [Op(None, name="x"), Op(100, name="y")]
    tasks = await park_in_tasks(purgatory, clock, *others)
    if how == "park":
        op.ready = True
        assert await purgatory.park(op, ["b"]) == "closer"
    else:
        (task,) = await park_in_tasks(purgatory, clock, op)
        op.ready = True
        if how == "check":
            assert purgatory.check_and_complete("a") == 1
        else:
            await clock.advance(5)
        assert await task == "closer"
    await asyncio.gather(*closing)
    assert await asyncio.gather(*tasks) == ["x", "y"]
    assert op.outcome is (Outcome.EXPIRED if how == "expiry" else Outcome.COMPLETED)
    assert not purgatory.timer.running
    purgatory._check()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks come with 3.12")
@pytest.mark.parametrize("how", ["check", "expiry"])
async def test_closing_with_an_eager_task_from_inside_on_complete(clock: VirtualClock, how: str) -> None:
    """An eager task closes the purgatory within ``on_complete``, in the reaper's turn."""
    loop = asyncio.get_running_loop()
    purgatory = Purgatory[Op]("test", clock=clock)
    closing: list[asyncio.Task[None]] = []

    def close(_: Op) -> None:
        closing.append(asyncio.Task(purgatory.aclose(), loop=loop, eager_start=True))  # type: ignore[call-arg]

    op = Op(5, name="closer", on_complete=close)
    others = [Op(None, name="x"), Op(5, name="y"), Op(100, name="z")]
    tasks = await park_in_tasks(purgatory, clock, op, *others)
    if how == "check":
        op.ready = True
        assert purgatory.check_and_complete("a") == 1
    await clock.advance(5)
    await asyncio.gather(*closing)
    assert await asyncio.gather(*tasks) == ["closer", "x", "y", "z"]
    assert not purgatory.timer.running
    purgatory._check()


async def test_parking_in_a_callback_during_closing_is_refused(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The refusal is an error of that callback only, and the closing continues."""
    purgatory = Purgatory[Op]("test", clock=clock)
    again = Op(5)
    ops = [Op(None, on_complete=lambda _: purgatory.try_complete_else_watch(again, ["a"])), Op(None, name="x")]
    tasks = await park_in_tasks(purgatory, clock, *ops)
    await purgatory.aclose()
    with pytest.raises(PurgatoryClosed):
        await tasks[0]
    assert await tasks[1] == "x"
    assert again.outcome is Outcome.PENDING
    check(purgatory, parked=0, failed=1, expired_by_closing=1)


async def test_a_check_in_a_callback_during_closing_completes_operations(clock: VirtualClock) -> None:
    """A check in a callback during the closing completes the operations whose condition holds, before they expire."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None, on_complete=lambda _: purgatory.check_and_complete("b")) for _ in range(3)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    ready = Op(None)
    purgatory.try_complete_else_watch(ready, ["b"])
    ready.ready = True
    await purgatory.aclose()
    assert {op.outcome for op in ops} == {Outcome.EXPIRED}
    assert ready.outcome in (Outcome.COMPLETED, Outcome.EXPIRED)
    check(purgatory, parked=0)
