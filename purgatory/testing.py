"""Virtual time, for tests and simulations.  Floor 5."""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from .clock import Alarm, Clock
from .units import duration_ms

__all__ = ["VirtualClock"]

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_EFFORT = 0.0001  # ten portions of work fill the default turn budget of 1 ms; each counts as a cheap one
_MOST_TURNS = 1_000_000
_QUIET_TURNS = 16
_LOOKS = 4  # turns of the loop, one after the other, in which no task may be found running
_FEW_TASKS = 200

# Who settles now: of each loop its tasks, in the order in which they began, with the clock and whether to move it then.
_SETTLING: "dict[asyncio.AbstractEventLoop, dict[asyncio.Task[Any], tuple[VirtualClock, bool]]]" = {}


class _Ring:
    """An alarm that may be called off."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock(Clock):
    """A clock that stands still until it is told to move.

    ::

        clock = VirtualClock()
        async with Purgatory("test", clock=clock) as purgatory:
            waiting = asyncio.create_task(purgatory.park(operation, ["key"]))
            await clock.advance(30.0)

    :meth:`advance` goes from one alarm to the next: it sets the time to the alarm's, lets it ring, lets every task run
    until none has anything to do, and goes on.  So what falls due fires in the order of its deadlines, and a task that
    is woken at second 10 and parks for 5 seconds is answered within the same ``advance(30.0)``.

    It works the same on asyncio and on uvloop.  It does not wait for real things (sockets, threads, ``asyncio.sleep``
    with a real delay); use :meth:`sleep` for delays in virtual time.  One limit: uvloop does not show what it has to
    do, so there the tasks rest when for some turns of the loop (20) nobody has asked the clock and none of up to 200
    tasks runs.  Longer chains of plain callbacks, or of ``sleep(0)`` among more tasks than that, are not waited for.

    ``start``: the time to begin at, in seconds.  ``rings`` counts the alarms that have rung so far.
    """

    def __init__(self, start: float = 0.0) -> None:
        duration_ms(start, "start")
        self._now_ns = round(start * _NS_PER_S)
        # A heap of the times at which anything rings, and what rings then, in the order in which it was asked for: a
        # heap of the rings themselves would cost its logarithm for each of them.
        self._times: list[int] = []
        self._alarms: dict[int, list[_Ring]] = {}
        self._activity = 0
        self._effort = 0.0
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
        """The time in seconds."""
        return self._now_ns / _NS_PER_S

    def effort(self) -> float:
        # Counted, not timed: the slices of a simulation are the same in every run.
        self._activity += 1
        self._effort += _EFFORT
        return self._effort

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        self._activity += 1
        ring = _Ring(callback)
        if when_ms * _NS_PER_MS <= self._now_ns:
            asyncio.get_running_loop().call_soon(self._let_ring, ring)
        else:
            rings = self._alarms.get(when_ms)
            if rings is None:
                self._alarms[when_ms] = [ring]
                heapq.heappush(self._times, when_ms)
            else:
                rings.append(ring)
        return Alarm(ring)

    async def sleep(self, delay: float) -> None:
        """Wait ``delay`` seconds of virtual time, rounded up to a millisecond."""
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
        """Move the time forward by ``seconds`` and fire all that falls due on the way, in order."""
        duration_ms(seconds, "seconds")
        await self._advance_to(self._now_ns + round(seconds * _NS_PER_S))

    async def advance_to(self, time: float) -> None:
        """Move the time forward to ``time`` (seconds).  ValueError if it has passed."""
        duration_ms(time, "time")
        target_ns = round(time * _NS_PER_S)
        if target_ns < self._now_ns:
            raise ValueError(f"time is {self.time()} already: a clock does not go back to {time}")
        await self._advance_to(target_ns)

    async def advance_to_next(self) -> bool:
        """Move the time to the next alarm and let it ring.  False, and nothing happens, if there is none."""
        await self._settle(moves=True)
        when_ms = self.next_alarm_ms
        if when_ms is None:
            return False
        await self._advance_to(when_ms * _NS_PER_MS)
        return True

    @property
    def next_alarm_ms(self) -> int | None:
        """When the next alarm rings, or None if nobody asked for one."""
        times = self._times
        while times:
            for ring in self._alarms[times[0]]:
                if ring.callback is not None:
                    return times[0]
            del self._alarms[heapq.heappop(times)]
        return None

    async def _advance_to(self, target_ns: int) -> None:
        if self._advancing:
            raise RuntimeError("the clock is being advanced already: one task moves the time")
        self._advancing = True
        try:
            await self._settle(moves=True)
            while True:
                when_ms = self.next_alarm_ms
                if when_ms is None or when_ms * _NS_PER_MS > target_ns:
                    break
                self._now_ns = max(self._now_ns, when_ms * _NS_PER_MS)
                # While they ring the time is theirs, so no other is added to them.
                for ring in self._alarms[when_ms]:
                    self._let_ring(ring)
                await self._settle(moves=True)
            self._now_ns = target_ns
            await self._settle(moves=True)
        finally:
            self._advancing = False

    def _let_ring(self, ring: _Ring) -> None:
        callback = ring.callback
        if callback is not None:
            ring.callback = None
            self.rings += 1
            callback()

    async def settle(self) -> None:
        """Let every task run until none has anything to do at this moment, but for others that settle.

        All that settle go on at the same moment; nobody moves the time before that, nor before they rest again.
        RuntimeError if there is no end to it: a task that loops over ``sleep(0)`` is never done.
        """
        await self._settle(moves=False)

    async def _settle(self, moves: bool) -> None:
        """Settle; ``moves``: to move the time then, so only when nobody settles but those who want the same."""
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        assert me is not None
        for other in list(_SETTLING):
            if other.is_closed():
                _SETTLING.pop(other, None)  # closed under those who settled
        settling = _SETTLING.setdefault(loop, {})
        settling[me] = (self, moves)
        ready: Any = getattr(loop, "_ready", None)
        quiet, activity = 0, -1
        try:
            for _ in range(_MOST_TURNS):
                await asyncio.sleep(0)
                if me not in settling:
                    return
                if me is not next(iter(settling)):
                    continue  # the first of them decides for all
                # One that was cancelled meanwhile does not wait: it has to be told.
                waiting = {task for task in settling if not getattr(task, "_must_cancel", False)}
                if ready is not None:
                    # This task runs, so what asyncio holds ready is all that is left to do; who waits has a step there.
                    if len(ready) >= len(waiting):
                        continue
                else:
                    # uvloop does not show what is ready, so nothing must have happened for a while.  Something does
                    # whenever the clock is asked (every park, end and expiry asks it), and while a task runs.  That is
                    # looked at in several turns: what a task waits for may be done with the task not yet told.
                    now = sum(clock._activity for clock, _ in settling.values())
                    quiet, activity = 0 if now != activity else quiet + 1, now
                    if quiet >= _QUIET_TURNS and _somebody_runs(waiting):
                        quiet = 0
                    if quiet < _QUIET_TURNS + _LOOKS:
                        continue
                going_on = [task for task, (_, moves_time) in settling.items() if not moves_time]
                for task in going_on:
                    del settling[task]
                if not moves or not going_on:
                    return
                quiet = 0
        finally:
            settling.pop(me, None)
            if not settling and _SETTLING.get(loop) is settling:
                del _SETTLING[loop]
        raise RuntimeError(f"the tasks have not come to rest within {_MOST_TURNS} turns of the loop")


def _somebody_runs(waiting: set[asyncio.Task[Any]]) -> bool:
    """Whether a task waits for nothing, but for those ``waiting``; the tasks are looked at only while they are few."""
    tasks = asyncio.all_tasks()
    if len(tasks) > _FEW_TASKS:
        return False
    for task in tasks - waiting:
        waiter = getattr(task, "_fut_waiter", None)
        if waiter is None or waiter.done():
            return True
    return False
