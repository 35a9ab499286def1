"""``complete_all`` answers every task."""

import asyncio

from purgatory import ThresholdPurgatory
from tests.helpers import wait_in_tasks


async def test_complete_all_answers_every_task(marks: ThresholdPurgatory) -> None:
    """Tasks on every key, whatever their threshold, receive None."""
    tasks = await wait_in_tasks(marks, ("a", 1), ("b", 10**12), ("b", float("inf")))
    assert marks.complete_all() == 3
    assert await asyncio.gather(*tasks) == [None, None, None]
    assert marks.complete_all() == 0
