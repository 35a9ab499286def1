"""The rows of a stream: their columns, and the order in which they take effect.

=============  ==========================================================================================
column         meaning
=============  ==========================================================================================
``kind``       ``park``, ``extend``, ``signal``, ``cancel``, ``fail``, or ``heartbeat``
``ts_ms``      the time of the event, in whole milliseconds since 1970 (1970 to 9999)
``seq``        the order of rows of one group within one millisecond; 0 if it is missing
``group``      the group of the row: an operation, its keys, and their signals are in one group
``op_id``      park, extend, cancel, fail: the operation, unique within its group while it waits
``keys``       park: the keys that the operation waits on, at least one
``condition``  park: the condition that it waits for; see :mod:`purgatory.conditions`
``timeout_ms`` park, extend: the longest time that it waits from this row on; or
``deadline_ms`` park, extend: its deadline; without either, it never expires
``key``        signal: the key that is signaled; cancel, fail: without ``op_id``, all operations that wait on this key
``value``      signal: a number, if the condition uses one
``error``      fail: the reason, which becomes the ``error`` of the outcome
=============  ==========================================================================================

An ``extend``, ``cancel``, or ``fail`` row for an operation that is not waiting has no effect, as with the corresponding
methods of the library.  If a ``cancel`` or ``fail`` row has both ``op_id`` and ``key``, the key is ignored.

**Order.**  Rows take effect in the order of ``(ts_ms, seq)``.  If two rows of one group have the same ``ts_ms`` and
``seq``, their content determines the order, so every engine uses the same order.  If the order matters, set ``seq``.
"""

import json
from collections.abc import Mapping
from typing import Any

from purgatory.conditions import parse
from purgatory.texts import safe_str, shortened

__all__ = ["KINDS", "LAST_MS", "BadRow", "Row", "parse_json_row", "parse_row"]

KINDS = ("park", "extend", "signal", "cancel", "fail", "heartbeat")
_LONGEST_REASON = 1000  # of a condition that is invalid; the message may be that of a registered condition
LAST_MS = 253_402_300_799_999  # the last millisecond of the year 9999, the last year that most engines support


class BadRow(ValueError):
    """A row is invalid.  The message contains the reason."""


class Row:
    """A valid row."""

    __slots__ = ("condition", "deadline_ms", "error", "key", "keys", "kind", "op_id", "order", "ts_ms", "value")

    def __init__(self, kind: str, ts_ms: int, seq: int) -> None:
        self.kind: str = kind
        self.ts_ms: int = ts_ms
        self.op_id: str = ""
        self.keys: tuple[str, ...] = ()
        self.condition: str = ""
        self.deadline_ms: int | None = None
        self.key: str = ""
        self.value: float | None = None
        self.error: str = ""
        self.order: tuple[Any, ...] = (ts_ms, seq, kind)

    def __repr__(self) -> str:
        return f"<Row {self.kind} {self.op_id or self.key} at {self.ts_ms}>"


def parse_json_row(text: str) -> Row:
    """Parse a JSON object as a row.  Raises :class:`BadRow` if it is not a valid row."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow("the row must be JSON") from None
    if not isinstance(fields, dict):
        raise BadRow("the row must be a JSON object")
    return parse_row(fields)


def parse_row(fields: Mapping[str, Any]) -> Row:
    """Validate a row.  Raises :class:`BadRow` with the reason.  Columns that its kind does not use are ignored."""
    kind = fields.get("kind")
    if kind not in KINDS:
        raise BadRow(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    seq = fields.get("seq")
    row = Row(kind, _time(fields, "ts_ms"), 0 if seq is None else _whole(seq, "seq"))
    if kind != "heartbeat":
        _text(fields, "group")  # Spark reads any JSON value as a string, and half a surrogate pair as a question mark
    if kind == "park":
        _read_park(row, fields)
    elif kind == "signal":
        row.key = _text(fields, "key")
        row.value = _value(fields.get("value"))
        row.order += (row.key, row.value is not None, row.value or 0)
    elif kind == "extend":
        row.op_id = _text(fields, "op_id")
        _read_deadline(row, fields)
        row.order += (row.op_id, -1 if row.deadline_ms is None else row.deadline_ms)
    elif kind == "cancel":
        _read_target(row, fields)
        row.order += (row.op_id, row.key)
    elif kind == "fail":
        _read_target(row, fields)
        row.error = _text(fields, "error")
        row.order += (row.op_id, row.key, row.error)
    return row


def _read_park(row: Row, fields: Mapping[str, Any]) -> None:
    row.op_id = _text(fields, "op_id")
    keys = fields.get("keys")
    if not isinstance(keys, (list, tuple)) or not keys or not all(isinstance(key, str) for key in keys):
        raise BadRow(f"keys must be a list of at least one string, got {keys!r}")
    if not all(map(_is_valid_unicode, keys)):
        raise BadRow(f"keys must be a list of at least one string of valid Unicode, got {keys!r}")
    row.keys = tuple(dict.fromkeys(keys))
    row.condition = _text(fields, "condition")
    try:
        parse(row.condition)
    except ValueError as error:
        raise BadRow(f"condition: {shortened(safe_str(error), _LONGEST_REASON)}") from None
    _read_deadline(row, fields)
    row.order += (row.op_id, row.keys, row.condition, -1 if row.deadline_ms is None else row.deadline_ms)


def _read_deadline(row: Row, fields: Mapping[str, Any]) -> None:
    timeout_ms, deadline_ms = fields.get("timeout_ms"), fields.get("deadline_ms")
    if timeout_ms is not None and deadline_ms is not None:
        raise BadRow("the row must have timeout_ms or deadline_ms, got both")
    if timeout_ms is not None:
        if _whole(timeout_ms, "timeout_ms") < 0:
            raise BadRow(f"timeout_ms must be at least 0, got {timeout_ms}")
        deadline_ms = row.ts_ms + timeout_ms
    if deadline_ms is not None:
        # A deadline that has already passed at the time of the row is due at once, as everywhere in the library.
        row.deadline_ms = max(_whole(deadline_ms, "deadline_ms"), row.ts_ms)
        if row.deadline_ms > LAST_MS:
            raise BadRow(
                f"the deadline must be before the year 10000, got {row.deadline_ms}: omit it to wait without one"
            )


def _read_target(row: Row, fields: Mapping[str, Any]) -> None:
    """Read the operation that the row ends or, if the row has none, the key of all operations that it ends."""
    if fields.get("op_id") is None and fields.get("key") is None:
        raise BadRow("the row must have op_id or key, got neither")
    if fields.get("op_id") is None:
        row.key = _text(fields, "key")
    else:
        row.op_id = _text(fields, "op_id")


def _time(fields: Mapping[str, Any], name: str) -> int:
    time_ms = _whole(fields.get(name), name)
    if not 0 < time_ms <= LAST_MS:
        raise BadRow(f"{name} must be a time in milliseconds since 1970, before the year 10000, got {time_ms}")
    return time_ms


def _whole(value: Any, name: str) -> int:
    if type(value) is not int:
        raise BadRow(f"{name} must be an int, got {value!r}")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadRow(f"{name} must be a string, got {value!r}")
    if not _is_valid_unicode(value):
        raise BadRow(f"{name} must be a string of valid Unicode, got {value!r}")
    return value


def _is_valid_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode the text.  JSON can contain half a surrogate pair, which UTF-8 cannot encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _value(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e308 <= value <= 1e308:
        raise BadRow(f"value must be a finite number, got {value!r}")
    return value
