"""Virtual time for an event loop, for tests and simulations."""

import asyncio
import gc
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeAlias

from purgatory.core.timer.clock import Alarm, Clock
from purgatory.core.timer.units import duration_ms

__all__ = ["VirtualClock"]

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_WORK_S = 0.0001  # ten portions of work use up the default turn budget of 1 ms
_MOST_TURNS = 1_000_000
_QUIET_TURNS = 16  # after this many consecutive turns in which no clock was used, the tasks are examined
_TASK_TURNS = 4  # after this many consecutive turns in which no task was running, the loop counts as idle
_FEW_TASKS = 200  # if there are more tasks, they are not examined
_FEW_TIMES = 64  # up to this many times without wake-ups are not worth removing

# The settling tasks of each loop in the order in which they began to settle, each with its clock and whether it moves
# the time.
_Settling: TypeAlias = "dict[asyncio.Task[Any], tuple[VirtualClock, bool]]"
_SETTLING: "dict[asyncio.AbstractEventLoop, _Settling]" = {}


class _Ring:
    """A requested wake-up that can be cancelled."""

    __slots__ = ("_clock", "_when_ms", "callback")

    def __init__(self, clock: "VirtualClock", when_ms: int, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._when_ms = when_ms
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None
        self._clock._forget(self._when_ms, self)


class VirtualClock(Clock):
    """A clock that advances only when a task moves it.

    ::

        clock = VirtualClock()
        async with Purgatory("test", clock=clock) as purgatory:
            waiting = asyncio.create_task(purgatory.park(operation, ["key"]))
            await clock.advance(30.0)

    :meth:`advance` goes from one wake-up to the next: it moves the time to the wake-up, calls the callback, lets
    every task run until none has anything to do, and continues.  Deadlines therefore fire in order, and a task that
    wakes at second 10 and parks for 5 seconds is answered within the same ``advance(30.0)``.

    The clock behaves the same on asyncio and on uvloop.  It does not wait for sockets, threads, or ``asyncio.sleep``
    with a delay in real time; use :meth:`sleep` for a delay in virtual time.  It waits for a callback of ``call_later``
    with a delay of 0 only on uvloop, which treats the call as ``call_soon``.  On other event loops, the clock cannot
    see the ready callbacks.  There, the tasks count as settled after 20 turns of the loop in which nothing used the
    clock and no task was running.  With more than 200 tasks, the tasks are not examined.  The clock does not wait for
    longer chains of plain callbacks or, with more than 200 tasks, for longer chains of ``sleep(0)``.

    ``start``: the initial time, in seconds.  ``rings`` counts the wake-ups so far.
    """

    def __init__(self, start: float = 0.0) -> None:
        duration_ms(start, "start")
        self._now_ns = round(start * _NS_PER_S)
        # A heap of wake-up times and, for each time, its wake-ups in the order in which they were requested.  A heap of
        # the wake-ups themselves would cost O(log n) for each of them.  The heap may contain times without wake-ups.
        self._times: list[int] = []
        self._alarms: dict[int, dict[_Ring, None]] = {}
        self._activity = 0
        self._effort = 0.0  # the result of work_time(), in seconds
        self._advancing = False
        self.rings: int = 0

    # The clock

    def now_ms(self) -> int:
        self._activity += 1
        return self._now_ns // _NS_PER_MS

    def ceil_ms(self) -> int:
        self._activity += 1
        return -(-self._now_ns // _NS_PER_MS)

    def time(self) -> float:
        """Return the time in seconds."""
        return self._now_ns / _NS_PER_S

    def work_time(self) -> float:
        # Work is counted, not measured, so the slices of a simulation are the same in every run.
        self._activity += 1
        self._effort += _WORK_S
        return self._effort

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        self._activity += 1
        ring = _Ring(self, when_ms, callback)
        if when_ms * _NS_PER_MS <= self._now_ns:
            asyncio.get_running_loop().call_soon(self._let_ring, ring, context=Context())
        else:
            rings = self._alarms.get(when_ms)
            if rings is None:
                self._alarms[when_ms] = {ring: None}
                heapq.heappush(self._times, when_ms)
            else:
                rings[ring] = None
        return Alarm(ring)

    def _forget(self, when_ms: int, ring: _Ring) -> None:
        """Remove a wake-up that has been cancelled or has happened; do nothing if it has already been removed."""
        rings = self._alarms.get(when_ms)
        if rings is None:
            return
        rings.pop(ring, None)
        if not rings:
            del self._alarms[when_ms]
            if len(self._times) > 2 * len(self._alarms) + _FEW_TIMES:
                self._times = sorted(self._alarms)

    async def sleep(self, delay: float) -> None:
        """Wait for ``delay`` seconds of virtual time, rounded up to a millisecond."""
        delay_ms = duration_ms(delay, "delay")
        if delay_ms == 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        alarm = self.call_at(self.ceil_ms() + delay_ms, wake)
        try:
            await woken
        finally:
            alarm.cancel()

    # Moving it

    async def advance(self, seconds: float) -> None:
        """Move the time forward by ``seconds``, and call the callbacks of all wake-ups that become due, in order."""
        duration_ms(seconds, "seconds")
        await self._advance_to(self._now_ns + round(seconds * _NS_PER_S))

    async def advance_to(self, time: float) -> None:
        """Move the time forward to ``time``, in seconds.  Raises ValueError if that time has passed."""
        duration_ms(time, "time")
        target_ns = round(time * _NS_PER_S)
        if target_ns < self._now_ns:
            raise ValueError(f"the time is already {self.time()}: a clock does not go back to {time}")
        await self._advance_to(target_ns)

    async def advance_to_next(self) -> bool:
        """Move the time to the next wake-up and call its callback.  Return False if there is no wake-up."""
        await self._settle(moves=True)
        when_ms = self.next_alarm_ms
        if when_ms is None:
            return False
        await self._advance_to(when_ms * _NS_PER_MS)
        return True

    @property
    def next_alarm_ms(self) -> int | None:
        """The time of the next wake-up, or None."""
        times = self._times
        while times and times[0] not in self._alarms:
            heapq.heappop(times)
        return times[0] if times else None

    async def _advance_to(self, target_ns: int) -> None:
        if self._advancing:
            raise RuntimeError("the clock is already being advanced: only one task may move the time")
        self._advancing = True
        try:
            await self._settle(moves=True)
            while True:
                when_ms = self.next_alarm_ms
                if when_ms is None or when_ms * _NS_PER_MS > target_ns:
                    break
                self._now_ns = max(self._now_ns, when_ms * _NS_PER_MS)
                for ring in list(self._alarms[when_ms]):
                    self._let_ring(ring)
                await self._settle(moves=True)
            self._now_ns = target_ns  # every wake-up is later than that, so there is nothing to settle again
        finally:
            self._advancing = False

    def _let_ring(self, ring: _Ring) -> None:
        callback = ring.callback
        if callback is not None:
            ring.cancel()
            self.rings += 1
            Context().run(callback)

    async def settle(self) -> None:
        """Wait until no task has anything left to do at this time, except for tasks that also wait in :meth:`settle`.

        All tasks that wait in :meth:`settle` continue together.  The clock does not advance until they have continued
        and have nothing left to do.  Raises RuntimeError if a task never comes to rest, for example because it loops
        over ``sleep(0)``.
        """
        await self._settle(moves=False)

    async def _settle(self, moves: bool) -> None:
        """Settle.  ``moves``: the caller moves the time next, so it also waits for the settling tasks that do not move
        it.

        1. The task joins the settling tasks of its loop.  The first of them decides for all.
        2. In each turn of the loop, the first settling task checks whether every other task is idle.
        3. When all are idle, it releases the tasks that do not move the time; they are removed from the settling tasks
           and continue.
        4. If a task moves the time, it returns when all tasks are idle and no task is left to release.
        """
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        assert me is not None
        settling = _settling_in(loop)
        settling[me] = (self, moves)
        idleness = _Idleness(loop)
        try:
            for _ in range(_MOST_TURNS):
                await asyncio.sleep(0)
                if me not in settling:
                    return
                if me is next(iter(settling)) and idleness.reached(settling):
                    released = _release(settling)
                    if not moves or not released:
                        return
                    idleness.restart()
        finally:
            settling.pop(me, None)
            if not settling and _SETTLING.get(loop) is settling:
                del _SETTLING[loop]
        raise RuntimeError(f"the tasks have not come to rest within {_MOST_TURNS} turns of the loop")


def _settling_in(loop: asyncio.AbstractEventLoop) -> "_Settling":
    """Return the settling tasks of the loop; drop the settling tasks of closed loops."""
    for other in list(_SETTLING):
        if other.is_closed():
            _SETTLING.pop(other, None)
    return _SETTLING.setdefault(loop, {})


def _release(settling: "_Settling") -> bool:
    """Let the tasks that do not move the time continue.  Return False if there are none."""
    released = [task for task, (_, moves) in settling.items() if not moves]
    for task in released:
        del settling[task]
    return bool(released)


def _ready_callbacks(loop: asyncio.AbstractEventLoop) -> Any:
    """Return the collection of the callbacks that the loop runs in its next turn, or None if it is not visible.

    In asyncio, the collection is an attribute.  In uvloop, only C code can read it, but the garbage collector can list
    every object that the loop refers to: the collection is the deque that has just received a callback.
    """
    ready = getattr(loop, "_ready", None)
    if isinstance(ready, deque):
        return ready
    handle = loop.call_soon(bool)
    handle.cancel()  # it is not called but stays in the deque until the next turn
    for found in gc.get_referents(loop):
        if type(found) is deque and found and found[-1] is handle:
            return found
    return None


class _Idleness:
    """Decides, once in each turn of the loop, whether every task that is not settling is waiting."""

    __slots__ = ("_activity", "_quiet_turns", "_ready")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ready = _ready_callbacks(loop)
        self._activity = -1
        self._quiet_turns = 0

    def restart(self) -> None:
        """Count the quiet turns from zero."""
        self._quiet_turns = 0

    def reached(self, settling: "_Settling") -> bool:
        """Return whether all other tasks are waiting."""
        if self._ready is None:
            return self._quiet_for_long(settling)
        # The calling task is running, and each of the other settling tasks has one ready callback.
        return len(self._ready) < len(_waiting(settling))

    def _quiet_for_long(self, settling: "_Settling") -> bool:
        """Infer idleness on a loop that hides its ready callbacks.

        Every park, completion, and expiration reads a clock, so a loop in which nothing reads a clock is probably idle.
        The tasks are then examined in several turns, because the future of a task may be done before the task is woken.
        """
        activity = 0
        for clock, _ in settling.values():
            activity += clock._activity
        if activity != self._activity:
            self._activity = activity
            self._quiet_turns = 0
            return False
        self._quiet_turns += 1
        if self._quiet_turns < _QUIET_TURNS:
            return False
        if _any_runs(_waiting(settling)):
            self._quiet_turns = 0
        return self._quiet_turns >= _QUIET_TURNS + _TASK_TURNS


def _waiting(settling: "_Settling") -> set[asyncio.Task[Any]]:
    """Return the settling tasks that are waiting.  A cancelled task must receive its CancelledError first."""
    return {task for task in settling if not getattr(task, "_must_cancel", False)}


def _any_runs(waiting: set[asyncio.Task[Any]]) -> bool:
    """Return whether a task outside ``waiting`` is not waiting.

    If there are many tasks, return False without examining them.
    """
    tasks = asyncio.all_tasks()
    if len(tasks) > _FEW_TASKS:
        return False
    for task in tasks - waiting:
        waiter = getattr(task, "_fut_waiter", None)
        if waiter is None or waiter.done():
            return True
    return False
