"""The default purgatory of each event loop, which ``purgatory.when_all`` uses."""

import asyncio
from typing import Any

import purgatory as package
from purgatory import Purgatory
from purgatory.aio.default_purgatory import _purgatories_by_loop, default_purgatory
from purgatory.testing import VirtualClock
from tests.helpers import futures, kinds


async def test_the_function_takes_a_purgatory(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``purgatory.when_all`` uses the purgatory that is passed to it."""
    called: list[Any] = []
    (future,) = futures(1)
    waiting = package.when_all([future], 1, called.append, purgatory=purgatory)
    assert len(purgatory) == 1
    await clock.advance(1)
    assert kinds(await waiting) == [TimeoutError]
    assert len(called) == 1


async def test_each_loop_has_a_default_purgatory() -> None:
    """Callers without a purgatory share one per event loop."""
    first, second = futures(2)
    waiting = package.when_all([first, second], 60)
    assert len(default_purgatory()) == 1
    assert default_purgatory() is default_purgatory()
    first.set_result(1)
    second.set_result(2)
    assert await waiting == [1, 2]
    late = package.when_all(futures(1), 0)
    assert kinds(await late) == [TimeoutError]
    assert len(default_purgatory()) == 0
    await default_purgatory().aclose()


def test_loops_that_have_ended_are_forgotten() -> None:
    """The default purgatories of closed loops are dropped when another loop needs one."""

    async def use() -> list[Any]:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 1)
        return await package.when_all([future], 60)

    for _ in range(5):
        assert asyncio.run(use()) == [1]
    assert sum(loop.is_closed() for loop in _purgatories_by_loop) <= 1


def test_another_thread_may_drop_the_same_loop_first() -> None:
    """Of two threads that find a closed loop, one drops it, and both get their default purgatory."""

    class Loop(asyncio.SelectorEventLoop):
        def is_closed(self) -> bool:
            if not super().is_closed():
                return False
            _purgatories_by_loop.pop(self, None)  # as another thread does that runs at this moment
            _purgatories_by_loop[added] = added_purgatory
            return True

    async def mine() -> Purgatory[Any]:
        return default_purgatory()

    added_purgatory = Purgatory[Any]("added")
    first, second, added = Loop(), asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(mine())
    first.close()
    assert not second.run_until_complete(mine()).closed
    assert first not in _purgatories_by_loop
    assert _purgatories_by_loop[added] is added_purgatory
    for loop in (second, added):
        loop.close()


def test_the_default_purgatory_of_an_open_loop_is_kept() -> None:
    """A second loop gets a separate default purgatory; only those of closed loops are dropped."""

    async def mine() -> Purgatory[Any]:
        return default_purgatory()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    one = first.run_until_complete(mine())
    other = second.run_until_complete(mine())
    assert one is not other
    assert first.run_until_complete(mine()) is one
    second.close()
    third = asyncio.new_event_loop()
    third.run_until_complete(mine())
    assert _purgatories_by_loop.keys() >= {first, third}
    assert second not in _purgatories_by_loop
    for loop in (first, third):
        loop.close()


async def test_the_default_purgatory_has_a_name() -> None:
    """Dumps and logs contain the name of the default purgatory."""
    assert default_purgatory().name == "default"
    await default_purgatory().aclose()
