"""A state change without a check: every reader waits until its deadline, although its order is ready."""

from collections.abc import Sequence
from typing import Any

from purgatory import Clock

from .service import Service

__all__ = ["ForgottenCheck"]


class ForgottenCheck(Service):
    """Orders that clients wait for, and a writer.

    ``broken_from``: the second at which the writer begins to forget its check, as could happen after a deployment.
    """

    def __init__(self, clock: Clock | None = None, observers: Sequence[Any] = ()) -> None:
        super().__init__(clock, observers)
        self.broken_from = 0
        self._ready: set[int] = set()

    async def read(self, order: int) -> bool:
        """Handle ``GET /orders/{id}``: wait until the order is ready."""
        key = f"order-{order}"
        return await self.room.wait_until(lambda: order in self._ready, key=key, timeout=120.0, kind="GET /orders/{id}")

    def write(self, order: int) -> None:
        """Handle ``PUT /orders/{id}``: record that the order is ready."""
        self._ready.add(order)  # the call room.check(f"order-{order}") is missing here

    def _write_as_before(self, order: int) -> None:
        self.write(order)
        self.room.check(f"order-{order}")

    def tick(self, second: int) -> None:
        self.request(self.read(second))
        if second >= 5:
            write = self.write if second >= self.broken_from else self._write_as_before
            write(second - 5)
