"""The errors of ``timer.timeout``: the exception that leaves an expired block, and its chain."""

# ruff: noqa: SIM105 - the shapes of the blocks are what is tested here

import asyncio

import pytest

from purgatory import SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import during


async def test_the_cancellation_is_seen_inside_and_the_timeout_outside(clock: VirtualClock, timer: SystemTimer) -> None:
    """Inside the block the error is a CancelledError, which is the cause of the TimeoutError outside."""
    seen = []

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                await clock.sleep(10)
            except asyncio.CancelledError as error:
                seen.append(error)
                raise

    with pytest.raises(TimeoutError) as raised:
        await during(clock, 0.01, work())
    assert raised.value.__cause__ is raised.value.__context__ is seen[0]


async def test_another_exception_passes(timer: SystemTimer) -> None:
    """An exception that is raised before the deadline propagates unchanged."""
    with pytest.raises(KeyError):
        async with timer.timeout(0.01) as timeout:
            raise KeyError
    assert not timeout.expired()
    assert repr(timeout) == "<Timeout [finished]>"


async def test_what_was_being_handled_stays_in_the_chain(clock: VirtualClock, timer: SystemTimer) -> None:
    """The chain is TimeoutError <- CancelledError <- the error that was being handled at the deadline."""

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                raise ZeroDivisionError
            finally:
                await clock.sleep(1)

    with pytest.raises(TimeoutError) as raised:
        await during(clock, 0.01, work())
    cancelled = raised.value.__cause__
    assert isinstance(cancelled, asyncio.CancelledError)
    assert cancelled.__cause__ is None
    assert isinstance(cancelled.__context__, ZeroDivisionError)


async def test_an_error_in_a_clean_up_has_the_timeout_in_its_chain(clock: VirtualClock, timer: SystemTimer) -> None:
    """An error during cleanup propagates; its chain contains the TimeoutError, which the CancelledError caused."""

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                await clock.sleep(1)
            finally:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        await during(clock, 0.01, work())
    assert raised.value.__cause__ is None
    timeout = raised.value.__context__
    assert isinstance(timeout, TimeoutError)
    assert isinstance(timeout.__cause__, asyncio.CancelledError)
    assert timeout.__context__ is timeout.__cause__


async def test_the_chain_is_searched_for_the_cancellation(clock: VirtualClock, timer: SystemTimer) -> None:
    """The CancelledError is found in the chain even if another error is between it and the propagating error."""

    async def work() -> None:
        async with timer.timeout(0.01):
            try:
                try:
                    raise ValueError
                finally:
                    await clock.sleep(1)
            finally:
                try:
                    raise KeyError
                finally:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        await during(clock, 0.01, work())
    between = raised.value.__context__
    assert isinstance(between, KeyError)
    timeout = between.__context__
    assert isinstance(timeout, TimeoutError)
    cancelled = timeout.__cause__
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(cancelled.__context__, ValueError)
    assert timeout.__context__ is cancelled


async def test_a_task_group_in_the_block_has_the_timeout_in_its_chain_twice(
    clock: VirtualClock, timer: SystemTimer
) -> None:
    """The group and each error in it have the timeout in their chains, because they were raised while it was
    handled.
    """

    async def child() -> None:
        try:
            await clock.sleep(2)
        finally:
            raise ZeroDivisionError

    async def work() -> None:
        async with timer.timeout(0.01), asyncio.TaskGroup() as group:
            group.create_task(child())
            try:
                raise ValueError
            finally:
                await clock.sleep(1)

    with pytest.raises(ExceptionGroup) as raised:
        await during(clock, 0.01, work())
    group = raised.value
    assert isinstance(group.__context__, TimeoutError)
    assert isinstance(group.__context__.__cause__, asyncio.CancelledError)
    assert isinstance(group.__context__.__cause__.__context__, ValueError)
    (error,) = group.exceptions
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(error.__context__, TimeoutError)
    assert isinstance(error.__context__.__cause__, asyncio.CancelledError)
    assert error.__context__.__cause__ is not group.__context__.__cause__


async def test_errors_without_a_cancellation_in_their_chain_are_left_alone(
    clock: VirtualClock, timer: SystemTimer
) -> None:
    """A group that is raised during the cancellation has the timeout in its chain; errors raised elsewhere do not."""
    inner = ValueError("from elsewhere")

    async def work() -> None:
        async with timer.timeout(1):
            try:
                await clock.sleep(5)
            except asyncio.CancelledError:
                raise ExceptionGroup("several", [inner])  # noqa: B904 - what it is raised in view of is tested

    with pytest.raises(ExceptionGroup) as raised:
        await during(clock, 1, work())
    assert isinstance(raised.value.__context__, TimeoutError)
    assert inner.__context__ is None


async def test_a_block_may_swallow_the_cancellation(clock: VirtualClock, timer: SystemTimer) -> None:
    """If the block suppresses it, no TimeoutError is raised, the timeout is expired, and the task is not cancelled."""

    async def work() -> tuple[bool, int]:
        async with timer.timeout(0.01) as timeout:
            try:
                await clock.sleep(1)
            except asyncio.CancelledError:
                pass
        task = asyncio.current_task()
        assert task is not None
        return timeout.expired(), task.cancelling()

    assert await during(clock, 0.01, work()) == (True, 0)
