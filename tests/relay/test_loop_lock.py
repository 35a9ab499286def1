"""A transport belongs to one event loop at a time, and the relays of that loop take turns."""

import asyncio
import threading

import pytest

from purgatory.relay.loop_lock import LoopLock

REFUSAL = "a Transport serves one event loop at a time: create another one for this loop"


async def refused(lock: LoopLock[str]) -> bool:
    """Return whether another loop, in a thread, is refused."""

    async def try_it() -> bool:
        try:
            async with lock.publishing():
                return False
        except RuntimeError as error:
            return str(error) == REFUSAL

    return await asyncio.to_thread(asyncio.run, try_it())


async def test_the_loop_that_uses_it_excludes_others_until_it_has_closed_it() -> None:
    """A listening relay, a publishing relay, and an open connection each keep the other loops away."""
    lock = LoopLock[str]("Transport")
    with lock.used():
        assert await refused(lock)
        async with lock.closing() as connection:
            assert connection is None
        assert await refused(lock)  # one relay has closed it, and another still listens
    assert await refused(lock)
    async with lock.publishing() as use:
        use.connection = "open"
    assert await refused(lock)
    async with lock.closing() as connection:
        assert connection == "open"
        assert await refused(lock)
    assert not await refused(lock)


async def test_a_relay_that_waits_for_its_turn_keeps_other_loops_away() -> None:
    """If one relay closes the transport while another waits to publish, the connection of the other is not left."""
    lock = LoopLock[str]("Transport")
    entered, leave = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        async with lock.closing():
            entered.set()
            await leave.wait()

    async def publish() -> None:
        async with lock.publishing() as use:
            use.connection = "open"

    closing = asyncio.create_task(close())
    await entered.wait()
    publishing = asyncio.create_task(publish())
    await asyncio.sleep(0)
    leave.set()
    await closing
    assert await refused(lock)
    await publishing
    async with lock.closing() as connection:
        assert connection == "open"


async def test_closing_in_another_loop() -> None:
    """It finds no connection there, and the connection of the loop that runs stays."""
    lock = LoopLock[str]("Transport")

    async def close() -> str | None:
        async with lock.closing() as connection:
            return connection

    async with lock.publishing() as use:
        use.connection = "open"
    assert await asyncio.to_thread(asyncio.run, close()) is None
    async with lock.publishing() as use:
        assert use.connection == "open"


async def test_a_call_that_raises_leaves_the_lock_free() -> None:
    """The next call of the same loop has its turn."""
    lock = LoopLock[str]("Transport")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            async with lock.publishing():
                raise ConnectionError
        with pytest.raises(ConnectionError):
            async with lock.closing():
                raise ConnectionError
    assert not await refused(lock)


def test_loops_that_begin_at_the_same_moment() -> None:
    """Exactly one of eight loops has the transport."""
    for _ in range(20):
        assert sorted(granted_at_once(LoopLock[str]("Transport"), 8)) == [False] * 7 + [True]


def granted_at_once(lock: LoopLock[str], number: int) -> list[bool]:
    """Return which of so many loops in threads may use the transport; all of them begin before one of them ends."""
    granted: list[bool] = []
    begin, end = threading.Barrier(number), threading.Barrier(number)

    async def use() -> None:
        begin.wait(30.0)
        try:
            with lock.used():
                granted.append(True)
                end.wait(30.0)
        except RuntimeError:
            granted.append(False)
            end.wait(30.0)

    threads = [threading.Thread(target=asyncio.run, args=[use()]) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return granted
