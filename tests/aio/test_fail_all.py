"""``fail_all``: every task gets the exception."""

import asyncio

import pytest

from purgatory import ThresholdPurgatory
from tests.helpers import Boom, wait_in_tasks


async def test_fail_all_fails_every_task(marks: ThresholdPurgatory) -> None:
    """Tasks on every key raise the given exception."""
    tasks = await wait_in_tasks(marks, ("a", 1), ("b", 10**12))
    error = Boom("not the leader any more")
    assert marks.fail_all(error) == 2
    assert await asyncio.gather(*tasks, return_exceptions=True) == [error, error]
    assert marks.statistics().failed == 2
    with pytest.raises(TypeError, match="instance"):
        marks.fail_all(Boom)  # type: ignore[arg-type]


async def test_fail_all_withdraws_operations_of_cancelled_tasks(marks: ThresholdPurgatory) -> None:
    """As in ``fail_for_key``, an operation whose task is cancelled in the same turn is withdrawn and not counted."""
    gone, stays = await wait_in_tasks(marks, ("a", 1), ("b", 1))
    gone.cancel()
    error = Boom("not the leader any more")
    assert marks.fail_all(error) == 1
    statistics = marks.statistics()
    assert (statistics.failed, statistics.cancelled) == (1, 1)
    answers = await asyncio.gather(gone, stays, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] is error
