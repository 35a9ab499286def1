"""The consumer groups of a program as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from examples.group import Group, GroupState
from purgatory import SystemTimer

__all__ = ["Groups"]

_TILES = 120


@dataclass(frozen=True)
class Groups:
    """The groups of a program, by name, and the timer whose clock the program uses.

    ``start``: when the program began, in seconds on that clock.  ``until``: when it will end, in seconds after
    ``start``, or None.  ``speed``: the speed of the clock as a multiple of real time, or None if there is no limit.
    """

    groups: Mapping[str, Group]
    timer: SystemTimer
    start: float
    until: float | None = None
    speed: float | None = 1.0

    def look(self) -> dict[str, Any]:
        """Return the state of the groups, ready for JSON.  Call it in the event loop of the groups."""
        return {
            "now": round(self.timer.time() - self.start, 3),
            "until": self.until,
            "speed": self.speed,
            **_look_at(self.groups.values()),
        }


def _look_at(groups: Collection[Group]) -> dict[str, Any]:
    states = Counter(group.state for group in groups)
    members: Counter[str] = Counter()
    for group in groups:
        members["id pending"] += len(group.pending)
        for member in group.members.values():
            if member.join is not None:
                members["JoinGroup parked"] += 1
            elif member.sync is not None:
                members["SyncGroup parked"] += 1
            elif group.state is GroupState.STABLE:
                members["working"] += 1
            else:
                members["not joined yet"] += 1
    order = ("working", "JoinGroup parked", "SyncGroup parked", "not joined yet", "id pending")
    shown = sorted(groups, key=_group_id)[:_TILES]
    return {
        "number": len(groups),
        "states": {state.value: states[state] for state in GroupState if state is not GroupState.DEAD},
        "members": {what: members[what] for what in order},
        "list": [[group.group_id, group.state.value, group.generation, len(group.members)] for group in shown],
    }


def _group_id(group: Group) -> str:
    return group.group_id
