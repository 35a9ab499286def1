"""What the files of the single APIs share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .broker import Broker
from .codec import Header

__all__ = ["Api", "Call", "Hangup"]


class Hangup(Exception):
    """The request is answered by closing its connection; the text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """Who asks, and whom.  ``advertised``: (key, highest version) of every API."""

    broker: Broker
    advertised: list[tuple[int, int]]
    version: int
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    ``key``: its number.  ``pin``: the highest version; 0 to ``pin`` are advertised.  ``request``: the class that
    decodes it.  ``answer``: makes the response, or None where none is sent; cancelled when the client goes away.
    ``glance``: looks at the bytes before they are decoded, and raises :class:`~examples.broker.codec.Malformed`.
    """

    key: int
    pin: int
    request: Any
    answer: Callable[[Call, Any], Awaitable[Any]]
    glance: Callable[[bytes, Header], None] | None = None
