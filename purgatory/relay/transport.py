"""The interface between a relay and an engine.  A transport of your own needs three methods.

::

    class MyTransport:
        max_payload = 65_536

        async def listen(self, subscribed, received):
            connection = await my_engine.connect()
            try:
                await connection.subscribe("purgatory")
                subscribed()                              # the engine has confirmed the subscription
                async for message in connection:
                    received(message.text)
            finally:
                await connection.abort()                  # at once: the connection may be dead

        async def publish(self, payload):
            await self._client.publish("purgatory", payload)

        async def aclose(self):
            await self._client.close()

A :class:`Notifier` uses ``copy.copy(transport)``; if the transport has a connection, give it a ``__copy__`` that
returns a transport without one.

The relay calls ``listen`` again after every loss, with backoff and without a limit.  So a transport must not reconnect
by itself: if it reconnects before the relay detects the gap, the messages in between are lost.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

__all__ = ["SLICE", "Received", "Subscribed", "TransactionalTransport", "Transport"]

SLICE: Final = 50
"""Messages that have arrived already, after which ``listen`` must give way to the other tasks of the loop."""

Subscribed = Callable[[], None]
Received = Callable[[str | bytes], None]


@runtime_checkable
class Transport(Protocol):
    """Publish and subscribe on one channel of an engine.

    ``max_payload``: the largest size of a payload in bytes; payloads are ASCII.  It is read before every publish, so
    it may be a property that is known only once there is a connection.  A transport may also have an attribute
    ``silence``, a str: the likely cause if the engine confirms subscriptions and delivers nothing.
    """

    @property
    def max_payload(self) -> int: ...

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """Subscribe, and stay subscribed for as long as one connection lasts.

        Connect, subscribe, call ``subscribed()`` once the engine has confirmed it, then call ``received(payload)`` for
        every message on the channel, those from this process included.  Return or raise when the connection is lost,
        when the client library had to drop a message, and when the library would reconnect without the relay noticing.
        When the task is cancelled, drop the connection without waiting for the other side.

        If a transport serves several relays, several calls of this method run at the same time.
        """
        ...

    async def publish(self, payload: str) -> None:
        """Send one message to every subscriber of the channel; raise if the engine has not accepted it.

        One relay makes one call at a time, and only while ``listen`` is subscribed.  Relays that share the transport
        may call it at the same time.  After a call that raised or was cancelled, the next one uses a new connection.
        """
        ...

    async def aclose(self) -> None:
        """Release what :meth:`publish` holds.  Called when no ``listen`` of the relay runs any more.

        Another relay that shares the transport may publish afterward, over a new connection.
        """
        ...


@runtime_checkable
class TransactionalTransport(Transport, Protocol):
    """A transport whose engine can publish as part of a database transaction."""

    async def publish_in(self, connection: Any, payload: str) -> None:
        """Publish when the transaction of ``connection`` commits, and not at all if it is rolled back."""
        ...
