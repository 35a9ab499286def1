"""Finalizers, which the garbage collector may run in the middle of a call, such as when a future is created."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Purgatory, SystemTimer
from purgatory.core.watch.watcher_lists import SHARDS
from purgatory.testing import VirtualClock
from tests.helpers import AtCollection, Op

Collect = Callable[[Callable[[], object]], None]
pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # another loop creates its futures itself


@pytest.fixture
def collect(monkeypatch: pytest.MonkeyPatch) -> Collect:
    """Return a function that takes a finalizer and runs it while the next future is created."""

    def begin(finalizer: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        create_future = loop.create_future

        def collected() -> Any:
            monkeypatch.setattr(loop, "create_future", create_future)
            finalizer()
            return create_future()

        monkeypatch.setattr(loop, "create_future", collected)

    return begin


@pytest.mark.parametrize("end", [Op.force_complete, Op.cancel, Op.run])
async def test_an_operation_that_ends_while_its_future_is_created_is_answered(
    purgatory: Purgatory[Any], collect: Collect, end: Callable[[Op], Any]
) -> None:
    """It ends after it was parked and before it has the future that its task awaits."""
    operation = Op(60.0, name="answer")
    collect(lambda: end(operation))
    if end is Op.cancel:
        with pytest.raises(Exception, match="was cancelled"):
            await purgatory.park(operation, ["a"])
    else:
        assert await purgatory.park(operation, ["a"]) == "answer"
    assert len(purgatory) == 0
    purgatory._check()


@pytest.mark.parametrize("end", [Op.force_complete, Op.cancel, Op.run])
async def test_a_result_is_given_back_if_its_future_cannot_be_created(
    purgatory: Purgatory[Any], collect: Collect, end: Callable[[Op], Any]
) -> None:
    """A finalizer ends the operation, and then there is no memory for the future.  If it is cancelled, it has none."""

    class Kept(Op):
        def on_abandoned(self, result: object) -> None:
            given_back.append(result)

    given_back: list[object] = []
    operation = Kept(60.0, name="answer")

    def finalize() -> None:
        end(operation)
        raise MemoryError

    collect(finalize)
    with pytest.raises(MemoryError):
        await purgatory.park(operation, ["a"])
    assert given_back == ([] if end is Op.cancel else ["answer"])
    purgatory._check()


async def test_a_key_that_is_checked_while_the_consumer_begins_to_wait_arrives(
    purgatory: Purgatory[Any], clock: VirtualClock, collect: Collect
) -> None:
    """The key is recorded after the consumer has looked for one, and before it waits."""
    async with purgatory.changes(["a"]) as changes:
        collect(lambda: purgatory.check("a"))
        consumer = asyncio.ensure_future(anext(changes))
        await clock.settle()
        assert consumer.done()
        assert await consumer == "a"


@pytest.mark.parametrize("delay", [0.0, 1.0])
async def test_a_timer_that_starts_while_the_reaper_goes_to_sleep_runs_in_time(
    clock: VirtualClock, reported: list[dict[str, Any]], delay: float
) -> None:
    """The reaper has looked for the earliest bucket already, and sleeps no longer than until the new one."""
    ran: list[str] = []
    async with SystemTimer(clock=clock) as timer:
        await clock.settle()
        loop = asyncio.get_running_loop()
        create_future = loop.create_future
        started = False

        def collected() -> Any:
            nonlocal started
            if not started and timer._reaper._sleepers == [] and ran == ["first"]:
                started = True
                timer.call_later(delay, ran.append, "second")
            return create_future()

        loop.create_future = collected  # type: ignore[method-assign]
        try:
            timer.call_later(0.5, ran.append, "first")
            await clock.advance(0.6)
            await clock.advance(1.1)
        finally:
            del loop.create_future
        assert (started, ran) == (True, ["first", "second"])
    assert reported == []


async def test_all_keys_are_checked_although_a_finalizer_withdraws_an_operation(
    purgatory: Purgatory[Any], clock: VirtualClock, no_gc: None
) -> None:
    """Whichever allocation starts the collection, the keys are listed, and the other operations are completed.

    Since Python 3.12, the collector runs between instructions rather than at an allocation, so less is tested there.
    """
    shard = purgatory._core.watcher_lists.shard
    shards = purgatory._core.watcher_lists._shards
    keys = [key for key in range(30 * SHARDS) if shard(key) is shards[0]][:20]
    keys += [next(key for key in range(30 * SHARDS) if shard(key) is shards[-1])]
    for allocations in range(0, 60, 3):
        operations = [Op(60.0) for _ in keys]
        for operation, key in zip(operations, keys, strict=True):
            purgatory.try_complete_else_watch(operation, [key])
        gc.collect()
        AtCollection(operations[10].cancel)
        for operation in operations:
            operation.ready = True
        purgatory.check_all()
        gc.set_threshold(gc.get_count()[0] + allocations + 1, 1000, 1000)
        gc.enable()
        purgatory.hot_keys(5)
        purgatory.dump(None)
        await clock.settle()
        gc.disable()
        gc.collect()
        assert len(purgatory) == 0
        purgatory._check()
