"""Seconds outside, whole milliseconds inside: the module that converts between them.

Users pass seconds as floats.  The timer counts integer milliseconds, and every name for a number of milliseconds ends
in ``_ms``.  A duration is rounded **up**, so the conversion never makes anything fire early.

Three places divide by 1,000 themselves: :mod:`purgatory.events`, which imports no other module of the package, and the
monotonic clock and the turn budget, where a function call would slow down every wake-up of the reaper.
"""

import math
from typing import Any, Final

from purgatory.texts import safe_repr, type_name

__all__ = [
    "ceil_ms",
    "deadline_ms",
    "duration_ms",
    "floor_ms",
    "time_ms",
    "to_seconds",
    "validated_fraction",
    "validated_time",
]

# Slightly less than a millisecond: it lifts every fraction of at least a nanosecond to the next whole millisecond but
# ignores rounding noise in a product of floats (0.069 * 1000 is 69.00000000000001 and means 69).
_ALMOST_ONE: Final = 0.999999
_TOO_LONG: Final = 10**16
_LONGEST: Final = 1e15  # 31 million years; milliseconds then still fit one machine word
_INFINITE: Final = math.inf
_HINTS: Final = {
    "timedelta": ": pass its total_seconds()",
    "datetime": ": pass timer.time() plus the seconds from now",
}


def ceil_ms(seconds: float) -> int:
    """Return a nonnegative duration in whole milliseconds, rounded up (exact to a nanosecond)."""
    return int(seconds * 1000.0 + _ALMOST_ONE)


def floor_ms(seconds: float) -> int:
    """Return a time in whole milliseconds, rounded down, so that a time read from a clock has certainly passed."""
    return int(seconds * 1000.0)


def to_seconds(value_ms: int) -> float:
    """Return a time or a duration in seconds."""
    return value_ms / 1000


def duration_ms(seconds: Any, name: str) -> int:
    """Validate a duration that the caller passed as ``name``, and convert it to milliseconds.

    Raises TypeError unless the duration is an int or a float, and ValueError if it is negative, NaN, infinite, or above
    1e15.
    """
    if isinstance(seconds, float):
        given: float = seconds
    elif isinstance(seconds, int) and not isinstance(seconds, bool):
        given = float(max(-1, min(seconds, _TOO_LONG)))  # a huge int does not fit into a float and is rejected below
    else:
        hint = _HINTS.get(type_name(seconds), "")
        raise TypeError(f"{name} must be a number of seconds, got {safe_repr(seconds)}{hint}")
    if not 0.0 <= given <= _LONGEST:
        raise ValueError(f"{name} must be a number of seconds from 0 to 1e15, got {safe_repr(seconds)}")
    return ceil_ms(given)


def deadline_ms(seconds: Any, name: str) -> int:
    """Validate a time on a clock as :func:`validated_time` does, and convert it to milliseconds."""
    return time_ms(validated_time(seconds, name))


def validated_time(seconds: Any, name: str) -> float:
    """Validate a time on a clock that the caller passed as ``name``.

    Raises TypeError unless the time is an int or a float, and ValueError unless it is from -1e15 to 1e15 or infinity.
    """
    if isinstance(seconds, float):
        given = float(seconds)
    elif isinstance(seconds, int) and not isinstance(seconds, bool):
        given = float(max(-_TOO_LONG, min(seconds, _TOO_LONG)))
    else:
        hint = _HINTS.get(type_name(seconds), "")
        raise TypeError(f"{name} must be a number of seconds or None, got {safe_repr(seconds)}{hint}")
    if not -_LONGEST <= given <= _LONGEST and given != _INFINITE:
        raise ValueError(
            f"{name} must be a number of seconds from -1e15 to 1e15, or infinity, got {safe_repr(seconds)}"
        )
    return given


def time_ms(seconds: float) -> int:
    """Convert a validated time on a clock: a time before the clock's start becomes 0, and infinity becomes the latest
    time.
    """
    if seconds <= 0.0:
        return 0
    return ceil_ms(min(_LONGEST, seconds))


def validated_fraction(fraction: Any, name: str) -> float:
    """Validate a fraction that the caller passed as ``name``.

    Raises TypeError unless the fraction is an int or a float, and ValueError unless it is from 0 to 1.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise TypeError(f"{name} must be a number from 0 to 1, got {safe_repr(fraction)}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {safe_repr(fraction)}")
    return float(fraction)
