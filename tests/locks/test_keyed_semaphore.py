"""A number of permits for each key.  What it has in common with a lock is tested with the lock."""

import asyncio
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed
from purgatory.locks import KeyedSemaphore
from purgatory.testing import VirtualClock


async def test_at_most_so_many_tasks_for_each_key(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Blocks begin in the order of arrival as permits become free."""
    slots = KeyedSemaphore(purgatory, 2)
    inside: list[int] = []
    most = 0

    async def work(number: int) -> None:
        nonlocal most
        async with slots("gpu", timeout=100):
            inside.append(number)
            most = max(most, len(inside))
            await clock.sleep(1 + number / 10)
            inside.remove(number)

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    await clock.settle()
    assert inside == [0, 1]
    await clock.advance(1)
    assert inside == [1, 2]
    await clock.advance(10)
    await asyncio.gather(*tasks)
    assert most == 2
    assert len(slots) == 0


async def test_locked_means_that_acquiring_would_wait(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Only when the last permit is taken, and for each key of its own."""
    slots = KeyedSemaphore(purgatory, 2)
    assert await slots.acquire("a")
    assert not slots.locked("a")
    assert await slots.acquire("a", timeout=0), "a task may take several permits"
    assert slots.locked("a")
    assert not slots.locked("b")
    with pytest.raises(TimeoutError, match=r"^the wait for the semaphore on 'a' timed out \(timeout 0 s\)$"):
        await slots.acquire("a", timeout=0)
    waiting = asyncio.create_task(slots.acquire("a"))
    await clock.settle()
    slots.release("a")
    assert slots.locked("a"), "the permit is the waiter's"
    assert await waiting
    slots.release("a")
    slots.release("a")
    assert len(slots) == 0


async def test_it_is_bounded(purgatory: Purgatory[Any]) -> None:
    """Releasing more permits than were taken raises RuntimeError."""
    slots = KeyedSemaphore(purgatory, 2)
    await slots.acquire("a")
    slots.release("a")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^the semaphore on 'a' is not held$"):
            slots.release("a")
    slots._check()


@pytest.mark.parametrize("cancelled", [(0,), (1,), (0, 1), (0, 1, 2)], ids=str)
async def test_permits_of_cancelled_waiters_go_to_the_next(
    purgatory: Purgatory[Any], clock: VirtualClock, cancelled: tuple[int, ...]
) -> None:
    """Two permits are released in the turn in which waiters are cancelled, before and after."""
    for first in ("release", "cancel"):
        slots = KeyedSemaphore(purgatory, 2)
        for _ in range(2):
            await slots.acquire("a")
        tasks = [asyncio.create_task(slots.acquire("a")) for _ in range(4)]
        await clock.settle()

        def release(slots: KeyedSemaphore = slots) -> None:
            slots.release("a")
            slots.release("a")

        if first == "release":
            release()
        for number in cancelled:
            tasks[number].cancel()
        if first == "cancel":
            release()
        await clock.settle()
        slots._check()
        left = [number for number in range(4) if number not in cancelled]
        assert [number for number in left if tasks[number].done()] == left[:2]
        for _ in left:
            slots.release("a")
            await clock.settle()
        assert len(slots) == 0


async def test_closing(clock: VirtualClock) -> None:
    """Waiters get PurgatoryClosed; free permits can be taken and all can be released."""
    purgatory = Purgatory[Any]("test", clock=clock)
    slots = KeyedSemaphore(purgatory, 2)
    await slots.acquire("a")
    await slots.acquire("a")
    waiting = asyncio.create_task(slots.acquire("a", timeout=5))
    await clock.settle()
    await purgatory.aclose()
    with pytest.raises(PurgatoryClosed):
        await waiting
    slots.release("a")
    async with slots("a"):
        assert slots.locked("a")
    slots.release("a")
    assert len(slots) == 0


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), ("2", TypeError)]
)
async def test_bad_values_are_refused(purgatory: Purgatory[Any], value: Any, error: type[Exception]) -> None:
    """The error names the parameter and the value."""
    with pytest.raises(error, match=f"^value must be .*, got {value!r}$"):
        KeyedSemaphore(purgatory, value)


def test_its_text(clock: VirtualClock) -> None:
    """``repr`` shows the number of permits."""
    assert repr(KeyedSemaphore(Purgatory[Any]("test", clock=clock), 4)) == "<KeyedSemaphore in 'test' value=4 keys=0>"
