"""The engines that must agree, each as a function from a trace to its ends, in one form."""

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from purgatory import DelayedOperation, Event, Observer, Outcome, Purgatory
from purgatory.conditions import ConditionalOperation, signal
from purgatory.pipeline.stream.group import Group, encode_line
from purgatory.pipeline.stream.input_rows import Row, parse_row
from purgatory.pipeline.stream.traces import BEGIN_MS
from purgatory.testing import VirtualClock

END_MS = BEGIN_MS + 10**9

Rows = list[dict[str, Any]]
End = tuple[Any, ...]  # group, op_id, outcome, parked_ms, finished_ms, deadline_ms, error


def lines_of(rows: Rows) -> list[str]:
    return [encode_line(row["ts_ms"], json.dumps(row)) for row in rows]


def by_group(rows: Rows) -> dict[str, Rows]:
    groups: dict[str, Rows] = defaultdict(list)
    for row in rows:
        if row["kind"] != "heartbeat":
            groups[row["group"]].append(row)
    return groups


def ends_of_records(records: Any) -> list[End]:
    """The ends among records (tuples or rows in the order of ``OUTPUT``)."""
    return sorted((r[1], *r[2:8]) for r in records if r[0] == "outcome")


def in_one_go(rows: Rows) -> list[End]:
    """The pure core, a group at a time, all of its rows at once."""
    ends: list[End] = []
    for name, own in by_group(rows).items():
        group = Group(name)
        group.add(lines_of(own))
        ends += [(name, *end) for end in group.advance(END_MS)]
        assert not group.dead_letters
    return sorted(ends)


def in_portions(rows: Rows, seed: int, most_ms: int) -> list[End]:
    """The pure core, cut at random times, put away and taken up again in between; rows arrive early and disordered."""
    draw = random.Random(seed)
    ends: list[End] = []
    for name, own in by_group(rows).items():
        rest = sorted(own, key=lambda row: row["ts_ms"])
        clock_ms, state = 0, ("", "")
        while rest:
            until_ms = rest[0]["ts_ms"] + draw.randrange(most_ms)
            arrived = [row for row in rest if row["ts_ms"] <= until_ms + 1000]
            rest = rest[len(arrived) :]
            draw.shuffle(arrived)
            group = Group(name, clock_ms, *state)
            group.add(lines_of(arrived))
            ends += [(name, *end) for end in group.advance(until_ms)]
            assert not group.dead_letters
            clock_ms, state = group.clock_ms, group.state()
        group = Group(name, clock_ms, *state)
        ends += [(name, *end) for end in group.advance(END_MS)]
        assert group.state() == ("", ""), "everyone has ended, and something is kept"
    return sorted(ends)


class _Named(ConditionalOperation):
    __slots__ = ("name",)
    name: tuple[str, str]


class _FromOutside(Exception):
    """The error of a ``fail`` row."""


class _Ends(Observer):
    """An observer that writes down every end."""

    def __init__(self) -> None:
        self.ends: list[End] = []

    def ended(self, event: Event) -> None:
        deadline_ms = None if event.deadline_ms is None else event.deadline_ms + BEGIN_MS
        assert event.finished_ms is not None
        times = (event.parked_ms + BEGIN_MS, event.finished_ms + BEGIN_MS, deadline_ms)
        error = None if event.error is None else f"{type(event.error).__name__}: {event.error}"
        if isinstance(event.error, _FromOutside):
            error = str(event.error)
        self.ends.append((*event.operation.name, event.outcome.value, *times, error))

    completed = expired = cancelled = failed = ended


async def in_process(rows: Rows) -> list[End]:
    """One Purgatory for all groups on an event loop, under a virtual clock that is moved to the time of each row."""
    clock, noted = VirtualClock(), _Ends()
    live: dict[tuple[str, str], _Named] = {}
    async with Purgatory[DelayedOperation[Any]]("all", clock=clock, observers=[noted]) as purgatory:
        for fields in sorted(rows, key=lambda row: (row["ts_ms"], row["seq"])):
            row = parse_row(fields)
            await clock.advance_to((row.ts_ms - BEGIN_MS) / 1000)
            _happen(purgatory, row, fields, live)
        await clock.advance(10**6)
        await asyncio.sleep(0)
        purgatory._check()
        assert len(purgatory) == 0
    return sorted(noted.ends)


def _happen(purgatory: Any, row: Row, fields: dict[str, Any], live: dict[tuple[str, str], _Named]) -> None:
    """Do what the row says with the public methods of the library."""
    group = fields["group"]
    if row.kind == "signal":
        signal(purgatory, (group, row.key), row.value)
    elif row.kind == "extend" and (group, row.op_id) in live:
        operation = live[group, row.op_id]
        if "timeout_ms" in fields:
            moved = operation.extend(fields["timeout_ms"] / 1000)
        else:
            deadline_ms = fields.get("deadline_ms")
            moved = operation.extend_to(None if deadline_ms is None else (deadline_ms - BEGIN_MS) / 1000)
        assert moved == (operation.outcome is Outcome.PENDING)
    elif row.kind == "cancel" and "key" in fields:
        purgatory.cancel_for_key((group, fields["key"]))
    elif row.kind == "cancel" and (group, row.op_id) in live:
        live[group, row.op_id].cancel()
    elif row.kind == "fail":
        # The library fails operations by key: each operation has a key of its own for this.
        key = (group, fields["key"]) if "key" in fields else ("operation", group, row.op_id)
        purgatory.fail_for_key(key, _FromOutside(row.error))
    elif row.kind == "park":
        timeout = None if row.deadline_ms is None else (row.deadline_ms - row.ts_ms) / 1000
        operation = _Named(row.condition, [(group, key) for key in row.keys], timeout)
        operation.name = (group, row.op_id)
        live[operation.name] = operation
        own_key = ("operation", *operation.name)
        wanted = operation.wanted
        keys = {**wanted, own_key: 0.0} if isinstance(wanted, Mapping) else (*wanted, own_key)
        purgatory.try_complete_else_watch(operation, keys)
