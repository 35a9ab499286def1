"""The conversion of seconds to milliseconds, at its limits."""

import math
import re
from datetime import UTC, datetime, timedelta

import pytest

from purgatory.core.timer.units import (
    deadline_ms,
    duration_ms,
    floor_ms,
    to_seconds,
    validated_fraction,
    validated_time,
)


@pytest.mark.parametrize(
    ("seconds", "expected_ms"),
    [(0.5, 500), (0.0001, 1), (1.0, 1000), (0, 0), (-5.0, 0), (-1e15, 0), (1e15, 10**18), (math.inf, 10**18)],
)
def test_a_deadline_in_milliseconds(seconds: float, expected_ms: int) -> None:
    """The deadline is rounded up; a time before the start of the clock is 0, and infinity is the latest time."""
    assert deadline_ms(seconds, "deadline") == expected_ms


@pytest.mark.parametrize("seconds", [1.001e15, -1.001e15, -math.inf, math.nan, 10**400, -(10**400)])
def test_a_deadline_out_of_range_is_refused(seconds: float) -> None:
    """The error names the parameter and the range."""
    with pytest.raises(ValueError, match="deadline must be a number of seconds from -1e15 to 1e15, or infinity, got"):
        deadline_ms(seconds, "deadline")


@pytest.mark.parametrize(("seconds", "expected_ms"), [(0, 0), (0.069, 69), (1e15, 10**18), (10**15, 10**18)])
def test_a_duration_in_milliseconds(seconds: float, expected_ms: int) -> None:
    """The duration is rounded up, exact to a nanosecond, and its limits are valid."""
    assert duration_ms(seconds, "timeout") == expected_ms


@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0])
def test_the_limits_of_a_fraction_are_valid(fraction: float) -> None:
    """0 and 1 are fractions."""
    assert validated_fraction(fraction, "expiry_jitter") == fraction


@pytest.mark.parametrize("seconds", [0.0, 0.0004, 0.001, 1.9999, 123456.0015])
def test_a_clock_is_rounded_down(seconds: float) -> None:
    """What has been read has passed up to the result, and not to the next millisecond."""
    assert to_seconds(floor_ms(seconds)) <= seconds < to_seconds(floor_ms(seconds) + 1)


@pytest.mark.parametrize(("value_ms", "expected"), [(0, 0.0), (-1, -0.001), (69, 0.069), (10**18, 1e15)])
def test_milliseconds_in_seconds(value_ms: int, expected: float) -> None:
    """A time or a duration in seconds is the nearest float, and converts back to the same millisecond."""
    assert to_seconds(value_ms) == expected
    assert value_ms < 0 or duration_ms(to_seconds(value_ms), "timeout") == value_ms


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (timedelta(seconds=5), r": pass its total_seconds\(\)"),
        (datetime(2026, 1, 1, tzinfo=UTC), r": pass timer\.time\(\) plus the seconds from now"),
        ("5", ""),
        (True, ""),
    ],
)
def test_what_is_no_number_is_refused_with_what_to_pass_instead(given: object, hint: str) -> None:
    """The same for a duration and for a time."""
    got = re.escape(repr(given)) + hint
    with pytest.raises(TypeError, match=rf"^timeout must be a number of seconds, got {got}$"):
        duration_ms(given, "timeout")
    with pytest.raises(TypeError, match=rf"^when must be a number of seconds or None, got {got}$"):
        validated_time(given, "when")
