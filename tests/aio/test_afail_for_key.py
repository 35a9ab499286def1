"""``afail_for_key``: every operation on a key fails with an error, in slices."""

import asyncio

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park


async def test_failing_in_slices_gives_the_awaiters_the_error(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The call returns the number of failed operations; a task in ``park()`` raises the exception."""
    task = asyncio.create_task(purgatory.park(Op(5), ["a"]))
    await clock.settle()
    for _ in range(10):
        park(purgatory, "a")
    assert await purgatory.afail_for_key("a", Boom()) == 11
    with pytest.raises(Boom):
        await task
    check(purgatory, parked=0, failed=11)
    assert await purgatory.afail_for_key("nothing", Boom()) == 0


async def test_a_caller_whose_task_was_cancelled_is_withdrawn_not_failed(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """As in ``fail_for_key``, an operation whose own task was cancelled ends CANCELLED and is not counted."""
    operation = Op(5)
    task = asyncio.create_task(purgatory.park(operation, ["a"]))
    await clock.settle()
    task.cancel()
    assert await purgatory.afail_for_key("a", Boom()) == 0
    assert operation.outcome is Outcome.CANCELLED
    with pytest.raises(asyncio.CancelledError):
        await task
