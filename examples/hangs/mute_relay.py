"""A relay whose user may subscribe to the channel, but not publish: checks of other workers never arrive.

Each worker believes itself that it has checked.  A publish that is refused ends the connection of the relay, so it
connects and is lost again and again.
"""

from purgatory import Clock
from purgatory.relay import MemoryTransport, Relay

from .service import Service

__all__ = ["MuteRelay"]


class _ReadOnlyTransport(MemoryTransport):
    """An engine whose rights allow to subscribe only, as a user of Redis or NATS can have."""

    async def publish(self, payload: str) -> None:  # noqa: ARG002  # nothing is sent
        raise PermissionError("user 'orders-ro' has no permission to publish to 'purgatory'")


class MuteRelay(Service):
    """Orders that another worker makes ready."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._ready: set[int] = set()
        self.relay = Relay(self.room, _ReadOnlyTransport())

    async def read(self, order: int) -> bool:
        """Wait until the order is ready: the handler of ``GET /orders/{id}``."""
        assert self.relay is not None
        key = f"order-{order}"
        return await self.relay.wait_until(
            lambda: order in self._ready, key=key, timeout=120.0, kind="GET /orders/{id}"
        )

    def write_elsewhere(self, order: int) -> None:
        """Another worker stores that the order is ready, and its check does not reach this one."""
        self._ready.add(order)

    def tick(self, second: int) -> None:
        self.request(self.read(second))
        if second >= 5:
            self.write_elsewhere(second - 5)
