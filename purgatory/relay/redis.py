"""Redis, and Valkey, which speaks the same protocol: publish and subscribe through redis-py; the extra ``redis``.

Redis hands a message to the subscribers that it has and forgets it.  It closes a subscriber that does not read for so
long that its output buffer is full (``client-output-buffer-limit pubsub``); the relay then connects again and checks
every key.  A cluster passes every message to all of its nodes, so any node will do.
"""

from typing import Any

from .loop_lock import LoopLock
from .transport import Received, Subscribed

try:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
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

    ``url``: as :meth:`redis.asyncio.Redis.from_url` takes it (``redis://``, ``rediss://``, ``unix://``).
    """

    max_payload = 32_768
    """Far below the limit of Redis, 512 MB: a payload of this size is read within a millisecond or two."""

    def __init__(self, url: str, *, channel: str = "purgatory") -> None:
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, got {url!r}")
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
        try:
            await subscription.subscribe(self._channel)
            async for message in subscription.listen():
                if message["type"] == "message":
                    received(message["data"])
                elif message["type"] == "subscribe":
                    subscribed()
        finally:
            await subscription.aclose()  # type: ignore[no-untyped-call]
            await client.aclose()

    async def publish(self, payload: str) -> None:
        """See :meth:`Transport.publish`."""
        async with self._publish_lock.get():
            if self._publishing is None:
                self._publishing = self._client()
            await self._publishing.publish(self._channel, payload)

    async def aclose(self) -> None:
        """See :meth:`Transport.aclose`."""
        async with self._publish_lock.get():
            client, self._publishing = self._publishing, None
            if client is not None:
                await client.aclose()

    def __copy__(self) -> "RedisTransport":
        """Return a transport to the same channel, without connections."""
        return type(self)(self._url, channel=self._channel)

    def __repr__(self) -> str:
        return f"<RedisTransport channel={self._channel!r}>"
