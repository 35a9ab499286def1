"""Tasks and operations that are due when they are added leave nothing for the garbage collector."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from purgatory import Purgatory, SystemTimer
from purgatory.core.timer.timer_core import TimerCore
from purgatory.testing import VirtualClock
from tests.helpers import Op, Task

Using = Callable[[Purgatory[Op], VirtualClock], Awaitable[None]]


async def _park(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    await purgatory.park(Op(0), ["a"])


async def _park_and_cancel(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    op = Op(0)
    purgatory.try_complete_else_watch(op, ["a"])
    op.cancel()
    await clock.settle()


async def _timeout(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    timeout = purgatory.timer.timeout(0)
    async with timeout:
        pass
    await clock.settle()


async def _timeout_that_expires(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    try:
        async with purgatory.timer.timeout(0):
            await clock.sleep(5)
    except TimeoutError as error:
        error.__traceback__ = None
        del error


async def _call_later(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    purgatory.timer.call_later(0, int)
    purgatory.timer.call_later(0, int).cancel()
    await clock.settle()


async def _fail_after(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    future = purgatory.timer.fail_after(0)
    await clock.settle()
    assert isinstance(future.exception(), TimeoutError)


async def _add_a_negative_delay(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    purgatory.timer.add(Task(-5, []))
    await clock.settle()


USES: dict[str, Using] = {
    "park": _park,
    "cancel": _park_and_cancel,
    "timeout": _timeout,
    "timeout that expires": _timeout_that_expires,
    "call_later": _call_later,
    "fail_after": _fail_after,
    "add": _add_a_negative_delay,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.usefixtures("no_gc")
async def test_what_is_due_when_added_leaves_no_cycle(clock: VirtualClock, use: str) -> None:
    """With a timeout of zero and any ending, reference counting frees the operation and its place on the timer."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        gc.collect()
        for _ in range(5):
            await USES[use](purgatory, clock)
        await clock.settle()
        assert _left() == []


@pytest.mark.usefixtures("no_gc")
async def test_a_timeout_on_the_real_clock_leaves_no_cycle() -> None:
    """A block whose deadline has passed on entry leaves nothing, also with the monotonic clock."""
    async with SystemTimer() as timer:
        gc.collect()
        for _ in range(20):
            async with timer.timeout(0):
                pass
            await asyncio.sleep(0)
        assert _left() == []


@pytest.mark.usefixtures("no_gc")
def test_each_bucket_that_the_timer_drops_lets_go_of_itself() -> None:
    """A bucket is freed if its tasks ran, were cancelled during the call, or an interrupt ended the call."""

    class Interrupts(Task):
        def run(self) -> None:
            raise KeyboardInterrupt

    def use() -> None:
        log: list[Any] = []
        for limit in (0, 1):
            tasks = [Task(0, log) for _ in range(4)]
            for task in tasks:
                core.schedule(task, 0, 0)
                core.expire_due(0, limit)
                core.schedule(Task(0, log), 0, 0)
            tasks[-1].cancel()
            core.expire_due(0)
            core.expire_due(0)
        core.schedule(Interrupts(0, log), 0, 0)
        cancelled = Task(0, log)
        core.schedule(cancelled, 0, 0)
        with pytest.raises(KeyboardInterrupt):
            core.expire_due(0)
        core.schedule(Task(0, log), 0, 0)
        core.expire_due(0, 1)
        cancelled.cancel()
        core.expire_due(0)
        core.expire_due(5)
        assert core.size == 0
        core._check()

    core = TimerCore(1, 20, 0, _never, (Exception,))
    gc.collect()
    use()
    assert _left() == []


def _never(error: BaseException, _: object) -> None:
    raise error


def _left() -> list[str]:
    """Return the objects of this package that only the collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [type(thing).__name__ for thing in gc.garbage if type(thing).__module__.startswith("purgatory")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
