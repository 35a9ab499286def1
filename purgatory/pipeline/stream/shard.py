"""A shard of a stream: many groups under one key, so that Spark reads and writes one state for all of them.

Most of the cost of a group is Spark's work: Spark reads the state, writes it, and sets a timer.  Groups are
therefore put into shards by the hash of their names, and Spark stores one state per shard.  A shard parses a group only
when an event occurs in it; the text of all other groups is copied unchanged.

**The text.**  The text of a shard contains its groups, separated by ``\\x1e``.  The text of a group contains its name
as JSON, its time, the time of the next event (empty if there is none), the number of waiting operations, these
operations, and its rows, separated by ``\\x1f``.  None of these fields can contain either character: JSON escapes them,
and the input replaces them in the rows.
"""

import json
from collections.abc import Mapping
from typing import Final

from .group import DeadLetter, Groups, OperationRecord, line_time_ms

__all__ = ["Shard"]

_GROUP_END: Final = "\x1e"
_FIELD_END: Final = "\x1f"


class Shard:
    """The groups of a shard, restored from the text of :meth:`state`.

    ``dead_letters``: the rows that could not be processed, each with its group.  ``parked``: the number of operations
    that parked in :meth:`advance`.  ``live``: the number of waiting operations.
    """

    def __init__(self, text: str = "") -> None:
        self.dead_letters: list[tuple[str, DeadLetter]] = []
        self.parked: int = 0
        self.live: int = 0
        self._texts: dict[str, str] = {}  # the stored text of each group, by its name as JSON
        self._next: dict[str, int | None] = {}
        for stored in text.split(_GROUP_END) if text else ():
            name, _, next_ms, live, _ = stored.split(_FIELD_END, 4)
            self._texts[name] = stored
            self._next[name] = int(next_ms) if next_ms else None
            self.live += int(live)

    def advance(self, lines_by_group: Mapping[str, list[str]], until_ms: int) -> list[tuple[str, OperationRecord]]:
        """Add rows, and process all events up to and including ``until_ms``.

        ``lines_by_group``: the rows of each group, as lines.  Return the name of the group and the record of each
        operation that ended.
        """
        texts, next_ms = self._texts, self._next
        new_lines = {json.dumps(name): lines for name, lines in lines_by_group.items()}
        for name, lines in new_lines.items():
            earliest_ms = min(map(line_time_ms, lines))
            known_ms = next_ms.get(name)
            next_ms[name] = earliest_ms if known_ms is None else min(known_ms, earliest_ms)
        due = [name for name, at_ms in next_ms.items() if at_ms is not None and at_ms <= until_ms]
        for name in new_lines.keys() - set(due):
            texts[name] = _append_lines(texts.get(name), name, next_ms[name], new_lines[name])
        if not due:
            return []
        groups = Groups()
        for name in due:
            _restore_group(groups, name, texts.get(name), new_lines.get(name, []))
        ended = groups.advance(until_ms)
        self.dead_letters += groups.dead_letters
        self.parked += groups.parked
        self.live += groups.parked - len(ended)
        for name, group in zip(due, groups, strict=True):
            ops, buffer = group.state()
            if ops or buffer:
                at_ms = next_ms[name] = group.next_ms()
                texts[name] = _text(name, group.clock_ms, at_ms, len(group.live), ops, buffer)
            else:
                texts.pop(name, None)
                del next_ms[name]
        return ended

    def next_ms(self) -> int | None:
        """Return the time of the next event in any of the groups; None if there is none."""
        return min((at_ms for at_ms in self._next.values() if at_ms is not None), default=None)

    def state(self) -> str:
        """Return, as a string, the groups with waiting operations or stored rows; the string is empty if there are
        none.
        """
        return _GROUP_END.join(self._texts.values())


def _restore_group(groups: Groups, name: str, stored: str | None, lines: list[str]) -> None:
    if stored is None:
        groups.add_group(json.loads(name), 0, "", lines)
        return
    _, clock_ms, _, _, ops, buffer = stored.split(_FIELD_END)
    groups.add_group(json.loads(name), int(clock_ms), ops, [*(buffer.split("\n") if buffer else ()), *lines])


def _append_lines(stored: str | None, name: str, next_ms: int | None, lines: list[str]) -> str:
    """Add rows to the stored text of a group (None for a new group), and return the new text.

    The group is not parsed, so none of its events may be due.
    """
    if stored is None:
        return _text(name, 0, next_ms, 0, "", "\n".join(lines))
    _, clock_ms, _, live, ops, buffer = stored.split(_FIELD_END)
    kept = [buffer, *lines] if buffer else lines
    return _text(name, int(clock_ms), next_ms, int(live), ops, "\n".join(kept))


def _text(name: str, clock_ms: int, next_ms: int | None, live: int, ops: str, buffer: str) -> str:
    at = "" if next_ms is None else str(next_ms)
    return _FIELD_END.join((name, str(clock_ms), at, str(live), ops, buffer))
