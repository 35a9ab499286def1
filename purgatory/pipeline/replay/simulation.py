"""Replay recorded deadlines on the real timer, in virtual time.  This module does not use Spark.

The replay
==========

Each operation is put on the timer at its recorded time, with its recorded deadline.  A completion, a cancellation, a
failure, or an expiration because the purgatory closed removes it at the recorded time.  The timer decides whether the
deadline comes first.  A timer never expires an operation early, so each recorded outcome should occur again with every
tick and wheel size.  An outcome that differs is counted.  Operations that have no deadline or never had to wait are not
on the timer, so no setting changes them.

Within one millisecond, the order is: arrivals, then ends from outside, and then expirations.  If an operation ended
from outside after its deadline, the event loop was busy in between: a stall.  The replay delays its timer by the same
amount; otherwise, the timer would expire the operation.

Two kinds of lateness
=====================

*   **Of the tick**: the time from the recorded deadline to the expiration of the operation's bucket.  Only the setting
    determines this lateness; stalls do not count.
*   **Of stalls**: the time from the recorded deadline to the recorded end.  No setting changes this time.  A recorded
    deadline is already rounded up to the tick of the recording, so this is the time for which the loop was busy.

The counts
==========

Cascades, queued buckets, operations on the heap of buckets, wake-ups of the timer, lateness of the tick, and CPU time.
The CPU time includes the loop of the replay, which is the same for every setting.
"""

import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from purgatory.core.timer.base_timer import CallLaterTask
from purgatory.core.timer.task import FAR_MS
from purgatory.core.timer.timer_core import TimerCore
from purgatory.journal.schema import CANCELLED, COMPLETED, EXPIRED, FAILED, OUTCOMES, PENDING

__all__ = ["Measured", "Script", "Trace", "first_impossible", "recorded_lateness", "replay"]

_PENDING, _COMPLETED, _EXPIRED, _CANCELLED, _FAILED = (
    OUTCOMES.index(outcome) for outcome in (PENDING, COMPLETED, EXPIRED, CANCELLED, FAILED)
)
_END: Final = -1  # instead of a deadline: removes the task from the timer


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded operations, column by column; the times are in milliseconds on the recording clock.

    ``deadline_ms`` is -1 if there is no deadline, and ``finished_ms`` is -1 if there is no end.  ``outcomes`` are
    positions in :data:`~purgatory.journal.schema.OUTCOMES`.  ``waited``: whether the operation was ever parked.
    """

    parked_ms: Any
    deadline_ms: Any
    finished_ms: Any
    outcomes: Any
    waited: Any


@dataclass(frozen=True, slots=True)
class Measured:
    """The counts of a replay.  ``late_ms``: the distinct values of the lateness of the tick, in milliseconds.

    ``late_number``: how often each of these values occurred.  ``changed``: the number of outcomes that differ from the
    recorded ones.  ``examples``: the positions of some operations with such outcomes.
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


class Script:
    """The events of a trace, which are the same for every setting.

    ``events``: time, task, and deadline, in order; a deadline of ``_END`` means that the task leaves the timer.
    ``to_expire``: the tasks that the timer ran in the recording, in order of their deadlines.  ``fired``: the positions
    of the operations whose tasks have run in this replay.  Only one replay at a time can use a script.
    """

    def __init__(self, trace: Trace) -> None:
        numbers = np.flatnonzero((trace.deadline_ms >= 0) & trace.waited)
        self.fired: list[int] = []
        self.tasks: list[CallLaterTask] = [
            CallLaterTask(0, self.fired.append, (number,)) for number in numbers.tolist()
        ]
        at, which, deadlines = _events(trace, numbers)
        self.first_ms: int = int(at[0]) if len(at) else 0
        tasks = map(self.tasks.__getitem__, which.tolist())
        self.events: list[tuple[int, CallLaterTask, int]] = list(
            zip(at.tolist(), tasks, deadlines.tolist(), strict=True)
        )
        self.stalls: _Stalls = _stalls(trace)
        expected = _on_deadline(trace)[numbers]
        order = np.argsort(trace.deadline_ms[numbers[expected]], kind="stable")
        self.to_expire: list[CallLaterTask] = [self.tasks[place] for place in np.flatnonzero(expected)[order].tolist()]


def recorded_lateness(trace: Trace) -> tuple[Any, Any]:
    """Return the distinct lateness values of the operations that the timer expired in the recording, and how often each
    occurred.
    """
    on_deadline = _on_deadline(trace)
    return np.unique((trace.finished_ms - trace.deadline_ms)[on_deadline], return_counts=True)


def first_impossible(trace: Trace) -> int | None:
    """Return the position of the first operation that ended before it parked, or None.

    No purgatory records such an operation.
    """
    wrong = np.flatnonzero((trace.outcomes != _PENDING) & (trace.finished_ms < trace.parked_ms))
    return int(wrong[0]) if len(wrong) else None


def replay(trace: Trace, tick_ms: int, wheel_size: int, script: Script | None = None) -> Measured:
    """Replay a trace with a timer of this tick and wheel size.  Raises the errors of the timer.

    ``script``: the script of the trace, for a caller that replays it with several settings; by default, a new one.
    """
    script = script or Script(trace)
    script.fired.clear()
    run = _Run(script, TimerCore(tick_ms, wheel_size, script.first_ms, _raised, ()))
    started = time.thread_time()
    run.drive()
    run.expire_remaining()
    cpu_s = time.thread_time() - started
    measured = _measured(trace, run, cpu_s)
    if run.timer.size:  # pending tasks are still on this timer
        for task in script.tasks:
            task.cancel()
    return measured


class _Run:
    """One replay.

    ``runs``: for each bucket that was run, when it was due, when it was run, and how many tasks had run before it.
    """

    __slots__ = ("now_ms", "runs", "script", "timer", "wakeups")

    def __init__(self, script: Script, timer: TimerCore) -> None:
        self.script = script
        self.timer = timer
        self.now_ms = script.first_ms
        self.runs: list[tuple[int, int, int]] = []
        self.wakeups = 0

    def drive(self) -> None:
        """Process all events, and run the timer between them."""
        schedule = self.timer.schedule
        next_ms = FAR_MS
        before_ms = self.now_ms
        for at_ms, task, deadline_ms in self.script.events:
            if next_ms < at_ms:
                self.now_ms = max(self.now_ms, before_ms)
                next_ms = self._run_before(at_ms)
            before_ms = at_ms
            if deadline_ms == _END:
                task.cancel()
            elif (due_ms := schedule(task, deadline_ms, at_ms)) < next_ms:
                next_ms = due_ms
        self.now_ms = max(self.now_ms, before_ms)

    def expire_remaining(self) -> None:
        """After the last event, run the timer until each operation that expired in the recording has expired."""
        timer, stalls = self.timer, self.script.stalls
        for task in self.script.to_expire:
            while task.scheduled and (bucket_ms := timer.next_expiration_ms) is not None:
                self._run(bucket_ms, stalls.until(max(bucket_ms, self.now_ms)))

    def _run_before(self, at_ms: int) -> int:
        """Run the buckets that are due before ``at_ms``, except those that a stall delays to ``at_ms`` or later.

        Return the time at which the next bucket is due.
        """
        timer, stalls = self.timer, self.script.stalls
        while (bucket_ms := timer.next_expiration_ms) is not None:
            if bucket_ms >= at_ms:
                return bucket_ms
            due_ms = stalls.until(max(bucket_ms, self.now_ms))
            if due_ms >= at_ms:
                return bucket_ms
            self._run(bucket_ms, due_ms)
        return FAR_MS

    def _run(self, bucket_ms: int, now_ms: int) -> None:
        """Run one bucket at ``now_ms``.  Buckets that a stall has delayed run in one wake-up."""
        self.wakeups += not self.runs or now_ms != self.runs[-1][1]
        self.runs.append((bucket_ms, now_ms, len(self.script.fired)))
        self.now_ms = now_ms
        self.timer.expire_due(bucket_ms)


def _raised(error: BaseException, _: object) -> None:
    """Raise the error, because no task should fail."""
    raise error


def _on_deadline(trace: Trace) -> Any:
    """Return, for each operation, whether the timer expired it."""
    return (trace.outcomes == _EXPIRED) & (trace.deadline_ms >= 0) & (trace.finished_ms >= trace.deadline_ms)


def _events(trace: Trace, numbers: Any) -> tuple[Any, Any, Any]:
    """Return the times, tasks, and deadlines of all events, in order.

    In each millisecond, arrivals come first, and then ends from outside.
    """
    outcomes, deadline_ms = trace.outcomes[numbers], trace.deadline_ms[numbers]
    outside = np.flatnonzero((outcomes != _PENDING) & ~_on_deadline(trace)[numbers])
    at = np.concatenate([trace.parked_ms[numbers], trace.finished_ms[numbers[outside]]])
    which = np.concatenate([np.arange(len(numbers)), outside])
    deadlines = np.concatenate([deadline_ms, np.full(len(outside), _END)])
    order = np.lexsort((which, deadlines == _END, at))
    return at[order], which[order], deadlines[order]


class _Stalls:
    """Spans of time in which the timer did not run, according to the recording."""

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self._starts = starts
        self._ends = ends

    def until(self, due_ms: int) -> int:
        """Return when a timer that is due at ``due_ms`` runs: then, or at the end of the stall at that time."""
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


def _measured(trace: Trace, run: _Run, cpu_s: float) -> Measured:
    fired = np.array(run.script.fired, dtype=np.int64)
    runs = np.array(run.runs, dtype=np.int64).reshape(-1, 3)
    number_each = np.diff(runs[:, 2], append=len(fired))
    bucket_ms, ended_ms = np.repeat(runs[:, 0], number_each), np.repeat(runs[:, 1], number_each)
    deadline_ms = trace.deadline_ms[fired]
    # An operation that was pending at the end of the recording may expire when a coarse timer runs past the end.
    closing_ms = max(trace.parked_ms.max(), trace.finished_ms.max()) if len(trace.parked_ms) else 0
    counted = (trace.outcomes[fired] != _PENDING) | (deadline_ms < closing_ms)
    right = np.ones(len(trace.outcomes), dtype=bool)
    right[_on_deadline(trace) & trace.waited] = False
    right[fired] = _on_deadline(trace)[fired] & (ended_ms >= deadline_ms) | ~counted
    wrong = np.flatnonzero(~right)
    late_ms = np.maximum(bucket_ms - deadline_ms, 0)[counted]
    values, numbers = np.unique(late_ms, return_counts=True)
    queue = run.timer._queue
    pops = (queue.operations - len(queue)) // 2
    return Measured(
        operations=len(trace.outcomes),
        changed=len(wrong),
        examples=tuple(wrong[:5].tolist()),
        expired=len(late_ms),
        cascades=run.timer.cascades,
        buckets=queue.operations - pops,
        heap_operations=queue.operations,
        wakeups=run.wakeups,
        late_ms=tuple(values.tolist()),
        late_number=tuple(numbers.tolist()),
        cpu_s=cpu_s,
    )
