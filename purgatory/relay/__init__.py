"""Relay checks between processes, so that a check in one worker also reaches requests in the other workers.

::

    async with Purgatory("orders") as purgatory, Relay(purgatory, RedisTransport("redis://localhost")) as relay:
        ...

===================  =============================================================================================
``relay``            :class:`Relay`, the class that an application uses
``connection``       one connection to the engine, from the attempt to connect until the connection is lost
``refresh``          finds the stale keys, and reads their state one batch at a time
``state``            what was read for the watched keys, and which waits may see it
``codec pending``    payloads, and bounded sets of keys
``transport``        the protocol that a transport implements: three methods
``loop_lock``        gives a transport to one event loop, in which its relays publish one after the other
``memory``           an in-memory engine, with faults on command, for tests
``notifier``         :class:`Notifier`, for code without an event loop
``notices transactions``  notices that are not sent by a relay, and connections that take part in a transaction
``unix``             workers on one machine, without a server: sockets in a directory
``postgres redis nats``  the engines; each module imports its client library, from the extra of that name
===================  =============================================================================================
"""

from typing import TYPE_CHECKING, Any

from purgatory.errors import RelayLost
from purgatory.extras import is_installed
from purgatory.texts import names_of

from .memory import MemoryTransport
from .notifier import Notifier
from .relay import Relay
from .statistics import RelayStatistics
from .transport import TransactionalTransport, Transport
from .unix import UnixTransport

if TYPE_CHECKING:
    from .nats import NatsTransport
    from .postgres import PostgresTransport
    from .redis import RedisTransport

__all__ = [
    "MemoryTransport",
    "NatsTransport",
    "Notifier",
    "PostgresTransport",
    "RedisTransport",
    "Relay",
    "RelayLost",
    "RelayStatistics",
    "TransactionalTransport",
    "Transport",
    "UnixTransport",
]

# Maps each class to its module and its client library.
_CLIENTS = {
    "NatsTransport": ("nats", "nats"),
    "PostgresTransport": ("postgres", "psycopg"),
    "RedisTransport": ("redis", "redis"),
}


def __dir__() -> list[str]:
    missing = [name for name, (_, client) in _CLIENTS.items() if not is_installed(client)]
    return names_of(globals(), missing)


def __getattr__(name: str) -> Any:
    """Import a transport, together with its client library, on first access."""
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_CLIENTS[name][0]}", __name__), name)
