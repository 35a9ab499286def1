"""What the classes in this folder share: checking their purgatory, and the errors at the end of a wait."""

from typing import Any

from purgatory.aio.purgatory import Purgatory
from purgatory.errors import PurgatoryClosed
from purgatory.texts import safe_repr

__all__ = ["not_granted", "out_of_time", "validated_kind", "validated_room"]


def validated_room(room: Any) -> Purgatory[Any]:
    """Return ``room``.  Raises TypeError if it is not a purgatory."""
    if not isinstance(room, Purgatory):
        raise TypeError(f"room must be a Purgatory, got {safe_repr(room)}")
    return room


def validated_kind(kind: Any) -> str:
    """Return ``kind``.  Raises TypeError unless it is a nonempty str."""
    if not isinstance(kind, str) or not kind:
        raise TypeError(f"kind must be a nonempty str, got {safe_repr(kind)}")
    return kind


def not_granted(room: Purgatory[Any], wait: Any, what: str, timeout: float | None) -> Exception:
    """Return the error for a wait that has expired."""
    if wait.expired_by_closing:
        closed = "purgatory" if room.closed else "the timer of purgatory"
        return PurgatoryClosed(f"{closed} {room.name!r} was closed while a task waited for {what}")
    return out_of_time(what, timeout)


def out_of_time(what: str, timeout: float | None) -> TimeoutError:
    """Return the error for a wait that ran out of time."""
    return TimeoutError(
        f"the wait for {what} {'reached its deadline' if timeout is None else f'timed out (timeout {timeout:g} s)'}"
    )
