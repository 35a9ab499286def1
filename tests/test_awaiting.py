"""Awaiting an operation: any number of tasks may, each gets the result or the error, and any may leave."""

import asyncio
from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory, PurgatoryError
from purgatory.operation import new_waiter, set_running_loop
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check


async def test_every_awaiter_gets_the_result(clock: VirtualClock) -> None:
    """Any number of tasks may await one operation, before and after it ends."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10, name="answer")
        purgatory.try_complete_else_watch(op, ["key"])

        async def wait() -> Any:
            return await op

        tasks = [asyncio.create_task(wait()) for _ in range(40)]
        await clock.settle()
        op.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert await asyncio.gather(*tasks) == ["answer"] * 40
        assert await op == "answer"
        assert op.completions == 1


@pytest.mark.parametrize("raises", [False, True])
async def test_whoever_awaits_it_while_its_result_is_made_gets_the_result(clock: VirtualClock, raises: bool) -> None:
    """An eager task that ``on_complete`` starts awaits the operation at once, when there is nothing yet to be had."""
    waiters: list[asyncio.Future[Any]] = []

    def look(op: Op) -> str:
        waiters.append(next(op.__await__()))
        with pytest.raises(PurgatoryError, match="no result yet"):
            op.result()
        if raises:
            raise Boom
        return "answer"

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10, on_complete=look)
        purgatory.try_complete_else_watch(op, ["key"])
        await clock.advance(10)
        (waiter,) = waiters
        if raises:
            assert isinstance(waiter.exception(), Boom)
        else:
            assert waiter.result() == op.result() == "answer"


async def test_awaiters_get_the_failure(clock: VirtualClock) -> None:
    """Whoever awaits a cancelled or failed operation gets the exception that result() raises."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        cancelled, failed = Op(10), Op(10)
        purgatory.try_complete_else_watch(cancelled, ["a"])
        purgatory.try_complete_else_watch(failed, ["b"])

        async def wait(op: Op) -> Any:
            return await op

        tasks = [asyncio.create_task(wait(op)) for op in (cancelled, failed)]
        await clock.settle()
        cancelled.cancel()
        purgatory.fail_for_key("b", Boom("b"))
        with pytest.raises(OperationCancelled):
            await tasks[0]
        with pytest.raises(Boom):
            await tasks[1]
        with pytest.raises(OperationCancelled):
            await cancelled
        with pytest.raises(Boom):
            await failed


async def test_a_stop_iteration_is_told_as_an_error_of_the_house(clock: VirtualClock) -> None:
    """A future cannot carry StopIteration, so awaiters get a PurgatoryError with that cause."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        task = asyncio.create_task(purgatory.park(Op(10, on_complete=lambda _: next(iter([]))), ["key"]))
        await clock.advance(10)
        with pytest.raises(PurgatoryError, match="StopIteration") as caught:
            await task
        assert isinstance(caught.value.__cause__, StopIteration)


async def test_cancelling_an_awaiter_does_not_touch_the_operation(clock: VirtualClock) -> None:
    """A task that awaits an operation which is not its own may leave; the others are answered."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10, name="answer")
        purgatory.try_complete_else_watch(op, ["key"])

        async def wait() -> Any:
            return await op

        tasks = [asyncio.create_task(wait()) for _ in range(20)]
        await clock.settle()
        for task in tasks[::2]:
            task.cancel()
        await clock.settle()
        assert op.outcome is Outcome.PENDING
        check(purgatory, parked=1)
        await clock.advance(10)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1::2] == ["answer"] * 10
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])


async def test_awaiters_who_left_are_forgotten(clock: VirtualClock) -> None:
    """An operation that a thousand tasks awaited and left one after the other keeps no trace of most of them."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(10)
        purgatory.try_complete_else_watch(op, ["key"])

        async def wait() -> Any:
            return await op

        for _ in range(1000):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert op._awaiters is not None
        assert len(op._awaiters) < 20


# The loop


def test_awaiting_needs_a_loop() -> None:
    """Without a running event loop awaiting is a RuntimeError, not a hang."""
    with pytest.raises(RuntimeError):
        Op(1).__await__()


async def test_the_floor_below_is_told_how_to_find_the_loop() -> None:
    """What is told last counts; importing the package tells it asyncio's way."""
    loops: list[asyncio.AbstractEventLoop] = []

    def running_loop() -> asyncio.AbstractEventLoop:
        loops.append(asyncio.get_running_loop())
        return loops[-1]

    try:
        set_running_loop(running_loop)
        assert new_waiter().get_loop() is asyncio.get_running_loop()
    finally:
        set_running_loop(asyncio.get_running_loop)
    assert len(loops) == 1
    assert new_waiter().get_loop() is loops[0]
    assert len(loops) == 1
