"""The simulation of a scenario: one coordinator, and one coroutine per member."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from examples.group import GroupCoordinator, GroupState
from purgatory import Observer, Statistics, SystemTimer
from purgatory.testing import VirtualClock
from purgatory.types import Clock, MonotonicClock

from .member import SimulatedMember
from .recorder import Recorder
from .scenario import MemberPlan, Scenario, plan_groups

__all__ = ["Simulation", "View"]

_PICTURE_ROWS = 60


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot of the simulation."""

    now: float
    states: Counter[GroupState]
    members: int
    purgatories: tuple[Statistics, ...]
    timer_size: int


class Simulation:
    """One run of a scenario.

    ::

        async with Simulation(scenario).running() as simulation:
            await simulation.advance_to(scenario.duration)

    ``clock``: by default, a virtual clock.  ``observers``: the observers of all purgatories.
    """

    def __init__(self, scenario: Scenario, *, clock: Clock | None = None, observers: Sequence[Observer] = ()) -> None:
        self.scenario = scenario
        self.clock: Clock = VirtualClock() if clock is None else clock
        self.plans = plan_groups(scenario)
        self.record = Recorder(self.clock.now_ms, _rows_of_picture(self.plans))
        self.members: list[SimulatedMember] = []
        self._observers = observers
        self._numbers = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Simulation]:
        """Start all members on entry, and stop all of them on exit."""
        async with SystemTimer(clock=self.clock) as timer:
            self.timer = timer
            self.coordinator = GroupCoordinator(
                timer,
                self.scenario.config,
                listener=self.record,
                new_id=self._new_id,
                observers=self._observers,
            )
            self.record.begin()
            sleep = self.clock.sleep if isinstance(self.clock, VirtualClock) else asyncio.sleep
            tasks = [asyncio.create_task(member.run()) for member in self._make_members(timer, sleep)]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.coordinator.aclose()
        for task in tasks:
            if not task.cancelled():
                task.result()

    def _make_members(self, timer: SystemTimer, sleep: Callable[[float], Awaitable[None]]) -> list[SimulatedMember]:
        self.members = [
            SimulatedMember(plan, group_id, self.scenario, self.coordinator, timer, sleep, self.record)
            for group_id, plans in self.plans.items()
            for plan in plans
        ]
        return self.members

    def _new_id(self) -> str:
        # Use a counter, so that every run gives the same ids.
        self._numbers += 1
        return f"{self._numbers:06x}"

    @property
    def now(self) -> float:
        """The seconds since the start of the run."""
        return self.record.now_ms() / 1000

    async def advance_to(self, time: float) -> None:
        """Continue the run until ``time`` seconds after its start."""
        clock = self.clock
        if isinstance(clock, VirtualClock):
            await clock.advance(max(0.0, time - self.now))
        else:
            await asyncio.sleep(max(0.0, time - self.now))

    def view(self) -> View:
        """Return a snapshot of the current state."""
        groups = self.coordinator.groups.values()
        return View(
            now=self.now,
            states=Counter(group.state for group in groups),
            members=sum(len(group.members) for group in groups),
            purgatories=tuple(purgatory.statistics() for purgatory in self.coordinator.purgatories),
            timer_size=self.timer.size,
        )


def _rows_of_picture(plans: dict[str, list[MemberPlan]]) -> dict[str, Any]:
    """Return the first groups that fit in the picture, with their members in order of arrival."""
    rows: dict[str, Any] = {}
    left = _PICTURE_ROWS
    for group_id, members in plans.items():
        names = [plan.name for plan in sorted(members, key=_arrival)]
        if rows and len(names) > left:
            break
        rows[group_id] = names[: max(left, _PICTURE_ROWS)]
        left -= len(rows[group_id])
    return rows


def _arrival(plan: MemberPlan) -> float:
    return plan.arrival


def real_clock() -> Clock:
    """Return the clock for a run in real time."""
    return MonotonicClock()
