"""The functions that query the event loop, which the core is told of."""

import asyncio

import pytest

from purgatory.core.operation.operation import new_future
from purgatory.core.timer.event_loop import event_loop
from tests.helpers import Op


def test_awaiting_needs_a_loop() -> None:
    """Without a running event loop awaiting is a RuntimeError, not a hang."""
    with pytest.raises(RuntimeError):
        Op(1).__await__()


async def test_futures_belong_to_the_loop_that_the_core_is_told_of() -> None:
    """Importing the package sets asyncio's function."""
    loops: list[asyncio.AbstractEventLoop] = []

    def running_loop() -> asyncio.AbstractEventLoop:
        loops.append(asyncio.get_running_loop())
        return loops[-1]

    try:
        event_loop.running_loop = running_loop
        assert new_future().get_loop() is asyncio.get_running_loop()
    finally:
        event_loop.running_loop = asyncio.get_running_loop
    assert len(loops) == 1
    assert new_future().get_loop() is loops[0]
    assert len(loops) == 1
