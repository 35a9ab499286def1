"""The limit on the array elements of a request, checked before the request is decoded.

A frame of 1 MiB can contain half a million two-byte elements.  Each element would become an object of about a
hundred bytes, so decoding would block the event loop for seconds and take hundreds of megabytes.  The check reads only
the array lengths and stops at the limit.
"""

import struct
from collections.abc import Callable
from typing import Any

__all__ = ["TooManyElements", "check_elements"]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_Step = Callable[[bytes, int, int], tuple[int, int]]
"""Skip one field: (frame, position, elements left) -> (position after the field, elements left)."""


class TooManyElements(ValueError):
    """The arrays of a request together have more elements than the limit allows."""


_walks: dict[tuple[Any, int], _Step | None] = {}


def check_elements(message: Any, version: int, frame: bytes, start: int, limit: int) -> None:
    """Raise :class:`TooManyElements` if the arrays of the request have more than ``limit`` elements in total.

    ``message``: the class of the request.  ``start``: the position of the request body.  The decoder reports a body
    that is too short.
    """
    key = (message, version)
    if key not in _walks:
        _walks[key] = _walk(message._struct, version) if _has_array(message._struct, version) else None
    walk = _walks[key]
    if walk is None:
        return
    try:
        walk(frame, start, limit)
    except struct.error:
        return


def _has_array(schema: Any, version: int) -> bool:
    return any(field.is_array() for field in schema.untagged_fields(version))


def _walk(schema: Any, version: int) -> _Step:
    """Return a step that skips all fields of a structure."""
    steps: list[_Step] = []
    fixed = 0
    for field in schema.untagged_fields(version):
        if not field.is_array() and field.is_batchable():
            fixed += _size(field)
            continue
        if fixed:
            steps.append(_skip(fixed))
            fixed = 0
        steps.append(_step(field, version))
    if fixed:
        steps.append(_skip(fixed))

    def walk(frame: bytes, at: int, left: int) -> tuple[int, int]:
        for step in steps:
            at, left = step(frame, at, left)
        return at, left

    return walk


def _step(field: Any, version: int) -> _Step:
    if field.is_array():
        inner = field.array_of
        if field.is_struct_array():
            size = _fixed_size(inner, version)
            return _array(_walk(inner, version) if size is None else None, size or 0)
        return _array(None, _size(inner)) if inner.is_batchable() else _array(_step(inner, version), 0)
    return _string if field._type_str == "string" else _bytes


def _fixed_size(schema: Any, version: int) -> int | None:
    """Return the size of a structure of fixed-size fields, or None if it has other fields."""
    fields = schema.untagged_fields(version)
    if any(field.is_array() or not field.is_batchable() for field in fields):
        return None
    return sum(map(_size, fields))


def _size(field: Any) -> int:
    return {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}[field._type_str]


def _skip(size: int) -> _Step:
    return lambda _, at, left: (at + size, left)


def _string(frame: bytes, at: int, left: int) -> tuple[int, int]:
    (length,) = _INT16.unpack_from(frame, at)
    return at + 2 + max(length, 0), left


def _bytes(frame: bytes, at: int, left: int) -> tuple[int, int]:
    (length,) = _INT32.unpack_from(frame, at)
    return at + 4 + max(length, 0), left


def _array(element: _Step | None, size: int) -> _Step:
    def step(frame: bytes, at: int, left: int) -> tuple[int, int]:
        (number,) = _INT32.unpack_from(frame, at)
        at += 4
        left -= max(number, 0)
        if left < 0:
            raise TooManyElements(f"{-left} elements above the limit")
        if element is None:
            return at + max(number, 0) * size, left
        for _ in range(number):
            at, left = element(frame, at, left)
        return at, left

    return step
