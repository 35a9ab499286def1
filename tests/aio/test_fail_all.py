"""``fail_all``: every task gets the exception."""

import asyncio

import pytest

from purgatory import PurgatoryError, ThresholdPurgatory
from tests.helpers import Boom, wait_in_tasks


async def test_fail_all_fails_every_task(marks: ThresholdPurgatory) -> None:
    """Tasks on every key raise the given exception."""
    tasks = await wait_in_tasks(marks, ("a", 1), ("b", 10**12))
    error = Boom("not the leader any more")
    assert marks.fail_all(error) == 2
    assert await asyncio.gather(*tasks, return_exceptions=True) == [error, error]
    assert marks.statistics().failed == 2
    with pytest.raises(TypeError, match="error must be an exception or a function that returns one, got 'text'"):
        marks.fail_all("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="error must be an exception or a function that returns one, got <class 'int'>"):
        marks.fail_all(int)  # type: ignore[arg-type]


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


async def test_a_function_gives_each_task_its_own_exception(marks: ThresholdPurgatory) -> None:
    """One task's exception is then not changed when another task raises its own."""
    tasks = await wait_in_tasks(marks, ("a", 1), ("b", 1))
    assert marks.fail_all(lambda: Boom("not the leader any more")) == 2
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, Boom)
    assert isinstance(second, Boom)
    assert first is not second


async def test_an_interrupt_in_the_function_leaves_no_task_waiting(marks: ThresholdPurgatory) -> None:
    """The interrupted call continues in the next turn of the loop, and each task gets an answer."""
    interrupts = [KeyboardInterrupt()]

    def make() -> Exception:
        if interrupts:
            raise interrupts.pop()
        return Boom("not the leader any more")

    tasks = await wait_in_tasks(marks, ("a", 1), ("b", 1))
    with pytest.raises(KeyboardInterrupt):
        marks.fail_all(make)
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, PurgatoryError)
    assert isinstance(second, Boom)
