"""Coalesced checks with a value: one check serves all calls, with the largest value or without a value."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, check, park, turns_until

METHODS = ["check_soon", "check_threadsafe"]


def park_ranked(purgatory: Purgatory[Any], key: str, *thresholds: int | None) -> list[Op]:
    """Park one operation for each threshold on the key; None means no threshold.  Their ``calls`` are reset."""
    operations = [Op() for _ in thresholds]
    for operation, threshold in zip(operations, thresholds, strict=True):
        purgatory.try_complete_else_watch(operation, [key] if threshold is None else {key: threshold})
        operation.calls.clear()
    return operations


def tries(operations: list[Op]) -> list[int]:
    """Return how often each operation was tried since it was parked."""
    return [operation.calls.count("try") for operation in operations]


@pytest.mark.parametrize("method", METHODS)
async def test_only_the_watchers_that_the_value_reaches_are_tried(
    purgatory: Purgatory[Op], clock: VirtualClock, method: str
) -> None:
    """A check with a value skips higher thresholds, and always tries watchers without a threshold."""
    waiting = park_ranked(purgatory, "log", 5, None, 10, 11, None, 10)
    getattr(purgatory, method)("log", 10)
    await clock.settle()
    assert tries(waiting) == [1, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("values", "tried"),
    [
        ([3, 8, 5], [1, 1, 0, 0]),
        ([8, None], [1, 1, 1, 1]),
        ([None, 3], [1, 1, 1, 1]),
        ([-1], [0, 0, 0, 0]),
        ([9.5, 10.0, 2], [1, 1, 1, 0]),
        ([math.inf, -math.inf], [1, 1, 1, 1]),
    ],
)
async def test_the_largest_value_of_a_turn_wins_and_no_value_wins_over_all(
    purgatory: Purgatory[Op], clock: VirtualClock, method: str, values: list[Any], tried: list[int]
) -> None:
    """The calls of a turn cause one check, which tries each watcher that any of the calls must try, once."""
    waiting = park_ranked(purgatory, "log", 1, 8, 10, 20)
    for value in values:
        getattr(purgatory, method)("log", value)
    await clock.settle()
    assert tries(waiting) == tried


async def test_calls_from_threads_and_from_the_loop_are_one_check(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """A value from another thread is coalesced with the value of a pending ``check_soon``."""
    waiting = park_ranked(purgatory, "log", 1, 5, 9)
    await asyncio.to_thread(purgatory.check_threadsafe, "log", 5)
    purgatory.check_soon("log", 2)
    await clock.settle()
    assert max(tries(waiting)) <= 2
    assert [bool(count) for count in tries(waiting)] == [True, True, False]


async def test_values_named_during_a_check_make_one_more_check(purgatory: Purgatory[Op]) -> None:
    """The next check uses the largest value since the current check began, not the value of the current check."""
    waiting = park_ranked(purgatory, "log", *[1] * 2000, 5, 9)
    purgatory.check_soon("log", 1)
    await asyncio.sleep(0)
    assert purgatory._soon
    for value in (3, 5, 4):
        purgatory.check_soon("log", value)
    await turns_until(lambda: not purgatory._soon)
    assert tries(waiting) == [2] * 2000 + [1, 0]


async def test_a_call_without_a_value_during_a_check_is_not_lost(purgatory: Purgatory[Op]) -> None:
    """A call without a value overrides every value, also in the check that follows."""
    waiting = park_ranked(purgatory, "log", *[1] * 2000, 9)
    purgatory.check_soon("log", 1)
    await asyncio.sleep(0)
    purgatory.check_soon("log", 3)
    purgatory.check_soon("log")
    purgatory.check_soon("log", 2)
    await turns_until(lambda: not purgatory._soon)
    assert tries(waiting) == [2] * 2000 + [1]


@pytest.mark.parametrize("reached", [10, 1024, 1025, 3000])
async def test_reached_watchers_are_tried_in_the_order_of_arrival(purgatory: Purgatory[Op], reached: int) -> None:
    """Watchers whose threshold is reached are tried in order of arrival, in slices, with few or many watchers."""
    order: list[str] = []
    for number in range(4000):
        keys: Any = ["log"] if number % 8 == 7 else {"log": 0 if number * reached // 4000 % 2 else 5000 - number}
        operation = Op(name=str(number), on_try=lambda operation: order.append(operation.name))
        purgatory.try_complete_else_watch(operation, keys)
    expected = [
        str(number)
        for number in range(4000)
        if number % 8 == 7 or number * reached // 4000 % 2 or 5000 - number <= reached
    ]
    order.clear()
    purgatory.check_soon("log", reached)
    assert await turns_until(lambda: not purgatory._soon) >= 1
    assert order == expected


async def test_many_thresholds_are_looked_through_in_slices(purgatory: Purgatory[Op]) -> None:
    """A value that reaches too many thresholds for one slice does not block the loop, even if no operation
    completes.
    """
    waiting = park_ranked(purgatory, "log", *[9] * 3000, *[1] * 2000)
    purgatory.check_soon("log", 1)
    assert await turns_until(lambda: not purgatory._soon) > 3
    assert tries(waiting) == [0] * 3000 + [1] * 2000


async def test_watchers_that_end_or_arrive_between_two_slices(purgatory: Purgatory[Op]) -> None:
    """The check tries neither operations that have ended nor operations that arrived after it began."""
    for thresholds in ([1] * 900, [1] * 3000):  # looked up in the heap, and in the order of arrival
        waiting = park_ranked(purgatory, "log", *thresholds)
        purgatory.check_soon("log", 1)
        await asyncio.sleep(0)
        done = tries(waiting).count(1)
        assert 0 < done < 900
        for operation in waiting[done : done + 100]:
            operation.cancel()
        late = park_ranked(purgatory, "log", 1, None)
        await turns_until(lambda: not purgatory._soon)
        assert tries(waiting) == [1] * done + [0] * 100 + [1] * (len(waiting) - done - 100)
        assert tries(late) == [0, 0]
        assert len(purgatory.cancel_for_key("log")) == len(waiting) - 98
        check(purgatory, keys=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("value", "error"), [("5", TypeError), (True, TypeError), (math.nan, ValueError), ([], TypeError)]
)
async def test_a_bad_value_is_refused_and_nothing_is_scheduled(
    purgatory: Purgatory[Op], method: str, value: Any, error: type[Exception]
) -> None:
    """A bad value raises an error, and no check is scheduled."""
    operation = park(purgatory, "log")
    call: Callable[..., None] = getattr(purgatory, method)
    with pytest.raises(error, match="value"):
        call("log", value)
    await asyncio.sleep(0)
    assert not purgatory._soon.scheduled
    assert operation.calls == []


async def test_a_queued_check_with_a_value_keeps_it_through_an_interrupt(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """A queued check that an interrupt delays keeps its value and still skips higher thresholds."""
    waiting = park_ranked(purgatory, "log", 5, 15)

    def queue_and_interrupt(_: Op) -> None:
        purgatory.check_and_complete("log", 10)
        raise KeyboardInterrupt

    park(purgatory, "other", on_try=lambda operation: queue_and_interrupt(operation) if operation.ready else None)
    purgatory._core.watcher_lists.operations("other")[0].ready = True  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete("other")
    await clock.settle()
    assert [bool(count) for count in tries(waiting)] == [True, False]
