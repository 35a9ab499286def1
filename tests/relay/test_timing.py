"""The time limits of tasks that are cancelled."""

import asyncio
from collections.abc import Callable
from typing import Any

from purgatory.relay.timing import end_tasks, wait_until
from tests.helpers import Hasty


class _Jumping:
    """A clock that is five seconds later whenever an alarm rings, as after SIGSTOP and SIGCONT."""

    now = 0

    def now_ms(self) -> int:
        return self.now

    ceil_ms = now_ms

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> asyncio.Handle:
        self.now = when_ms + 5000
        return asyncio.get_running_loop().call_soon(callback)


async def test_a_task_that_ends_when_the_time_is_up_is_not_left_behind() -> None:
    """If the process was stopped until the limit, the tasks still get the turns that they need to end."""

    async def slow() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)

    async def stuck() -> None:
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if done:
                    raise

    done = False
    tasks = [asyncio.create_task(slow()), asyncio.create_task(stuck())]
    await asyncio.sleep(0)
    clock: Any = _Jumping()
    assert await end_tasks(tasks, clock, 1000) == {tasks[1]}
    assert tasks[0].cancelled()
    done = True
    tasks[1].cancel()
    await asyncio.wait(tasks)


async def test_a_clock_that_calls_back_early_does_not_shorten_a_limit() -> None:
    """The clock is read at each wake-up."""
    clock = Hasty(1000.0)
    clock.hasty = 3
    task = asyncio.create_task(asyncio.sleep(3600))
    waiting = asyncio.create_task(wait_until({task}, clock, clock.ceil_ms() + 1000))
    await clock.advance(0.9)
    assert (clock.hasty, waiting.done()) == (0, False)
    await clock.advance(0.1)
    assert await waiting == {task}
    task.cancel()
