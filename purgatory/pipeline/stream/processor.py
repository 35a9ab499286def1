"""The groups of a stream as Spark keeps them: one state per group, in which :class:`Group` decides.

**When.**  The rows of a group come with the batch that has read them, in no order.  They are kept until the watermark
has passed them: Spark drops whatever arrives behind the watermark, so nothing can come in before them any more.  Then
the group is let go on up to the watermark, with all that is due until there, in one go.

**What wakes it.**  New rows, or one timer per group: at the earliest deadline or kept row.  Spark calls
``handleInputRows`` once per group and batch, before any timer, with all the rows that the group has in it; so where the
watermark has passed something already, the group goes on there and then.  It must: a row between the watermark of the
last batch and that of this one is let through, and a timer for it could not be set any more.

**What is kept.**  The group's time, the time of its timer, how many operations wait, those operations and the rows.  A
group where nothing waits and nothing is kept has no state and no timer.
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

from .group import Group
from .records import OUTPUT_NAMES, dead_line, record_of_dead, record_of_end, record_of_live

__all__ = ["STATE", "STATE_NAME", "GroupProcessor"]

STATE_NAME: Final = "group"
STATE: Final = "clock_ms LONG, wake_ms LONG, live INT, ops STRING, buffer STRING"

_Output = Row(*OUTPUT_NAMES)


class GroupProcessor(StatefulProcessor):
    """For ``groupBy("group").transformWithState``, over what :func:`prepared` makes.

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
        """The rows of one group in this batch."""
        name = key[0]
        lines = []
        for row in rows:
            bad = dead_line(row.line)
            if bad is None:
                lines.append(row.line)
            else:
                yield _Output(*record_of_dead(name, bad))
        if lines:
            yield from self._go_on(name, lines, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """The watermark has passed what the group waits for."""
        yield from self._go_on(key[0], [], timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        """Nothing is held."""

    def _go_on(self, name: str, lines: list[str], watermark_ms: int) -> Iterator[Row]:
        stored = self._state.get()
        clock_ms, wake_ms, live, ops, buffer = (0, None, 0, "", "") if stored is None else stored
        group = Group(name, clock_ms, ops, buffer)
        group.add(lines)
        next_ms = _earliest(wake_ms, lines)
        if next_ms is not None and next_ms <= watermark_ms:
            for end in group.advance(watermark_ms):
                yield _Output(*record_of_end(name, end))
            for dead in group.dead:
                yield _Output(*record_of_dead(name, dead))
            if group.parked:
                yield _Output(*record_of_live(name, group.parked))
            live = group.live
            next_ms = group.next_ms()
        ops, buffer = group.state()
        if live or buffer:
            self._state.update((group.clock_ms, next_ms, live, ops, buffer))
        elif stored is not None:
            self._state.clear()
        if next_ms != wake_ms:
            if wake_ms is not None:
                self._handle.deleteTimer(wake_ms)
            if next_ms is not None:
                self._handle.registerTimer(next_ms)


def _earliest(wake_ms: int | None, lines: list[str]) -> int | None:
    times = [int(line[: line.index(" ")]) for line in lines]
    if wake_ms is not None:
        times.append(wake_ms)
    return min(times, default=None)
