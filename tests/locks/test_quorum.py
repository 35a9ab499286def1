"""Waiting for a number of different members."""

import asyncio
import copy
import gc
import threading
import tracemalloc
import weakref
from typing import Any

import pytest

from purgatory import Purgatory, PurgatoryClosed, PurgatoryFull
from purgatory.locks import Quorum
from purgatory.testing import VirtualClock
from tests.helpers import Boom, park


async def test_it_counts_different_members(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A member that arrives again does not count; the last one that is needed answers every waiter."""
    acks = Quorum[str](purgatory, need=2)
    waiting = [asyncio.create_task(acks.wait(timeout=30.0)) for _ in range(3)]
    await clock.settle()
    assert acks.arrived == frozenset()
    assert acks.arrive("a")
    assert not acks.arrive("a")
    await clock.settle()
    assert not any(task.done() for task in waiting)
    assert acks.arrived == {"a"}
    assert acks.arrive("b")
    assert await asyncio.gather(*waiting) == [frozenset("ab")] * 3
    assert len(purgatory) == 0


async def test_the_result_is_fixed_at_completion(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Members that arrive later do not count, even before the waiter runs."""
    acks = Quorum[str](purgatory, need=2)
    waiting = asyncio.create_task(acks.wait())
    await clock.settle()
    assert acks.arrive("a")
    assert acks.arrive("b")
    assert not acks.arrive("c")
    assert not acks.arrive("a")
    assert await waiting == frozenset("ab")
    assert acks.arrived == frozenset("ab")
    assert await acks.wait() is acks.arrived


async def test_a_member_that_completes_the_quorum_while_it_is_compared(purgatory: Purgatory[Any]) -> None:
    """Its comparison lets others arrive, which complete the quorum: their result stands, and it came too late."""

    class Member:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            acks.arrive("b")
            return False

    acks = Quorum[Any](purgatory, need=2)
    assert acks.arrive(1)
    waiting = asyncio.create_task(acks.wait(timeout=5.0))
    await asyncio.sleep(0)
    assert not acks.arrive(Member())
    assert acks.arrived == {1, "b"}
    assert "2 of 2" in repr(acks)
    assert await waiting is acks.arrived


async def test_members_may_arrive_before_the_wait(purgatory: Purgatory[Any]) -> None:
    """The wait then returns at once, and nothing is parked; also in a closed purgatory and without time."""
    acks = Quorum[int](purgatory, need=3)
    for number in range(3):
        assert acks.arrive(number)
    assert await acks.wait(timeout=0) == {0, 1, 2}
    await purgatory.aclose()
    assert await acks.wait(timeout=5) == {0, 1, 2}
    assert purgatory.statistics().submitted == 0


async def test_a_wait_that_is_too_short(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """TimeoutError that says how many have arrived; the members still count for another wait."""
    acks = Quorum[str](purgatory, need=2, key="order-7")
    acks.arrive("a")
    waiting = asyncio.create_task(acks.wait(timeout=5))
    with pytest.raises(TimeoutError, match=r"quorum 'order-7' with 1 of 2 members timed out \(timeout 0 s\)$"):
        await acks.wait(timeout=0)
    late = asyncio.create_task(acks.wait(deadline=purgatory.timer.time() + 6))
    await clock.advance(4.999)
    assert not waiting.done()
    await clock.advance(0.001)
    with pytest.raises(TimeoutError, match=r"quorum 'order-7' with 1 of 2 members timed out \(timeout 5 s\)$"):
        await waiting
    await clock.advance(1)
    with pytest.raises(TimeoutError, match="reached its deadline"):
        await late
    acks.arrive("b")
    assert await acks.wait() == frozenset("ab")


async def test_closing(clock: VirtualClock) -> None:
    """Waiters get PurgatoryClosed; members can still arrive, and the result can be read."""
    purgatory = Purgatory[Any]("test", clock=clock)
    acks = Quorum[str](purgatory, need=1)
    waiting = asyncio.create_task(acks.wait(timeout=5))
    await clock.settle()
    await purgatory.aclose()
    with pytest.raises(PurgatoryClosed, match="with 0 of 1 members"):
        await waiting
    with pytest.raises(PurgatoryClosed):
        await acks.wait()
    assert acks.arrive("a")
    assert await acks.wait() == {"a"}


async def test_a_quorum_during_the_grace(clock: VirtualClock) -> None:
    """Members that arrive during the grace still answer the waiters."""
    purgatory = Purgatory[Any]("test", clock=clock)
    acks = Quorum[str](purgatory, need=1)
    waiting = asyncio.create_task(acks.wait())
    await clock.settle()
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(2)
    acks.arrive("a")
    assert await waiting == {"a"}
    await closing


async def test_a_cancelled_waiter_affects_no_other(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Also if it is cancelled in the turn in which the quorum completes."""
    acks = Quorum[str](purgatory, need=1)
    waiting = [asyncio.create_task(acks.wait()) for _ in range(3)]
    await clock.settle()
    waiting[0].cancel()
    acks.arrive("a")
    waiting[2].cancel()
    await clock.settle()
    assert [task.cancelled() for task in waiting] == [True, False, True]
    assert await waiting[1] == {"a"}


async def test_a_waiter_that_is_forced_from_outside(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """It gets RuntimeError, not a result that does not exist."""
    acks = Quorum[str](purgatory, need=1)
    waiting = asyncio.create_task(acks.wait())
    await clock.settle()
    (event,) = purgatory.parked_events()
    with pytest.raises(RuntimeError, match="arriving members complete this operation"):
        event.operation.force_complete()
    with pytest.raises(RuntimeError, match="arriving members complete this operation"):
        await waiting


async def test_completion_in_a_callback_of_the_purgatory(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """The waiters are answered before the outermost call returns."""
    acks = Quorum[str](purgatory, need=1)
    waiting = asyncio.create_task(acks.wait())
    await clock.settle()
    park(purgatory, "k", on_complete=lambda _: acks.arrive("a")).force_complete()
    assert len(purgatory) == 0
    assert await waiting == {"a"}


async def test_waiters_count_against_the_limit(clock: VirtualClock) -> None:
    """PurgatoryFull, and the members are kept."""
    async with Purgatory[Any]("test", clock=clock, max_parked=1) as purgatory:
        acks = Quorum[str](purgatory, need=1)
        waiting = asyncio.create_task(acks.wait())
        await clock.settle()
        with pytest.raises(PurgatoryFull):
            await acks.wait()
        acks.arrive("a")
        assert await waiting == {"a"}


@pytest.mark.usefixtures("no_gc")
async def test_waiters_keep_it_alive(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """A registry may hold it weakly: it lives as long as a task waits, and no longer."""
    acks = Quorum[str](purgatory, need=1)
    found = weakref.ref(acks)
    waiting = asyncio.create_task(acks.wait())
    del acks
    await clock.settle()
    alive = found()
    assert alive is not None
    alive.arrive("a")
    del alive
    assert await waiting == {"a"}
    del waiting
    await clock.settle()
    assert found() is None
    assert gc.collect() == 0


async def test_another_thread_is_refused(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """``arrive`` raises RuntimeError there, and the member does not count."""
    acks = Quorum[str](purgatory, need=1)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            acks.arrive("a")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "call_soon_threadsafe" in str(errors[0])
    assert acks.arrived == frozenset()


class Unhappy:
    """A member that cannot be compared."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise Boom


async def test_bad_input_changes_nothing(purgatory: Purgatory[Any]) -> None:
    """Members that are unhashable or raise, and numbers that are none."""
    acks = Quorum[Any](purgatory, need=2)
    with pytest.raises(TypeError, match="unhashable"):
        acks.arrive([])
    acks.arrive(Unhappy())
    with pytest.raises(Boom):
        acks.arrive(Unhappy())
    assert len(acks.arrived) == 1
    assert acks.arrive("a")
    with pytest.raises(TypeError, match="unhashable"):
        acks.arrive([])
    for need, error in ((0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match=f"^need must be .*, got {need}$"):
            Quorum(purgatory, need=need)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^room must be a Purgatory, got None$"):
        Quorum(None, need=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout"):
        await acks.wait(timeout=-1)
    with pytest.raises(TypeError, match="got both"):
        await acks.wait(timeout=1, deadline=1)
    with pytest.raises(TypeError, match="Quorum must not be copied or pickled"):
        copy.copy(acks)


def test_its_text(clock: VirtualClock) -> None:
    """``repr`` shows how many have arrived."""
    acks = Quorum[str](Purgatory[Any]("test", clock=clock), need=2)
    acks.arrive("a")
    assert repr(acks) == "<Quorum 1 of 2 in 'test'>"


async def test_an_error_and_a_repr_copy_no_members(purgatory: Purgatory[Any]) -> None:
    """Their cost does not depend on the number of members."""
    acks = Quorum[int](purgatory, need=100_000)
    for member in range(20_000):
        acks.arrive(member)
    tracemalloc.start()
    try:
        assert repr(acks) == "<Quorum 20000 of 100000 in 'test'>"
        with pytest.raises(TimeoutError, match="with 20000 of 100000 members"):
            await acks.wait(timeout=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000
