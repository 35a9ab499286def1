"""Limiting the number of waits per client, where a client is identified by the address of its connection.

A client can keep its place without keeping its connection.  If a server reads ahead, it stops reading from a connection
once it has received the next request, and therefore does not detect that the client has disconnected.  If a client
sends two requests back to back and resets the connection, it holds a place until the deadline, at the cost of sending
200 bytes.  ASGI provides no defense, so the only defenses are a deadline and a limit for each address.
"""

import ipaddress
import logging
import weakref
from typing import Any, Final

from purgatory import Purgatory, PurgatoryFull

from .types import Scope

__all__ = ["Places", "TooManyWaits", "client_of", "places_of"]

_LOGGER = logging.getLogger("purgatory.asgi")
_NO_ADDRESS: Final = "without an address"
_WARNING: Final = (
    "purgatory %r: a connection has no client address, so per_client counts all such connections as one client; on a"
    " Unix socket, make the server read the address from the proxy's headers (uvicorn: --forwarded-allow-ips '*');"
    " on a TCP socket, the client had already disconnected"
)

_places: "weakref.WeakKeyDictionary[Purgatory[Any], Places]" = weakref.WeakKeyDictionary()


class TooManyWaits(PurgatoryFull):
    """The client has as many waits in the purgatory as ``per_client`` allows.  ``install_errors`` responds with 429.

    ``key``: the client's address; for an IPv6 address, its /64 network; ``"without an address"`` for the connections
    that have none, which count as one client.
    """


class Places:
    """How many waits each client has in one purgatory."""

    __slots__ = ("_name", "_taken", "_warned")

    def __init__(self, name: str) -> None:
        self._name = name
        self._taken: dict[str, int] = {}
        self._warned = False

    def take(self, client: str, limit: int) -> bool:
        """Take a place for the client.  Return False if it already has ``limit`` places.

        Log a warning at the first client without an address.
        """
        if client == _NO_ADDRESS and not self._warned:
            self._warned = True
            _LOGGER.warning(_WARNING, self._name)
        taken = self._taken.get(client, 0)
        if taken >= limit:
            return False
        self._taken[client] = taken + 1
        return True

    def give_back(self, client: str) -> None:
        """Release one of the client's places."""
        left = self._taken[client] - 1
        if left:
            self._taken[client] = left
        else:
            del self._taken[client]

    def __len__(self) -> int:
        return len(self._taken)


def places_of(room: Purgatory[Any]) -> Places:
    """Return the purgatory's :class:`Places` object, which counts the waits of each client."""
    places = _places.get(room)
    if places is None:
        places = _places[room] = Places(room.name)
    return places


def client_of(scope: Scope) -> str:
    """Return what identifies a request's client: an IPv4 address, or the /64 network of an IPv6 address.

    Connections without an address, such as the connections through a Unix socket, count as one client: the limit then
    holds for all of them, rather than for none.
    """
    client = scope.get("client")
    if not client or not client[0]:
        return _NO_ADDRESS
    host: str = client[0]
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
