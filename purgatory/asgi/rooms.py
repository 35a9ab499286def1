"""The two kinds of objects in which an application can wait: a purgatory, and a relay with its purgatory."""

from typing import TYPE_CHECKING, Any, TypeAlias

from purgatory import Purgatory

if TYPE_CHECKING:
    from purgatory.relay import Relay

__all__ = ["Room", "purgatory_of"]

Room: TypeAlias = "Purgatory[Any] | Relay"


def purgatory_of(room: Any) -> Purgatory[Any]:
    """Return the purgatory, or the purgatory of a relay.  This package does not import the relay's class."""
    purgatory = room if isinstance(room, Purgatory) else getattr(room, "_purgatory", None)
    if not isinstance(purgatory, Purgatory):
        raise TypeError(f"room must be a Purgatory or a Relay, got {room!r}")
    return purgatory
