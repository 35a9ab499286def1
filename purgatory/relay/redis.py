"""Redis, and Valkey, which speaks the same protocol: publish and subscribe through redis-py; the extra ``redis``.

Redis passes a message to its current subscribers and keeps no copy.  It closes a subscriber that does not read for so
long that its output buffer is full (``client-output-buffer-limit pubsub``); the relay then connects again and checks
every key.  A cluster passes every message to all of its nodes, so any node will do.

A replica that is in no cluster accepts what is published there, and passes it to its own subscribers only.  After a
failover, a primary that was demoted would cut this process off from the others in one direction, without an error and
with pings that return.  So a connection first asks the server for its role, and asks again with every publish, in the
same round trip.
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

    redis-py calls this when it has connected again by itself; what was published in between is lost.
    """

    async def on_connect(self, connection: Any) -> None:
        raise ConnectionResetError("the connection to Redis was lost")


class RedisTransport:
    """Relay through one Redis channel.

    ``channel``: the name of the channel, the same in all processes.

    ``url``: as :meth:`redis.asyncio.Redis.from_url` takes it (``redis://``, ``rediss://``, ``unix://``); ValueError if
    it is invalid.  The user needs the permissions ``+publish``, ``+subscribe``, ``+role``, and ``+info``, and the
    permission for the channel; without ``+role`` and ``+info``, a demoted primary is not detected.
    """

    max_payload = 32_768
    """Far below the limit of Redis, 512 MB: a payload of this size is read within a millisecond or two."""

    def __init__(self, url: str, *, channel: str = "purgatory_relay") -> None:
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, got {described(url)}")
        validate_url(url, "redis://user:password@host:6379/0")
        self._secrets = secrets_of_url(url)
        if not isinstance(channel, str):
            raise TypeError(f"channel must be a str, got {channel!r}")
        if not channel:
            raise ValueError("channel must not be empty")
        self._url = url
        self._channel = channel
        self._publishing: Redis | None = None
        self._publish_lock = LoopLock()  # relays that share the transport publish one after the other
        self._client()  # ValueError for an invalid URL

    def _client(self) -> Redis:
        return Redis.from_url(self._url, retry=Retry(NoBackoff(), 0))

    async def listen(self, subscribed: Subscribed, received: Received) -> None:
        """See :meth:`Transport.listen`."""
        client = self._client()
        # In redis-py before 8.0.1, socket_timeout also ends a subscription that receives nothing.  The relay's pings
        # notice a dead connection.  The default of socket_connect_timeout depends on the version and stays.
        pool = client.connection_pool
        options = pool.connection_kwargs
        connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
        options.setdefault("socket_connect_timeout", connection.socket_connect_timeout)
        options["socket_timeout"] = None
        subscription = _OneConnection(client.connection_pool)
        in_a_row = 0
        with without_secrets(self._secrets):
            try:
                await subscription.subscribe(self._channel)
                async for message in subscription.listen():
                    if message["type"] == "message":
                        received(message["data"])
                        in_a_row += 1
                        if in_a_row % SLICE == 0:
                            await asyncio.sleep(0)  # redis-py returns what it has without giving way to other tasks
                    elif message["type"] == "subscribe":
                        subscribed()
            finally:
                await subscription.aclose()  # type: ignore[no-untyped-call]
                await client.aclose()

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`."""
        with without_secrets(self._secrets):
            async with self._publish_lock.get():
                client, is_new = self._publishing, self._publishing is None
                if client is None:
                    client = self._publishing = self._client()
                try:
                    await self._publish(client, payload, is_new)
                except BaseException:
                    self._publishing = None  # its connection may lead to a server that has been replaced
                    await client.connection_pool.disconnect()
                    raise

    async def _publish(self, client: Redis, payload: str, is_new: bool) -> None:
        pipeline: Any
        async with client.pipeline(transaction=False) as pipeline:
            if is_new:  # before the ping that proves the connection
                await _require_primary(client, await _role(pipeline))
            pipeline.execute_command("ROLE")
            pipeline.publish(self._channel, payload)
            role, published = await pipeline.execute(raise_on_error=False)
        if isinstance(published, Exception):
            raise published
        await _require_primary(client, role)

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`."""
        async with self._publish_lock.get():
            client, self._publishing = self._publishing, None
            if client is not None:
                await client.aclose()

    def __copy__(self) -> "RedisTransport":
        """Return a transport for the same channel, without connections."""
        return type(self)(self._url, channel=self._channel)

    def __repr__(self) -> str:
        return f"<RedisTransport channel={self._channel!r}>"


async def _role(pipeline: Any) -> object:
    """Return the answer to ROLE on the connection of the pipeline; None if the server refuses it."""
    try:
        return await pipeline.immediate_execute_command("ROLE")
    except ResponseError:
        return None


async def _require_primary(client: Redis, role: object) -> None:
    """Raise ConnectionError if the server has the role of a replica, and is in no cluster.

    In a cluster, every node passes messages to all.  A server that does not tell its role may have any.
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
