"""``call_later``: a callback runs at its deadline, and one that raises affects no other."""

import asyncio
from typing import Any

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Boom


async def test_arguments_and_withdrawal(clock: VirtualClock) -> None:
    """The callback gets its arguments, in the order of deadlines, unless it was cancelled."""
    async with SystemTimer(clock=clock) as timer:
        log: list[tuple[int, ...]] = []

        def note(*numbers: int) -> None:
            log.append(numbers)

        timer.call_later(2, note, 2, 2)
        timer.call_later(1, note, 1)
        gone = timer.call_later(1.5, note)
        assert "call" in repr(gone).lower()
        assert gone.cancel()
        await clock.advance(3)
        assert log == [(1,), (2, 2)]
        assert not gone.cancel()


@pytest.mark.parametrize("error", [Boom(), asyncio.CancelledError()])
async def test_a_callback_that_raises_is_reported(
    clock: VirtualClock, reported: list[dict[str, Any]], error: BaseException
) -> None:
    """The others run, the reaper stays, and the loop's exception handler gets the error."""

    def bad() -> None:
        raise error

    async with SystemTimer(clock=clock) as timer:
        reaper = timer._reaper.task
        log: list[int] = []
        task = timer.call_later(1, bad)
        timer.call_later(1, log.append, 1)
        await clock.advance(1)
        assert log == [1]
        assert timer._reaper.task is reaper
        assert timer.running
    (context,) = reported
    assert context["message"] == "a timer task raised"
    assert context["exception"] is error
    assert context["timer_task"] is task


async def test_run_calls_the_function_at_once(clock: VirtualClock) -> None:
    """``run()`` of the task makes the call in advance; the deadline stays, and an exception reaches the caller."""
    async with SystemTimer(clock=clock) as timer:
        log: list[int] = []
        task = timer.call_later(1, log.append, 7)
        task.run()
        assert log == [7]
        assert task.scheduled
        await clock.advance(1)
        assert log == [7, 7]
        with pytest.raises(ZeroDivisionError):
            timer.call_later(1, lambda: 1 / 0).run()
