"""Park two requests; one completes, and one expires: ``python -m examples.quickstart``."""

import asyncio

from purgatory import DelayedOperation, Purgatory

orders: list[str] = []


class FetchOrders(DelayedOperation[list[str]]):
    """Wait for ``count`` orders; after the timeout, return the orders that have arrived."""

    def __init__(self, count: int, timeout: float) -> None:
        super().__init__(timeout)
        self.count = count

    def try_complete(self) -> bool:
        return len(orders) >= self.count

    def on_complete(self) -> list[str]:
        return orders[: self.count]


async def main() -> None:
    async with Purgatory[FetchOrders]("fetch") as purgatory:
        soon, never = FetchOrders(2, timeout=10.0), FetchOrders(9, timeout=0.5)
        fetches = [asyncio.create_task(purgatory.park(fetch, ["orders"])) for fetch in (soon, never)]
        await asyncio.sleep(0)
        print("parked:", purgatory)
        for order in ("apples", "bread"):
            orders.append(order)
            print("ordered", order, "- completed", purgatory.check_and_complete("orders"))
        for fetch, answer in zip((soon, never), await asyncio.gather(*fetches), strict=True):
            print(fetch.outcome.name, answer)


if __name__ == "__main__":
    asyncio.run(main())
