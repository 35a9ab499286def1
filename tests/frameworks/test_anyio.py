"""anyio: its cancel scopes, task groups and threads work with waiting operations."""

import asyncio
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from purgatory import OperationCancelled, Purgatory, PurgatoryFull
from purgatory.relay import MemoryTransport, Relay
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, turns_until


async def test_move_on_after_withdraws_the_operation(purgatory: Purgatory[Any]) -> None:
    """The block ends, and the place is already free."""
    with anyio.move_on_after(0.01) as scope:
        await purgatory.park(Op(), ["a"])
    assert scope.cancelled_caught
    check(purgatory, parked=0, cancelled=1)


async def test_fail_after_withdraws_the_operation(purgatory: Purgatory[Any]) -> None:
    """anyio raises TimeoutError."""
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.01):
            await purgatory.wait_until(lambda: False, keys=["a"], timeout=None)
    check(purgatory, parked=0, cancelled=1)


async def test_an_operation_that_ends_first_leaves_the_scope_alone(
    purgatory: Purgatory[Any], clock: VirtualClock
) -> None:
    """The operation's own deadline produces an answer, and no scope is cancelled."""
    with anyio.fail_after(3600) as scope:
        waiting = asyncio.ensure_future(purgatory.wait_until(lambda: False, keys=["a"], timeout=1.0))
        await clock.advance(1.0)
        assert await waiting is False
    assert not scope.cancelled_caught


async def test_a_cancelled_scope_keeps_cancelling(purgatory: Purgatory[Any]) -> None:
    """anyio cancels every await in a cancelled scope, so each further wait in it is withdrawn too."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        for _ in range(3):
            with pytest.raises(asyncio.CancelledError):
                await purgatory.park(Op(), ["a"])
        await anyio.lowlevel.checkpoint()
    check(purgatory, parked=0, cancelled=3)


async def test_one_that_completes_at_once_needs_no_await(purgatory: Purgatory[Any]) -> None:
    """``park()`` returns without an await, also in a cancelled scope."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert await purgatory.wait_until(lambda: True, keys=["a"], timeout=None)
    check(purgatory, parked=0, cancelled=0)


async def test_a_failing_task_of_a_group_withdraws_its_siblings(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The group raises only the error, and the other operations are withdrawn."""

    async def fail() -> None:
        await clock.sleep(1.0)
        raise Boom

    async def run() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(purgatory.park, Op(), ["a"])
            group.start_soon(fail)

    running = asyncio.create_task(run())
    await clock.settle()
    assert len(purgatory) == 10
    await clock.advance(1.0)
    with pytest.raises(ExceptionGroup) as raised:
        await running
    assert [type(error) for error in raised.value.exceptions] == [Boom]
    check(purgatory, parked=0, cancelled=10)


async def test_errors_of_operations_reach_the_group(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """OperationCancelled and PurgatoryFull are ordinary errors in a group, not cancellations."""

    async def run(room: Purgatory[Any]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(room.park, Op(), ["a"])
            group.start_soon(room.park, Op(), ["a"])

    running = asyncio.create_task(run(purgatory))
    await clock.settle()
    purgatory.cancel_for_key("a")
    with pytest.raises(ExceptionGroup) as raised:
        await running
    assert {type(error) for error in raised.value.exceptions} == {OperationCancelled}
    async with Purgatory[Any]("small", clock=clock, max_parked=1) as small:
        with pytest.raises(ExceptionGroup) as raised:
            await run(small)
        assert [type(error) for error in raised.value.exceptions] == [PurgatoryFull]
        assert len(small) == 0


async def test_a_shielded_wait_is_answered_in_a_cancelled_scope(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A shield delays the cancellation until the operation has ended."""
    seen: list[bool] = []

    async def run() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                seen.append(await purgatory.wait_until(lambda: False, keys=["a"], timeout=1.0))
            await anyio.lowlevel.checkpoint()
            seen.append(True)

    running = asyncio.create_task(run())
    await clock.advance(1.0)
    await running
    assert seen == [False]
    check(purgatory, expired=1, cancelled=0)


async def test_a_thread_checks_and_waits_through_anyio(purgatory: Purgatory[Any]) -> None:
    """``from_thread.run()`` parks; ``from_thread.run_sync()`` and ``check_threadsafe()`` check."""
    ready: list[int] = []

    def waits() -> bool:
        return anyio.from_thread.run(lambda: purgatory.wait_until(lambda: bool(ready), keys=["a"], timeout=None))

    def checks() -> None:
        ready.append(1)
        anyio.from_thread.run_sync(purgatory.check_and_complete, "b")
        purgatory.check_threadsafe("a")

    async with anyio.create_task_group() as group:
        results: list[bool] = []

        async def wait_in_thread() -> None:
            results.append(await anyio.to_thread.run_sync(waits))

        group.start_soon(wait_in_thread)
        other = asyncio.ensure_future(purgatory.wait_until(lambda: bool(ready), keys=["b"], timeout=None))
        while len(purgatory) < 2:
            await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(checks)
        assert await other
    assert results == [True]


async def test_closing_in_a_cancelled_scope_answers_every_waiter(clock: VirtualClock) -> None:
    """``aclose()`` is cancelled, and expires all operations before the cancellation propagates."""
    purgatory = Purgatory[Any]("test", clock=clock)
    operations = [Op() for _ in range(5000)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["a"])
    waiting = asyncio.create_task(purgatory.park(Op(), ["a"]))
    await turns_until(lambda: len(purgatory) == 5001)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await purgatory.aclose(grace=3600.0)
    assert scope.cancelled_caught
    await waiting
    assert all(operation.expired for operation in operations)
    check(purgatory, parked=0, expired_by_closing=5001)


async def test_a_purgatory_around_a_cancelled_scope_closes_as_usual(clock: VirtualClock) -> None:
    """Operations of the scope are withdrawn, and then the purgatory is closed."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        with anyio.move_on_after(0.01):
            async with anyio.create_task_group() as group:
                group.start_soon(purgatory.park, Op(), ["a"])
                await purgatory.park(Op(), ["b"])
        check(purgatory, parked=0, cancelled=2)
    assert purgatory.closed


async def test_a_relay_in_a_cancelled_scope_releases_its_transport(clock: VirtualClock) -> None:
    """anyio cancels every await of the closing, which ends nevertheless when the transport is closed."""
    log: list[str] = []

    class Releasing(MemoryTransport):
        async def aclose(self) -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            log.append("released")

    entered = anyio.Event()

    async def serve() -> None:
        async with Purgatory[Any]("test", clock=clock) as room, Relay(room, Releasing(clock=clock)):
            entered.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        await entered.wait()
        group.cancel_scope.cancel()
    assert log == ["released"]
    assert [task for task in asyncio.all_tasks() if "relay" in task.get_name()] == []
