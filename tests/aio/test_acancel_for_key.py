"""``acancel_for_key``: every operation on a key is withdrawn, in slices."""

import asyncio
import itertools

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, check, turns_until

MANY = 5000


def parked(purgatory: Purgatory[Op], number: int, key: str = "a") -> list[Op]:
    """Return this number of operations that wait on the key."""
    operations = [Op(5, name=str(index)) for index in range(number)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, [key])
    return operations


async def test_cancelling_in_slices_withdraws_them_in_the_order_of_arrival(purgatory: Purgatory[Op]) -> None:
    """All operations on the key are returned and CANCELLED; operations on other keys still wait."""
    operations, other = parked(purgatory, 100), parked(purgatory, 1, "b")
    assert await purgatory.acancel_for_key("a") == operations
    assert {operation.outcome for operation in operations} == {Outcome.CANCELLED}
    check(purgatory, parked=1, cancelled=100)
    assert await purgatory.acancel_for_key("a") == []
    other[0].cancel()


@pytest.mark.parametrize("ranked", [False, True])
async def test_a_turn_of_the_loop_ends_a_slice(purgatory: Purgatory[Op], ranked: bool) -> None:
    """Thousands of watchers, with and without thresholds, are ended in several turns of bounded work."""
    operations = [Op(5) for _ in range(MANY)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, {"a": number} if ranked else ["a"])
    task = asyncio.create_task(purgatory.acancel_for_key("a"))
    left = [len(purgatory)]
    while not task.done():
        await asyncio.sleep(0)
        left.append(len(purgatory))
    steps = [before - after for before, after in itertools.pairwise(left)]
    assert max(steps) <= 1024
    assert sum(step > 0 for step in steps) >= 5
    assert task.result() == operations


async def test_what_changes_between_two_slices_is_respected(purgatory: Purgatory[Op]) -> None:
    """Between slices, an operation that ends keeps its outcome, a new one stays, and the key may become empty and
    reused.
    """
    operations = parked(purgatory, MANY)
    task = asyncio.create_task(purgatory.acancel_for_key("a"))
    await turns_until(lambda: len(purgatory) < MANY)
    operations[-1].force_complete()
    (late,) = parked(purgatory, 1)
    withdrawn = await task
    assert withdrawn == operations[:-1]
    assert (operations[-1].outcome, late.outcome) == (Outcome.COMPLETED, Outcome.PENDING)

    operations = parked(purgatory, MANY)
    task = asyncio.create_task(purgatory.acancel_for_key("a"))
    await turns_until(lambda: len(purgatory) < MANY)
    purgatory.cancel_for_key("a")
    later = parked(purgatory, 3)
    assert len(await task) < MANY
    assert {operation.outcome for operation in later} == {Outcome.PENDING}
    purgatory.cancel_for_key("a")


async def test_a_cancelled_caller_leaves_the_rest_waiting(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """Cancelling the calling task between two slices stops it; the other operations wait for their deadlines."""
    operations = parked(purgatory, MANY)
    task = asyncio.create_task(purgatory.acancel_for_key("a"))
    await turns_until(lambda: len(purgatory) < MANY)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    outcomes = {operation.outcome for operation in operations}
    assert outcomes == {Outcome.CANCELLED, Outcome.PENDING}
    await clock.advance(5)
    assert Outcome.PENDING not in {operation.outcome for operation in operations}
