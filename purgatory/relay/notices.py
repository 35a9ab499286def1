"""Notices that come not from a relay but from a transaction or from a program without a relay."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from purgatory.core.watch.validation import validate_iterable

from .addresses import described
from .codec import encode_everything, encode_keys, is_key, validate_key, validate_value
from .pending import PendingKeys

__all__ = ["entries_of", "payloads_of"]


def entries_of(keys: Iterable[Hashable] | Mapping[Any, float | None]) -> dict[Hashable, float | None]:
    """Return each key with its value or None.  Raises TypeError or ValueError if a key or value cannot be relayed."""
    given: object = keys
    if not isinstance(given, Iterable) and given is not None and not is_key(given):  # perhaps the connection
        raise TypeError(f"keys must be an iterable of keys, got {described(keys)}")
    validate_iterable(keys)
    entries: dict[Hashable, float | None] = {}
    for key, value in keys.items() if isinstance(keys, Mapping) else ((key, None) for key in keys):
        validate_key(key)
        if value is not None:
            validate_value(value)
        entries[key] = value
    return entries


def payloads_of(entries: Mapping[Hashable, float | None], max_keys: int, max_payload: int) -> list[str]:
    """Return the payloads that check the keys in every process, including the process that sends them.

    For more than ``max_keys`` keys, the payload is "check every key".
    """
    notice = PendingKeys(max_keys)
    for key, value in entries.items():
        notice.add(key, value)
    if notice.everything:
        return [encode_everything("")]
    return [payload for payload, _ in encode_keys("", notice.take(), max_payload)]
