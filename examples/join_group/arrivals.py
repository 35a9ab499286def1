"""Recorded arrival times, from a CSV file.

The file has a header.  ``arrived_at`` is seconds, or a date and time in ISO 8601; the earliest one is the beginning.
``group`` says which group it belongs to; without that column all lines are one group, named after the file.  Other
columns are ignored.
"""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["ArrivalsError", "read_arrivals"]


class ArrivalsError(ValueError):
    """The file cannot be used; the message names it and the line."""


def read_arrivals(path: Path) -> dict[str, tuple[float, ...]]:
    """Arrival times in seconds from the earliest, by group, in order.  ArrivalsError if the file is not as above."""
    times: dict[str, list[float]] = {}
    kinds: set[bool] = set()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or "arrived_at" not in rows.fieldnames:
                raise ArrivalsError(f"{path} has no column 'arrived_at' in its first line")
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                group_id = row.get("group", path.stem)
                if not group_id:
                    raise ArrivalsError(f"{where}: the group is missing")
                seconds, is_date = _seconds(row["arrived_at"], where)
                times.setdefault(group_id, []).append(seconds)
                kinds.add(is_date)
                if len(kinds) > 1:
                    raise ArrivalsError(f"{where}: some arrivals are seconds and others dates: which are they?")
    except OSError as error:
        raise ArrivalsError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArrivalsError(f"{path} is not a CSV file: {error}") from error
    if not times:
        raise ArrivalsError(f"{path} has a header and no lines: it holds no arrival")
    first = min(min(some) for some in times.values())
    return {group_id: tuple(sorted(time - first for time in some)) for group_id, some in times.items()}


def _seconds(text: str | None, where: str) -> tuple[float, bool]:
    """The time in seconds, and whether it was given as a date."""
    if not text:
        raise ArrivalsError(f"{where}: arrived_at is missing")
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ArrivalsError(
                f"{where}: arrived_at is seconds, or a date and time as 2025-01-31T12:00:00, not {text!r}"
            ) from None
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp(), True
    if not math.isfinite(seconds):
        raise ArrivalsError(f"{where}: arrived_at is a finite number of seconds, not {text!r}")
    return seconds, False
