"""Seconds in, whole milliseconds inside.  Floor 0: the one place that converts.

What a user of asyncio touches is a float of seconds; what the timer counts is an integer of milliseconds, and every
such name ends in ``_ms``.  A duration is rounded **up**, so that nothing can fire early for having been converted.
"""

from typing import Any, Final

__all__ = ["ceil_ms", "duration_ms"]

# A whisker under one millisecond: it lifts every fraction down to a nanosecond to the next whole millisecond, and
# leaves alone what is only the noise of a product of floats (0.069 * 1000 is 69.00000000000001 and means 69).
_ALMOST_ONE: Final = 0.999999
_TOO_LONG: Final = 10**16
_LONGEST: Final = 1e15  # 31 million years; milliseconds then still fit one machine word


def ceil_ms(seconds: float) -> int:
    """A duration in whole milliseconds, rounded up to the next one (exact to a nanosecond); not for negative ones."""
    return int(seconds * 1000.0 + _ALMOST_ONE)


def duration_ms(seconds: Any, name: str) -> int:
    """Check a duration that a caller gave as ``name`` and convert it.

    Raises TypeError if it is no number, ValueError if it is negative, NaN or infinite.
    """
    if isinstance(seconds, float):
        given: float = seconds
    elif isinstance(seconds, int) and not isinstance(seconds, bool):
        given = float(min(seconds, _TOO_LONG))  # a huge int is no float, and is refused all the same
    else:
        raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
    if not 0.0 <= given <= _LONGEST:
        raise ValueError(f"{name} is a finite number of seconds, at least 0 and at most 1e15, not {seconds!r}")
    return ceil_ms(given)
