"""The two kinds of objects in which an application can wait: a purgatory, and a relay with its purgatory."""

import logging
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from purgatory import Purgatory

if TYPE_CHECKING:
    from purgatory.relay import Relay

__all__ = ["Room", "purgatory_of", "report_not_open"]

_LOGGER = logging.getLogger("purgatory.asgi")
_NOT_OPEN: Final = (
    "purgatory %r was not opened, because no lifespan has run: check_threadsafe() raises, and no signal to stop"
    " answers its waits; use a server that runs the application's lifespan, or enter the purgatory with 'async with'"
)
_reported: "weakref.WeakSet[Purgatory[Any]]" = weakref.WeakSet()  # those already reported

Room: TypeAlias = "Purgatory[Any] | Relay"


def purgatory_of(room: Any) -> Purgatory[Any]:
    """Return the purgatory, or the purgatory of a relay.  This package does not import the relay's class."""
    purgatory = room if isinstance(room, Purgatory) else getattr(room, "_purgatory", None)
    if not isinstance(purgatory, Purgatory):
        raise TypeError(f"room must be a Purgatory or a Relay, got {room!r}")
    return purgatory


def report_not_open(room: Purgatory[Any]) -> None:
    """Log, once for each purgatory, that requests arrive for it although no lifespan has opened it."""
    if room not in _reported:
        _reported.add(room)
        _LOGGER.warning(_NOT_OPEN, room.name)
