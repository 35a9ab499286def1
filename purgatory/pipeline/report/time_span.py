"""The time that a journal covers: it determines the buckets and the time at which pending operations end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq

__all__ = ["TimeSpan", "span_of_files"]


@dataclass(slots=True)
class TimeSpan:
    """The first and the last record of a journal, and the last record of each source, in milliseconds."""

    first_ms: int = 1 << 62
    last_ms: int = -(1 << 62)
    last_of_source_ms: dict[str, int] = field(default_factory=dict)

    def add(self, source: str, first_ms: int, last_ms: int) -> None:
        """Extend the span so that it includes records of a source."""
        self.first_ms = min(self.first_ms, first_ms)
        self.last_ms = max(self.last_ms, last_ms)
        self.last_of_source_ms[source] = max(self.last_of_source_ms.get(source, last_ms), last_ms)


def span_of_files(files: Iterable[str]) -> TimeSpan | None:
    """Read the span from the footers' statistics; return None if they are missing or a file has several sources."""
    span = TimeSpan()
    for name in files:
        metadata = pq.read_metadata(name)
        columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            if not row_group.num_rows:
                continue
            bounds = {path: _bounds(row_group.column(columns[path])) for path in ("source", "parked_at", "finished_at")}
            source, parked, finished = bounds.values()
            if source is None or source[0] != source[1] or parked is None:
                return None
            all_null = row_group.column(columns["finished_at"]).statistics
            if finished is None and not (all_null and all_null.null_count == row_group.num_rows):
                return None
            last = parked[1] if finished is None else max(parked[1], finished[1])
            span.add(source[0], _ms(parked[0]), _ms(last))
    return span


def _bounds(column: Any) -> tuple[Any, Any] | None:
    statistics = column.statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) // 1000
