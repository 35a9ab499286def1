"""Tasks that are named after what they wait for."""

import asyncio
import contextlib
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from purgatory.types import TaskNames
from tests.helpers import Op


async def name_request() -> "asyncio.Task[Any]":
    """Name the running task, in a later turn than that of ``create_task``, which may name an eager task after its
    first step.
    """
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    task.set_name("request 12")
    return task


@pytest.mark.parametrize("ending", ["completed", "expired", "cancelled", "failed"])
async def test_a_task_is_named_while_it_waits(ending: str) -> None:
    """The name has the purgatory, the kind and the keys; when the operation ends, the task has its name again."""
    clock = VirtualClock()
    names = TaskNames()
    async with Purgatory[Any]("orders", clock=clock, observers=[names]) as room:
        ready: list[int] = []

        def predicate() -> bool:
            return bool(ready and 1 / ready[0])

        async def handler() -> str:
            await name_request()
            with contextlib.suppress(ZeroDivisionError):
                await room.wait_until(predicate, keys=["order-7", ("t", 1)], timeout=5.0, kind="GET /orders/{id}")
            current = asyncio.current_task()
            assert current is not None
            return current.get_name()

        task = asyncio.get_running_loop().create_task(handler())
        await clock.settle()
        assert task.get_name() == "orders: GET /orders/{id} on order-7, ('t', 1)"
        match ending:
            case "completed" | "failed":
                ready.append(ending == "completed")
                room.check("order-7")
            case "expired":
                await clock.advance(5.0)
            case "cancelled":
                task.cancel()
        if ending == "cancelled":
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.get_name() == "request 12"
        else:
            assert await task == "request 12"
        assert names._named == {}


async def test_a_name_that_other_code_has_given_stays(clock: VirtualClock) -> None:
    """The observer restores only its own name, and a long list of keys is cut."""
    async with Purgatory[Any]("orders", clock=clock, observers=[TaskNames()]) as room:

        async def wait() -> bool:
            await name_request()
            return await room.wait_until(lambda: False, keys=range(9), timeout=1.0)

        task = asyncio.ensure_future(wait())
        await clock.settle()
        assert task.get_name() == "orders: wait_until on 0, 1, 2 and 6 more"
        task.set_name("mine")
        await clock.advance(1.0)
        assert await task is False
        assert task.get_name() == "mine"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
async def test_a_task_with_several_operations_has_its_own_name_after_the_last_one(
    clock: VirtualClock, order: tuple[int, ...]
) -> None:
    """Whatever the order in which they end; while some are parked, it has the name of the latest of them."""
    names = TaskNames()
    async with Purgatory[Any]("orders", clock=clock, observers=[names]) as room:

        async def handler() -> None:
            task = await name_request()
            parked: dict[int, Op] = {}
            for number in range(3):
                parked[number] = Op(None)
                room.try_complete_else_watch(parked[number], [f"k{number}"])
            for number in order:
                assert task.get_name() == f"orders: Op on k{max(parked)}"
                parked.pop(number).cancel()
            assert task.get_name() == "request 12"

        await asyncio.get_running_loop().create_task(handler())
        assert names._named == {}
        assert names._latest == {}


async def test_a_task_parks_again_after_some_of_its_operations_have_ended(clock: VirtualClock) -> None:
    """The chain of its names has no gap where an operation in the middle has ended."""
    async with Purgatory[Any]("orders", clock=clock, observers=[TaskNames()]) as room:

        async def handler() -> None:
            task = await name_request()
            ops = [Op(None) for _ in range(4)]
            for number in range(3):
                room.try_complete_else_watch(ops[number], [f"k{number}"])
            ops[1].cancel()
            ops[2].cancel()
            room.try_complete_else_watch(ops[3], ["k3"])
            ops[0].cancel()
            assert task.get_name() == "orders: Op on k3"
            ops[3].cancel()
            assert task.get_name() == "request 12"

        await asyncio.get_running_loop().create_task(handler())


async def test_three_keys_are_named_in_full(clock: VirtualClock) -> None:
    """The name counts only the keys that it does not contain."""
    async with Purgatory[Any]("orders", clock=clock, observers=[TaskNames()]) as room:

        async def handler() -> None:
            task = await name_request()
            for keys, named in ((["a", "b", "c"], "a, b, c"), (["a", "b", "c", "d"], "a, b, c and 1 more")):
                op = Op(None)
                room.try_complete_else_watch(op, keys)
                assert task.get_name() == f"orders: Op on {named}"
                op.cancel()

        await asyncio.get_running_loop().create_task(handler())


async def test_a_name_given_after_one_of_other_code_stays_when_the_first_operation_ends(clock: VirtualClock) -> None:
    """Other code names the task between two operations: the later name stays, and gives way to that of other code."""
    names = TaskNames()
    async with Purgatory[Any]("orders", clock=clock, observers=[names]) as room:
        task = asyncio.current_task()
        assert task is not None
        before = task.get_name()
        first, second = Op(None), Op(None)
        room.try_complete_else_watch(first, ["a"])
        task.set_name("mine")
        room.try_complete_else_watch(second, ["b"])
        first.cancel()
        assert task.get_name() == "orders: Op on b"
        second.cancel()
        assert task.get_name() == "mine"
        assert names._named == names._latest == {}
        task.set_name(before)


async def test_a_callback_without_a_task_names_nothing(clock: VirtualClock) -> None:
    """An operation that a callback of the loop parks names no task, and ends like any other."""
    names = TaskNames()
    async with Purgatory[Any]("orders", clock=clock, observers=[names]) as room:
        op = Op(None)
        asyncio.get_running_loop().call_soon(room.try_complete_else_watch, op, ["a"])
        await clock.settle()
        assert names._named == {}
        assert op.force_complete()
        assert room.statistics().observers_detached == 0


def test_without_a_loop_nothing_is_named() -> None:
    """An operation may be parked before any loop runs: the observer stays attached."""
    names = TaskNames()
    room = Purgatory[Any]("orders", observers=[names])
    op = Op(None)
    room.try_complete_else_watch(op, ["a"])
    assert op.force_complete()
    assert room.statistics().observers_detached == 0
    assert names._named == {}
