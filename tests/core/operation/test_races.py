"""An operation has one outcome, whatever happens in one turn of the loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory
from purgatory.core.purgatory import BasePurgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park_in_tasks
from tests.sansio import QuietPurgatory

ENDINGS: dict[str, Callable[[BasePurgatory, Op], object]] = {
    "completed": lambda purgatory, op: purgatory.check_and_complete("ready"),
    "forced": lambda purgatory, op: op.force_complete(),
    "expired": lambda purgatory, op: op.run(),
    "withdrawn": lambda purgatory, op: op.cancel(),
    "cancelled by key": lambda purgatory, op: purgatory.cancel_for_key("a"),
    "failed by key": lambda purgatory, op: purgatory.fail_for_key("a", Boom()),
}


@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", ENDINGS)
def test_the_first_of_two_endings_decides(room: QuietPurgatory, first: str, second: str) -> None:
    """The first of two endings in one turn sets the outcome, and the counters count one ending."""
    op = Op(5, name="x")
    room.try_complete_else_watch(op, ["a", "ready"])
    op.ready = True
    ENDINGS[first](room, op)
    outcome, calls = op.outcome, list(op.calls)
    assert outcome is not Outcome.PENDING
    assert not ENDINGS[second](room, op)
    assert (op.outcome, op.calls) == (outcome, calls)
    assert op.completions <= 1
    room._check()
    statistics = room.statistics()
    assert statistics.completed + statistics.expired + statistics.cancelled + statistics.failed == 1


# The task in park() is cancelled in the turn in which its operation ends


async def _parked(purgatory: Purgatory[Op], clock: VirtualClock) -> tuple[Op, "asyncio.Task[Any]"]:
    op = Op(5, name="x")
    (task,) = await park_in_tasks(purgatory, clock, op)
    return op, task


@pytest.mark.parametrize("ending", ["check", "force", "fail", "expiry", "real expiry"])
async def test_the_parker_is_cancelled_and_then_it_ends(clock: VirtualClock, ending: str) -> None:
    """A task that was cancelled first receives no result; ``on_complete`` does not run, and the outcome is
    CANCELLED.
    """
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op, task = await _parked(purgatory, clock)
        op.ready = True
        if ending == "real expiry":
            asyncio.get_running_loop().call_soon(task.cancel)
            clock._now_ns += 5_000_000_000
            purgatory.timer.call_later(0, lambda: None)
            await clock.settle()
        else:
            task.cancel()
            if ending == "check":
                assert purgatory.check_and_complete("a") == 0
            elif ending == "force":
                assert not op.force_complete()
            elif ending == "fail":
                assert purgatory.fail_for_key("a", Boom()) == 0
            else:
                assert purgatory.timer.expire_due(clock.now_ms() + 5000) == 1
        assert op.outcome is Outcome.CANCELLED
        assert op.completions == 0
        check(purgatory, parked=0, cancelled=1, completed=0, expired=0)
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("ending", ["check", "expiry", "fail"])
async def test_it_ends_and_then_the_parker_is_cancelled(
    clock: VirtualClock, reported: list[dict[str, Any]], ending: str
) -> None:
    """If the operation ends first, the outcome stands, the task is still cancelled, and the result can be read."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op, task = await _parked(purgatory, clock)
        op.ready = True
        if ending == "check":
            assert purgatory.check_and_complete("a") == 1
        elif ending == "expiry":
            assert purgatory.timer.expire_due(clock.now_ms() + 5000) == 1
        else:
            assert purgatory.fail_for_key("a", Boom()) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if ending == "fail":
            assert op.outcome is Outcome.FAILED
        else:
            assert op.result() == "x"
            assert op.completions == 1
        check(purgatory, parked=0, cancelled=0)
    del task
    assert reported == []


async def test_the_parker_is_cancelled_while_a_callback_parks_another(clock: VirtualClock) -> None:
    """If a task is cancelled while another operation's callback parks a third one on the key, both stay consistent."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op, task = await _parked(purgatory, clock)
        third = Op(5, name="third")

        def leave_and_park(_: Op) -> None:
            task.cancel()
            purgatory.try_complete_else_watch(third, ["a", "b"])

        other = Op(5, on_complete=leave_and_park)
        purgatory.try_complete_else_watch(other, ["b"])
        op.ready = other.ready = True
        assert purgatory.check_and_complete("b") == 1
        check(purgatory, parked=2, watched=3)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert op.outcome is Outcome.CANCELLED
        check(purgatory, parked=1, watched=2, cancelled=1, completed=1)
        third.ready = True
        assert purgatory.check_and_complete("a") == 1


async def test_cancelling_the_parker_withdraws_at_once(clock: VirtualClock) -> None:
    """A cancelled parking task leaves nothing behind, and its operation is not answered later."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op, task = await _parked(purgatory, clock)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        check(purgatory, parked=0, watched=0, num_delayed=0, keys=0, cancelled=1)
        op.ready = True
        assert purgatory.check_and_complete("a") == 0
        await clock.advance(10)
        assert op.completions == 0


async def test_a_timeout_around_park_withdraws(clock: VirtualClock) -> None:
    """``asyncio.timeout()`` around ``park()`` cancels it like any other cancellation."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await purgatory.park(op, ["a"])
        assert op.outcome is Outcome.CANCELLED
        check(purgatory, parked=0)


async def test_other_awaiters_of_a_withdrawn_operation_get_an_error(clock: VirtualClock) -> None:
    """A task that awaits an operation withdrawn by its parker gets OperationCancelled."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op, task = await _parked(purgatory, clock)

        async def wait() -> Any:
            return await op

        other = asyncio.create_task(wait())
        await clock.settle()
        task.cancel()
        with pytest.raises(OperationCancelled):
            await other


async def test_a_coroutine_that_is_closed_while_it_parks(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """Closing the coroutine, as a shutdown does, withdraws the operation and reports nothing."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5)
        coroutine = purgatory.park(op, ["a"])
        coroutine.send(None)
        assert len(purgatory) == 1
        coroutine.close()
        assert op.outcome is Outcome.CANCELLED
        check(purgatory, parked=0)
    assert reported == []
