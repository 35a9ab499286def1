"""The time that a journal covers, and when runs of servers began in it.

The time determines the buckets and the time at which pending operations end.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from purgatory.journal.files import start_of
from purgatory.pipeline.selection import Selection

__all__ = ["LastRecord", "TimeSpan", "at", "deploys_of", "span_of_files"]


class LastRecord(NamedTuple):
    """The last record of a source: its time on the process's own clock, in milliseconds, and its anchor.

    Their sum is the time of the record.  If the process's wall clock was set back, an earlier record may have a later
    time.
    """

    clock_ms: int
    anchor_ms: int


_SPAN: Final = ("source", "anchor_ms", "parked_at", "finished_at")


@dataclass(slots=True)
class TimeSpan:
    """The earliest and the latest time in a journal and in each source, in milliseconds.

    ``last_of_source``: the last record of each source, according to the process's own clock.  ``anchor_of_source_ms``:
    the highest anchor of each source.
    """

    first_ms: int = 1 << 62
    last_ms: int = -(1 << 62)
    first_of_source_ms: dict[str, int] = field(default_factory=dict)
    anchor_of_source_ms: dict[str, int] = field(default_factory=dict)
    last_of_source: dict[str, LastRecord] = field(default_factory=dict)

    def add(self, source: str, first_ms: int, last_ms: int, anchor_ms: int) -> None:
        """Extend the span to records of a source with one anchor; the first and the last of them have these times."""
        self.first_ms = min(self.first_ms, first_ms)
        self.last_ms = max(self.last_ms, last_ms)
        self.first_of_source_ms[source] = min(self.first_of_source_ms.get(source, first_ms), first_ms)
        self.anchor_of_source_ms[source] = max(self.anchor_of_source_ms.get(source, anchor_ms), anchor_ms)
        last = LastRecord(last_ms - anchor_ms, anchor_ms)
        self.last_of_source[source] = max(self.last_of_source.get(source, last), last)


def span_of_files(files: Iterable[str]) -> TimeSpan | None:
    """Read the span from the footers' statistics.

    Return None if they are missing, or if a row group has several sources or anchors.
    """
    span = TimeSpan()
    for name in files:
        metadata = pq.read_metadata(name)
        columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            if not row_group.num_rows:
                continue
            source, anchor, parked, finished = (_bounds(row_group.column(columns[path])) for path in _SPAN)
            if source is None or source[0] != source[1] or anchor is None or anchor[0] != anchor[1] or parked is None:
                return None
            all_null = row_group.column(columns["finished_at"]).statistics
            if finished is None and not (all_null and all_null.null_count == row_group.num_rows):
                return None
            last = parked[1] if finished is None else max(parked[1], finished[1])
            span.add(source[0], _ms(parked[0]), _ms(last), anchor[0])
    return span


def _bounds(column: Any) -> tuple[Any, Any] | None:
    statistics = column.statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) // 1000


def deploys_of(span: TimeSpan, step_ms: int, selection: Selection, now_ms: int) -> tuple[datetime, ...]:
    """Return the times at which later runs of servers began, within the selected time.

    Runs that began in the same step share one time; the step of the first run is left out.

    A run begins at the start time in its name, because a server that is idle, or whose older files were deleted, may
    have its first row much later.  In three cases, a run begins with its first row instead: its name contains no start
    time, the start time in its name is later than that row, or the journal contains times after ``now_ms`` and
    therefore records simulated time.
    """
    is_simulated = span.last_ms > now_ms
    begun_ms = sorted(
        first_ms if is_simulated else min(first_ms, start_of(source) or first_ms)
        for source, first_ms in span.first_of_source_ms.items()
    )
    steps: dict[int, int] = {}
    for at_ms in begun_ms:
        steps.setdefault(at_ms // step_ms, at_ms)
    since_ms = span.first_ms if selection.since_ms is None else max(span.first_ms, selection.since_ms)
    until_ms = span.last_ms + 1 if selection.until_ms is None else selection.until_ms
    return tuple(at(at_ms) for at_ms in list(steps.values())[1:] if since_ms <= at_ms < until_ms)


def at(ms: int) -> datetime:
    """Return the time in UTC for epoch milliseconds."""
    return datetime.fromtimestamp(ms // 1000, UTC) + timedelta(milliseconds=ms % 1000)
