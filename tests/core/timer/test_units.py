"""The conversion of seconds to milliseconds, at its limits."""

import math

import pytest

from purgatory.core.timer.units import deadline_ms, duration_ms, validated_fraction


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
