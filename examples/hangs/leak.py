"""A leak of the application: it parks an operation for each visitor, without a deadline, and forgets it."""

from purgatory import Clock, DelayedOperation

from .service import Service

__all__ = ["Leak"]


class Presence(DelayedOperation[None]):
    """A visitor who is online; it should end when the visitor leaves."""

    def __init__(self) -> None:
        super().__init__(None)  # no deadline

    def try_complete(self) -> bool:
        return False


class Leak(Service):
    """Visitors who come, and orders that are well."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._ready: set[int] = set()

    async def read(self, order: int) -> bool:
        """Wait until the order is ready: the handler of ``GET /orders/{id}``."""
        key = f"order-{order}"
        return await self.room.wait_until(lambda: order in self._ready, key=key, timeout=60.0, kind="GET /orders/{id}")

    def visit(self, visitor: int) -> None:
        """Note that the visitor is online."""
        self.room.try_complete_else_watch(Presence(), [f"visitor-{visitor}"])

    def tick(self, second: int) -> None:
        self.request(self.read(second))
        for visitor in range(10):
            self.visit(10 * second + visitor)
        if second >= 5:
            self._ready.add(second - 5)
            self.room.check(f"order-{second - 5}")
