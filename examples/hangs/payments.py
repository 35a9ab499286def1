"""A predicate that raises for some of the data: the requests for that data fail with 500; the others succeed."""

from collections.abc import Sequence
from typing import Any

from purgatory import Clock

from .service import Service

__all__ = ["Payments"]


class Payments(Service):
    """Invoices, some of which have no total."""

    def __init__(self, clock: Clock | None = None, observers: Sequence[Any] = ()) -> None:
        super().__init__(clock, observers)
        self._invoices: dict[int, dict[str, Any]] = {}

    async def read(self, invoice: int) -> bool:
        """Handle ``GET /invoices/{id}``: wait until the invoice has a positive total."""

        def is_payable() -> bool:
            found = self._invoices.get(invoice)
            return found is not None and bool(found["total"] > 0)

        return await self.room.wait_until(is_payable, key=f"invoice-{invoice}", timeout=60.0, kind="GET /invoices/{id}")

    def write(self, invoice: int) -> None:
        """Store the invoice.  Every third invoice comes from a client that calls the field ``sum``."""
        self._invoices[invoice] = {"sum": 5} if invoice % 3 == 0 else {"total": 5}
        self.room.check(f"invoice-{invoice}")

    def tick(self, second: int) -> None:
        self.request(self.read(second))
        if second >= 5:
            self.write(second - 5)
