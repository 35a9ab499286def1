"""Redis, and Valkey, which uses the same protocol: publish and subscribe through redis-py, with the ``redis`` extra.

Redis passes a message to its current subscribers and keeps no copy.  If a subscriber does not read its messages and its
output buffer fills up (``client-output-buffer-limit pubsub``), Redis closes the connection; the relay then connects
again and checks every key.  A cluster passes every message to all its nodes, so a connection to any node is sufficient.

A replica outside a cluster accepts published messages, but passes them only to its own subscribers.  After a failover,
a demoted primary would cut this process off from the others in one direction, without an error, and pings would still
return.  A new connection therefore first requests the server's role, and every publish requests it again in the same
round trip.
"""

import asyncio
from typing import Any

from .addresses import described, secrets_of_url, validate_url, without_secrets
from .loop_lock import LoopLock
from .transport import SLICE, Received, Subscribed

try:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ResponseError
except ImportError as _missing:
    raise ImportError("RedisTransport needs redis-py: pip install 'aiopurgatory[redis]'") from _missing

__all__ = ["RedisTransport"]


class _OneConnection(PubSub):
    """A subscription that ends with its connection.

    redis-py calls ``on_connect`` when it has reconnected by itself; messages published in the meantime are lost.
    """

    async def on_connect(self, connection: Any) -> None:
        raise ConnectionResetError("the connection to Redis was lost")


class RedisTransport:
    """Relays through one Redis channel.

    ``channel``: the name of the channel, which must be the same in all processes.

    ``url``: a URL for :meth:`redis.asyncio.Redis.from_url` (``redis://``, ``rediss://``, or ``unix://``); raises
    ValueError if the URL is invalid.  The Redis user needs the permissions ``+publish``, ``+subscribe``, ``+role``, and
    ``+info``, and access to the channel; without ``+role`` and ``+info``, a demoted primary is not detected.

    A transport serves one event loop at a time.  While a loop uses the transport, relays and calls in other loops are
    refused with a RuntimeError.
    """

    max_payload = 32_768
    """Far below Redis's limit of 512 MB: a payload of this size is read within a millisecond or two."""

    def __init__(self, url: str, *, channel: str = "purgatory_relay") -> None:
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, got {described(url)}")
        validate_url(url, "redis://user:password@host:6379/0", ("redis", "rediss", "unix"), needs_host=False)
        self._secrets = secrets_of_url(url)
        if not isinstance(channel, str):
            raise TypeError(f"channel must be a str, got {described(channel)}")
        if not channel:
            raise ValueError("channel must not be empty")
        self._url = url
        self._channel = channel
        self._loop_lock: LoopLock[Redis] = LoopLock("RedisTransport")
        self._client()  # raises ValueError for an invalid URL

    def _client(self) -> Redis:
        return Redis.from_url(self._url, retry=Retry(NoBackoff(), 0))

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """See :meth:`Transport.listen`."""
        client = self._client()
        # In redis-py before 8.0.1, socket_timeout also ends a subscription that receives nothing, so it is disabled
        # here; the relay's pings detect a dead connection.  The default value of socket_connect_timeout is kept; it
        # depends on the version.
        pool = client.connection_pool
        options = pool.connection_kwargs
        connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
        options.setdefault("socket_connect_timeout", connection.socket_connect_timeout)
        options["socket_timeout"] = None
        subscription = _OneConnection(client.connection_pool)
        in_a_row = 0
        with self._loop_lock.used(), without_secrets(self._secrets):
            try:
                await subscription.subscribe(self._channel)
                async for message in subscription.listen():
                    if message["type"] == "message":
                        received(message["data"])
                        in_a_row += 1
                        if in_a_row % SLICE == 0:
                            await asyncio.sleep(0)  # redis-py returns buffered messages without yielding to other tasks
                    elif message["type"] == "subscribe":
                        subscribed()
            finally:
                await subscription.aclose()  # type: ignore[no-untyped-call]
                await client.aclose()

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`."""
        with without_secrets(self._secrets):
            async with self._loop_lock.publishing() as use:
                client, is_new = use.connection, use.connection is None
                if client is None:
                    client = use.connection = self._client()
                try:
                    await self._publish(client, payload, is_new)
                except BaseException:
                    use.connection = None  # its connection may lead to a server that has been replaced
                    await client.connection_pool.disconnect()
                    raise

    async def _publish(self, client: Redis, payload: str, is_new: bool) -> None:
        pipeline: Any
        async with client.pipeline(transaction=False) as pipeline:
            if is_new:  # before the ping that proves that the connection works
                await _require_primary(client, await _role(pipeline))
            pipeline.execute_command("ROLE")
            pipeline.publish(self._channel, payload)
            role, published = await pipeline.execute(raise_on_error=False)
        if isinstance(published, Exception):
            raise published
        await _require_primary(client, role)

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`."""
        async with self._loop_lock.closing() as client:
            if client is not None:
                await client.aclose()

    def __copy__(self) -> "RedisTransport":
        """Return a new transport for the same channel, without connections."""
        return type(self)(self._url, channel=self._channel)

    def __repr__(self) -> str:
        return f"<RedisTransport channel={self._channel!r}>"


async def _role(pipeline: Any) -> object:
    """Return the answer to ROLE on the pipeline's connection, or None if the server refuses the command."""
    try:
        return await pipeline.immediate_execute_command("ROLE")
    except ResponseError:
        return None


async def _require_primary(client: Redis, role: object) -> None:
    """Raise ConnectionError if the server is a replica outside a cluster.

    In a cluster, every node passes messages to all nodes.  A server that does not report its role may have any role.
    """
    if not isinstance(role, list) or role[0] not in (b"slave", "slave"):
        return
    try:
        found = await client.info("cluster")
    except ResponseError:
        return
    if not found.get("cluster_enabled"):
        raise ConnectionError(
            "this Redis server is a replica, for example after a failover: the processes that are connected to the"
            " primary do not receive what is published here"
        )
