"""The states of a timeout, and the beginning and end of its block."""

import asyncio
import gc
import re
import weakref
from typing import Any

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from purgatory.types import Timeout
from tests.helpers import during, ends_in_time_out


async def test_it_serves_one_block(timer: SystemTimer) -> None:
    """A timeout can be entered neither within its own block nor after it."""
    async with timer.timeout(0.01) as timeout:
        with pytest.raises(RuntimeError, match="has already been entered"):
            await timeout.__aenter__()
        assert timer.size == 1
    with pytest.raises(RuntimeError, match="has already been entered"):
        await timeout.__aenter__()


async def test_it_has_no_delay_of_its_own(timer: SystemTimer) -> None:
    """Its deadline is a time, and is set when the block begins: as a task of the timer it has the delay 0."""
    timeout = timer.timeout(5)
    assert timeout.delay_ms == 0
    async with timeout:
        assert timeout.delay_ms == 0


async def test_it_needs_a_task(timer: SystemTimer) -> None:
    """Entering outside a task raises RuntimeError, and the timeout stays unused."""
    timeout = timer.timeout(1)
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def without_task() -> None:
        try:
            timeout.__aenter__().send(None)
        except BaseException as error:
            answered.set_result(error)

    asyncio.get_running_loop().call_soon(without_task)
    error = await answered
    assert isinstance(error, RuntimeError)
    assert "inside a task" in str(error)
    with pytest.raises(RuntimeError, match="has not been entered"):
        timeout.reschedule(1)


async def test_run_outside_of_its_block_does_nothing(timer: SystemTimer) -> None:
    """Calling ``run`` before or after the block has no effect, because there is no task to cancel."""
    timeout = timer.timeout(5)
    timeout.run()
    async with timeout:
        await asyncio.sleep(0)
    timeout.run()
    await asyncio.sleep(0)
    assert repr(timeout) == "<Timeout [finished]>"


async def test_run_twice_is_one_cancellation(clock: VirtualClock, timer: SystemTimer) -> None:
    """If the deadline fires again during the cancellation, the block still raises TimeoutError."""

    async def work() -> None:
        async with timer.timeout(5) as timeout:
            timeout.run()
            timeout.run()
            await clock.sleep(50)

    with pytest.raises(TimeoutError):
        await during(clock, 1, work())


async def test_a_block_that_has_ended_holds_no_task(no_gc: None, timer: SystemTimer) -> None:
    """After the block, the timeout does not reference its task, so reference counting frees the task."""

    class Held:
        pass

    async def work() -> tuple[Timeout, "weakref.ref[Held]"]:
        held = Held()
        async with timer.timeout(5) as timeout:
            await asyncio.sleep(0)
        return timeout, weakref.ref(held)

    timeout, held = await asyncio.ensure_future(work())
    await asyncio.sleep(0)
    assert held() is None
    assert not timeout.expired()
    assert not gc.isenabled()


async def test_repr_tells_the_state(clock: VirtualClock, timer: SystemTimer) -> None:
    """The ``repr`` shows the states created, active with a deadline, expired, and finished."""
    timeout = timer.timeout(0.01)
    assert repr(timeout) == "<Timeout [created]>"
    await during(clock, 0.01, ends_in_time_out(timeout, clock))
    assert repr(timeout) == "<Timeout [expired]>"
    async with timer.timeout(10) as active:
        assert re.fullmatch(r"<Timeout \[active\] when=\d+\.\d+>", repr(active))
        active.reschedule(None)
        assert repr(active) == "<Timeout [active] when=None>"
    assert repr(active) == "<Timeout [finished]>"


@pytest.mark.usefixtures("no_gc")
async def test_a_timeout_that_is_kept_does_not_keep_its_task(timer: SystemTimer) -> None:
    """After the block, the task is freed even if the program still holds the timeout."""

    async def work() -> None:
        async with timeout:
            await asyncio.sleep(0)

    timeout = timer.timeout(1)
    task = asyncio.create_task(work())
    await task
    gone = weakref.ref(task)
    del task
    await asyncio.sleep(0)
    assert gone() is None
    assert not timeout.expired()


@pytest.mark.usefixtures("no_gc")
async def test_a_timeout_can_be_weakly_referenced(timer: SystemTimer, clock: VirtualClock) -> None:
    """The reference is cleared after the block."""
    async with timer.timeout(5) as timeout:
        gone = weakref.ref(timeout)
        assert gone() is timeout
    del timeout
    assert gone() is None
