"""A shard of a stream: many groups under one key, so that Spark reads and writes one state for all of them.  Pure.

What a group costs is mostly Spark's: reading its state, writing it, a timer.  So groups are put into shards by the hash
of their name, and Spark keeps one state per shard.  Within a shard a group is touched only when something happens in
it; of all others the text is passed on as it was.

**The text.**  A shard is its groups, with ``\\x1e`` between them; a group is its name as JSON, its time, when the next
thing happens (empty: nothing does), how many operations wait, those operations, and its rows, with ``\\x1f`` between.
Neither character can be in any of these: JSON escapes them, and on the way in they are replaced in the rows.
"""

import json
from collections.abc import Mapping
from typing import Final

from .group import Dead, Ended, Groups, time_of

__all__ = ["Shard"]

_GROUP_END: Final = "\x1e"
_FIELD_END: Final = "\x1f"


class Shard:
    """The groups of a shard, taken up from the text of :meth:`state`.

    ``dead``: by group, the rows that could not be handled; ``parked``: how many operations have parked in
    :meth:`go_on`; ``live``: how many wait.
    """

    def __init__(self, text: str = "") -> None:
        self.dead: list[tuple[str, Dead]] = []
        self.parked: int = 0
        self.live: int = 0
        self._texts: dict[str, str] = {}  # by name as JSON, what is stored of a group
        self._next: dict[str, int | None] = {}
        for stored in text.split(_GROUP_END) if text else ():
            name, _, next_ms, live, _ = stored.split(_FIELD_END, 4)
            self._texts[name] = stored
            self._next[name] = int(next_ms) if next_ms else None
            self.live += int(live)

    def go_on(self, rows: Mapping[str, list[str]], until_ms: int) -> list[tuple[str, Ended]]:
        """Take in rows, as lines by group, and let everything up to ``until_ms`` happen; return the ends by group."""
        texts, next_ms = self._texts, self._next
        came = {json.dumps(name): lines for name, lines in rows.items()}
        for name, lines in came.items():
            earliest_ms = min(map(time_of, lines))
            known_ms = next_ms.get(name)
            next_ms[name] = earliest_ms if known_ms is None else min(known_ms, earliest_ms)
        awake = [name for name, at_ms in next_ms.items() if at_ms is not None and at_ms <= until_ms]
        for name in came.keys() - set(awake):
            texts[name] = _with_rows(texts.get(name), name, next_ms[name], came[name])
        if not awake:
            return []
        groups = Groups()
        for name in awake:
            _put(groups, name, texts.get(name), came.get(name, []))
        ends = groups.advance(until_ms)
        self.dead += groups.dead
        self.parked += groups.parked
        self.live += groups.parked - len(ends)
        for name, member in zip(awake, groups.members(), strict=True):
            ops, buffer = member.state()
            if ops or buffer:
                at_ms = next_ms[name] = member.next_ms()
                texts[name] = _text(name, member.clock_ms, at_ms, len(member.live), ops, buffer)
            else:
                texts.pop(name, None)
                del next_ms[name]
        return ends

    def next_ms(self) -> int | None:
        """When the next thing happens in one of the groups; None: nothing is to come."""
        return min((at_ms for at_ms in self._next.values() if at_ms is not None), default=None)

    def state(self) -> str:
        """The groups in which something waits or is kept, as a text; empty if there is none."""
        return _GROUP_END.join(self._texts.values())


def _put(groups: Groups, name: str, stored: str | None, lines: list[str]) -> None:
    if stored is None:
        groups.put(json.loads(name), 0, "", lines)
        return
    _, clock_ms, _, _, ops, buffer = stored.split(_FIELD_END)
    groups.put(json.loads(name), int(clock_ms), ops, [*(buffer.split("\n") if buffer else ()), *lines])


def _with_rows(stored: str | None, name: str, next_ms: int | None, lines: list[str]) -> str:
    """A group in which nothing happens yet, with more rows to keep."""
    if stored is None:
        return _text(name, 0, next_ms, 0, "", "\n".join(lines))
    _, clock_ms, _, live, ops, buffer = stored.split(_FIELD_END)
    kept = [buffer, *lines] if buffer else lines
    return _text(name, int(clock_ms), next_ms, int(live), ops, "\n".join(kept))


def _text(name: str, clock_ms: int, next_ms: int | None, live: int, ops: str, buffer: str) -> str:
    at = "" if next_ms is None else str(next_ms)
    return _FIELD_END.join((name, str(clock_ms), at, str(live), ops, buffer))
