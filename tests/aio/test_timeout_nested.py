"""``timer.timeout`` nested in itself or in ``asyncio.timeout``: each block has its own deadline and error."""

# ruff: noqa: PT012, SIM117 - the shapes of the blocks are what is tested here

import asyncio

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from purgatory.timeouts import Timeout
from tests.helpers import during, ends_in_time_out


async def test_of_equal_deadlines_the_outermost_raises(clock: VirtualClock, timer: SystemTimer) -> None:
    """With equal deadlines both blocks expire; between them the error is a CancelledError."""
    seen = []

    async def work() -> tuple[bool, bool]:
        deadline = timer.time() + 0.01
        with pytest.raises(TimeoutError):
            async with timer.timeout_at(deadline) as outer:
                try:
                    async with timer.timeout_at(deadline) as inner:
                        await clock.sleep(10)
                except asyncio.CancelledError as error:
                    seen.append(error)
                    raise
        return outer.expired(), inner.expired()

    assert await during(clock, 0.01, work()) == (True, True)
    assert len(seen) == 1


async def test_the_inner_deadline_is_its_own(clock: VirtualClock, timer: SystemTimer) -> None:
    """The inner block times out; the outer one continues until it times out as well."""

    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with timer.timeout(0.1):
                await ends_in_time_out(timer.timeout(0.01), clock)
                inner = clock.time()
                await clock.sleep(10)
        return inner

    start = clock.time()
    assert await during(clock, 0.1, work()) == pytest.approx(start + 0.01)
    assert clock.time() == pytest.approx(start + 0.1)


async def test_the_outer_deadline_comes_first(clock: VirtualClock, timer: SystemTimer) -> None:
    """The outer deadline cancels the inner block, which has not expired."""

    async def work() -> Timeout:
        with pytest.raises(TimeoutError):
            async with timer.timeout(0.01):
                async with timer.timeout(1) as inner:
                    await clock.sleep(10)
        return inner

    inner = await during(clock, 0.01, work())
    assert not inner.expired()


async def test_a_timeout_in_the_clean_up_of_another(clock: VirtualClock, timer: SystemTimer) -> None:
    """Each TimeoutError has the CancelledError of its own deadline as its cause."""
    inner: list[TimeoutError] = []

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                await clock.sleep(1)
            finally:
                inner.append(await ends_in_time_out(timer.timeout(0.01), clock))

    with pytest.raises(TimeoutError) as raised:
        await during(clock, 0.02, work())
    first = raised.value.__cause__
    assert isinstance(first, asyncio.CancelledError)
    assert raised.value.__context__ is first
    assert first.__context__ is None
    second = inner[0].__cause__
    assert isinstance(second, asyncio.CancelledError)
    assert second is not first
    assert inner[0].__context__ is second


async def test_it_nests_with_the_timeout_of_asyncio(clock: VirtualClock, timer: SystemTimer) -> None:
    """Both use ``uncancel`` to count cancellations, so each raises its own TimeoutError."""

    async def work() -> None:
        async with asyncio.timeout(None) as outer:
            await ends_in_time_out(timer.timeout(0.01), clock)
        assert not outer.expired()
        with pytest.raises(TimeoutError):
            async with timer.timeout(10) as around:
                async with asyncio.timeout(0):
                    await clock.sleep(1)
        assert not around.expired()

    await during(clock, 0.01, work())
