"""A grace period: operations that end within it end normally, and the rest expire when it is over."""

import asyncio

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Op, check, park_in_tasks


async def test_operations_end_normally_within_the_grace(clock: VirtualClock) -> None:
    """Operations complete and expire as usual within the grace; the rest expire when it is over."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(2, name="due"), Op(None, name="done"), Op(100, name="rest")]
    tasks = await park_in_tasks(purgatory, clock, *ops)
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.settle()
    with pytest.raises(PurgatoryClosed):
        purgatory.try_complete_else_watch(Op(1), ["a"])
    ops[1].ready = True
    await clock.advance(1)
    assert purgatory.check_and_complete("a") == 1
    assert ops[2].extend(200)
    await clock.advance(1)
    assert [op.outcome for op in ops] == [Outcome.EXPIRED, Outcome.COMPLETED, Outcome.PENDING]
    await clock.advance(2.999)
    assert not closing.done()
    await clock.advance(0.001)
    await closing
    assert await asyncio.gather(*tasks) == ["due", "done", "rest"]
    check(purgatory, parked=0, completed=1, expired=1, expired_by_closing=1)
    assert [op.expired_by_closing for op in ops] == [False, False, True]


async def test_it_ends_as_soon_as_no_operation_is_parked(clock: VirtualClock) -> None:
    """Closing ends as soon as the last operation has left, before the grace period is over."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(None, name="x")
    await park_in_tasks(purgatory, clock, op)
    closing = asyncio.create_task(purgatory.aclose(grace=1000))
    await clock.settle()
    assert not closing.done()
    op.force_complete()
    await closing
    assert clock.time() == 1000.0
    assert clock.next_alarm_ms is None


async def test_an_empty_purgatory_closes_at_once(clock: VirtualClock) -> None:
    """Without parked operations, closing does not wait for the grace period."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await purgatory.aclose(grace=1000)
    assert clock.time() == 1000.0


async def test_deadlines_hold_though_the_purgatory_was_not_entered(clock: VirtualClock) -> None:
    """Closing starts the reaper if necessary, so that deadlines within the grace are kept."""
    timer_ran = []
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(2, on_complete=lambda _: timer_ran.append(clock.time()))
    purgatory.try_complete_else_watch(op, ["a"])
    closing = asyncio.create_task(purgatory.aclose(grace=10))
    await clock.advance(5)
    await closing
    assert timer_ran == [1002.0]


async def test_a_grace_on_a_closed_timer_ends(clock: VirtualClock) -> None:
    """If the timer is closed, the grace period still ends, because the clock measures it."""
    async with SystemTimer(clock=clock) as timer:
        purgatory = Purgatory[Op]("test", timer=timer)
        purgatory.try_complete_else_watch(Op(None), ["a"])
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(4.999)
    assert not closing.done()
    await clock.advance(0.001)
    await closing
    check(purgatory, parked=0, expired_by_closing=1)


def test_grace_for_operations_parked_before_the_loop_ran(clock: VirtualClock) -> None:
    """An operation parked without a running loop keeps its deadline even if the loop closes the purgatory first."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(2, name="x")
    purgatory.try_complete_else_watch(op, ["a"])

    async def main() -> None:
        closing = asyncio.create_task(purgatory.aclose(grace=10))
        await clock.advance(2)
        assert op.outcome is Outcome.EXPIRED
        assert closing.done()

    asyncio.run(main())
    assert purgatory.statistics().lateness.count == 1


async def test_a_grace_after_its_own_timer_was_closed(clock: VirtualClock) -> None:
    """The timer answers the operations with a deadline; the others still have the grace."""
    purgatory = Purgatory[Op]("test", clock=clock)
    due, done, rest = Op(50, name="due"), Op(None, name="done"), Op(None, name="rest")
    tasks = await park_in_tasks(purgatory, clock, due, done, rest)
    await purgatory.timer.aclose()
    assert due.expired
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(4)
    assert done.force_complete()
    assert not closing.done()
    await clock.advance(1)
    await closing
    assert await asyncio.gather(*tasks) == ["due", "done", "rest"]
    assert (done.outcome, rest.outcome) == (Outcome.COMPLETED, Outcome.EXPIRED)
    assert not purgatory.timer.running
