"""Reference counting alone frees ended operations and tasks, and no collection grows."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, SystemTimer
from purgatory.asgi import Wait
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op
from tests.proof.leaks import churn, live_objects

ENDINGS: dict[str, Callable[[Purgatory[Op], Op], object]] = {
    "check": lambda purgatory, op: purgatory.check_and_complete("a"),
    "force": lambda purgatory, op: op.force_complete(),
    "expiry": lambda purgatory, op: purgatory.timer.expire_due(purgatory.timer.clock.now_ms() + 5000),
    "cancel": lambda purgatory, op: op.cancel(),
    "cancel_for_key": lambda purgatory, op: purgatory.cancel_for_key("b"),
    "fail_for_key": lambda purgatory, op: purgatory.fail_for_key("b", Boom()),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("keys", [["a"], ["a", "b", "shared"], {"a": 1, "b": 2}], ids=["one", "many", "ranked"])
@pytest.mark.usefixtures("no_gc")
async def test_an_ended_operation_is_freed_by_reference_counting(clock: VirtualClock, ending: str, keys: Any) -> None:
    """With the garbage collector off, the last outside reference frees the operation, for every kind of ending."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        neighbour = Op(None)
        purgatory.try_complete_else_watch(neighbour, ["shared", "b"])
        op = Op(5)
        purgatory.try_complete_else_watch(op, keys)
        op.extend(4)
        op.ready = True
        gone = weakref.ref(op)
        if "b" not in keys and ending.endswith("for_key"):
            op.cancel()
        else:
            ENDINGS[ending](purgatory, op)
        assert op.outcome is not Outcome.PENDING
        del op
        assert gone() is None


@pytest.mark.parametrize("ending", ["check", "expiry", "task cancelled", "cancel", "fail_for_key"])
@pytest.mark.usefixtures("no_gc")
async def test_a_parked_operation_and_its_task_are_freed(clock: VirtualClock, ending: str) -> None:
    """A task that parked leaves neither itself, nor its operation, nor a future behind."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:

        async def handler() -> None:
            ops.append(Op(5))
            gone.append(weakref.ref(ops[0]))
            await purgatory.park(ops[0], ["a", "b"])

        gone: list[weakref.ref[Any]] = []
        ops: list[Op] = []
        task = asyncio.create_task(handler())
        await clock.settle()
        op = ops.pop()
        op.ready = True
        if ending == "task cancelled":
            task.cancel()
        elif ending == "expiry":
            await clock.advance(5)
        else:
            ENDINGS[ending](purgatory, op)
        del op
        await asyncio.wait([task])
        outcome = asyncio.CancelledError() if task.cancelled() else task.exception()
        gone.append(weakref.ref(task))
        del task, outcome
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [reference() for reference in gone] == [None, None]


WAITS: dict[str, Callable[[Purgatory[Any]], Awaitable[object]]] = {
    "park": lambda purgatory: purgatory.park(Op(5), ["a", "b"]),
    "wait_until": lambda purgatory: purgatory.wait_until(lambda: False, keys=["a", "b"], timeout=5),
    "wait_until deadline": lambda purgatory: purgatory.wait_until(lambda: False, keys=["a", "b"], deadline=2000.0),
    "wait_value": lambda purgatory: purgatory.wait_value(lambda: None, keys=["a", "b"], timeout=5),
    "Wait.park": lambda purgatory: Wait(purgatory, {"type": "http"}, never).park(Op(5), ["a", "b"]),
    "Wait.until": lambda purgatory: Wait(purgatory, {"type": "http"}, never).until(bool, keys=["a", "b"], timeout=5),
}


async def never() -> Any:
    """Receive nothing from a client that waits for its answer."""
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("ending", ["task cancelled", "cancel_for_key", "fail_for_key"])
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.usefixtures("no_gc")
async def test_a_wait_that_raises_leaves_no_cycle(clock: VirtualClock, wait: str, ending: str) -> None:
    """After a wait was cancelled, withdrawn or failed, the collector finds nothing, whatever holds the exception."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        tasks = [asyncio.ensure_future(WAITS[wait](purgatory)) for _ in range(10)]
        await clock.settle()
        gc.collect()
        if ending == "task cancelled":
            for task in tasks:
                task.cancel()
        else:
            ENDINGS[ending](purgatory, Op(None))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, BaseException) for outcome in outcomes)
        tasks.clear()
        del outcomes
        await clock.settle()
        task = None  # type: ignore[assignment]
        assert gc.collect() == 0


class Raising:
    """A condition that raises at the first call or the second, and whose first call may check its own key."""

    def __init__(self, call: int, purgatory: Purgatory[Any] | None) -> None:
        self.left = call
        self.purgatory = purgatory

    def __call__(self) -> None:
        self.left -= 1
        if not self.left:
            raise Boom
        if self.purgatory is not None:
            self.purgatory.check("a")


RAISING: dict[str, Callable[[Any, Callable[[], Any], float], Awaitable[Any]]] = {
    "wait_until": lambda room, get, timeout: room.wait_until(get, key="a", timeout=timeout),
    "wait_value": lambda room, get, timeout: room.wait_value(get, key="a", timeout=timeout),
    "Wait.until": lambda room, get, timeout: Wait(room, {"type": "http"}, never).until(get, key="a", timeout=timeout),
    "Wait.value": lambda room, get, timeout: Wait(room, {"type": "http"}, never).value(get, key="a", timeout=timeout),
    "Wait.changed": lambda room, get, timeout: Wait(room, {"type": "http"}, never).changed(
        get, key="a", timeout=timeout
    ),
}


@pytest.mark.parametrize("when", ["wait of zero", "first try", "queued check", "check"])
@pytest.mark.parametrize("wait", RAISING)
@pytest.mark.usefixtures("no_gc")
async def test_a_condition_that_raises_leaves_no_cycle(clock: VirtualClock, wait: str, when: str) -> None:
    """Whenever it raises, the exception reaches the caller, and the collector finds nothing afterwards."""
    async with Purgatory[Any]("test", clock=clock) as purgatory:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        gc.collect()
        for _ in range(10):
            get = Raising(2 if "check" in when else 1, purgatory if when == "queued check" else None)
            waiting = asyncio.ensure_future(RAISING[wait](purgatory, get, 0 if when == "wait of zero" else 5))
            await clock.settle()
            purgatory.check("a")
            with pytest.raises(Boom):
                await waiting
        del waiting, get
        await clock.settle()
        assert gc.collect() == 0


@pytest.mark.usefixtures("no_gc")
async def test_one_that_raised_is_freed_with_its_exception(clock: VirtualClock) -> None:
    """The traceback of the exception refers to its frame; when it is dropped, nothing else holds the operation."""

    def boom(_: Op) -> None:
        raise Boom

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        op = Op(5, ready=False)
        purgatory.try_complete_else_watch(op, ["a"])
        op._on_try = boom
        purgatory.check_and_complete("a")
        assert op.outcome is Outcome.FAILED
        gone = weakref.ref(op)
        op._value.error.__traceback__ = None
        del op
        assert gone() is None


@pytest.mark.usefixtures("no_gc")
async def test_timer_tasks_are_freed(clock: VirtualClock) -> None:
    """Callbacks that ran, were cancelled or moved, and futures of ``fail_after``, leave nothing on the timer."""

    class Thing:
        def call(self) -> None:
            pass

    async with SystemTimer(clock=clock) as timer:
        thing = Thing()
        gone = weakref.ref(thing)
        timer.call_later(0.45, thing.call)
        timer.call_later(500, thing.call).cancel()
        future = timer.fail_after(500)
        future.cancel()
        freed = weakref.ref(future)
        del thing, future
        await clock.advance(1)
        assert gone() is None
        assert freed() is None
        assert timer.size == 0


async def test_closed_purgatories_are_collected(clock: VirtualClock) -> None:
    """A purgatory and its timer reference each other; after closing, the collector frees both, and the task."""
    gone: list[weakref.ref[Any]] = []
    for _ in range(20):
        purgatory = Purgatory[Op]("test", clock=clock)
        purgatory.try_complete_else_watch(Op(5), ["a"])
        purgatory.check_soon("a")
        await purgatory.aclose()
        gone += [weakref.ref(purgatory), weakref.ref(purgatory.timer)]
    del purgatory
    await asyncio.sleep(0)
    gc.collect()
    assert [reference() for reference in gone if reference() is not None] == []


async def test_closing_keeps_no_operation_that_ends_in_another_way(clock: VirtualClock) -> None:
    """Between two turns of closing, the tasks of the last operations may be cancelled."""
    purgatory = Purgatory[Op]("test", clock=clock)
    ops = [Op(None) for _ in range(5)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    assert purgatory._core.expire_some(1) == 1  # a turn of closing
    for op in ops:
        op.cancel()
    await purgatory.aclose()
    gone = [weakref.ref(op) for op in ops]
    del ops, op
    gc.collect()
    assert [reference() for reference in gone if reference() is not None] == []


@pytest.mark.slow
async def test_nothing_grows_with_the_number_of_operations() -> None:
    """Ten times as many operations, with every kind of ending, leave the same number of live objects."""
    clock = VirtualClock()
    async with Purgatory[Any]("churn", clock=clock) as purgatory:
        await churn(purgatory, clock, 2_000)
        before = live_objects()
        await churn(purgatory, clock, 10_000)
        grown = live_objects() - before
        assert grown < 100, f"{grown} objects more than before"
        assert len(purgatory) == 0
        assert purgatory.timer.size == 0
