"""The scenario: the settings, and the plan for every member, which follows from these settings.

All random numbers are drawn before the run starts: a plan defines when a member arrives and which events affect it.
The order in which an event loop runs its tasks therefore cannot change the result.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from examples.group import GroupConfig

__all__ = ["EventKind", "MemberPlan", "PlannedEvent", "Scenario", "plan_groups"]

_HOUR = 3600.0


class EventKind(enum.Enum):
    """The kind of a planned event."""

    CRASH = "crash"  # the member stops without LeaveGroup and may return
    LEAVE = "leave"  # the member sends LeaveGroup and may return
    SLOW = "slow"  # the member sends heartbeats, but does not join again when it must


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """A planned event, ``after`` seconds into the membership.  ``pause``: length of the absence; None: permanent."""

    after: float
    kind: EventKind
    pause: float | None


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The plan of a member: its arrival and its events in order.  ``latency``: response time in seconds."""

    name: str
    arrival: float
    latency: float
    instance_id: str | None = None
    events: tuple[PlannedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """The settings.  Durations are in seconds; rates are per member per hour; shares are between 0 and 1.

    ``arrivals``: recorded arrival times by group, instead of random ones.
    """

    groups: int = 50
    members: int = 20
    duration: float = 600.0
    seed: int = 1
    arrival_median: float = 4.0
    arrival_sigma: float = 0.8
    spread: float = 30.0
    late: float = 0.05
    static: float = 0.25
    crash_rate: float = 0.5
    leave_rate: float = 0.5
    slow_rate: float = 0.5
    downtime: float = 40.0
    stay_away: float = 0.2
    session_timeout: float = 45.0
    heartbeat_interval: float = 15.0
    rebalance_timeout: float = 60.0
    initial_rebalance_delay: float = 3.0
    arrivals: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        for name in ("groups", "members"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("duration", "arrival_median", "downtime", "heartbeat_interval", "rebalance_timeout"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number of seconds above 0, got {getattr(self, name)}")
        for name in ("spread", "initial_rebalance_delay"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number, at least 0, got {getattr(self, name)}")
        if not 0.0 <= self.arrival_sigma <= 5.0:  # with a larger sigma, an arrival can exceed the timer's longest delay
            raise ValueError(f"arrival_sigma must be between 0 and 5, got {self.arrival_sigma}")
        for name in ("crash_rate", "leave_rate", "slow_rate"):
            if not 0.0 <= getattr(self, name) <= _HOUR:
                raise ValueError(f"{name} must be 0 to 3600 per member and hour, got {getattr(self, name)}")
        for name in ("late", "static", "stay_away"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if not self.heartbeat_interval < self.session_timeout < float("inf"):
            raise ValueError(
                f"session_timeout must be finite and above heartbeat_interval={self.heartbeat_interval},"
                f" got {self.session_timeout}"
            )

    @property
    def config(self) -> GroupConfig:
        """The settings of the coordinator for this scenario."""
        return GroupConfig(
            initial_rebalance_delay=self.initial_rebalance_delay,
            min_session_timeout=min(6.0, self.session_timeout),
            max_session_timeout=max(1800.0, self.session_timeout),
        )


def plan_groups(scenario: Scenario) -> dict[str, list[MemberPlan]]:
    """Return the plans of all members by group.  The same scenario always gives the same plans."""
    if scenario.arrivals is not None:
        return {
            group_id: [
                _plan(scenario, Random(f"{scenario.seed}/{group_id}/{number}"), group_id, number, arrival)
                for number, arrival in enumerate(arrivals)
            ]
            for group_id, arrivals in scenario.arrivals.items()
        }
    plans = {}
    for index in range(scenario.groups):
        group_id = f"group-{index:0{len(str(scenario.groups - 1))}}"
        chance = Random(f"{scenario.seed}/{group_id}")
        start = chance.uniform(0.0, scenario.spread)
        plans[group_id] = [
            _plan(scenario, chance, group_id, number, start + _draw_arrival(scenario, chance))
            for number in range(scenario.members)
        ]
    return plans


def _draw_arrival(scenario: Scenario, chance: Random) -> float:
    """Return a log-normal arrival time, which is typical of processes that are starting.

    Late members arrive later, by up to 60% of the length of the run.
    """
    arrival = scenario.arrival_median * chance.lognormvariate(0.0, scenario.arrival_sigma)
    if chance.random() < scenario.late:
        arrival += chance.uniform(0.0, 0.6 * scenario.duration)
    return arrival


def _plan(scenario: Scenario, chance: Random, group_id: str, number: int, arrival: float) -> MemberPlan:
    name = f"{group_id}-m{number}"
    instance_id = name if chance.random() < scenario.static else None
    latency = chance.uniform(0.002, 0.060)
    events = []
    rates = (scenario.crash_rate, scenario.leave_rate, scenario.slow_rate)
    now = arrival
    while any(rates):
        after = chance.expovariate(sum(rates) / _HOUR)
        kind = chance.choices((EventKind.CRASH, EventKind.LEAVE, EventKind.SLOW), rates)[0]
        pause: float | None = chance.expovariate(1.0 / scenario.downtime)
        if kind is not EventKind.SLOW and chance.random() < scenario.stay_away:
            pause = None
        now += after
        if now >= scenario.duration:
            break
        events.append(PlannedEvent(after, kind, pause))
        if pause is None:
            break
        if kind is not EventKind.SLOW:
            now += pause
    return MemberPlan(name, arrival, latency, instance_id, tuple(events))
