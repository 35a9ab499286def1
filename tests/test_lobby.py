"""The lobby: ``when_all`` of the package has a purgatory for each event loop, for those who have none."""

import asyncio
from typing import Any

import purgatory as package
from purgatory import Purgatory
from purgatory.lobby import _lobbies, lobby
from purgatory.testing import VirtualClock
from tests.helpers import futures, kinds


async def test_the_function_takes_a_purgatory(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``purgatory.when_all`` of the package does the same in a purgatory that it is given."""
    called: list[Any] = []
    (future,) = futures(1)
    waiting = package.when_all([future], 1, called.append, purgatory=purgatory)
    assert len(purgatory) == 1
    await clock.advance(1)
    assert kinds(await waiting) == [TimeoutError]
    assert len(called) == 1


async def test_the_function_has_a_purgatory_of_its_own() -> None:
    """One per event loop, for those who have none."""
    first, second = futures(2)
    waiting = package.when_all([first, second], 60)
    assert len(lobby()) == 1
    assert lobby() is lobby()
    first.set_result(1)
    second.set_result(2)
    assert await waiting == [1, 2]
    late = package.when_all(futures(1), 0)
    assert kinds(await late) == [TimeoutError]
    assert len(lobby()) == 0
    await lobby().aclose()


def test_loops_that_have_ended_are_forgotten() -> None:
    """Their purgatories go when another loop needs its own."""

    async def use() -> list[Any]:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, 1)
        return await package.when_all([future], 60)

    for _ in range(5):
        assert asyncio.run(use()) == [1]
    assert sum(loop.is_closed() for loop in _lobbies) <= 1


def test_the_lobby_of_a_loop_that_is_open_is_kept() -> None:
    """A second loop gets a lobby of its own; only those of closed loops are let go."""

    async def mine() -> Purgatory[Any]:
        return lobby()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    one = first.run_until_complete(mine())
    other = second.run_until_complete(mine())
    assert one is not other
    assert first.run_until_complete(mine()) is one
    second.close()
    third = asyncio.new_event_loop()
    third.run_until_complete(mine())
    assert _lobbies.keys() >= {first, third}
    assert second not in _lobbies
    for loop in (first, third):
        loop.close()


async def test_the_lobby_has_a_name() -> None:
    """In a dump and in the log one sees where the operation waits."""
    assert lobby().name == "lobby"
    await lobby().aclose()
