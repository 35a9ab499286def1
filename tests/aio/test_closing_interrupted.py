"""Closing that is cancelled or interrupted still answers every operation."""

import asyncio

import pytest

from purgatory import Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Op, check, park_in_tasks, turns_until

# Cancelled


async def test_cancelled_during_the_grace(clock: VirtualClock) -> None:
    """If the closing task is cancelled, every operation is answered and the cancellation propagates."""
    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(None, name="x")
    (task,) = await park_in_tasks(purgatory, clock, op)
    closing = asyncio.create_task(purgatory.aclose(grace=1000))
    waiting = asyncio.create_task(purgatory.aclose())
    await clock.settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await waiting
    assert await task == "x"
    assert not purgatory.timer.running
    check(purgatory, parked=0, expired_by_closing=1)
    assert clock.next_alarm_ms is None


async def test_cancelling_a_second_closer_leaves_the_first_alone(clock: VirtualClock) -> None:
    """Cancelling a second call of ``aclose`` does not affect the first one."""
    purgatory = Purgatory[Op]("test", clock=clock)
    await park_in_tasks(purgatory, clock, Op(None))
    first = asyncio.create_task(purgatory.aclose(grace=10))
    second = asyncio.create_task(purgatory.aclose())
    await clock.settle()
    second.cancel()
    await clock.settle()
    assert second.cancelled()
    await clock.advance(10)
    await first
    check(purgatory, parked=0, expired_by_closing=1)


async def test_a_timer_that_is_cancelled_while_it_closes(clock: VirtualClock) -> None:
    """If the closing of a timer is cancelled halfway, every operation is still answered."""
    timer = SystemTimer(clock=clock)
    timer.start()
    futures = [timer.fail_after(100) for _ in range(3000)]
    closing = asyncio.create_task(timer.aclose())
    await turns_until(lambda: any(future.done() for future in futures))
    assert not all(future.done() for future in futures)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert all(isinstance(future.exception(), PurgatoryClosed) for future in futures)
    assert timer.size == 0


# Interrupted


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("interrupts", [1, 2, 3])
async def test_an_interrupt_passes_and_every_operation_is_answered(
    clock: VirtualClock, interrupts: int, kind: type[BaseException]
) -> None:
    """If any number of operations are interrupted while they end, all others are answered, and no task waits
    forever.
    """
    purgatory = Purgatory[Op]("test", clock=clock)

    def interrupt(_: Op) -> None:
        raise kind

    ops = [Op(None, name=str(number)) for number in range(10)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    for op in ops[2 : 2 + interrupts]:
        op._on_complete = interrupt
    with pytest.raises(kind):
        await purgatory.aclose()
    await purgatory.aclose()
    check(purgatory, parked=0, failed=interrupts, expired_by_closing=10 - interrupts)
    assert not purgatory.timer.running
    assert purgatory.timer.closed


async def test_an_interrupt_while_a_timer_closes(clock: VirtualClock) -> None:
    """An operation that is interrupted while its timer closes does not block the others."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    ops = [Op(5, on_complete=interrupt if number == 1 else lambda _: None) for number in range(4)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(KeyboardInterrupt):
        await timer.aclose()
    check(purgatory, parked=0, expired=3, failed=1)
    await timer.aclose()
    await purgatory.aclose()


class Interrupt(BaseException):
    """A BaseException that can end a task."""


async def test_cancelled_and_then_interrupted(clock: VirtualClock) -> None:
    """If closing is cancelled, the remaining operations expire at once; an interrupt among them ends the closing
    task.
    """

    def interrupt(_: Op) -> None:
        raise Interrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None, on_complete=interrupt if number == 3999 else lambda _: None) for number in range(4000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    closing = asyncio.create_task(purgatory.aclose())
    await asyncio.sleep(0)
    assert 0 < len(purgatory) < 4000
    closing.cancel()
    with pytest.raises(Interrupt):
        await closing
    check(purgatory, parked=0, expired_by_closing=3999, failed=1)
    assert not purgatory.timer.running
