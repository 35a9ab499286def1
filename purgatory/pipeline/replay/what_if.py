"""Replay a journal with each of several timer settings, on Spark, and compare their costs.

One task replays a piece of the journal with every setting.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console

from purgatory.journal import JournalError
from purgatory.pipeline.journal_reader import OpenJournal, read_journal
from purgatory.pipeline.locations import Location, file_at
from purgatory.pipeline.output.directory import write_files
from purgatory.pipeline.output.figures import write_pictures
from purgatory.pipeline.output.table_files import write_table
from purgatory.pipeline.selection import EVERYTHING, Selection
from purgatory.pipeline.spark.progress import progress
from purgatory.pipeline.spark.workers import ship_package

from .page import replay_page, replay_plots
from .pieces import find_pieces, replay_pieces, sample_pieces
from .recommendation import recommend

__all__ = ["WhatIf", "check_settings", "what_if", "write_what_if"]

_LEAST_BUDGET_MS: Final = 1.0
_GREATEST_TICK_MS: Final = 86_400_000  # a day
_GREATEST_WHEEL: Final = 65_536  # the limit of TimingWheel
_GREATEST_PIECE: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The result of a replay.

    ``table``: one row per setting; ``late_*`` is the lateness of the tick, and ``stall_*`` is the lateness of stalls.
    ``recommended``: tick and wheel size.  ``budget_ms``: the acceptable lateness of the tick.  ``changed``: the number
    of outcomes that differ from the recorded ones, over all settings.  ``examples``: some of them.
    """

    journal: str
    table: pa.Table
    operations: int
    share: float
    changed: int
    examples: tuple[str, ...]
    recommended: dict[str, int]
    headline: str
    reasons: tuple[str, ...]
    budget_ms: float
    skipped: tuple[str, ...]
    made_at: datetime
    selection: Selection = EVERYTHING

    @property
    def subtitle(self) -> str:
        """One line about the replayed operations."""
        part = "" if self.selection.is_everything else f", {self.selection}"
        part += "" if self.share >= 1 else f", {self.share:.1%} of it"
        return f"{self.journal}{part}: {self.operations:,} operations on the real timer, in virtual time"


def what_if(
    spark: SparkSession,
    journal: str,
    ticks_ms: Sequence[int],
    wheel_sizes: Sequence[int],
    *,
    sample: float = 1.0,
    piece_rows: int = 100_000,
    budget_ms: float | None = None,
    selection: Selection = EVERYTHING,
    skip_corrupt: bool = False,
    console: Console | None = None,
) -> WhatIf:
    """Replay the journal with every tick and wheel size.

    ``sample``: the share of the pieces to replay, evenly spread.  ``piece_rows``: the approximate number of operations
    that a task holds in memory.  ``budget_ms``: the acceptable p99 of the tick's lateness in milliseconds; None means
    1% of the median timeout, but at least 1.  ``selection``: the operations to replay; other operations do not run
    alongside them.  Raises the errors of :func:`~purgatory.pipeline.report.compute`, JournalError if an operation ends
    before it parks, and ValueError if a timer cannot have such a setting.
    """
    check_settings(ticks_ms, wheel_sizes, sample, piece_rows, budget_ms)
    ship_package(spark)

    def work(opened: OpenJournal) -> tuple[list[dict[str, Any]], float, float]:
        with progress(spark, 2, console) as steps:
            with steps.step("cutting the journal into pieces"):
                cut = find_pieces(spark, opened, selection, piece_rows)
                pieces, share = sample_pieces(cut.pieces, sample)
                if not pieces:
                    raise JournalError(selection.nothing_in(journal))
            with steps.step(f"replaying {len(ticks_ms) * len(wheel_sizes)} settings"):
                settings = [(tick, size) for tick in sorted(set(ticks_ms)) for size in sorted(set(wheel_sizes))]
                found = replay_pieces(spark, opened, pieces, settings, selection)
        return found, share, cut.median_timeout_ms

    (found, share, timeout_ms), opened = read_journal(spark, journal, work, skip_corrupt=skip_corrupt)
    allowed_ms = max(_LEAST_BUDGET_MS, timeout_ms / 100) if budget_ms is None else budget_ms
    impossible = next((row["impossible"] for row in found if row["impossible"]), None)
    if impossible is not None:
        raise JournalError(f"the journal {journal} cannot be replayed: {impossible}")
    table = _summed(found)
    best, headline, reasons = recommend(table.to_pylist(), allowed_ms)
    operations = sum(row["operations"] for row in found if _setting(row) == _setting(found[0]))
    examples = tuple(row["examples"] for row in found if row["examples"])[:5]
    changed = sum(row["changed"] for row in found)
    skipped, now = opened.skipped, datetime.now(UTC)
    return WhatIf(
        journal=journal,
        table=table,
        operations=operations,
        share=share,
        changed=changed,
        examples=examples,
        recommended=best,
        headline=headline,
        reasons=reasons,
        budget_ms=allowed_ms,
        skipped=skipped,
        made_at=now,
        selection=selection,
    )


def write_what_if(found: WhatIf, out: Location, spark: SparkSession | None = None) -> Location:
    """Write the table, the picture, and the page into the directory ``out``, and return the location of the page.

    ``spark``: the session that writes to a URI; by default, the active one.
    """
    with write_files(out, spark) as directory:
        write_table(found.table, directory, "settings")
        pictures = replay_plots(found)
        write_pictures(pictures, directory)
        (directory / "replay.html").write_text(replay_page(found, pictures), encoding="utf-8")
    return file_at(out, "replay.html")


def check_settings(
    ticks_ms: Sequence[int], wheel_sizes: Sequence[int], sample: float, piece_rows: int, budget_ms: float | None
) -> None:
    """Raise ValueError for the first invalid setting of :func:`what_if`."""
    if not ticks_ms or min(ticks_ms) < 1:
        raise ValueError(f"tick_ms must be whole milliseconds, at least 1, got {list(ticks_ms)}")
    if not wheel_sizes or min(wheel_sizes) < 2:
        raise ValueError(f"wheel_size must be at least 2, got {list(wheel_sizes)}")
    if not 0 < sample <= 1:
        raise ValueError(f"sample must be a share, more than 0 and at most 1, got {sample}")
    if piece_rows < 1:
        raise ValueError(f"piece_rows must be at least 1, got {piece_rows}")
    if budget_ms is not None and not budget_ms >= 0:
        raise ValueError(f"lateness_ms must be at least 0, got {budget_ms}")
    if budget_ms == math.inf:
        raise ValueError(f"lateness_ms must be finite, got {budget_ms}")
    if max(ticks_ms) > _GREATEST_TICK_MS:
        raise ValueError(f"tick_ms must be at most {_GREATEST_TICK_MS:,}, got {list(ticks_ms)}")
    if max(wheel_sizes) > _GREATEST_WHEEL:
        raise ValueError(f"wheel_size must be at most {_GREATEST_WHEEL:,}, got {list(wheel_sizes)}")
    if piece_rows > _GREATEST_PIECE:
        raise ValueError(f"piece_rows must be at most {_GREATEST_PIECE:,}, got {piece_rows}")


def _setting(row: dict[str, Any]) -> tuple[int, int]:
    return row["tick_ms"], row["wheel_size"]


def _summed(found: list[dict[str, Any]]) -> pa.Table:
    """Return one row per setting, summed over its pieces.  Costs are per operation."""
    rows = []
    for setting in sorted({_setting(row) for row in found}):
        rows_of_setting = [row for row in found if _setting(row) == setting]
        operations = sum(row["operations"] for row in rows_of_setting)
        late, stalled = (_added(row[name] for row in rows_of_setting) for name in ("late", "stalled"))
        total = {name: sum(row[name] for row in rows_of_setting) for name in _COUNTED}
        rows.append(
            {
                "tick_ms": setting[0],
                "wheel_size": setting[1],
                "operations": operations,
                "changed": sum(row["changed"] for row in rows_of_setting),
                "expired": sum(row["expired"] for row in rows_of_setting),
                **{name: total[name] / operations for name in _COUNTED},
                "late_mean_ms": _mean(late),
                "late_p99_ms": float(_quantile(late, 0.99)),
                "late_max_ms": float(max(late, default=0)),
                "stall_p99_ms": float(_quantile(stalled, 0.99)),
                "stall_max_ms": float(max(stalled, default=0)),
                "cpu_us": sum(row["cpu_s"] for row in rows_of_setting) / operations * 1e6,
            }
        )
    return pa.Table.from_pylist(rows)


_COUNTED: Final = ("cascades", "buckets", "heap_operations", "wakeups")


def _added(histograms: Iterable[tuple[Any, Any]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for values, numbers in histograms:
        for value, number in zip(np.asarray(values).tolist(), np.asarray(numbers).tolist(), strict=True):
            total[value] = total.get(value, 0) + number
    return total


def _mean(late: dict[int, int]) -> float:
    number = sum(late.values())
    return sum(value * times for value, times in late.items()) / number if number else 0.0


def _quantile(late: dict[int, int], share: float) -> int:
    """Return the smallest value that is at least as large as this share of the values."""
    if not late:
        return 0
    values = np.array(sorted(late))
    cumulative = np.cumsum([late[value] for value in values.tolist()])
    return int(values[np.searchsorted(cumulative, share * cumulative[-1])])
