"""Validation of keys, thresholds, and limits, before anything has changed."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from purgatory.core.operation.private_key import PrivateKey
from purgatory.texts import safe_repr, type_name

from .thresholds import validated_threshold_map

__all__ = [
    "UNLIMITED",
    "is_plain",
    "validate_checked_key",
    "validate_iterable",
    "validate_keys",
    "validated_limit",
    "validated_thresholds",
]

UNLIMITED: Final = 1 << 60


def validated_limit(name: str, limit: Any) -> int:
    """Return the limit, or UNLIMITED if it is None.  Raises TypeError unless it is an int or None, and ValueError if it
    is below 1.
    """
    if limit is None:
        return UNLIMITED
    if type(limit) is not int:
        raise TypeError(f"{name} must be a positive int or None, got {safe_repr(limit)}")
    if limit < 1:
        raise ValueError(f"{name} must be a positive int or None, got {safe_repr(limit)}")
    return min(limit, UNLIMITED)


def validate_iterable(keys: Any) -> None:
    """Raise TypeError unless the keys are an iterable other than a string, which would be an iterable of characters."""
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        text = safe_repr(keys)
        raise TypeError(
            f"keys must be an iterable of keys, such as [{text}], got {text}; for one key, a wait takes key={text}"
        )


def validate_checked_key(key: Any) -> None:
    """Raise TypeError if a collection is given where a check takes one key."""
    kind = type(key)
    if kind is list or kind is dict or kind is set:
        raise TypeError(
            f"key must be one hashable key, got {safe_repr(key)}, of the unhashable type {type_name(key)}:"
            " check several keys one by one"
        )


def validated_thresholds(keys: Any) -> dict[Hashable, Any] | None:
    """Return a mapping of keys to thresholds, or None for any other iterable of keys.  Raises TypeError otherwise."""
    validate_iterable(keys)
    if not isinstance(keys, Mapping):
        return None
    return validated_threshold_map(keys)


def validate_keys(keys: tuple[Hashable, ...]) -> bool:
    """Return whether all keys are plain.  Raises ValueError if there are none, and TypeError if one is unhashable."""
    if not keys:
        raise ValueError("keys must contain at least one key, got none")
    plain = True
    for key in keys:
        if not is_plain(key):
            plain = False
            hash(key)
    return plain


def is_plain(key: Any) -> bool:
    """Return whether the key is a str, an int, or a tuple of these: hashing or comparing such a key cannot fail and
    runs no user code.

    The library's private keys are plain, too.
    """
    kind = type(key)
    if kind is str or kind is int:
        return True
    if kind is not tuple:
        return kind is PrivateKey
    parts: tuple[Any, ...] = key
    for part in parts:
        kind = type(part)
        if kind is not str and kind is not int:
            return False
    return True
