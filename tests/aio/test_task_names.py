"""Tasks that are named after what they wait for."""

import asyncio
import contextlib
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from purgatory.types import TaskNames


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
            with contextlib.suppress(ZeroDivisionError):
                await room.wait_until(predicate, keys=["order-7", ("t", 1)], timeout=5.0, kind="GET /orders/{id}")
            current = asyncio.current_task()
            assert current is not None
            return current.get_name()

        task = asyncio.get_running_loop().create_task(handler(), name="request 12")
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
        task = asyncio.ensure_future(room.wait_until(lambda: False, keys=range(9), timeout=1.0))
        await clock.settle()
        assert task.get_name() == "orders: wait_until on 0, 1, 2 and 6 more"
        task.set_name("mine")
        await clock.advance(1.0)
        assert await task is False
        assert task.get_name() == "mine"
