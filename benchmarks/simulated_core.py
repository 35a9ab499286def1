"""Lateness on a simulated, dedicated core: for machines on which other programs run.

Time here is the CPU time of this thread plus the idle time that is skipped.  Therefore, nothing but the timer's own
work makes a task late, and two timers can be compared on a busy machine.  A loop like the reaper's runs a
:class:`TimerCore`.  The loop's own work is added as constants: ``TURN_NS`` for each turn, ``WAKE_NS`` when it wakes
from sleep.

The tasks are preloaded with deadlines spread evenly over ``seconds``, and their order of arrival is random.  The first
deadline is one second before a bucket of 8 s, the coarsest one that holds the tasks, falls due.
"""

import gc
import random
import time
from array import array

from purgatory.core.timer.task import TimerTask
from purgatory.core.timer.timer_core import TimerCore

from .measure import frozen

__all__ = ["lateness"]

BUDGET_NS = 1_000_000  # for one turn, like the default of turn_budget_ms
PORTION = 32  # tasks that run before the budget is consulted again
TURN_NS = 15_000
WAKE_NS = 60_000
COARSE_MS = 8_000
LEAD_MS = 1_000
NEVER = 1 << 59  # the timer never has that many tasks, so there are no early cascades


class _Core:
    """The time on the simulated core, in nanoseconds."""

    __slots__ = ("_skipped",)

    def __init__(self) -> None:
        self._skipped = -time.thread_time_ns()

    def now(self) -> int:
        return time.thread_time_ns() + self._skipped

    def skip(self, nanoseconds: int) -> None:
        self._skipped += nanoseconds


class _Task(TimerTask):
    """A task that records how late it runs, in seconds."""

    __slots__ = ("core", "due", "found")

    def __init__(self, core: _Core, due: int, found: "array[float]") -> None:
        super().__init__(0)
        self.core = core
        self.due = due
        self.found = found

    def run(self) -> None:
        self.found.append((self.core.now() - self.due) / 1e9)


def lateness(rate: int, seconds: int, *, early: bool) -> "array[float]":
    """Return the lateness of ``rate * seconds`` tasks, in seconds, with or without early cascades."""
    core, found = _Core(), array("d")
    timer = TimerCore(1, 20, core.now() // 1_000_000, _raise, (), *(() if early else (NEVER,)))
    begin_ms = (core.now() // 1_000_000 // COARSE_MS + 5) * COARSE_MS - LEAD_MS
    order = list(range(rate * seconds))
    random.Random(3).shuffle(order)
    for index in order:
        due = begin_ms * 1_000_000 + index * 1_000_000_000 // rate
        timer.schedule(_Task(core, due, found), -(-due // 1_000_000), core.now() // 1_000_000)
    with frozen():
        gc.disable()
        try:
            _reap(timer, core)
        finally:
            gc.enable()
    return found


def _reap(timer: TimerCore, core: _Core) -> None:
    """Run the timer until it is empty, as the reaper does: turns with a budget, and sleep in between."""
    while timer.size:
        if not _turn(timer, core):
            next_ms = timer.next_expiration_ms
            if next_ms is not None:
                sleep = min(next_ms, timer.next_early_ms()) * 1_000_000 - core.now()
                core.skip(max(sleep, 0) + WAKE_NS)
        core.skip(TURN_NS)


def _turn(timer: TimerCore, core: _Core) -> bool:
    """Do the work of one turn; return whether the budget was spent."""
    end = core.now() + BUDGET_NS
    while core.now() < end:
        now_ms = core.now() // 1_000_000
        timer.expire_due(now_ms, PORTION)
        if not timer.is_due(now_ms) and not timer.cascade_early(now_ms, PORTION):
            return False
    return True


def _raise(error: BaseException, task: TimerTask) -> None:
    raise error
