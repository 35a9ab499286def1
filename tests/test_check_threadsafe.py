"""``check_threadsafe``: from any thread, one wake-up for many calls, and an error where nobody would hear."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, park


class CountingLoop:
    """Stands before the loop of a purgatory and counts how often it is woken."""

    def __init__(self, purgatory: Purgatory[Any]) -> None:
        assert purgatory._loop is not None
        self.loop = purgatory._loop
        self.wake_ups = 0
        purgatory._loop = self  # type: ignore[assignment]

    def is_closed(self) -> bool:
        return self.loop.is_closed()

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> object:
        self.wake_ups += 1
        return self.loop.call_soon_threadsafe(callback)


def in_a_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in another thread while the loop stands still, and return what it returns or raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


async def test_another_thread_completes_an_operation(clock: VirtualClock) -> None:
    """The check is done in the loop's thread; its result reaches who awaits."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        threads: list[int] = []
        operation = park(purgatory, "key", name="x", on_try=lambda _: threads.append(threading.get_ident()))
        threads.clear()
        operation.ready = True
        in_a_thread(purgatory.check_threadsafe, "key")
        assert operation.calls == []
        assert await operation == "x"
        assert threads == [threading.get_ident()]


async def test_a_thread_wakes_a_loop_that_goes_on_meanwhile(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """check_threadsafe called in a thread completes an operation in the loop."""
    task = asyncio.create_task(purgatory.park(op := Op(5, name="answer"), ["a"]))
    await clock.settle()
    op.ready = True
    await asyncio.to_thread(purgatory.check_threadsafe, "a")
    assert await task == "answer"


async def test_many_calls_of_many_threads_wake_the_loop_once(clock: VirtualClock) -> None:
    """Eight threads ask a thousand times each before the loop comes round: one wake-up, one check per key."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        watchers = [park(purgatory, number) for number in range(10)]
        loop = CountingLoop(purgatory)
        begin = threading.Barrier(8)

        def ask() -> None:
            begin.wait()
            for number in range(1000):
                purgatory.check_threadsafe(number % 10)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loop.wake_ups == 1
        await clock.settle()
        assert {len(watcher.calls) for watcher in watchers} == {1}


async def test_a_thousand_requests_in_the_thread_of_the_loop_are_one_check(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """Requests before the loop comes round are coalesced."""
    op = Op(5)
    purgatory.try_complete_else_watch(op, ["a"])
    for _ in range(1000):
        purgatory.check_threadsafe("a")
    await clock.settle()
    assert op.calls == ["try", "try"]


async def test_the_loop_is_woken_again_after_it_came_round(clock: VirtualClock) -> None:
    """The next call is a new wake-up, and is heard."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        loop = CountingLoop(purgatory)
        operation = park(purgatory, "key")
        for number in range(1, 4):
            in_a_thread(purgatory.check_threadsafe, "key")
            await clock.settle()
            assert loop.wake_ups == number
            assert len(operation.calls) == number


async def test_from_the_thread_of_the_loop(clock: VirtualClock) -> None:
    """It may be called there as well, also by an operation that is being tried."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        second = park(purgatory, "b")
        first = park(purgatory, "a", on_complete=lambda _: purgatory.check_threadsafe("b"))
        first.ready = second.ready = True
        purgatory.check_threadsafe("a")
        await clock.settle()
        assert (first.outcome, second.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)


async def test_a_key_whose_comparison_asks_again_does_not_lock_up(clock: VirtualClock) -> None:
    """As a signal handler may that strikes while the same thread is asking."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        operation = park(purgatory, "other")

        class Key:
            def __hash__(self) -> int:
                return 7

            def __eq__(self, other: object) -> bool:
                purgatory.check_threadsafe("other")
                return self is other

        purgatory.check_threadsafe(Key())
        purgatory.check_threadsafe(Key())
        await clock.settle()
        assert set(operation.calls) == {"try"}


async def test_an_unhashable_key_is_told_the_thread_that_gave_it(clock: VirtualClock) -> None:
    """TypeError, and the loop is not woken."""
    async with Purgatory[Op]("threads", clock=clock) as purgatory:
        loop = CountingLoop(purgatory)
        with pytest.raises(TypeError):
            in_a_thread(purgatory.check_threadsafe, [])
        assert loop.wake_ups == 0


def test_before_it_is_entered_it_belongs_to_no_loop() -> None:
    """RuntimeError says what to do."""
    with pytest.raises(RuntimeError, match="enter it with 'async with'"):
        Purgatory[Op]("threads").check_threadsafe("key")


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_closed_loop_is_told_to_every_caller(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """RuntimeError like asyncio's, also where a call from before the end has not been worked off."""
    loop = new_loop()
    purgatory = Purgatory[Op]("threads")

    async def enter() -> None:
        await purgatory.__aenter__()

    async def leave() -> None:
        await purgatory.aclose()

    loop.run_until_complete(enter())
    purgatory.check_threadsafe("a")  # the loop is not running: nobody works it off yet
    loop.run_until_complete(leave())
    purgatory.check_threadsafe("b")
    loop.close()
    for key in "abc":
        with pytest.raises(RuntimeError, match="closed"):
            in_a_thread(purgatory.check_threadsafe, key)


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_what_was_asked_while_the_loop_stood_still_is_done_when_it_goes_on(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A loop that stops between two runs loses nothing."""
    loop = new_loop()
    purgatory = Purgatory[Op]("threads")
    operations: list[Op] = []

    async def enter() -> None:
        await purgatory.__aenter__()
        operations.append(park(purgatory, "key", name="x"))

    async def wait() -> str:
        answer: str = await operations[0]
        await purgatory.aclose()
        return answer

    loop.run_until_complete(enter())
    operations[0].ready = True
    in_a_thread(purgatory.check_threadsafe, "key")
    assert loop.run_until_complete(wait()) == "x"
    loop.close()
