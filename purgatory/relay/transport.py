"""The interface between a relay and an engine.  Your own transport needs three methods.

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

A :class:`Notifier` uses ``copy.copy(transport)``; if your transport has a connection, define a ``__copy__`` that
returns a transport without one.

The relay calls ``listen`` again after every loss, with backoff and with no limit on the number of attempts.  A
transport must therefore not reconnect by itself: if it reconnected before the relay detected the gap, the messages in
between would be lost.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

__all__ = ["SLICE", "Received", "Subscribed", "TransactionalTransport", "Transport"]

SLICE: Final = 50
"""The number of buffered messages after which ``listen`` must yield to the other tasks of the loop."""

Subscribed = Callable[[], None]
Received = Callable[[str | bytes], None]


@runtime_checkable
class Transport(Protocol):
    """Publishes and subscribes on one channel of an engine.

    ``max_payload``: the maximum size of a payload, in bytes; payloads are ASCII.  The attribute is read before every
    publish, so it may be a property whose value is known only once there is a connection.  A transport may also have a
    ``silence`` attribute, a str that states the likely cause if the engine confirms subscriptions but delivers nothing.
    """

    @property
    def max_payload(self) -> int: ...

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """Subscribe, and stay subscribed for the lifetime of one connection.

        Connect, subscribe, call ``subscribed()`` when the engine has confirmed the subscription, and then call
        ``received(payload)`` for every message on the channel, including messages from this process.  Return or raise
        when the connection is lost, when the client library has had to drop a message, or when the library would
        reconnect without the relay noticing.  When the task is cancelled, drop the connection without waiting for the
        other side.

        If a transport serves several relays, several calls to this method run at the same time.
        """
        ...

    async def publish(self, payload: str) -> None:
        """Send one message to every subscriber of the channel; raise if the engine has not accepted it.

        A relay makes only one call at a time, and only while ``listen`` is subscribed.  Relays that share the transport
        may call the method at the same time.  After a call that raised or was cancelled, the next call uses a new
        connection.
        """
        ...

    async def aclose(self) -> None:
        """Release the resources used by :meth:`publish`.  The relay calls this method when its ``listen`` has ended.

        Another relay that shares the transport may publish afterward, over a new connection.
        """
        ...


@runtime_checkable
class TransactionalTransport(Transport, Protocol):
    """A transport whose engine can publish as part of a database transaction."""

    async def publish_in(self, connection: Any, payload: str) -> None:
        """Publish when the transaction of ``connection`` commits, or not at all if it is rolled back."""
        ...
