"""Bad input to a timer raises an error that states the expected value, and adds nothing to the timer."""

from typing import Any

import pytest

from purgatory import SystemTimer
from purgatory.clock import MonotonicClock
from purgatory.testing import VirtualClock


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_budget_is_above_zero(budget: float) -> None:
    """A budget of zero or less is refused."""
    with pytest.raises(ValueError, match="turn_budget_ms"):
        SystemTimer(turn_budget_ms=budget)
    assert SystemTimer(turn_budget_ms=1e9).turn_budget_ms == 1e9


@pytest.mark.parametrize("budget", ["1", None, True])
def test_a_budget_is_a_number(budget: Any) -> None:
    """Any value that is not a number raises an error with the parameter name."""
    with pytest.raises(TypeError, match="turn_budget_ms must be a number of milliseconds, got"):
        SystemTimer(turn_budget_ms=budget)


@pytest.mark.parametrize("clock", ["now", 5, object(), MonotonicClock])
def test_a_clock_is_a_clock(clock: Any) -> None:
    """Any object that is not a Clock raises an error with the parameter name."""
    with pytest.raises(TypeError, match=r"clock must be a purgatory\.clock\.Clock"):
        SystemTimer(clock=clock)


@pytest.mark.parametrize("task", [None, print, object()])
async def test_only_tasks_are_put_on_a_timer(clock: VirtualClock, task: Any) -> None:
    """Adding an object that is not a TimerTask raises TypeError, and nothing is on the timer."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(TypeError, match="TimerTask"):
        timer.add(task)
    assert timer.size == 0


async def test_bad_arguments_of_call_later_are_refused(clock: VirtualClock) -> None:
    """A delay that is not a duration and a callback that is not callable raise an error."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(TypeError, match="callback must be callable"):
        timer.call_later(1, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^delay must be a number of seconds from 0 to 1e15"):
        timer.call_later(-1, print)
    with pytest.raises(TypeError, match=r"^delay must be a number of seconds, got"):
        timer.call_later("1", print)  # type: ignore[arg-type]
    assert timer.size == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
async def test_a_bad_timeout_of_fail_after_is_refused(clock: VirtualClock, timeout: float) -> None:
    """A bad timeout raises an error, and nothing is on the timer."""
    timer = SystemTimer(clock=clock)
    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0"):
        timer.fail_after(timeout)
    assert timer.size == 0


async def test_a_bad_timeout_of_advance_clock_is_refused(clock: VirtualClock) -> None:
    """A timeout that is not a duration raises an error."""
    with pytest.raises(ValueError, match="timeout must be a number of seconds from 0"):
        await SystemTimer(clock=clock).advance_clock(-1)
