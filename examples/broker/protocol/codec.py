"""The wire format: frames, the request header, and the messages of kafka-python's ``kafka.protocol``.

A frame is a four-byte length followed by that many bytes of a request.  The kafka-python library encodes and decodes
the messages.  This module adds strict checks, because the input may be arbitrary:

*   The decoder does not detect a string or byte field that extends beyond the frame.  The final position is therefore
    compared with the length of the frame; a frame that is too short or too long is malformed.
*   The decoder accepts a null in fields that are not nullable.  Decoded requests are therefore searched for such nulls.
*   The decoder's exceptions (``struct.error``, ``UnicodeDecodeError``, ...) are converted to :class:`Malformed`.

A huge array length is harmless: every element takes at least one byte of the frame, and decoding fails at the first
missing element.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Header", "Malformed", "api_key", "decode", "decode_header", "encode", "frame_size"]

_SIZE = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_HEAD = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")


class Malformed(ValueError):
    """The frame is not a valid request for this broker.  The broker closes the connection."""


class Header(NamedTuple):
    """The request header.  ``end``: the position of the request body."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    end: int


def frame_size(buffer: bytes | bytearray) -> int:
    """Return the length in the first four bytes."""
    return int(_SIZE.unpack_from(buffer)[0])


def api_key(buffer: bytes | bytearray, start: int) -> int:
    """Return the API key of the request that begins at ``start``."""
    return int(_API_KEY.unpack_from(buffer, start)[0])


def decode_header(frame: bytes) -> Header:
    """Decode the header of a request up to the client id.  Tagged fields after it are not decoded."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
    except struct.error:
        raise Malformed(f"request of {len(frame)} bytes is shorter than its header") from None
    end = _HEAD.size + max(length, 0)
    if end > len(frame):
        raise Malformed(f"client id of {length} bytes ends beyond the frame")
    try:
        client_id = str(frame[_HEAD.size : end], "utf-8")
    except UnicodeDecodeError:
        raise Malformed("client id is not valid UTF-8") from None
    return Header(api_key, version, correlation_id, client_id, end)


def decode(message: Any, frame: bytes, header: Header) -> Any:
    """Decode the body of a request of class ``message``.  Raise :class:`Malformed` if it is invalid."""
    name, version = message.name, header.version
    # The library's public decode() does not return the final position; this function does.
    read = message._struct.compiled_decode_from(version, compact=False, tagged=False, data_class=message)
    try:
        request, end = read(memoryview(frame), header.end)
    except (struct.error, ValueError, IndexError) as error:
        raise Malformed(f"{name} v{version} cannot be decoded: {error}") from None
    if end != len(frame):
        raise Malformed(f"{name} v{version} takes {end} bytes, but the frame has {len(frame)}")
    find_null = _null_finder(message, version)
    missing = find_null(request) if find_null is not None else None
    if missing is not None:
        raise Malformed(f"{name} v{version}: {missing} must not be null")
    return request


def encode(response: Any, version: int, correlation_id: int) -> bytes:
    """Encode a response as a frame."""
    body = response.encode(version=version)
    return _RESPONSE_HEAD.pack(len(body) + 4, correlation_id) + bytes(body)


# Search for nulls in fields that are not nullable

_Finder = Callable[[Any], str | None]
_finders: dict[tuple[Any, int], _Finder | None] = {}


def _null_finder(message: Any, version: int) -> _Finder | None:
    key = (message, version)
    if key not in _finders:
        _finders[key] = _make_finder(message._struct, version)
    return _finders[key]


def _make_finder(schema: Any, version: int) -> _Finder | None:
    """Return a function that finds the first forbidden null; return None if every field is nullable or a number."""
    plain: list[str] = []
    nested: list[tuple[str, _Finder]] = []
    for field in schema.untagged_fields(version):
        if field.is_batchable():
            continue  # numbers and booleans cannot be null
        if not field.nullable_for_version_q(version):
            plain.append(field.name)
        if field.is_struct_array():
            inner = _make_finder(field.array_of, version)
            if inner is not None:
                nested.append((field.name, inner))
        elif field.is_array() and not field.array_of.is_batchable():
            nested.append((field.name, _null_element))
    if not plain and not nested:
        return None

    def find_null(item: Any) -> str | None:
        for name in plain:
            if getattr(item, name) is None:
                return name
        for name, finder in nested:
            for element in getattr(item, name) or ():
                missing = finder(element)
                if missing is not None:
                    return f"{missing} in {name}"
        return None

    return find_null


def _null_element(element: Any) -> str | None:
    return "an element" if element is None else None
