"""Wait until two of three workers have acknowledged an order, while only one task at a time works on each order."""

from purgatory import Purgatory
from purgatory.locks import KeyedLock, Quorum

room = Purgatory("orders")
locks = KeyedLock(room)
acks: dict[str, Quorum[str]] = {}


async def place(order: str) -> list[str]:
    async with locks(order, timeout=5.0):  # one task at a time for each order; TimeoutError after 5 s
        acks[order] = Quorum(room, need=2)
        try:
            return sorted(await acks[order].wait(timeout=30.0))  # two of three workers; TimeoutError after 30 s
        finally:
            del acks[order]


def acknowledge(order: str, worker: str) -> bool:
    """Return False if the worker has already acknowledged the order, or if the order is not waiting."""
    return order in acks and acks[order].arrive(worker)
