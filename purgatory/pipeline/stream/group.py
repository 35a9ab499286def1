"""Groups of a stream: the core of the library makes the decisions, and the rows determine the time.  Spark is not used.

The streaming job, its batch equivalent, and their tests all use this module.  It defines the order of events:

1.  The rows of a group take effect in the order of :mod:`purgatory.pipeline.stream.input_rows`.
2.  **Before** a row takes effect, all deadlines at or before its time expire, the earliest first; equal deadlines
    expire in the order of parking, even if they were moved.  A deadline therefore comes before a signal in the same
    millisecond, as if a clock were moved to the row's time and the row were processed only afterward.
3.  An operation whose deadline is not after its own row is tried once when it parks, and then ends at that time,
    before the next row.  If a row moves a deadline into the past, the operation ends at the time of that row, before
    the next row.
4.  A row with a key reaches the operations that wait on that key at that moment, in the order of parking.  A signal
    tries them; ``cancel`` and ``fail`` end all of them, as ``cancel_for_key`` and ``fail_for_key`` do.
5.  An operation ends at the time of the row or deadline that ends it, to the millisecond.

Neither the order in which rows *arrive* nor the time at which they are added has any effect: however the rows of a
group are divided into portions by time, the operations end in the same way.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

from purgatory.aio.end_observer import EndObserver
from purgatory.conditions import ConditionalOperation, signal
from purgatory.core.hooks import Hooks
from purgatory.core.operation.lifecycle import fail_externally
from purgatory.core.operation.operation import FOREVER_MS, Operation, set_deadline
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.core.timer.task import NOT_QUEUED
from purgatory.events import Event, Outcome
from purgatory.testing import ManualClock
from purgatory.texts import error_text, safe_repr

from .input_rows import BadRow, Row, parse_json_row

__all__ = ["DeadLetter", "Group", "Groups", "OperationRecord", "encode_line", "line_time_ms", "pending_of"]

_WHEEL_SIZE = 20


def encode_line(ts_ms: int, text: str) -> str:
    """Return a row in the form that a group stores: its time, a space, and a JSON object without line breaks."""
    return f"{ts_ms} {text}"


class OperationRecord(NamedTuple):
    """The times and the outcome of an operation.  ``error``: the reason, if it ``failed``.

    An operation that still waits has the outcome ``pending`` and no ``finished_ms``.
    """

    op_id: str
    outcome: str
    parked_ms: int
    finished_ms: int | None
    deadline_ms: int | None
    error: str | None = None


class DeadLetter(NamedTuple):
    """A row that could not be processed, with its original text and the reason."""

    text: str
    reason: str


class _Operation(ConditionalOperation):
    """An operation with the data of its row.  It is parked on keys that are pairs of a group and a key."""

    __slots__ = ("deadline_ms", "group", "id", "text")

    def __init__(
        self,
        group: "_GroupState",
        op_id: str,
        condition: str,
        keys: Iterable[str],
        parked_ms: int,
        deadline_ms: int | None,
        seen: Any = None,
    ) -> None:
        super().__init__(condition, keys, None, seen=seen)
        name, wanted = group.name, self.wanted
        if isinstance(wanted, tuple):
            self.wanted = tuple([(name, key) for key in wanted])
        else:
            self.wanted = {(name, key): threshold for key, threshold in wanted.items()}
        self.group = group
        self.id = op_id
        self.text = condition
        self.deadline_ms = deadline_ms
        # Whole milliseconds, as in the timer: a conversion through seconds would round long delays.
        set_deadline(self, FOREVER_MS if deadline_ms is None else max(0, deadline_ms - parked_ms), NOT_QUEUED)

    def notice(self, key: Any, value: float | None) -> None:
        super().notice(key[1], value)

    def move_deadline(self, deadline_ms: int | None) -> None:
        """Move the deadline of the operation, which must be waiting; None removes the deadline.

        This does the same as the library's ``extend_to``, but in whole milliseconds.
        """
        core = self._core
        assert core is not None
        if deadline_ms is None:
            core.extend(self, FOREVER_MS)
        else:
            core.extend_to(self, deadline_ms)
        self.deadline_ms = deadline_ms


class _FailedByRow(Exception):
    """The error with which a ``fail`` row ends an operation.  Its text is the ``error`` of the row."""


class _Ends(EndObserver):
    """An observer that records every end."""

    def __init__(self) -> None:
        self.ended_operations: list[tuple[str, OperationRecord]] = []
        self.numbers: list[int] = []  # for each of these ends, the number of the operation in the order of parking

    def ended(self, event: Event) -> None:
        operation = event.operation
        group = operation.group
        group.live.pop(operation.id, None)
        assert event.finished_ms is not None
        times = (event.parked_ms, event.finished_ms, operation.deadline_ms)
        record = OperationRecord(operation.id, event.outcome.value, *times, _error_text(event.error))
        self.ended_operations.append((group.name, record))
        self.numbers.append(event.op_id)

    def refused(self, group: "_GroupState", row: Row, error: Exception) -> None:
        """Record the end of an operation that could not park."""
        times = (row.ts_ms, row.ts_ms, row.deadline_ms)
        record = OperationRecord(row.op_id, Outcome.FAILED.value, *times, _error_text(error))
        self.ended_operations.append((group.name, record))
        self.numbers.append(0)  # nothing is sorted by it, because no operation parks while deadlines expire

    def sort_from(self, first: int) -> None:
        """Sort the ends that share one millisecond, from index ``first`` on, into the order of parking.

        The timer keeps that order, except for an operation whose deadline was moved: its place would depend on whether
        the group has been stored and restored since then.
        """
        numbers = self.numbers
        if len(numbers) - first > 1:
            pairs = sorted(zip(numbers[first:], self.ended_operations[first:], strict=True))
            numbers[first:] = [number for number, _ in pairs]
            self.ended_operations[first:] = [ended for _, ended in pairs]


def _error_text(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return str(error) if isinstance(error, _FailedByRow) else error_text(error)


class _NoErrorReports(Hooks):
    """Hooks that ignore errors, because the record of a failed operation contains its error."""

    def report(self, error: BaseException, operation: Operation) -> None:
        return


class _GroupState:
    """One of the groups, with its stored rows, ``lines``.

    The waiting operations are in ``ops``, as text, until :meth:`Groups.restore` parks them; from then on, they are in
    ``live``.
    """

    __slots__ = ("clock_ms", "lines", "live", "name", "ops")

    def __init__(self, name: str, clock_ms: int, ops: str, lines: list[str]) -> None:
        self.name: str = name
        self.clock_ms: int = clock_ms
        self.ops: str = ops
        self.lines: list[str] = lines
        self.live: dict[str, _Operation] = {}

    def state(self) -> tuple[str, str]:
        ops = _encoded([_stored(operation) for operation in self.live.values()]) if self.live else ""
        return ops, "\n".join(self.lines)

    def next_ms(self) -> int | None:
        times = [operation.deadline_ms for operation in self.live.values()]
        known = [time_ms for time_ms in times if time_ms is not None]
        known += map(line_time_ms, self.lines)
        return min(known, default=None)


class Groups:
    """Several groups that are processed together, in one purgatory on one timer.

    The outcomes of a group do not depend on the other groups.  All groups must have reached the same time: no deadline
    of one group may be earlier than the parking of an operation that another group stores.  This is the case if all of
    them are always advanced to the same times.
    """

    def __init__(self) -> None:
        self.parked: int = 0  # the number of operations that parked in :meth:`advance`
        self.dead_letters: list[tuple[str, DeadLetter]] = []  # each letter with its group
        self._by_name: dict[str, _GroupState] = {}
        self._clock = ManualClock(0)
        self._timer: BaseTimer | None = None
        self._purgatory: BasePurgatory | None = None
        self._observer = _Ends()

    def add_group(self, name: str, clock_ms: int, ops: str, lines: list[str]) -> None:
        """Add a group before the first :meth:`advance`.

        ``name``, ``clock_ms``, ``ops``: see :class:`Group`.  ``lines``: the stored rows of the group.
        """
        assert self._purgatory is None, "groups must be added before the first advance"
        self._by_name[name] = _GroupState(name, clock_ms, ops, lines)

    def add_lines(self, name: str, lines: Iterable[str]) -> None:
        """Store more rows for a group that :meth:`add_group` has added."""
        self._by_name[name].lines.extend(lines)

    def advance(self, until_ms: int) -> list[tuple[str, OperationRecord]]:
        """Process all events up to and including ``until_ms``.

        Return, in order of time, the name of the group and the record of each operation that ended.
        """
        observer = self._observer
        observer.ended_operations, observer.numbers = [], []
        rows = self._take_due_rows(until_ms)
        self.restore(rows[0][0].ts_ms if rows else until_ms)
        for row, text, group in rows:
            if row.ts_ms <= group.clock_ms:
                reason = f"the row is too late: its group has been processed up to {group.clock_ms}"
                self.dead_letters.append((group.name, DeadLetter(text, reason)))
                continue
            self._expire_until(row.ts_ms)
            self._apply_row(group, row, text)
        self._expire_until(until_ms)
        for group in self._by_name.values():
            if until_ms > group.clock_ms:
                group.clock_ms = until_ms
        return observer.ended_operations

    def restore(self, begin_ms: int) -> None:
        """Park the stored operations again, each at its original time, so that they have the same order as before."""
        if self._purgatory is not None:
            return
        stored = [
            (operation[3], group, operation)
            for group in self._by_name.values()
            if group.ops
            for operation in json.loads(group.ops)
        ]
        stored.sort(key=_parked)
        clock = self._clock
        clock.time_ms = stored[0][0] if stored else begin_ms
        self._timer = BaseTimer(1, _WHEEL_SIZE, clock)
        self._purgatory = BasePurgatory("stream", self._timer, observers=(self._observer,), hooks=_NoErrorReports())
        for parked_ms, group, (op_id, condition, keys, _, deadline_ms, seen) in stored:
            clock.time_ms = parked_ms
            self._park(_Operation(group, op_id, condition, keys, parked_ms, deadline_ms, seen))
            group.ops = ""

    def group(self, name: str) -> _GroupState:
        """Return the group with this name, which :meth:`add_group` has added."""
        return self._by_name[name]

    def __iter__(self) -> Iterator[_GroupState]:
        """Return all groups, in the order in which :meth:`add_group` added them."""
        return iter(self._by_name.values())

    # Inside

    def _park(self, operation: _Operation) -> None:
        """Park the operation.  Raises an error if the purgatory refuses it, for example, because of its threshold."""
        purgatory, live = self._purgatory, operation.group.live
        assert purgatory is not None
        live[operation.id] = operation
        try:
            purgatory.try_complete_else_watch(operation, operation.wanted)
        except Exception:
            if live.pop(operation.id, None) is not None:
                raise
            # Otherwise, its condition raised the error, and its outcome contains it.

    def _take_due_rows(self, until_ms: int) -> list[tuple[Row, str, _GroupState]]:
        """Remove and return the rows that are due, in order.  Invalid rows become dead letters."""
        due: list[tuple[Row, str, _GroupState]] = []
        for group in self._by_name.values():
            later: list[str] = []
            for line in group.lines:
                if line_time_ms(line) > until_ms:
                    later.append(line)
                    continue
                text = line.partition(" ")[2]
                try:
                    due.append((parse_json_row(text), text, group))
                except BadRow as error:
                    self.dead_letters.append((group.name, DeadLetter(text, str(error))))
            group.lines = later
        due.sort(key=_order)
        return due

    def _expire_until(self, time_ms: int) -> None:
        """Expire the deadlines up to ``time_ms``, each at its own time."""
        clock, timer, observer = self._clock, self._timer, self._observer
        assert timer is not None
        while True:
            due_ms = timer._core.next_expiration_ms
            if due_ms is None or due_ms > time_ms:
                break
            if due_ms > clock.time_ms:
                clock.time_ms = due_ms
            first = len(observer.numbers)
            timer.expire_due(clock.time_ms)
            observer.sort_from(first)
        if time_ms > clock.time_ms:
            clock.time_ms = time_ms

    def _apply_row(self, group: _GroupState, row: Row, text: str) -> None:
        purgatory, live = self._purgatory, group.live
        assert purgatory is not None
        if row.kind == "signal":
            signal(purgatory, (group.name, row.key), row.value)
        elif row.kind == "extend":
            if row.op_id in live:
                live[row.op_id].move_deadline(row.deadline_ms)
        elif row.kind == "cancel":
            if row.key:
                purgatory.cancel_for_key((group.name, row.key))
            elif row.op_id in live:
                live[row.op_id].cancel()
        elif row.kind == "fail":
            error = _FailedByRow(row.error)
            if row.key:
                purgatory.fail_for_key((group.name, row.key), error)
            elif row.op_id in live:
                fail_externally(live[row.op_id], error)
        elif row.kind == "park":
            if row.op_id in live:
                self.dead_letters.append((group.name, DeadLetter(text, f"operation {row.op_id!r} is already waiting")))
                return
            self.parked += 1
            try:
                self._park(_Operation(group, row.op_id, row.condition, row.keys, row.ts_ms, row.deadline_ms))
            except Exception as error:
                self._observer.refused(group, row, error)


class Group:
    """A single group: its waiting operations, the rows that have not taken effect yet, and its time.

    ``ops`` and ``buffer``: the results of :meth:`state`, or empty.  ``clock_ms``: all events up to this time have been
    processed; a row that is not later than this time is too late.
    """

    def __init__(self, name: str, clock_ms: int = 0, ops: str = "", buffer: str = "") -> None:
        self.name = name
        self._groups = Groups()
        self._groups.add_group(name, clock_ms, ops, buffer.split("\n") if buffer else [])
        self._state = self._groups.group(name)

    def add(self, lines: Iterable[str]) -> None:
        """Store rows until they are due; each row is a result of :func:`encode_line`."""
        self._groups.add_lines(self.name, lines)

    def advance(self, until_ms: int) -> list[OperationRecord]:
        """Process all events up to and including ``until_ms``; return the records of the ended operations, in order."""
        return [operation for _, operation in self._groups.advance(until_ms)]

    def state(self) -> tuple[str, str]:
        """Return the waiting operations and the stored rows, as two strings: ``ops`` and ``buffer``."""
        self._groups.restore(self.clock_ms)
        return self._state.state()

    def pending(self) -> list[OperationRecord]:
        """Return the waiting operations, in the order of parking."""
        self._groups.restore(self.clock_ms)
        return pending_of(self._state.live.values())

    @property
    def clock_ms(self) -> int:
        """The time up to which all events have been processed."""
        return self._state.clock_ms

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The rows that could not be processed."""
        return [dead_letter for _, dead_letter in self._groups.dead_letters]

    @property
    def parked(self) -> int:
        """The number of operations that have parked since this object was created."""
        return self._groups.parked

    @property
    def live(self) -> int:
        """The number of waiting operations."""
        self._groups.restore(self.clock_ms)
        return len(self._state.live)

    def next_ms(self) -> int | None:
        """Return the time of the next event (the earliest deadline or stored row), or None if there is none."""
        self._groups.restore(self.clock_ms)
        return self._state.next_ms()


def pending_of(waiting: "Iterable[_Operation]") -> list[OperationRecord]:
    """Return a record with the outcome ``pending`` for each waiting operation."""
    return [OperationRecord(one.id, one.outcome.value, one._parked_ms, None, one.deadline_ms) for one in waiting]


def _not_json(value: Any) -> Any:
    raise TypeError(f"the state of a condition must consist of JSON values, got {safe_repr(value)}")


_encoded = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_not_json).encode


def _stored(operation: _Operation) -> list[Any]:
    keys = [key for _, key in cast("tuple[tuple[str, str], ...]", operation.keys)]
    return [operation.id, operation.text, keys, operation._parked_ms, operation.deadline_ms, operation.seen]


def _parked(stored: tuple[int, _GroupState, list[Any]]) -> int:
    return stored[0]


def _order(taken: tuple[Row, str, _GroupState]) -> tuple[Any, ...]:
    return taken[0].order


def line_time_ms(line: str) -> int:
    """Return the time of a row in the form of :func:`encode_line`."""
    return int(line[: line.index(" ")])
