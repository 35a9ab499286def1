"""The payloads that relays send to each other.

A payload is one JSON array in ASCII, so that an engine with any text encoding carries it unchanged:

====================================================  ==============================================================
payload                                               meaning
====================================================  ==============================================================
``[1, origin, "keys", [[key], [key, value], ...]]``   check these keys, each with its value where there is one
``[1, origin, "all"]``                                check every key
``[1, origin, "ping", number]``                       the sender measures the round trip through the engine
====================================================  ==============================================================

The first item is the version of this format.  ``origin`` is the id of the sender; it is empty in a notice that the
sender wants back as well.  A key is a string, an integer, or a tuple of keys, which is sent as an array.

A receiver that cannot read a payload, because it is damaged or of a later version, treats it as "check every key".
That is always correct, so workers of two versions can run side by side.
"""

import json
import math
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
DEEPEST: Final = 8  # how deep a key may be nested
LONGEST_INT: Final = 4000  # in bits, of a key; Python refuses to parse integers of more than 4300 digits

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode

Entry = tuple[Hashable, float | None]
"""A key and its value, or None: a check without a value."""


class Notice(NamedTuple):
    """A payload as its receiver reads it.

    ``entries`` is None in "check every key" and empty in a ping; ``ping`` is the number of a ping, else None.
    """

    origin: str
    entries: list[Entry] | None
    ping: int | None


# What can be relayed


def is_key(key: object, depth: int = DEEPEST) -> bool:
    """Return whether the key can be relayed: a str, an int, or a tuple of such keys."""
    if isinstance(key, str):
        return True
    if isinstance(key, int):
        return not isinstance(key, bool)
    return isinstance(key, tuple) and depth > 0 and all(is_key(item, depth - 1) for item in key)


def validate_key(key: object) -> None:
    """Raise TypeError unless the key can be relayed."""
    if not is_key(key):
        kinds = f"a str, an int or a tuple of them, at most {DEEPEST} deep"
        raise TypeError(f"a key to relay must be {kinds}, got {safe_repr(key)}")


def is_value(value: object) -> TypeGuard[float]:
    """Whether the value can be compared with a threshold: an int or a float that is not NaN and fits a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:
        return False


def validate_value(value: object) -> None:
    """Raise TypeError unless the value is a number, ValueError if it is NaN or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a value to relay must be an int or a float, got {safe_repr(value)}")
    if not is_value(value):
        raise ValueError(f"a value to relay must be a number that fits a float, got {safe_repr(value)}")


# Writing


def encode_keys(origin: str, entries: list[Entry], max_payload: int) -> Iterator[tuple[str, list[Entry]]]:
    """Yield payloads of at most ``max_payload`` bytes, each with the entries that it carries, in their order.

    At a key that does not fit into a payload by itself, the last payload is "check every key"; it carries the rest.
    Each payload is made on demand, so a long list does not block the loop.
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
    """Return the entry as JSON; None if an integer in its key is too long to be parsed."""
    key, value = entry
    if not _is_short(key):
        return None
    return _encode([key] if value is None else [key, value])


def _is_short(key: Any) -> bool:
    if isinstance(key, int):
        return key.bit_length() <= LONGEST_INT
    return isinstance(key, str) or all(_is_short(item) for item in key)


def encode_everything(origin: str) -> str:
    """Return the payload "check every key"."""
    return f'[{VERSION},"{origin}","all"]'


def encode_ping(origin: str, number: int) -> str:
    """Return the payload that only its sender reads."""
    return f'[{VERSION},"{origin}","ping",{number}]'


# Reading


def decode(payload: str | bytes) -> Notice:
    """Read a payload.  Raises ValueError if it cannot be read."""
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
    raise ValueError(f"a key must be a string, an integer or an array of keys, got {key!r}")
