"""Closing answers every operation, in slices, and ends the reaper."""

import asyncio
import itertools
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park_in_tasks


async def test_every_operation_is_answered_and_the_reaper_ends(clock: VirtualClock) -> None:
    """Closing expires every parked operation, with and without a deadline, and leaves no task behind."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(5, name="x"), Op(None, name="y")]
    tasks = await park_in_tasks(purgatory, clock, *ops)
    await purgatory.aclose()
    assert await asyncio.gather(*tasks) == ["x", "y"]
    assert [op.outcome for op in ops] == [Outcome.EXPIRED] * 2
    assert [op.calls[-1] for op in ops] == ["expire"] * 2
    assert purgatory.statistics().lateness.count == 0
    check(purgatory, parked=0, expired_by_closing=2, watched=0, num_delayed=0)
    assert not purgatory.timer.running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert clock.next_alarm_ms is None


async def test_a_closed_purgatory_refuses_operations(clock: VirtualClock) -> None:
    """A closed purgatory refuses operations, which stay PENDING; checks and statistics still work."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await purgatory.aclose()
    op = Op(5)
    with pytest.raises(PurgatoryClosed, match="'test' is closed"):
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(PurgatoryClosed):
        await purgatory.park(op, ["a"])
    with pytest.raises(PurgatoryClosed):
        async with purgatory:
            pass
    assert op.outcome is Outcome.PENDING
    assert op.calls == []
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.cancel_for_key("a") == []
    check(purgatory, submitted=0)


async def test_closing_twice_is_closing_once(clock: VirtualClock) -> None:
    """A second call, later or concurrent, returns when every operation is answered."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(100, name="x")
    (task,) = await park_in_tasks(purgatory, clock, op)
    first = asyncio.create_task(purgatory.aclose(grace=10))
    second = asyncio.create_task(purgatory.aclose())
    await clock.settle()
    assert not first.done()
    assert not second.done()
    await clock.advance(10)
    await asyncio.gather(first, second)
    assert not purgatory.timer.running
    await purgatory.aclose()
    assert await task == "x"
    check(purgatory, expired_by_closing=1)


async def test_when_the_second_call_returns_the_reaper_is_gone_too(clock: VirtualClock) -> None:
    """Every call of aclose() waits for the complete closing."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await park_in_tasks(purgatory, clock, Op(100))
    first = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    await purgatory.aclose()
    assert not purgatory.timer.running
    assert purgatory.timer.closed
    await first


async def test_a_failing_ending_does_not_stop_the_closing(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """An ``on_complete`` that raises while the purgatory closes fails only its own operation."""

    def boom(_: Op) -> None:
        raise Boom

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None, on_complete=boom), Op(None, on_expiration=boom), Op(None)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    await purgatory.aclose()
    assert [op.outcome for op in ops] == [Outcome.FAILED, Outcome.EXPIRED, Outcome.EXPIRED]
    assert len(reported) == 2


async def test_many_are_answered_in_slices(clock: VirtualClock) -> None:
    """Closing a full purgatory lets other callbacks run in between."""
    purgatory = Purgatory[Op]("test", clock=clock)
    for number in range(5000):
        purgatory.try_complete_else_watch(Op(None), [number])
    left: list[int] = []

    def look() -> None:
        left.append(len(purgatory))
        if len(purgatory):
            asyncio.get_running_loop().call_soon(look)

    look()
    await purgatory.aclose()
    steps = [before - after for before, after in itertools.pairwise(left)]
    assert len(steps) > 10
    assert max(steps) <= 1024
    check(purgatory, parked=0, expired_by_closing=5000)


async def test_closing_one_purgatory_leaves_the_timer_and_the_others(clock: VirtualClock) -> None:
    """A shared timer stays open when one of its purgatories closes."""
    async with SystemTimer(clock=clock) as timer:
        one, other = Purgatory[Op]("one", timer=timer), Purgatory[Op]("other", timer=timer)
        op = Op(5, name="x")
        (task,) = await park_in_tasks(other, clock, op)
        one.try_complete_else_watch(Op(7), ["a"])
        await one.aclose()
        assert timer.running
        assert timer.size == 1
        await clock.advance(5)
        assert await task == "x"
        await other.aclose()


async def test_an_operation_whose_task_is_cancelled_is_withdrawn_not_answered(clock: VirtualClock) -> None:
    """Closing in the turn in which the parking task is cancelled withdraws its operation."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(None)
    (task,) = await park_in_tasks(purgatory, clock, op)
    task.cancel()
    await purgatory.aclose()
    assert op.outcome is Outcome.CANCELLED
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_second_call_goes_on_if_the_coroutine_of_the_first_is_closed(clock: VirtualClock) -> None:
    """The calls that wait for a closing answer every operation if its coroutine is closed."""
    purgatory = Purgatory[Op]("test", clock=clock)
    tasks = await park_in_tasks(purgatory, clock, Op(5, name="x"), Op(None, name="y"))
    first = purgatory.aclose(grace=10)
    first.send(None)
    waiting = [asyncio.create_task(purgatory.aclose()) for _ in range(2)]
    await asyncio.sleep(0)
    first.close()
    check(purgatory, parked=2)
    await asyncio.gather(*waiting)
    assert await asyncio.gather(*tasks) == ["x", "y"]
    assert not purgatory.timer.running


async def test_a_second_call_goes_on_if_the_coroutine_that_closes_the_timer_is_closed(clock: VirtualClock) -> None:
    """The calls that wait for the closing of a timer take every task off if its coroutine is closed."""
    timer = SystemTimer(clock=clock)
    timer.start()
    futures = [timer.fail_after(5) for _ in range(5000)]
    await asyncio.sleep(0)
    first = timer.aclose()
    first.send(None)
    waiting = [asyncio.create_task(timer.aclose()) for _ in range(2)]
    await asyncio.sleep(0)
    first.close()
    assert timer.size > 0
    await asyncio.gather(*waiting)
    assert timer.size == 0
    assert not timer.running
    assert {type(future.exception()) for future in futures} == {PurgatoryClosed}
