"""A purgatory or timer that is not closed when its event loop shuts down."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from purgatory import SystemTimer, when_all


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("waits", ["timer", "when_all"])
def test_a_reaper_that_restarts_while_the_executor_shuts_down(
    new_loop: Callable[[], asyncio.AbstractEventLoop], waits: str
) -> None:
    """``asyncio.run()`` cancels the reaper, but deadlines still come until the default executor has shut down.  The
    reaper that serves them and sleeps when the loop is closed is not reported as destroyed.
    """
    reported: list[dict[str, Any]] = []
    released = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        loop.run_in_executor(None, released.wait, 30)
        if waits == "timer":
            timer = SystemTimer()
            timer.start()
            timer.call_later(0.01, released.set)
            timer.call_later(1000, print)
        else:
            when_all([loop.create_future()], 0.01, lambda _: released.set())
            when_all([loop.create_future()], 1000)
        await asyncio.sleep(0)

    async def drop_the_default_purgatory() -> None:
        when_all([], None)

    for run in (main, drop_the_default_purgatory):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())
    gc.collect()
    assert released.is_set()
    assert reported == []
