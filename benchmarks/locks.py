"""A lock for each key: the cost of acquiring a free lock and of handing over a lock, compared with the alternatives.

*   an :class:`asyncio.Lock` for each key in a :class:`weakref.WeakValueDictionary`, the usual recipe;
*   the ``asyncio-keyed-lock`` package, which counts the tasks of each key.

Neither has a timeout of its own, so each is wrapped in :func:`asyncio.timeout` where a timeout is needed.
"""

import asyncio
import importlib.util
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from purgatory import Purgatory
from purgatory.locks import KeyedLock

from .measure import OURS, compare, cpu, frozen, loops, new_loop, rounds
from .row import Row, Scale, Unavailable

__all__ = ["prepare", "rows"]

SECTION = "locks"
TIMEOUT = 30.0
RECIPE = "asyncio.Lock, WeakValueDictionary"
PACKAGE = "asyncio-keyed-lock"


class _Contender:
    """Locks by key.

    ``block``: returns the context manager for a key.  ``limited``: the same with a timeout, or None if not supported.
    """

    block: Any
    limited: Any = None

    async def close(self) -> None:
        pass

    # Free keys

    async def free(self, number: int) -> float:
        """Return the seconds of CPU time per block with a free key."""
        block = self.block
        start = cpu()
        for key in range(number):
            async with block(key):
                pass
        return (cpu() - start) / number

    async def free_with_timeout(self, number: int) -> float:
        """Do the same as :meth:`free`, with a timeout."""
        start = cpu()
        if self.limited is not None:
            limited = self.limited
            for key in range(number):
                async with limited(key):
                    pass
        else:
            block = self.block
            for key in range(number):
                async with asyncio.timeout(TIMEOUT), block(key):
                    pass
        return (cpu() - start) / number

    # Keys that several tasks want

    async def handed_over(self, keys: int, tasks: int, turns: int) -> float:
        """Return the seconds of CPU time per block in a task that had to wait for its key."""
        blocks = 0

        async def work(key: int) -> None:
            nonlocal blocks
            for _ in range(turns):
                if self.limited is not None:
                    async with self.limited(key):
                        blocks += 1
                        await asyncio.sleep(0)
                else:
                    async with asyncio.timeout(TIMEOUT), self.block(key):
                        blocks += 1
                        await asyncio.sleep(0)

        start = cpu()
        await asyncio.gather(*(work(key) for _ in range(tasks) for key in range(keys)))
        return (cpu() - start) / blocks


class _Ours(_Contender):
    def __init__(self) -> None:
        self.room = Purgatory[Any]("locks")
        self.block = KeyedLock(self.room)

    def limited(self, key: int) -> Any:
        return self.block(key, timeout=TIMEOUT)

    async def close(self) -> None:
        await self.room.aclose()


class _Recipe(_Contender):
    def __init__(self) -> None:
        locks: weakref.WeakValueDictionary[int, asyncio.Lock] = weakref.WeakValueDictionary()

        def block(key: int) -> asyncio.Lock:
            lock = locks.get(key)
            if lock is None:
                lock = locks[key] = asyncio.Lock()
            return lock

        self.block = block


class _Package(_Contender):
    def __init__(self) -> None:
        from asyncio_keyed_lock import AsyncioKeyedLock

        self.block = AsyncioKeyedLock()


def prepare() -> None:
    """Raise Unavailable if the package is not installed."""
    if importlib.util.find_spec("asyncio_keyed_lock") is None:
        raise Unavailable("asyncio-keyed-lock is not installed: pip install 'aiopurgatory[bench]'")


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of this section."""
    for kind in loops():
        loop = new_loop(kind)
        try:
            yield from _rows_on(scale, kind, loop)
        finally:
            loop.close()


def _rows_on(scale: Scale, kind: str, loop: asyncio.AbstractEventLoop) -> Iterator[Row]:
    number, turns = scale.pick(20_000, 2_000), scale.pick(20, 4)
    contenders: dict[str, _Contender] = {OURS: _Ours(), RECIPE: _Recipe(), PACKAGE: _Package()}

    def free(contender: _Contender) -> Callable[[], float]:
        return lambda: loop.run_until_complete(contender.free(number)) * 1e9

    def free_with_timeout(contender: _Contender) -> Callable[[], float]:
        return lambda: loop.run_until_complete(contender.free_with_timeout(number)) * 1e9

    def handed_over(contender: _Contender) -> Callable[[], float]:
        return lambda: loop.run_until_complete(contender.handed_over(50, 10, turns)) * 1e9

    for what, sampler in (
        ("acquire and release a free key", free),
        ("the same with a timeout", free_with_timeout),
        ("hand over to a waiter with a timeout, 50 keys with 10 tasks each", handed_over),
    ):
        with frozen():
            samples = rounds({name: sampler(each) for name, each in contenders.items()}, scale.pick(15, 5))
        yield from compare(SECTION, f"{what}, {kind}", "ns", samples)
    for contender in contenders.values():
        loop.run_until_complete(contender.close())
