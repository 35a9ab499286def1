"""Replay recorded operations through the real timer and purgatory, in virtual time, without Spark.

The replay
==========

Each operation parks at its recorded time, with its recorded deadline.  A completion, cancellation, failure, or expiry
because the purgatory closed happens again at the recorded time.  The timer decides whether the deadline comes first.  A
timer never expires an operation early, so each recorded outcome should occur again with every tick and wheel size.  An
outcome that differs is counted.

Within one millisecond, the order is: arrivals, ends from outside, expiries.  If an operation ended from outside after
its deadline, the event loop was busy in between: a stall.  The replay delays its timer for the same time, or it would
expire the operation.

Two kinds of lateness
=====================

*   **Of the tick**: from the recorded deadline to the expiration of the operation's bucket, which only the setting
    determines.  Stalls do not count.
*   **Of stalls**: from the recorded deadline to the recorded end, which no setting changes.  A recorded deadline is
    already rounded up to the tick of the recording, so this is what the loop was busy.

The counts
==========

Cascades, queued buckets, operations of the heap of buckets, wake-ups of the timer, lateness of the tick, and CPU time.
The CPU time includes the loop of the replay, which is the same for every setting.
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

__all__ = ["Measured", "Script", "Trace", "first_impossible", "recorded_lateness", "replay"]

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
    """The counts of a replay.  ``late_number``: how often each lateness of the tick, ``late_ms``, occurred.

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

    __slots__ = ("bucket_ms", "clock", "ended_ms", "immediate")

    def __init__(self, clock: "_Clock", immediate: bool) -> None:
        super().__init__(None)
        self.clock = clock
        self.immediate = immediate
        self.ended_ms = -1
        self.bucket_ms = -1

    def try_complete(self) -> bool:
        return self.immediate

    def on_complete(self) -> None:
        self.ended_ms = self.clock.time_ms
        self.bucket_ms = self.clock.bucket_ms


class _Clock(ManualClock):
    """The time of the replay.  ``bucket_ms``: the expiration of the bucket that runs; earlier than the time in a stall.

    ``wakeups``: how often the timer would have woken the event loop.
    """

    __slots__ = ("bucket_ms", "latest_ms", "wakeups")

    def __init__(self, time_ms: int) -> None:
        super().__init__(time_ms)
        self.bucket_ms = -1
        self.latest_ms = -1
        self.wakeups = 0

    def run(self, timer: BaseTimer, bucket_ms: int, time_ms: int) -> None:
        """Run one bucket at this time.  Buckets that a stall holds run in one wake-up."""
        self.wakeups += time_ms != self.latest_ms
        self.bucket_ms = bucket_ms
        self.time_ms = self.latest_ms = time_ms
        timer.expire_due(bucket_ms)


class Script:
    """What happens in a trace, which is the same for every setting: times, actions, and operations, in order."""

    def __init__(self, trace: Trace) -> None:
        self.at: list[int]
        self.what: list[int]
        self.which: list[int]
        self.at, self.what, self.which = _script(trace)
        self.stalls: _Stalls = _stalls(trace)
        self.keys: list[tuple[str, ...]] = [tuple(keys) or ("",) for keys in trace.keys]
        self.immediate: list[bool] = _immediate(trace).tolist()
        delays = np.where(trace.deadline_ms < 0, -1, np.maximum(trace.deadline_ms - trace.parked_ms, 0))
        self.delays_ms: list[int] = delays.tolist()
        numbers = np.flatnonzero(_on_deadline(trace))
        self.to_expire: list[int] = numbers[np.argsort(trace.deadline_ms[numbers], kind="stable")].tolist()


def recorded_lateness(trace: Trace) -> tuple[Any, Any]:
    """Return each lateness of operations that the timer expired in the recording, and how often it occurred."""
    on_deadline = _on_deadline(trace)
    return np.unique((trace.finished_ms - trace.deadline_ms)[on_deadline], return_counts=True)


class _RecordedFailure(Exception):
    """Replaces the exception of the recorded failure."""


def first_impossible(trace: Trace) -> int | None:
    """Return the position of the first operation that ended before it parked, or None.  No purgatory records one."""
    wrong = np.flatnonzero((trace.outcomes != _PENDING) & (trace.finished_ms < trace.parked_ms))
    return int(wrong[0]) if len(wrong) else None


def replay(trace: Trace, tick_ms: int, wheel_size: int, script: Script | None = None) -> Measured:
    """Replay a trace with a timer of this tick and wheel size.  Errors as from the timer.

    ``script``: that of the trace, if there are several settings.
    """
    script = script or Script(trace)
    clock = _Clock(script.at[0] if script.at else 0)
    timer = BaseTimer(tick_ms, wheel_size, clock)
    purgatory = BasePurgatory("replay", timer)
    operations = [_Recorded(clock, each) for each in script.immediate]
    for operation, delay_ms in zip(operations, script.delays_ms, strict=True):
        operation.delay_ms = delay_ms
    started = time.thread_time()
    _drive(purgatory, timer, clock, operations, script)
    _expire_remaining(timer, clock, [operations[number] for number in script.to_expire], script.stalls)
    cpu_s = time.thread_time() - started
    return _measured(trace, operations, timer, clock.wakeups, cpu_s)


def _drive(
    purgatory: BasePurgatory, timer: BaseTimer, clock: _Clock, operations: list[_Recorded], script: Script
) -> None:
    failure = _RecordedFailure("recorded")
    stalls, keys = script.stalls, script.keys
    for at_ms, act, number in zip(script.at, script.what, script.which, strict=True):
        while (bucket_ms := timer.next_expiration_ms) is not None:
            if bucket_ms >= at_ms:
                break
            due_ms = stalls.until(max(bucket_ms, clock.time_ms))
            if due_ms >= at_ms:
                break
            clock.run(timer, bucket_ms, due_ms)
        clock.time_ms = at_ms
        operation = operations[number]
        if act == _PARK:
            purgatory.try_complete_else_watch(operation, keys[number])
        elif act == _COMPLETED:
            operation.force_complete()
        elif act == _CANCELLED:
            operation.cancel()
        elif act == _FAILED:
            fail_tried(operation, failure)
        else:
            operation.run()


def _expire_remaining(timer: BaseTimer, clock: _Clock, waiting: list[_Recorded], stalls: "_Stalls") -> None:
    """After the last event, run the timer until every operation has expired that expired in the recording."""
    for operation in waiting:
        while operation.ended_ms < 0 and (bucket_ms := timer.next_expiration_ms) is not None:
            clock.run(timer, bucket_ms, stalls.until(max(bucket_ms, clock.time_ms)))


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
    ended, bucket = (
        np.fromiter((getattr(operation, name) for operation in operations), dtype=np.int64, count=len(operations))
        for name in ("ended_ms", "bucket_ms")
    )
    # An operation that was pending at the end of the recording may expire when a coarse timer runs past the end.
    closing_ms = max(trace.parked_ms.max(), trace.finished_ms.max()) if len(replayed) else 0
    beyond = (trace.outcomes == _PENDING) & (replayed == _EXPIRED) & (trace.deadline_ms >= closing_ms)
    wrong = np.flatnonzero((replayed != trace.outcomes) & ~beyond)
    expired = (replayed == _EXPIRED) & ~beyond & (trace.deadline_ms >= 0) & (ended >= trace.deadline_ms)
    values, numbers = np.unique(np.maximum(bucket - trace.deadline_ms, 0)[expired], return_counts=True)
    queue = timer._core._queue
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
