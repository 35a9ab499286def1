"""Two of three workers have acknowledged an order, and one task at a time works on each order."""

from purgatory import Purgatory
from purgatory.locks import KeyedLock, Quorum

room = Purgatory("orders")
locks = KeyedLock(room)
acks: dict[str, Quorum[str]] = {}


async def place(order: str) -> list[str]:
    async with locks(order, timeout=5.0):  # one task at a time for each order; otherwise TimeoutError
        acks[order] = Quorum(room, need=2)
        try:
            return sorted(await acks[order].wait(timeout=30.0))  # two of three workers; otherwise TimeoutError
        finally:
            del acks[order]


def acknowledge(order: str, worker: str) -> bool:
    """Return False if the worker has acknowledged before, or if the order does not wait for it."""
    return order in acks and acks[order].arrive(worker)
