"""The types that the API modules share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from examples.broker.broker import Broker

__all__ = ["PARKED_BYTES", "Api", "Call", "CloseConnection", "Hold"]

Hold = Callable[[int], object]
PARKED_BYTES = 1024  # upper bound on the memory that one partition of a parked request takes up


class CloseConnection(Exception):
    """Close the connection instead of sending a response.  The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Call:
    """The context of one request: the broker, the client, and the API version.

    ``advertised``: the pair (key, highest version) for each API.  ``hold``: a function to call before a request is
    parked, with the number of bytes that the request takes while it waits.  The connection counts these bytes and
    raises :class:`CloseConnection` if a limit is exceeded.
    """

    broker: Broker
    advertised: list[tuple[int, int]]
    version: int
    client_id: str
    client_host: str
    hold: Hold


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    ``key``: the API number.  ``pin``: the highest version; the broker advertises versions 0 to ``pin``.  ``request``:
    the class of the request.  ``answer``: a coroutine function that returns the response, or None to send no response;
    the broker cancels the call when the client disconnects.  ``lasting``: whether the request changes something that
    remains after the client has disconnected, so that it is executed even if no client reads the response.
    """

    key: int
    pin: int
    request: Any
    answer: Callable[[Call, Any], Awaitable[Any]]
    lasting: bool = False
