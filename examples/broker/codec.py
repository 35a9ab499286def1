"""The wire: frames, the request header, and messages as kafka-python's ``kafka.protocol`` encodes and decodes them.

A frame is four bytes of length and that many bytes of request.  The messages are the library's; what is added here is
strictness, because what arrives may be anything:

*   the decoder does not notice when a string or a byte field ends beyond the frame, so the position at the end is
    compared with the frame's length: a frame that is too short or too long is malformed;
*   it reads a null where the schema knows none, so those are looked for;
*   what it raises on rubbish (``struct.error``, ``UnicodeDecodeError``, ...) becomes :class:`Malformed`.

An absurd array length costs nothing: every element takes at least one byte of the frame, and the first that is not
there ends the reading.
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
    """The frame is no request that this broker understands; its connection is closed."""


class Header(NamedTuple):
    """The request header: which API in which version, the number to answer with, and who asks."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    end: int


def frame_size(buffer: bytes | bytearray) -> int:
    """The length that the first four bytes announce."""
    return int(_SIZE.unpack_from(buffer)[0])


def api_key(buffer: bytes | bytearray, start: int) -> int:
    """The API of the request that begins at ``start``."""
    return int(_API_KEY.unpack_from(buffer, start)[0])


def decode_header(frame: bytes) -> Header:
    """The header of a request up to and with the client id; tagged fields behind it are left to who knows them."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
    except struct.error:
        raise Malformed(f"a request of {len(frame)} bytes is shorter than its header") from None
    end = _HEAD.size + max(length, 0)
    if end > len(frame):
        raise Malformed(f"the client id of {length} bytes ends beyond the frame")
    try:
        client_id = str(frame[_HEAD.size : end], "utf-8")
    except UnicodeDecodeError:
        raise Malformed("the client id is no UTF-8") from None
    return Header(api_key, version, correlation_id, client_id, end)


def decode(message: Any, frame: bytes, header: Header) -> Any:
    """The body of a request.  ``message``: its class.  Raises :class:`Malformed`."""
    name, version = message.name, header.version
    # The library's public decode() does not tell where it stopped reading; the function below it does.
    read = message._struct.compiled_decode_from(version, compact=False, tagged=False, data_class=message)
    try:
        request, end = read(memoryview(frame), header.end)
    except (struct.error, ValueError, IndexError) as error:
        raise Malformed(f"{name} v{version} cannot be read: {error}") from None
    if end != len(frame):
        raise Malformed(f"{name} v{version} takes {end} bytes, but the frame has {len(frame)}")
    look = _null_finder(message, version)
    missing = look(request) if look is not None else None
    if missing is not None:
        raise Malformed(f"{name} v{version}: {missing} is null")
    return request


def encode(response: Any, version: int, correlation_id: int) -> bytes:
    """A response as a frame."""
    body = response.encode(version=version)
    return _RESPONSE_HEAD.pack(len(body) + 4, correlation_id) + bytes(body)


# Nulls where there must be none

_Finder = Callable[[Any], str | None]
_finders: dict[tuple[Any, int], _Finder | None] = {}


def _null_finder(message: Any, version: int) -> _Finder | None:
    key = (message, version)
    if key not in _finders:
        _finders[key] = _make_finder(message._struct, version)
    return _finders[key]


def _make_finder(schema: Any, version: int) -> _Finder | None:
    """A function that names the first field that is null and must not be; None if no field can be."""
    plain: list[str] = []
    nested: list[tuple[str, _Finder]] = []
    for field in schema.untagged_fields(version):
        if field.is_batchable():
            continue  # numbers and booleans have no null
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

    def look(item: Any) -> str | None:
        for name in plain:
            if getattr(item, name) is None:
                return name
        for name, finder in nested:
            for element in getattr(item, name) or ():
                missing = finder(element)
                if missing is not None:
                    return f"{missing} in {name}"
        return None

    return look


def _null_element(element: Any) -> str | None:
    return "an element" if element is None else None
