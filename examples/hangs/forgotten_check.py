"""A change of state without a check: every reader waits until its deadline, although its order is ready."""

from purgatory import Clock

from .service import Service

__all__ = ["ForgottenCheck"]


class ForgottenCheck(Service):
    """Orders that clients wait for, and a writer."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._ready: set[int] = set()

    async def read(self, order: int) -> bool:
        """Wait until the order is ready: the handler of ``GET /orders/{id}``."""
        key = f"order-{order}"
        return await self.room.wait_until(lambda: order in self._ready, key=key, timeout=120.0, kind="GET /orders/{id}")

    def write(self, order: int) -> None:
        """Store that the order is ready: the handler of ``PUT /orders/{id}``."""
        self._ready.add(order)  # and here, room.check(f"order-{order}") was forgotten

    def tick(self, second: int) -> None:
        self.request(self.read(second))
        if second >= 5:
            self.write(second - 5)
