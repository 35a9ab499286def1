"""Replay recorded operations through the real timer and purgatory, in virtual time, without Spark.

The replay
==========

Each operation parks at its recorded time, with its recorded deadline.  A completion, cancellation, failure, or expiry
because the purgatory closed happens again at the recorded time.  The timer decides whether the deadline comes first.  A
timer never expires an operation early, so each recorded outcome should occur again with every tick and wheel size.  An
outcome that differs is counted.

Within one millisecond, the order is: arrivals, ends from outside, expiries.  If an operation ended from outside after
its deadline, the event loop was busy in between.  The replay delays its timer for the same time.

The counts
==========

Cascades, queued buckets, operations of the heap of buckets, wake-ups of the timer, lateness relative to the recorded
deadline, and CPU time.  The CPU time includes the loop of the replay, which is the same for every setting.
"""

import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from purgatory.core.base_purgatory import BasePurgatory
from purgatory.core.operation.delayed_operation import DelayedOperation
from purgatory.core.operation.lifecycle import fail_tried
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.journal.schema import CANCELLED, COMPLETED, EXPIRED, FAILED, OUTCOMES, PENDING
from purgatory.testing import ManualClock

__all__ = ["Measured", "Trace", "first_impossible", "replay"]

_PENDING, _COMPLETED, _EXPIRED, _CANCELLED, _FAILED = (
    OUTCOMES.index(outcome) for outcome in (PENDING, COMPLETED, EXPIRED, CANCELLED, FAILED)
)
_PARK: Final = 5  # an action, beside those that end an operation


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded operations, column by column; times in milliseconds of the recording clock.

    ``deadline_ms`` is -1 without a deadline, and ``finished_ms`` is -1 without an end.  ``outcomes`` are positions in
    :data:`~purgatory.journal.schema.OUTCOMES`.
    """

    parked_ms: Any
    deadline_ms: Any
    finished_ms: Any
    outcomes: Any
    keys: list[list[str]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The counts of a replay.  ``late_number`` is the number of times that each lateness of ``late_ms`` occurred.

    ``changed``: the number of outcomes that differ from the recorded ones.  ``examples``: positions of some of them.
    """

    operations: int
    changed: int
    examples: tuple[int, ...]
    expired: int
    cascades: int
    buckets: int
    heap_operations: int
    wakeups: int
    late_ms: tuple[int, ...]
    late_number: tuple[int, ...]
    cpu_s: float


class _Recorded(DelayedOperation[None]):
    """An operation without a condition.  The trace determines what happens to it."""

    __slots__ = ("clock", "ended_ms", "immediate")

    def __init__(self, clock: ManualClock, immediate: bool) -> None:
        super().__init__(None)
        self.clock = clock
        self.immediate = immediate
        self.ended_ms = -1

    def try_complete(self) -> bool:
        return self.immediate

    def on_complete(self) -> None:
        self.ended_ms = self.clock.time_ms


class _RecordedFailure(Exception):
    """Replaces the exception of the recorded failure."""


def first_impossible(trace: Trace) -> int | None:
    """Return the position of the first operation that ended before it parked, or None.  No purgatory records one."""
    wrong = np.flatnonzero((trace.outcomes != _PENDING) & (trace.finished_ms < trace.parked_ms))
    return int(wrong[0]) if len(wrong) else None


def replay(trace: Trace, tick_ms: int, wheel_size: int) -> Measured:
    """Replay a trace with a timer of this tick and wheel size.  Errors as from the timer."""
    at, what, which = _script(trace)
    stalls = _stalls(trace)
    clock = ManualClock(int(at[0]) if at else 0)
    timer = BaseTimer(tick_ms, wheel_size, clock)
    purgatory = BasePurgatory("replay", timer)
    operations = _operations(trace, clock)
    keys: list[tuple[str, ...]] = [tuple(k) for k in trace.keys]
    started = time.thread_time()
    wakeups = _drive(purgatory, timer, clock, operations, keys, at, what, which, stalls)
    wakeups += _expire_remaining(timer, clock, _still_to_expire(trace, operations), stalls)
    cpu_s = time.thread_time() - started
    return _measured(trace, operations, timer, wakeups, cpu_s)


def _drive(
    purgatory: BasePurgatory,
    timer: BaseTimer,
    clock: ManualClock,
    operations: list[_Recorded],
    keys: list[tuple[str, ...]],
    at: list[int],
    what: list[int],
    which: list[int],
    stalls: "_Stalls",
) -> int:
    wakeups = 0
    failure = _RecordedFailure("recorded")
    for at_ms, act, number in zip(at, what, which, strict=True):
        while (due_ms := timer.next_expiration_ms) is not None:
            due_ms = stalls.until(max(due_ms, clock.time_ms))
            if due_ms >= at_ms:
                break
            clock.time_ms = due_ms
            timer.expire_due(due_ms)
            wakeups += 1
        clock.time_ms = at_ms
        operation = operations[number]
        if act == _PARK:
            purgatory.try_complete_else_watch(operation, keys[number] or ("",))
        elif act == _COMPLETED:
            operation.force_complete()
        elif act == _CANCELLED:
            operation.cancel()
        elif act == _FAILED:
            fail_tried(operation, failure)
        else:
            operation.run()
    return wakeups


def _expire_remaining(timer: BaseTimer, clock: ManualClock, waiting: list[_Recorded], stalls: "_Stalls") -> int:
    """After the last event, run the timer until every operation has expired that expired in the recording."""
    wakeups = 0
    for operation in waiting:
        while operation.ended_ms < 0 and (due_ms := timer.next_expiration_ms) is not None:
            clock.time_ms = stalls.until(max(due_ms, clock.time_ms))
            timer.expire_due(clock.time_ms)
            wakeups += 1
    return wakeups


def _operations(trace: Trace, clock: ManualClock) -> list[_Recorded]:
    operations = [_Recorded(clock, each) for each in _immediate(trace).tolist()]
    delays = np.where(trace.deadline_ms < 0, -1, np.maximum(trace.deadline_ms - trace.parked_ms, 0))
    for operation, delay_ms in zip(operations, delays.tolist(), strict=True):
        operation.delay_ms = delay_ms
    return operations


def _on_deadline(trace: Trace) -> Any:
    """Select the operations that the timer expired."""
    return (trace.outcomes == _EXPIRED) & (trace.deadline_ms >= 0) & (trace.finished_ms >= trace.deadline_ms)


def _immediate(trace: Trace) -> Any:
    """Select the operations that completed at once and never waited."""
    without = np.fromiter((not keys for keys in trace.keys), dtype=bool, count=len(trace.keys))
    return without & (trace.outcomes == _COMPLETED)


def _script(trace: Trace) -> tuple[list[int], list[int], list[int]]:
    """Return times, actions, and operations in order: in each millisecond arrivals, then ends from outside."""
    number = np.arange(len(trace.parked_ms))
    outside = (trace.outcomes != _PENDING) & ~_on_deadline(trace) & ~_immediate(trace)
    at = np.concatenate([trace.parked_ms, trace.finished_ms[outside]])
    what = np.concatenate([np.full(len(number), _PARK), trace.outcomes[outside]])
    which = np.concatenate([number, number[outside]])
    order = np.lexsort((which, what != _PARK, at))
    return at[order].tolist(), what[order].tolist(), which[order].tolist()


def _still_to_expire(trace: Trace, operations: list[_Recorded]) -> list[_Recorded]:
    numbers = np.flatnonzero(_on_deadline(trace))
    numbers = numbers[np.argsort(trace.deadline_ms[numbers], kind="stable")]
    return [operations[number] for number in numbers.tolist()]


class _Stalls:
    """Spans of time in which the timer did not run, according to the recording."""

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self._starts = starts
        self._ends = ends

    def until(self, due_ms: int) -> int:
        """Return when a timer that is due at ``due_ms`` runs."""
        here = bisect_right(self._starts, due_ms) - 1
        return max(due_ms, self._ends[here]) if here >= 0 else due_ms


def _stalls(trace: Trace) -> _Stalls:
    late = (trace.deadline_ms >= 0) & (trace.finished_ms > trace.deadline_ms)
    late &= np.isin(trace.outcomes, (_COMPLETED, _CANCELLED, _FAILED))
    order = np.argsort(trace.deadline_ms[late], kind="stable")
    starts: list[int] = []
    ends: list[int] = []
    for start, end in zip(
        trace.deadline_ms[late][order].tolist(), trace.finished_ms[late][order].tolist(), strict=True
    ):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return _Stalls(starts, ends)


def _measured(trace: Trace, operations: list[_Recorded], timer: BaseTimer, wakeups: int, cpu_s: float) -> Measured:
    replayed = np.fromiter((operation._state for operation in operations), dtype=np.int64, count=len(operations))
    ended = np.fromiter((operation.ended_ms for operation in operations), dtype=np.int64, count=len(operations))
    # An operation that was pending at the end of the recording may expire when a coarse timer runs past the end.
    closing_ms = max(trace.parked_ms.max(), trace.finished_ms.max()) if len(replayed) else 0
    beyond = (trace.outcomes == _PENDING) & (replayed == _EXPIRED) & (trace.deadline_ms >= closing_ms)
    wrong = np.flatnonzero((replayed != trace.outcomes) & ~beyond)
    expired = (replayed == _EXPIRED) & ~beyond & (trace.deadline_ms >= 0) & (ended >= trace.deadline_ms)
    values, numbers = np.unique((ended - trace.deadline_ms)[expired], return_counts=True)
    queue = timer.core._queue
    pops = (queue.operations - len(queue)) // 2
    return Measured(
        operations=len(operations),
        changed=len(wrong),
        examples=tuple(wrong[:5].tolist()),
        expired=int(expired.sum()),
        cascades=timer.cascades,
        buckets=queue.operations - pops,
        heap_operations=queue.operations,
        wakeups=wakeups,
        late_ms=tuple(values.tolist()),
        late_number=tuple(numbers.tolist()),
        cpu_s=cpu_s,
    )
