"""The timer with a clock: which time it counts from, and that a task without a wake-up is not on it."""

import pytest

from purgatory import TimerTask
from purgatory.core.timer.base_timer import BaseTimer, ceil_now, now
from purgatory.testing import VirtualClock
from purgatory.types import MonotonicClock
from tests.helpers import Boom


def test_a_timer_on_the_usual_clock_counts_from_the_time_rounded_up() -> None:
    """Both ways of adding a task read the same clock."""
    timer = BaseTimer(1, 20, MonotonicClock())
    timer._read = lambda: 1e9 + 0.3456
    task = TimerTask(10)
    timer.add(task)
    assert task.expiration_ms == 1_000_000_000_356
    assert timer.call_later(0.01, print).expiration_ms == 1_000_000_000_356
    assert timer.call_later(0.001, print).expiration_ms == 1_000_000_000_347  # not 346, which is earlier than 1 ms
    assert timer.call_later(0, print).expiration_ms == 1_000_000_000_345


def test_the_time_of_a_timer_is_that_of_its_clock() -> None:
    """The shortcut for the default clock rounds down as the clock does."""
    timer = BaseTimer(1, 20, MonotonicClock())
    before_ms = timer.clock.now_ms()
    assert before_ms <= now(timer) <= timer.clock.now_ms()
    timer._read = lambda: 1e9 + 0.3456
    assert now(timer) == 1_000_000_000_345
    assert ceil_now(timer) == 1_000_000_000_346


def test_a_task_leaves_the_timer_if_the_wake_up_cannot_be_planned() -> None:
    """The caller gets the error of the clock, and the task is not scheduled."""

    class Failing(BaseTimer):
        def _wake_earlier(self, expiration_ms: int) -> None:
            raise Boom

    timer, task = Failing(1, 20, VirtualClock()), TimerTask(10)
    with pytest.raises(Boom):
        timer.add(task)
    assert not task.scheduled
    with pytest.raises(Boom):
        timer.call_later(0.01, print)
    assert timer.size == 0
