"""Awaiting an operation: any number of tasks may, each gets the result or the error, and any may leave."""

import asyncio
import traceback
from typing import Any

import pytest

from purgatory import OperationCancelled, Outcome, Purgatory, PurgatoryError
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check
from tests.sansio import QuietPurgatory


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


async def test_awaiters_get_the_failure(clock: VirtualClock) -> None:
    """A task that awaits a cancelled or failed operation gets the exception that result() raises."""
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


def _entries(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("failing", ["on_complete", "fail_for_key", "interrupted"])
async def test_the_traceback_does_not_grow_with_the_awaiters(clock: VirtualClock, failing: str) -> None:
    """However often a failed operation is awaited or read, its error keeps its original traceback."""

    def boom(_: Op) -> None:
        raise error

    error: BaseException = StopIteration() if failing == "interrupted" else Boom()
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        op = Op()
        purgatory.try_complete_else_watch(op, ["a"])
        if failing == "fail_for_key":
            purgatory.fail_for_key("a", error)
        else:
            op.ready, op._on_complete = True, boom
            purgatory.check_and_complete("a")

        async def await_it() -> None:
            await op

        async def ask() -> None:
            op.result()

        expected: type[BaseException] = PurgatoryError if failing == "interrupted" else Boom
        seen: list[list[str]] = []
        for call in [ask] * 5 + [await_it] * 5:
            with pytest.raises(expected) as raised:
                await call()
            seen.append(_entries(raised.value))
        assert seen[0] == seen[4]
        assert seen[5] == seen[9]
        assert ("boom" in seen[9]) is (failing == "on_complete")
        assert all(seen[0].count(name) == 1 for name in seen[0])


async def test_the_traceback_of_a_shared_error_does_not_grow(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A hundred tasks that wait for one operation raise its error, each with the same traceback."""
    op = Op()
    purgatory.try_complete_else_watch(op, ["a"])

    async def wait() -> list[str]:
        try:
            await op
        except Boom as error:
            return _entries(error)
        raise AssertionError("it has failed")

    tasks = [asyncio.create_task(wait()) for _ in range(100)]
    await clock.settle()
    purgatory.fail_for_key("a", Boom())
    late = await wait()
    assert {tuple(await task) for task in tasks} == {tuple(late)}


async def test_a_stop_iteration_is_wrapped_in_a_purgatory_error(clock: VirtualClock) -> None:
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


async def test_cancelled_awaiters_are_dropped(clock: VirtualClock) -> None:
    """An operation awaited by a thousand tasks that are cancelled one after the other references few of them."""
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


async def test_the_error_of_a_cancelled_operation_has_its_keys(clock: VirtualClock) -> None:
    """The keys that it was parked on; none if it was never parked, and for a task that awaits it later."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        parked, alone = Op(), Op()
        purgatory.try_complete_else_watch(parked, ["a", "b"])
        tasks = [asyncio.create_task(_error_of(op)) for op in (parked, alone)]
        await clock.settle()
        assert parked.cancel()
        assert alone.cancel()
        assert [(await task).keys for task in tasks] == [("a", "b"), ()]
        assert (await _error_of(parked)).keys == ()


async def _error_of(op: Op) -> OperationCancelled:
    with pytest.raises(OperationCancelled) as caught:
        await op
    return caught.value


def test_a_traceback_that_was_dropped_stays_dropped(room: QuietPurgatory) -> None:
    """A traceback that the user removes from the exception is not restored."""

    def boom(_: Op) -> None:
        raise error

    error = Boom()
    op = Op(on_complete=boom)
    with pytest.raises(Boom):
        op.force_complete()
    assert "boom" in _entries(error)
    error.__traceback__ = None
    with pytest.raises(Boom):
        op.result()
    assert "boom" not in _entries(error)
