"""The shards of a stream as Spark keeps them: one state per shard, in which :class:`Shard` decides.

**When.**  The rows of a shard come with the batch that has read them, in no order.  They are kept until the watermark
has passed them: Spark drops whatever arrives behind the watermark, so nothing can come in before them any more.  Then
their groups are let go on up to the watermark, with all that is due until there, in one go.

**What wakes it.**  New rows, or one timer per shard: at the earliest deadline or kept row.  Spark calls
``handleInputRows`` once per shard and batch, before any timer, with all the rows that the shard has in it; so where the
watermark has passed something already, its groups go on there and then.  They must: a row between the watermark of the
last batch and that of this one is let through, and a timer for it could not be set any more.

**What is kept.**  The time of the timer, how many operations wait, and the groups in which anything waits or is kept.
A shard without any has no state and no timer.
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

from .records import OUTPUT_NAMES, dead_line, record_of_dead, record_of_end, record_of_live
from .shard import Shard

__all__ = ["STATE", "STATE_NAME", "ShardProcessor"]

STATE_NAME: Final = "shard"
STATE: Final = "wake_ms LONG, live INT, groups STRING"

_Output = Row(*OUTPUT_NAMES)


class ShardProcessor(StatefulProcessor):
    """For ``groupBy("shard").transformWithState``, over ``group`` and ``line`` of what :func:`prepared` makes.

    ``modules``: imported where it runs, for the conditions that they register.
    """

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        self._modules = modules
        self._handle: Any = None
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        for module in self._modules:
            importlib.import_module(module)
        self._handle = handle
        self._state = handle.getValueState(STATE_NAME, STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """The rows of one shard in this batch."""
        by_group: dict[str, list[str]] = {}
        for row in rows:
            bad = dead_line(row.line)
            if bad is None:
                by_group.setdefault(row.group, []).append(row.line)
            else:
                yield _Output(*record_of_dead(row.group, bad))
        if by_group:
            yield from self._go_on(by_group, timerValues.getCurrentWatermarkInMs(), None)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """The watermark has passed what the shard waits for."""
        fired_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._go_on({}, timerValues.getCurrentWatermarkInMs(), fired_ms)

    def close(self) -> None:
        """Nothing is held."""

    def _go_on(self, rows: dict[str, list[str]], watermark_ms: int, fired_ms: int | None) -> Iterator[Row]:
        stored = self._state.get()
        wake_ms, _, text = (None, 0, "") if stored is None else stored
        shard = Shard(text)
        for name, end in shard.go_on(rows, watermark_ms):
            yield _Output(*record_of_end(name, end))
        for name, dead in shard.dead:
            yield _Output(*record_of_dead(name, dead))
        if shard.parked:
            yield _Output(*record_of_live(shard.parked))
        next_ms, text = shard.next_ms(), shard.state()
        if text:
            self._state.update((next_ms, shard.live, text))
        elif stored is not None:
            self._state.clear()
        if next_ms != wake_ms:
            if wake_ms is not None and wake_ms != fired_ms:  # Spark itself deletes the one that has fired
                self._handle.deleteTimer(wake_ms)
            if next_ms is not None:
                self._handle.registerTimer(next_ms)
