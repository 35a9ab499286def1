"""Who waits on what, since when, until when.  Floor 4.

For the question of the night shift: what is this server waiting for?  A debug endpoint sends it as JSON, a signal
handler prints it.
"""

from collections.abc import Hashable
from typing import Any

from .desk import Desk
from .operation import Operation
from .thresholds import ThresholdWatch

__all__ = ["Dump", "dump"]

_HEADINGS = ("#", "operation", "on", "has waited", "ends in")


class Dump(dict[str, Any]):
    """A dict for tools, ready for JSON; ``str()`` of it is a table for people.

    ``purgatory`` its name, ``closed``, ``now`` in seconds of its clock; ``parked``, ``watched``, ``keys``,
    ``num_delayed`` as in its statistics; ``omitted``: how many operations are not listed.  ``operations``, the longest
    waiting first, each with ``op_id``, ``kind`` (its class), ``operation`` (its ``repr``), ``keys``: a list of
    ``key`` and ``threshold`` (or None), ``awaited`` (whether anybody awaits it), ``since`` and ``until`` in seconds
    of the clock, ``waited`` and ``left`` in seconds from now; ``until`` and ``left`` are None without a deadline.
    A key that is no str, int, float or bool is given by its ``repr``.
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


def dump(desk: Desk, limit: int | None) -> Dump:
    """See :meth:`Purgatory.dump`."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise ValueError(f"limit is a number of operations, at least 0, or None for all, not {limit!r}")
    if limit is None or desk.books.parked <= limit:
        waiting = desk.watchers.everyone()
    else:
        waiting = list({operation._op_id: operation for operation in desk.watchers.some(limit)}.values())
        waiting.sort(key=_op_id)
    now_ms = desk.clock.now_ms()
    return Dump(
        purgatory=desk.name,
        closed=desk.closed,
        now=now_ms / 1000,
        parked=desk.books.parked,
        watched=desk.books.watched,
        keys=desk.watchers.num_keys(),
        num_delayed=desk.books.delayed,
        operations=[_entry(operation, now_ms) for operation in waiting],
        omitted=desk.books.parked - len(waiting),
    )


def _entry(operation: Operation, now_ms: int) -> dict[str, Any]:
    since_ms = operation._parked_ms
    until_ms = None if operation.delay_ms < 0 else operation._expiration_ms
    return {
        "op_id": operation._op_id,
        "kind": type(operation).__name__,
        "operation": _safe_repr(operation),
        "keys": _keys(operation),
        "awaited": operation._parker is not None or bool(operation._awaiters),
        "since": since_ms / 1000,
        "waited": max(now_ms - since_ms, 0) / 1000,
        "until": None if until_ms is None else until_ms / 1000,
        "left": None if until_ms is None else (until_ms - now_ms) / 1000,
    }


def _keys(operation: Operation) -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = []
    watch = operation._watch
    while watch is not None:
        threshold = watch.threshold if isinstance(watch, ThresholdWatch) else None
        keys.append({"key": _plain(watch.key), "threshold": threshold})
        watch = watch.sibling
    keys.reverse()
    return keys


def _plain(key: Hashable) -> Any:
    return key if type(key) in (str, int, float, bool) else _safe_repr(key)


def _safe_repr(thing: object) -> str:
    try:
        return repr(thing)
    except Exception as error:
        return f"<{type(thing).__name__} whose repr raised {type(error).__name__}>"


def _row(operation: dict[str, Any]) -> tuple[str, ...]:
    keys = (
        str(place["key"]) if place["threshold"] is None else f"{place['key']} >= {place['threshold']}"
        for place in operation["keys"]
    )
    left = "never" if operation["left"] is None else f"{operation['left']:.3f} s"
    return str(operation["op_id"]), operation["kind"], ", ".join(keys), f"{operation['waited']:.3f} s", left


def _op_id(operation: Operation) -> int:
    return operation._op_id
