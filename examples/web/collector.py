"""Snapshots of a timer, its purgatories and consumer groups as plain data."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Protocol

from examples.group import Group, GroupState
from purgatory import Purgatory, Statistics, SystemTimer, TimingWheel

__all__ = ["Collector", "Meter"]

_WINDOW = 9  # number of snapshots to compute a rate
_HOT = 5
_TILES = 120
_LONGEST_KEY = 60


class Meter(Protocol):
    """A monitor of the turns of the observed event loop, in seconds."""

    longest: float

    def lap(self) -> float:
        """Return the longest turn since the last call."""


class Collector:
    """Take snapshots of a timer, its purgatories and, optionally, consumer groups.

    ``until``: the end of the run in seconds of the timer's clock from now, or None.  ``speed``: the speed of the clock
    as a multiple of real time, or None without a limit.

    Frames are dicts ready for JSON.  ``now`` is seconds of the timer's clock since the collector was created; rates are
    per second of that clock.  A snapshot costs O(tasks on the timer + keys).
    """

    def __init__(
        self,
        title: str,
        timer: SystemTimer,
        purgatories: Sequence[Purgatory[Any]],
        *,
        groups: Mapping[str, Group] | None = None,
        meter: Meter | None = None,
        until: float | None = None,
        speed: float | None = 1.0,
    ) -> None:
        self._timer = timer
        self._purgatories = purgatories
        self._groups = groups
        self._meter = meter
        self._start = timer.time()
        self._fixed = {"title": title, "until": until, "speed": speed}
        self._looks: deque[tuple[float, list[Statistics]]] = deque(maxlen=_WINDOW)

    def collect(self) -> dict[str, Any]:
        """Take a snapshot."""
        now = self._timer.time() - self._start
        statistics = [purgatory.statistics() for purgatory in self._purgatories]
        self._looks.append((now, statistics))
        seen = {
            **self._fixed,
            "now": round(now, 3),
            "timer": self._look_at_timer(),
            "purgatories": [
                self._look_at(index, purgatory, statistics[index]) for index, purgatory in enumerate(self._purgatories)
            ],
        }
        if self._groups is not None:
            seen["groups"] = _look_at_groups(self._groups.values())
        if self._meter is not None:
            lap = self._meter.lap()
            seen["turn"] = {"longest_ms": _ms(self._meter.longest), "recent_ms": _ms(lap)}
        return seen

    def _look_at_timer(self) -> dict[str, Any]:
        timer = self._timer
        now_ms = timer.wheel.current_time_ms
        next_ms = timer.next_expiration_ms
        return {
            "size": timer.size,
            "cascades": timer.cascades,
            "next_ms": None if next_ms is None else max(0, next_ms - now_ms),
            "levels": [_look_at_wheel(wheel, now_ms) for wheel in timer.wheel.levels()],
        }

    def _look_at(self, index: int, purgatory: Purgatory[Any], book: Statistics) -> dict[str, Any]:
        then, books = self._looks[0]
        now, before = self._looks[-1][0], books[index]
        span = now - then
        return {
            "name": book.name,
            "parked": book.parked,
            "watched": book.watched,
            "keys": book.keys,
            "completed": book.completed,
            "expired": book.expired,
            "withdrawn": book.cancelled,
            "failed": book.failed,
            "completed_rate": round((book.completed - before.completed) / span, 3) if span > 0 else 0.0,
            "expired_rate": round((book.expired - before.expired) / span, 3) if span > 0 else 0.0,
            "wait_p50": book.wait.p50,
            "wait_p99": book.wait.p99,
            "hot": [[_key_text(key), count] for key, count in purgatory.hot_keys(_HOT)],
        }


def _look_at_wheel(wheel: TimingWheel, now_ms: int) -> dict[str, Any]:
    """Return one level.  ``buckets``: the non-empty ones as (slot, milliseconds until due, tasks)."""
    tick_ms = wheel.tick_ms
    buckets: dict[int, list[int]] = {}
    for expiration_ms, tasks in wheel.occupancy():
        slot = expiration_ms // tick_ms % wheel.wheel_size
        # Buckets filled by an early cascade may be one turn of the wheel ahead: they share the slot of an earlier one.
        buckets.setdefault(slot, [slot, expiration_ms - now_ms, 0])[2] += tasks
    return {
        "tick_ms": tick_ms,
        "wheel_size": wheel.wheel_size,
        "interval_ms": wheel.interval_ms,
        "slot": now_ms // tick_ms % wheel.wheel_size,
        "buckets": list(buckets.values()),
    }


def _look_at_groups(groups: Collection[Group]) -> dict[str, Any]:
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


def _key_text(key: Hashable) -> str:
    text = " / ".join(str(part) for part in key) if isinstance(key, tuple) else str(key)
    return text if len(text) <= _LONGEST_KEY else text[: _LONGEST_KEY - 1] + "…"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
