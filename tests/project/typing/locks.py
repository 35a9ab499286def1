"""Uses of ``purgatory.locks`` that a type checker must accept; read by mypy and pyright, never run."""

from typing import Any, Literal, assert_type

from purgatory import Purgatory
from purgatory.locks import Acquisition, KeyedLock, KeyedSemaphore, Quorum

room = Purgatory("orders")
locks = KeyedLock(room)
slots = KeyedSemaphore(room, 4, kind="gpu slot")


async def keys(order: str) -> None:
    """A lock and a semaphore take any hashable."""
    async with locks(order, timeout=5.0):
        assert_type(locks.locked(order), bool)
    async with slots(("gpu", 1), deadline=room.timer.time() + 5) as nothing:
        assert_type(nothing, None)
    assert_type(locks(order), Acquisition)
    assert_type(await locks.acquire(None), Literal[True])
    assert_type(await slots.acquire(7, timeout=None), Literal[True])
    locks.release(None)
    assert_type(len(slots), int)


async def members() -> None:
    """A quorum has members of a type that is given, or else of any."""
    acks = Quorum[str](room, need=2)
    assert_type(acks.arrive("worker-a"), bool)
    assert_type(acks.arrived, frozenset[str])
    assert_type(await acks.wait(timeout=30.0), frozenset[str])
    any_acks = Quorum(room, need=2, key=("order", 7), kind="acknowledgement")
    any_acks.arrive(7)
    assert_type(await any_acks.wait(deadline=None), frozenset[Any])
