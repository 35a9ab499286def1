"""A leak: for each visitor, the application parks an operation without a deadline and then forgets the operation."""

from collections.abc import Sequence
from typing import Any

from purgatory import Clock, DelayedOperation

from .service import Service

__all__ = ["Leak"]


class Presence(DelayedOperation[None]):
    """An operation for a visitor who is online; it should end when the visitor leaves."""

    def __init__(self) -> None:
        super().__init__(None)  # no deadline

    def try_complete(self) -> bool:
        return False


class Leak(Service):
    """Visitors, each of whom leaks an operation, and orders that work as intended."""

    def __init__(self, clock: Clock | None = None, observers: Sequence[Any] = ()) -> None:
        super().__init__(clock, observers)
        self._ready: set[int] = set()

    async def read(self, order: int) -> bool:
        """Handle ``GET /orders/{id}``: wait until the order is ready."""
        key = f"order-{order}"
        return await self.room.wait_until(lambda: order in self._ready, key=key, timeout=60.0, kind="GET /orders/{id}")

    def visit(self, visitor: int) -> None:
        """Record that the visitor is online."""
        self.room.try_complete_else_watch(Presence(), [f"visitor-{visitor}"])

    def tick(self, second: int) -> None:
        self.request(self.read(second))
        for visitor in range(10):
            self.visit(10 * second + visitor)
        if second >= 5:
            self._ready.add(second - 5)
            self.room.check(f"order-{second - 5}")
