"""Recorded arrival times, from a CSV file.

The file has a header.  The ``arrived_at`` column contains seconds, or dates and times in ISO 8601; the earliest value
is the start of the run.  The optional ``group`` column contains the group id; without this column, all lines belong to
one group that is named after the file.  Other columns are ignored.
"""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["ArrivalsError", "read_arrivals"]


class ArrivalsError(ValueError):
    """The file is not usable.  The message contains the file name and the line."""


def read_arrivals(path: Path) -> dict[str, tuple[float, ...]]:
    """Return the sorted arrival times of each group, in seconds after the earliest one.  May raise ArrivalsError."""
    times: dict[str, list[float]] = {}
    kinds: set[bool] = set()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or "arrived_at" not in rows.fieldnames:
                raise ArrivalsError(f"{path}: the first line must contain the column 'arrived_at'")
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                group_id = row.get("group", path.stem)
                if not group_id:
                    raise ArrivalsError(f"{where}: the group is missing")
                seconds, is_date = _seconds(row["arrived_at"], where)
                times.setdefault(group_id, []).append(seconds)
                kinds.add(is_date)
                if len(kinds) > 1:
                    raise ArrivalsError(f"{where}: arrived_at must be seconds in all lines or dates in all lines")
    except OSError as error:
        raise ArrivalsError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArrivalsError(f"{path} is not a CSV file: {error}") from error
    if not times:
        raise ArrivalsError(f"{path} contains no arrivals")
    first = min(min(some) for some in times.values())
    return {group_id: tuple(sorted(time - first for time in some)) for group_id, some in times.items()}


def _seconds(text: str | None, where: str) -> tuple[float, bool]:
    """Return the time in seconds, and whether the text is a date."""
    if not text:
        raise ArrivalsError(f"{where}: arrived_at is missing")
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ArrivalsError(
                f"{where}: arrived_at must be a number of seconds or a date and time like 2025-01-31T12:00:00,"
                f" got {text!r}"
            ) from None
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp(), True
    if not math.isfinite(seconds):
        raise ArrivalsError(f"{where}: arrived_at must be a finite number of seconds, got {text!r}")
    return seconds, False
