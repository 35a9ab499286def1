"""The shards of a stream in Spark: one state per shard, processed by :class:`Shard`.

**Order.**  The rows of a shard arrive with the batch that has read them, in any order.  They are stored until the
watermark has passed them: Spark drops all rows that arrive behind the watermark, so no earlier row can arrive after
that.  The shard then processes, in one call, all events of its groups up to the watermark.

**Wake-ups.**  New rows wake a shard, and so does its only timer, which is set to the earliest deadline or stored row.
Spark calls ``handleInputRows`` once per shard and batch, before any timer, with all rows of the shard in the batch.  If
the watermark has already passed an event, its group is processed in this call.  This is necessary because Spark accepts
a row whose time lies between the watermarks of the previous batch and this one, and a timer for such a row
could no longer be set.

**State.**  The time of the timer, the number of waiting operations, and the groups with waiting operations or stored
rows.  A shard without such groups has no state and no timer.
"""

import importlib
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from purgatory.pipeline.spark.workers import freeze_modules

from .output_records import OUTPUT_NAMES, dead_letter_record, outcome_record, parked_record, parse_dead_letter
from .shard import Shard

__all__ = ["STATE", "STATE_NAME", "ShardProcessor"]

STATE_NAME: Final = "shard"
STATE: Final = "timer_ms LONG, live INT, groups STRING"

_Output = Row(*OUTPUT_NAMES)


class ShardProcessor(StatefulProcessor):
    """The processor for ``groupBy("shard").transformWithState``, over ``group`` and ``line`` from :func:`parse_rows`.

    ``modules``: the modules that each worker imports because they register conditions.
    """

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        self._modules = modules
        self._handle: Any = None
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        for module in self._modules:
            importlib.import_module(module)
        freeze_modules()
        self._handle = handle
        self._state = handle.getValueState(STATE_NAME, STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Process the rows of one shard in this batch."""
        lines_by_group: dict[str, list[str]] = {}
        for row in rows:
            dead_letter = parse_dead_letter(row.line)
            if dead_letter is None:
                lines_by_group.setdefault(row.group, []).append(row.line)
            else:
                yield _Output(*dead_letter_record(row.group, dead_letter))
        if lines_by_group:
            yield from self._advance(lines_by_group, timerValues.getCurrentWatermarkInMs(), None)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Process the events of a shard up to the watermark."""
        expired_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._advance({}, timerValues.getCurrentWatermarkInMs(), expired_ms)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _advance(
        self, lines_by_group: dict[str, list[str]], watermark_ms: int, expired_ms: int | None
    ) -> Iterator[Row]:
        stored = self._state.get()
        timer_ms, _, text = (None, 0, "") if stored is None else stored
        shard = Shard(text)
        for name, operation in shard.advance(lines_by_group, watermark_ms):
            yield _Output(*outcome_record(name, operation))
        for name, dead_letter in shard.dead_letters:
            yield _Output(*dead_letter_record(name, dead_letter))
        if shard.parked:
            yield _Output(*parked_record(shard.parked))
        next_ms, text = shard.next_ms(), shard.state()
        if text:
            self._state.update((next_ms, shard.live, text))
        elif stored is not None:
            self._state.clear()
        if next_ms != timer_ms:
            if timer_ms is not None and timer_ms != expired_ms:  # Spark itself deletes the timer that has fired
                self._handle.deleteTimer(timer_ms)
            if next_ms is not None:
                self._handle.registerTimer(next_ms)
