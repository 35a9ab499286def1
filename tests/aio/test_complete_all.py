"""``complete_all`` answers every task."""

import asyncio

import pytest

from purgatory import Event, Observer, ThresholdPurgatory
from purgatory.testing import VirtualClock
from tests.helpers import Boom, wait_after, wait_in_tasks


async def test_complete_all_answers_every_task(marks: ThresholdPurgatory) -> None:
    """Tasks on every key, whatever their threshold, receive None."""
    tasks = await wait_in_tasks(marks, ("a", 1), ("b", 10**12), ("b", float("inf")))
    assert marks.complete_all() == 3
    assert await asyncio.gather(*tasks) == [None, None, None]
    assert marks.complete_all() == 0


@pytest.mark.parametrize("failing", [False, True], ids=["complete_all", "fail_all"])
async def test_the_waits_after_an_interrupted_one_end_in_the_next_turn(clock: VirtualClock, failing: bool) -> None:
    """The interrupt of an observer propagates from the call; tasks that begin to wait afterward are not affected."""

    class Interrupting(Observer):
        armed = True

        def completed(self, event: Event) -> None:
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt

        failed = completed

    async with ThresholdPurgatory("marks", clock=clock, observers=[Interrupting()]) as marks:
        tasks = await wait_in_tasks(marks, ("a", 1), ("b", 2), ("c", 3))
        begin = asyncio.Event()
        newer = asyncio.create_task(wait_after(begin, marks.wait("a", 2, None)))
        await clock.settle()
        begin.set()
        with pytest.raises(KeyboardInterrupt):
            marks.fail_all(Boom()) if failing else marks.complete_all()
        assert marks.num_waiting == 2
        await clock.settle()
        assert all(task.done() for task in tasks)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [Boom if failing else type(None)] * 3
        assert not newer.done()
        newer.cancel()
