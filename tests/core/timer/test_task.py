"""A timer task: its delay, and that adding it again moves it."""

from collections.abc import Callable

import pytest

from purgatory import TimerTask
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.helpers import Op


def test_a_new_task_is_not_scheduled() -> None:
    """A task that is not on a timer has no expiration and cannot be cancelled."""
    task = TimerTask(10)
    assert not task.scheduled
    assert task.expiration_ms is None
    assert not task.cancel()


@pytest.mark.parametrize("delay_ms", [1.0, "1", None])
def test_a_delay_is_a_whole_number(delay_ms: object) -> None:
    """A delay in milliseconds must be an int."""
    with pytest.raises(TypeError, match=r"delay_ms|int"):
        TimerTask(delay_ms)  # type: ignore[arg-type]


def test_a_delay_has_an_end() -> None:
    """A delay that does not fit in a machine word is refused."""
    with pytest.raises(ValueError, match=r"at most 10\*\*18"):
        TimerTask(10**18 + 1)
    assert TimerTask(10**18).delay_ms == 10**18
    with pytest.raises(ValueError, match=r"at least -10\*\*18"):
        TimerTask(-(10**18) - 1)
    assert TimerTask(-(10**18)).delay_ms == -(10**18)


@pytest.mark.parametrize("delay_ms", [5, 50])
@pytest.mark.parametrize("make", [TimerTask, lambda delay_ms: Op(delay_ms / 1000)])
def test_adding_a_scheduled_task_to_its_timer_moves_it(make: Callable[[int], TimerTask], delay_ms: int) -> None:
    """Its delay counts from the second call, and the first deadline is gone; the same for an operation of its own."""
    clock = ManualClock()
    timer = BaseTimer(1, 20, clock)
    task = make(delay_ms)
    timer.add(task)
    clock.time_ms += 3
    timer.add(task)
    assert timer.size == 1
    assert task.expiration_ms == clock.time_ms + delay_ms
    assert timer.expire_due(clock.time_ms + delay_ms - 1) == 0
    assert timer.expire_due(clock.time_ms + delay_ms) == 1
    assert timer.size == 0
