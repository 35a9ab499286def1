"""One group of a stream: the purgatory's own core decides, told the time by the rows.  Pure, no Spark.

This module is what the streaming job, its batch twin and whoever checks them agree on.  It says when things happen:

1.  The rows of a group happen in the order of :mod:`purgatory.pipeline.stream.rows`.
2.  **Before** a row happens, every deadline at or before its time has passed, the earliest first, equal ones in the
    order of parking.  So of a deadline and a signal in the same millisecond the deadline comes first: at its deadline
    an operation has run out of time, as under a clock that is moved to the row's time before the row is handled.
3.  An operation whose deadline is not after its own row is tried once when it parks, and then ends at that time,
    before the next row.
4.  A signal is seen by those who wait on its key at that moment, in the order of parking.
5.  An end happens at the time of the row or of the deadline that brings it about, to the millisecond.

Nothing is decided from the order in which rows *arrive*, nor from when they are handed in: the rows of one group, cut
into portions by time in any way, give the same ends.
"""

import contextlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from purgatory.clock import Clock
from purgatory.conditions import ConditionalOperation, signal
from purgatory.events import Event
from purgatory.operation import FOREVER_MS, Operation
from purgatory.room import Room
from purgatory.timekeeper import Timekeeper

from .rows import BadRow, Row, read_row

__all__ = ["Dead", "Ended", "Group", "line"]

_WHEEL_SIZE = 6  # a group lives for a moment, and small wheels are quickly made; when things happen is the same


def line(ts_ms: int, text: str) -> str:
    """A row as a group keeps it: its time, a space, and the row as a JSON object without line breaks."""
    return f"{ts_ms} {text}"


class Ended(NamedTuple):
    """The end of an operation: what the engines are compared by.  ``error``: why a ``failed`` one failed.

    One that has not ended has the outcome ``pending`` and no ``finished_ms``.
    """

    op_id: str
    outcome: str
    parked_ms: int
    finished_ms: int | None
    deadline_ms: int | None
    error: str | None = None


class Dead(NamedTuple):
    """A row that could not be handled, as it came, and why."""

    text: str
    reason: str


class _HandClock(Clock):
    """A clock that is moved by assignment."""

    __slots__ = ("time_ms",)

    def __init__(self, time_ms: int) -> None:
        self.time_ms = time_ms

    def now_ms(self) -> int:
        return self.time_ms

    def ceil_ms(self) -> int:
        return self.time_ms


class _Operation(ConditionalOperation):
    """An operation that knows the row it came from."""

    __slots__ = ("deadline_ms", "id", "text")

    def __init__(
        self, op_id: str, condition: str, keys: Iterable[str], parked_ms: int, deadline_ms: int | None, seen: Any = None
    ) -> None:
        super().__init__(condition, keys, None, seen=seen)
        self.id = op_id
        self.text = condition
        self.deadline_ms = deadline_ms
        # Whole milliseconds, as the timer counts them: the way through seconds would round at great lengths.
        self.delay_ms = FOREVER_MS if deadline_ms is None else deadline_ms - parked_ms


class _Ends:
    """An observer that writes down every end."""

    def __init__(self) -> None:
        self.live: dict[str, _Operation] = {}
        self.ends: list[Ended] = []

    def ended(self, event: Event) -> None:
        operation = event.operation
        self.live.pop(operation.id, None)
        assert event.finished_ms is not None
        error = None if event.error is None else f"{type(event.error).__name__}: {event.error}"
        self.ends.append(
            Ended(operation.id, event.outcome.value, event.parked_ms, event.finished_ms, operation.deadline_ms, error)
        )

    completed = expired = cancelled = failed = ended


class _Room(Room):
    """A room in which nobody awaits anything."""

    def report(self, error: BaseException, operation: Operation) -> None:
        """An operation failed: the end that was written down says why."""

    def report_observer(self, error: BaseException, observer: object) -> None:
        raise error


class Group:
    """The operations of one group that wait, its rows that have not happened yet, and its time.

    ``ops`` and ``buffer`` are what :meth:`state` has returned, or empty.  ``clock_ms``: everything up to this time has
    happened; a row from before it comes too late.
    """

    def __init__(self, name: str, clock_ms: int = 0, ops: str = "", buffer: str = "") -> None:
        self.name = name
        self.clock_ms: int = clock_ms
        self.parked: int = 0  # how many have parked under this object's eyes
        self.dead: list[Dead] = []
        self._ops = ops  # as stored, until somebody has to look inside
        self._lines: list[str] = buffer.split("\n") if buffer else []
        self._clock: _HandClock | None = None
        self._room: _Room | None = None
        self._timer: Timekeeper | None = None
        self._noted = _Ends()

    def add(self, lines: Iterable[str]) -> None:
        """Keep rows until their time has come; each is a line as :func:`line` makes it."""
        self._lines.extend(lines)

    def advance(self, until_ms: int) -> list[Ended]:
        """Let everything up to and including ``until_ms`` happen; return the ends, in the order in which they came."""
        if self._room is None:
            self._wake_up()
        noted = self._noted
        noted.ends = []
        for row, text in self._take(until_ms):
            if row.ts_ms <= self.clock_ms:
                self.dead.append(Dead(text, f"it comes too late: everything up to {self.clock_ms} has happened"))
                continue
            self._pass(row.ts_ms)
            self._happen(row, text)
        self._pass(until_ms)
        self.clock_ms = max(self.clock_ms, until_ms)
        return noted.ends

    def state(self) -> tuple[str, str]:
        """The operations that wait and the rows that are kept, as two texts: ``ops`` and ``buffer``."""
        if self._room is not None:
            live = self._noted.live
            self._ops = _encoded([_stored(operation) for operation in live.values()]) if live else ""
        return self._ops, "\n".join(self._lines)

    def pending(self) -> list[Ended]:
        """The operations that wait, in the order of parking."""
        waiting = self._waiting().values()
        return [Ended(one.id, one.outcome.value, one._parked_ms, None, one.deadline_ms) for one in waiting]

    @property
    def live(self) -> int:
        """How many operations wait."""
        return len(self._waiting())

    def next_ms(self) -> int | None:
        """When the next thing happens: the earliest deadline or row that is kept; None: nothing is to come."""
        times = [operation.deadline_ms for operation in self._waiting().values()]
        known = [time_ms for time_ms in times if time_ms is not None]
        known += [_time_of(line) for line in self._lines]
        return min(known, default=None)

    # Inside

    def _waiting(self) -> "dict[str, _Operation]":
        if self._room is None:
            self._wake_up()
        return self._noted.live

    def _wake_up(self) -> None:
        """Park the stored operations again, each at its own time, so that they come to stand as they stood."""
        stored = json.loads(self._ops) if self._ops else []
        clock = self._clock = _HandClock(stored[0][3] if stored else self.clock_ms)
        timer = self._timer = Timekeeper(1, _WHEEL_SIZE, clock)
        self._room = _Room(self.name, timer, observers=(self._noted,))
        for op_id, condition, keys, parked_ms, deadline_ms, seen in stored:
            clock.time_ms = parked_ms
            self._park(_Operation(op_id, condition, keys, parked_ms, deadline_ms, seen))
        clock.time_ms = max(clock.time_ms, self.clock_ms)

    def _park(self, operation: _Operation) -> None:
        room = self._room
        assert room is not None
        self._noted.live[operation.id] = operation
        with contextlib.suppress(Exception):  # its condition raised: it has failed, and the end says why
            room.try_complete_else_watch(operation, operation.wanted)

    def _take(self, until_ms: int) -> list[tuple[Row, str]]:
        """Take the rows out whose time has come, in order; those that are none are dead letters."""
        later: list[str] = []
        now: list[tuple[Row, str]] = []
        for line in self._lines:
            if _time_of(line) > until_ms:
                later.append(line)
                continue
            text = line.partition(" ")[2]
            try:
                now.append((read_row(text), text))
            except BadRow as error:
                self.dead.append(Dead(text, str(error)))
        self._lines = later
        now.sort(key=_order)
        return now

    def _pass(self, time_ms: int) -> None:
        """Let the deadlines up to ``time_ms`` pass, each at its own time."""
        clock, timer = self._clock, self._timer
        assert clock is not None and timer is not None
        while True:
            due_ms = timer.next_expiration_ms
            if due_ms is None or due_ms > time_ms:
                break
            if due_ms > clock.time_ms:
                clock.time_ms = due_ms
            timer.expire_due(clock.time_ms)
        if time_ms > clock.time_ms:
            clock.time_ms = time_ms

    def _happen(self, row: Row, text: str) -> None:
        room, live = self._room, self._noted.live
        assert room is not None
        if row.kind == "signal":
            signal(room, row.key, row.value)
        elif row.kind == "cancel":
            if row.op_id in live:
                live[row.op_id].cancel()
        elif row.kind == "park":
            if row.op_id in live:
                self.dead.append(Dead(text, f"operation {row.op_id!r} waits already"))
                return
            operation = _Operation(row.op_id, row.condition, row.keys, row.ts_ms, row.deadline_ms)
            self.parked += 1
            self._park(operation)


_encoded = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _stored(operation: _Operation) -> list[Any]:
    parked_ms = operation._parked_ms
    return [operation.id, operation.text, list(operation.keys), parked_ms, operation.deadline_ms, operation.seen]


def _order(pair: tuple[Row, str]) -> tuple[Any, ...]:
    return pair[0].order


def _time_of(line: str) -> int:
    return int(line[: line.index(" ")])
