"""Limiting how many waits one client may have, by the address of its connection.

A client need not keep its connection to keep its place.  Servers that read ahead stop reading from a connection when it
holds the next request already, and so do not notice that the client is gone.  A client that sends two requests at once
and resets the connection then holds a place until the deadline, for 200 bytes.  ASGI has no means against that, so the
means are a deadline and a limit for each address.
"""

import ipaddress
import weakref
from typing import Any

from purgatory import Purgatory, PurgatoryFull

from .types import Scope

__all__ = ["Places", "TooManyWaits", "client_of", "places_of"]

_places: "weakref.WeakKeyDictionary[Purgatory[Any], Places]" = weakref.WeakKeyDictionary()


class TooManyWaits(PurgatoryFull):
    """The client has as many waits in the purgatory as ``per_client`` allows.  ``install_errors`` answers with 429.

    ``key``: the address of the client; of an IPv6 address, the network of 64 bits.
    """


class Places:
    """How many waits each client has in one purgatory."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def take(self, client: str, limit: int) -> bool:
        """Take a place for the client.  False if it has ``limit`` places already."""
        taken = self._taken.get(client, 0)
        if taken >= limit:
            return False
        self._taken[client] = taken + 1
        return True

    def give_back(self, client: str) -> None:
        """Give one place of the client back."""
        left = self._taken[client] - 1
        if left:
            self._taken[client] = left
        else:
            del self._taken[client]

    def __len__(self) -> int:
        return len(self._taken)


def places_of(room: Purgatory[Any]) -> Places:
    """Return the places of the clients in the purgatory."""
    places = _places.get(room)
    if places is None:
        places = _places[room] = Places()
    return places


def client_of(scope: Scope) -> str | None:
    """Return what identifies the client of a request: an IPv4 address, or the network of an IPv6 address.

    None for a connection without an address, such as one through a Unix socket.
    """
    client = scope.get("client")
    if not client or not client[0]:
        return None
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
