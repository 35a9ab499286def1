"""Validation of keys, thresholds and limits, before anything has changed."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from purgatory.texts import safe_repr

from .thresholds import validated_threshold_map

__all__ = ["UNLIMITED", "validate_keys", "validated_limit", "validated_thresholds"]

UNLIMITED: Final = 1 << 60


def validated_limit(name: str, limit: Any) -> int:
    """Return the limit, UNLIMITED for None.  TypeError unless it is an int or None, ValueError below 1."""
    if limit is None:
        return UNLIMITED
    if type(limit) is not int:
        raise TypeError(f"{name} must be a positive int or None, got {safe_repr(limit)}")
    if limit < 1:
        raise ValueError(f"{name} must be a positive int or None, got {safe_repr(limit)}")
    return min(limit, UNLIMITED)


def validated_thresholds(keys: Any) -> dict[Hashable, Any] | None:
    """Return a mapping of keys to thresholds, None for another iterable of keys; TypeError for anything else."""
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys must be an iterable of keys, such as [{safe_repr(keys)}], got {safe_repr(keys)}")
    if not isinstance(keys, Mapping):
        return None
    return validated_threshold_map(keys)


def validate_keys(keys: tuple[Hashable, ...]) -> None:
    """Raise ValueError if there are no keys, TypeError if one is unhashable."""
    if not keys:
        raise ValueError("keys must contain at least one key, got none")
    for key in keys:
        hash(key)
