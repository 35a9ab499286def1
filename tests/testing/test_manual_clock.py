"""The clock that is set by hand: its time is an attribute, and it needs no event loop."""

import pytest

from purgatory import SystemTimer
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock


def test_the_time_is_what_was_assigned() -> None:
    """The time is a whole number of milliseconds, the same rounded down and up, and in seconds."""
    clock = ManualClock()
    assert (clock.now_ms(), clock.ceil_ms(), clock.time()) == (0, 0, 0.0)
    clock.time_ms = 1500
    assert (clock.now_ms(), clock.ceil_ms(), clock.time()) == (1500, 1500, 1.5)
    assert ManualClock(7).now_ms() == 7


def test_it_drives_a_timer_without_an_event_loop() -> None:
    """A deadline counts from the assigned time and expires exactly at it."""
    clock, ran = ManualClock(1000), list[int]()
    timer = BaseTimer(1, 20, clock)
    timer.call_later(5.0, lambda: ran.append(clock.time_ms))
    clock.time_ms = 5999
    assert timer.expire_due(clock.time_ms) == 0
    clock.time_ms = 6000
    assert timer.expire_due(clock.time_ms) == 1
    assert ran == [6000]


def test_a_system_timer_expires_by_hand() -> None:
    """A SystemTimer works outside an event loop, as in the example of the docstring."""
    clock, ran = ManualClock(), list[str]()
    timer = SystemTimer(clock=clock)
    timer.call_later(5.0, ran.append, "ran")
    clock.time_ms += 5000
    assert timer.expire_due(clock.time_ms) == 1
    assert ran == ["ran"]


def test_it_wakes_nothing() -> None:
    """Requesting a wake-up raises an error instead of being ignored."""
    with pytest.raises(RuntimeError, match=r"a ManualClock wakes nothing: call timer\.expire_due"):
        ManualClock().call_at(5, print)
