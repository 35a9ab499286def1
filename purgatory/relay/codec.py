"""The payloads that relays send to each other.

A payload is one JSON array in ASCII, so that an engine with any text encoding carries it unchanged:

====================================================  ==============================================================
payload                                               meaning
====================================================  ==============================================================
``[1, origin, "keys", [[key], [key, value], ...]]``   check these keys, each with its value if there is one
``[1, origin, "all"]``                                check every key
``[1, origin, "ping", number]``                       sent to measure the round trip through the engine
====================================================  ==============================================================

The first item is the version of this format.  ``origin`` is the ID of the sender; it is empty in a notice that the
sender itself must also handle.  A key is a string, an integer, or a tuple of keys; a tuple is sent as an array.

If a receiver cannot read a payload, because the payload is damaged or has a later version, it treats the payload as
"check every key".  This interpretation is always correct, so workers with different versions can run side by side.
"""

import json
import math
import re
from collections.abc import Hashable, Iterator
from typing import Any, Final, NamedTuple, TypeGuard

from purgatory.texts import safe_repr

__all__ = [
    "Entry",
    "Notice",
    "decode",
    "encode_everything",
    "encode_keys",
    "encode_ping",
    "is_key",
    "is_value",
    "validate_key",
    "validate_value",
]

VERSION: Final = 1
DEEPEST: Final = 8  # how deeply a key may be nested
LONGEST_INT: Final = 4000  # in bits, for an integer in a key; Python refuses to parse more than 4,300 digits

_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # JSON reads two surrogates as one character
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode

Entry = tuple[Hashable, float | None]
"""A key and its value; the value is None for a check without a value."""


class Notice(NamedTuple):
    """A decoded payload.

    ``entries`` is None for "check every key" and empty for a ping; ``ping`` is the number of the ping, or None if the
    payload is not a ping.
    """

    origin: str
    entries: list[Entry] | None
    ping: int | None


# What can be relayed


def is_key(key: object, depth: int = DEEPEST) -> bool:
    """Return whether the key can be relayed: a str, an int, or a tuple of such keys.

    A key arrives as a plain str, int, or tuple, so a subclass must hash as its base does.
    """
    own_hash = type(key).__hash__
    if isinstance(key, str):
        return own_hash is str.__hash__
    if isinstance(key, int):
        return own_hash is int.__hash__ and not isinstance(key, bool)
    if isinstance(key, tuple):
        return own_hash is tuple.__hash__ and depth > 0 and all(is_key(item, depth - 1) for item in key)
    return False


def validate_key(key: object) -> None:
    """Raise TypeError unless the key can be relayed."""
    if not is_key(key):
        kinds = f"a str, an int, or a tuple of them, at most {DEEPEST} deep, without a __hash__ of its own"
        raise TypeError(f"a key to relay must be {kinds}, got {safe_repr(key)}")


def is_value(value: object) -> TypeGuard[float]:
    """Return whether the value is an int or a float that can be compared with a threshold: it must not be NaN and must
    fit in a float.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:
        return False


def validate_value(value: object) -> None:
    """Raise TypeError if the value is not a number, and ValueError if it is NaN or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a value to relay must be an int or a float, got {safe_repr(value)}")
    if not is_value(value):
        raise ValueError(f"a value to relay must be a number that fits a float, got {safe_repr(value)}")


# Writing


def encode_keys(origin: str, entries: list[Entry], max_payload: int) -> Iterator[tuple[str, list[Entry]]]:
    """Yield payloads of at most ``max_payload`` bytes, each with the entries that it carries, in order.

    If a key does not fit into a payload by itself, or would arrive as another one, the next payload is "check every
    key".  It carries all remaining entries and is the last payload.  Each payload is built on demand, so a long list
    does not block the loop.
    """
    head = f'[{VERSION},"{origin}","keys",['
    space = max_payload - len(head) - 2
    texts: list[str] = []
    start, size = 0, -1
    for number, entry in enumerate(entries):
        text = _entry(entry)
        if text is None or len(text) > space:
            yield encode_everything(origin), entries[start:]
            return
        if size + 1 + len(text) > space:
            yield head + ",".join(texts) + "]]", entries[start:number]
            texts, start, size = [], number, -1
        texts.append(text)
        size += 1 + len(text)
    if texts:
        yield head + ",".join(texts) + "]]", entries[start:]


def _entry(entry: Entry) -> str | None:
    """Return the entry as JSON, or None if JSON does not carry its key."""
    key, value = entry
    if not _is_carried(key):
        return None
    return _encode([key] if value is None else [key, value])


def _is_carried(key: Any) -> bool:
    """Return whether the receiver parses the same key: not an integer that is too long, nor a pair of surrogates."""
    if isinstance(key, int):
        return key.bit_length() <= LONGEST_INT
    if isinstance(key, str):
        return key.isascii() or _PAIR.search(key) is None
    return all(_is_carried(item) for item in key)


def encode_everything(origin: str) -> str:
    """Return the payload "check every key"."""
    return f'[{VERSION},"{origin}","all"]'


def encode_ping(origin: str, number: int) -> str:
    """Return a ping, which only its sender handles."""
    return f'[{VERSION},"{origin}","ping",{number}]'


# Reading


def decode(payload: str | bytes) -> Notice:
    """Decode a payload.  Raises ValueError if the payload cannot be read."""
    try:
        parsed = json.loads(payload)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"a payload must be JSON, got {payload!r}") from error
    match parsed:
        case [int(version), str(origin), "keys", list(entries)] if version == VERSION:
            return Notice(origin, [_read_entry(entry) for entry in entries], None)
        case [int(version), str(origin), "all"] if version == VERSION:
            return Notice(origin, None, None)
        case [int(version), str(origin), "ping", int(number)] if version == VERSION:
            return Notice(origin, [], number)
    raise ValueError(f"a payload must be a notice of version {VERSION}, got {payload!r}")


def _read_entry(entry: object) -> Entry:
    match entry:
        case [key]:
            return _read_key(key, DEEPEST), None
        case [key, value]:
            read = _read_key(key, DEEPEST)
            if is_value(value):
                return read, value
    raise ValueError(f"an entry must be [key] or [key, value], got {entry!r}")


def _read_key(key: object, depth: int) -> Hashable:
    if isinstance(key, list) and depth > 0:
        return tuple([_read_key(item, depth - 1) for item in key])
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return key
    raise ValueError(f"a key must be a string, an integer, or an array of keys, got {key!r}")
