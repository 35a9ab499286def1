"""What a purgatory is given, checked before anything has changed: keys, thresholds, limits.  Floor 3."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from .thresholds import check_thresholds

__all__ = ["check_keys", "limit_of", "thresholds_of"]


def limit_of(name: str, limit: Any) -> int:
    """A limit, checked.  TypeError if it is no whole number, ValueError below 1."""
    if type(limit) is not int:
        raise TypeError(f"{name} is a whole number (int) or None, not {limit!r}")
    if limit < 1:
        raise ValueError(f"{name} is at least 1, or None for no limit, not {limit}")
    return limit


def thresholds_of(keys: Any) -> dict[Hashable, Any] | None:
    """A mapping of keys to thresholds, checked; None if it is another iterable of keys.  TypeError if it is neither."""
    if isinstance(keys, (str, bytes, bytearray)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys is an iterable of keys, not the bare key {keys!r}: [{keys!r}] was meant")
    if not isinstance(keys, Mapping):
        return None
    thresholds = dict(keys)
    check_thresholds(thresholds)
    return thresholds


def check_keys(keys: tuple[Hashable, ...]) -> None:
    """A bad key has to be found before anything has changed."""
    if not keys:
        raise ValueError("keys is empty: an operation that waits on nothing could only expire")
    for key in keys:
        hash(key)
