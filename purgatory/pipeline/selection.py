"""Select operations of a journal: by time, by purgatory, and by kind.

An operation belongs to the time range in which it **was parked**: ``since_ms <= parked < until_ms``.  It counts as a
whole, even if it ended after ``until_ms``.  Adjacent selections therefore divide a journal: each operation is in
exactly one of them.

The number of parked operations over time is different: it counts every operation that waited at a given time, including
those that parked before ``since_ms``.  A ``dropped`` row has no purgatory and no kind.  It is selected if its time
overlaps the selected time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from purgatory.pipeline.stream.input_rows import LAST_MS

__all__ = ["EVERYTHING", "Selection", "parse_time", "utc_text"]

_LEAST_DIGITS: Final = 12  # a number with fewer digits is probably in seconds, or a date without hyphens
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS: Final = (date.min.toordinal() - _EPOCH.toordinal()) * 86_400_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Operations that parked at ``since_ms`` or later and before ``until_ms``, of these purgatories and kinds.

    Times are epoch milliseconds, or None for no limit.  An empty tuple selects all names.  Raises ValueError if
    ``until_ms`` is not after ``since_ms``.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    purgatories: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.since_ms is not None and self.until_ms is not None and self.until_ms <= self.since_ms:
            raise ValueError(f"until must be after since, {utc_text(self.since_ms)}, got {utc_text(self.until_ms)}")

    @classmethod
    def parse(
        cls,
        since: str | None = None,
        until: str | None = None,
        purgatories: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
        *,
        name: str = "",
    ) -> "Selection":
        """Return a selection from the strings of a command line; the times are parsed by :func:`parse_time`.

        ``name``: the prefix of the options in an error message.
        """
        since_ms = None if since is None else parse_time(since, f"{name}since")
        until_ms = None if until is None else parse_time(until, f"{name}until")
        return cls(since_ms, until_ms, _distinct(purgatories), _distinct(kinds))

    @property
    def is_everything(self) -> bool:
        """Whether every operation is selected."""
        return self == EVERYTHING

    def nothing_in(self, journal: str) -> str:
        """Return the error message for a journal in which no operation is selected."""
        if self.is_everything:
            return f"the journal {journal} is empty: it has no operations"
        return f"the journal {journal} has no operations that match: {self}"

    @property
    def names(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The columns that are limited to some names, with these names."""
        limited = (("purgatory", self.purgatories), ("kind", self.kinds))
        return tuple((column, names) for column, names in limited if names)

    def __str__(self) -> str:
        """Describe the selection, for example: parked since 2026-11-22 10:00:00 UTC, purgatory fetch."""
        times = [
            f"{word} {utc_text(ms)}"
            for word, ms in (("since", self.since_ms), ("until", self.until_ms))
            if ms is not None
        ]
        parts = [f"parked {' '.join(times)}"] if times else []
        parts += [f"{column} {' or '.join(names)}" for column, names in self.names]
        return ", ".join(parts) or "all operations"


EVERYTHING: Final = Selection()


def parse_time(text: str, name: str) -> int:
    """Return epoch milliseconds, rounded up.  ``name``: the name of the option, for the error message.

    ``text``: a date or a time in ISO 8601, or epoch milliseconds.  A time without an offset is in UTC, and a date means
    the start of that day.  Raises ValueError for any other text.
    """
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        if len(stripped) < _LEAST_DIGITS:
            raise _not_a_time(text, name)
        if len(stripped) > len(str(LAST_MS)) or int(stripped) > LAST_MS:
            raise ValueError(f"{name} must be a time before the year 10000, got {text!r}")
        return int(stripped)
    try:
        at = datetime.fromisoformat(stripped)
    except ValueError:
        raise _not_a_time(text, name) from None
    since_epoch = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH
    us = (since_epoch.days * 86_400 + since_epoch.seconds) * 1_000_000 + since_epoch.microseconds
    ms = -(-us // 1000)
    if not _FIRST_MS <= ms <= LAST_MS:  # because of the offset
        raise ValueError(f"{name} must be a time in the years 1 to 9999 in UTC, got {text!r}")
    return ms


def _not_a_time(text: str, name: str) -> ValueError:
    return ValueError(
        f"{name} must be a time such as 2026-11-22, 2026-11-22T10:30, or 2026-11-22T10:30:00+01:00,"
        f" or epoch milliseconds with at least {_LEAST_DIGITS} digits, got {text!r}"
    )


def _distinct(names: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names or ()))


def utc_text(ms: int) -> str:
    """Return the time as text, such as ``2026-11-22 10:00:00 UTC``."""
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{ms} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}{f'.{ms % 1000:03d}' if ms % 1000 else ''} UTC"
