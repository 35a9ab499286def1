"""How long a client is willing to wait: ``?wait=30``, or the header ``Prefer: wait=30`` (RFC 7240, section 4.3)."""

import math
import re
from typing import Any, Final
from urllib.parse import parse_qsl

from purgatory.core.timer.units import duration_ms

from .types import Scope

__all__ = ["InvalidWait", "asked", "validated_longest"]

_BALANCED: Final = re.compile(r'(?:[^"]|"(?:[^"\\]|\\.)*")*')  # every quoted string is terminated
_PREFERENCES: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*")+')
_LONGEST_DIGITS: Final = 15
_LONGEST_QUOTE: Final = 16  # characters; in a WebSocket close, the message must fit into 123 bytes


class InvalidWait(ValueError):
    """The query parameter ``wait`` is not a nonnegative number.  ``install_errors`` responds with 422."""


def validated_longest(longest: float) -> float:
    """Return the longest wait as a float.

    Raises TypeError unless ``longest`` is a number, and ValueError unless it is finite and at least 0.
    """
    duration_ms(longest, "longest")
    return float(longest)


def asked(scope: Scope, longest: float) -> tuple[float, int | None]:
    """Return the number of seconds that the client asked for, at most ``longest``.  If the number comes from a
    ``Prefer`` header, also return it rounded down.

    The second value is None if the number does not come from a header: the query parameter takes precedence, and a
    malformed header is ignored, as RFC 7240 requires.  Raises InvalidWait unless the parameter is a nonnegative number;
    infinity counts as a number.
    """
    query: bytes = scope.get("query_string", b"")
    if query:
        for name, text in reversed(parse_qsl(query.decode("latin-1"), keep_blank_values=True)):
            if name == "wait":
                return min(_seconds(text), longest), None
    preferred = _preferred(scope)
    if preferred is None:
        return 0.0, None
    seconds = min(preferred, longest)
    return seconds, math.floor(seconds)


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text.strip().isascii() else math.nan  # FastAPI accepts ASCII digits only
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise InvalidWait(f"wait must be a number of seconds, at least 0, got {text[:_LONGEST_QUOTE]!r}")
    return seconds


def _preferred(scope: Scope) -> float | None:
    """Return the number of seconds in the first ``wait`` preference of the ``Prefer`` headers, or None if that
    preference is not valid.
    """
    lines: list[Any] = [value for name, value in scope.get("headers", ()) if name == b"prefer"]
    if not lines:
        return None
    header = b",".join(lines).decode("latin-1")
    if _BALANCED.fullmatch(header) is None:
        return None
    for preference in _PREFERENCES.findall(header):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            digits = value.strip()
            if len(digits) > 1 and digits[0] == digits[-1] == '"':
                digits = digits[1:-1]
            if not (digits.isascii() and digits.isdigit()):
                return None
            return float(digits) if len(digits) <= _LONGEST_DIGITS else math.inf
    return None
