"""A report of the parked operations: their keys, how long they have waited, and when they expire.

The report shows what a server is waiting for.  A debug endpoint can send it as JSON, and a signal handler can print it.
"""

import math
from collections.abc import Hashable
from typing import Any

from purgatory.core.operation.operation import Operation
from purgatory.core.operation.private_key import shown_key
from purgatory.core.operation.wait_until import given_kind
from purgatory.core.purgatory import PurgatoryCore
from purgatory.core.timer.units import to_seconds
from purgatory.core.watch.thresholds import ThresholdWatch
from purgatory.texts import key_text, safe_repr, shortened, type_name

__all__ = ["Dump", "dump"]

_LONGEST_INT = 1 << 63
_HEADINGS = ("#", "operation", "on", "has waited", "ends in")


class Dump(dict[str, Any]):
    """A dict that can be serialized as JSON; its ``str()`` is a table.

    ``purgatory``: the name; ``closed``; ``now`` in seconds on the clock; ``parked``, ``watched``, ``keys``, and
    ``num_delayed`` as in the statistics; ``omitted``: how many operations are not listed.  ``operations``: those that
    have waited the longest come first, each with ``op_id``, ``kind`` (the class, or the ``kind`` argument of a wait),
    ``operation`` (its ``repr``), ``keys`` (a list of dicts with ``key`` and ``threshold``, which may be None),
    ``awaited`` (whether a task awaits the operation), ``since`` and ``until`` in seconds on the clock, and ``waited``
    and ``left`` in seconds from now; ``until`` and ``left`` are None if there is no deadline.  Keys other than str,
    int, float, and bool are shown by their ``repr``, as are infinite numbers, NaN, and integers of more than 64 bits.
    The table shows at most 120 characters of each kind and key and escapes nonprintable characters; the dict contains
    the whole key.
    """

    def __str__(self) -> str:
        state = "closed" if self["closed"] else "open"
        what = f"{self['parked']} parked on {self['keys']} keys, {self['num_delayed']} with a deadline"
        lines = [f"purgatory {self['purgatory']!r}, {state}, at {self['now']:.3f} s: {what}"]
        if self["operations"]:
            rows = [_HEADINGS, *(_row(operation) for operation in self["operations"])]
            widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
            for row in rows:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                lines.append(("  " + "  ".join(cells)).rstrip())
        if self["omitted"]:
            lines.append(f"  and {self['omitted']} more")
        return "\n".join(lines)


def dump(core: PurgatoryCore, limit: int | None) -> Dump:
    """See :meth:`Purgatory.dump`."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise ValueError(f"limit must be an int, at least 0, or None, got {safe_repr(limit)}")
    if limit is None or core.counters.parked <= limit:
        waiting = core.watcher_lists.all_operations()
    else:
        waiting = core.watcher_lists.oldest(limit)
    now_ms = core.timer.clock.now_ms()
    return Dump(
        purgatory=core.name,
        closed=core.closed,
        now=to_seconds(now_ms),
        parked=core.counters.parked,
        watched=core.counters.watched,
        keys=core.watcher_lists.num_keys(),
        num_delayed=core.counters.delayed,
        operations=[_entry(operation, now_ms) for operation in waiting],
        omitted=core.counters.parked - len(waiting),
    )


def _entry(operation: Operation, now_ms: int) -> dict[str, Any]:
    since_ms = operation._parked_ms
    until_ms = None if operation.delay_ms < 0 else operation._expiration_ms
    return {
        "op_id": operation._op_id,
        "kind": given_kind(operation) or type_name(operation),
        "operation": safe_repr(operation),
        "keys": _keys(operation),
        "awaited": operation._park_future is not None or bool(operation._awaiters),
        "since": to_seconds(since_ms),
        "waited": to_seconds(max(now_ms - since_ms, 0)),
        "until": None if until_ms is None else to_seconds(until_ms),
        "left": None if until_ms is None else to_seconds(until_ms - now_ms),
    }


def _keys(operation: Operation) -> list[dict[str, Any]]:
    if operation._lone_key is not None:
        return [{"key": _plain(shown_key(operation._lone_key)), "threshold": None}]
    keys: list[dict[str, Any]] = []
    watch = operation._watch
    while watch is not None:
        threshold = watch.threshold if isinstance(watch, ThresholdWatch) else None
        keys.append(
            {"key": _plain(shown_key(watch.key)), "threshold": None if threshold is None else _plain(threshold)}
        )
        watch = watch.sibling
    keys.reverse()
    return keys


def _plain(value: Hashable) -> Any:
    """Return a key or a threshold for JSON, which has neither infinity nor NaN.  Many of its readers refuse integers of
    more than 64 bits.
    """
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else repr(value)  # type: ignore[arg-type]
    if kind is int:
        return value if -_LONGEST_INT <= value < _LONGEST_INT else safe_repr(value)  # type: ignore[operator]
    return value if kind is str or kind is bool else safe_repr(value)


def _row(operation: dict[str, Any]) -> tuple[str, ...]:
    keys = (
        key_text(place["key"])
        if place["threshold"] is None
        else f"{key_text(place['key'])} >= {key_text(place['threshold'])}"
        for place in operation["keys"]
    )
    left = "never" if operation["left"] is None else f"{operation['left']:.3f} s"
    kind = shortened(operation["kind"])
    return str(operation["op_id"]), kind, ", ".join(keys), f"{operation['waited']:.3f} s", left
