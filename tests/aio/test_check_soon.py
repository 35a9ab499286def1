"""``check_soon`` checks each key once, at the end of the turn of the loop, in slices, and loses no check."""

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.aio.coalesced_checks import LoopChecks
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, check, park, turns_until


async def test_it_checks_at_the_end_of_the_turn_and_once(purgatory: Purgatory[Op]) -> None:
    """A thousand calls in one turn cause one check, after the turn; a call in a later turn causes another one."""
    operation = park(purgatory, "key")
    for _ in range(1000):
        purgatory.check_soon("key")
    assert operation.calls == []
    await asyncio.sleep(0)
    assert operation.calls == ["try"]
    await asyncio.sleep(0)
    assert operation.calls == ["try"]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert operation.calls == ["try", "try"]


async def test_the_requests_of_a_turn_share_one_callback(
    purgatory: Purgatory[Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many keys are requested in a turn, one callback is scheduled in the event loop."""
    scheduled: list[int] = []
    schedule = LoopChecks._schedule_in

    def counting(self: LoopChecks, loop: asyncio.AbstractEventLoop) -> None:
        scheduled.append(1)
        schedule(self, loop)

    monkeypatch.setattr(LoopChecks, "_schedule_in", counting)
    watchers = [park(purgatory, number) for number in range(10)]
    for number in range(10):
        purgatory.check_soon(number)
    await asyncio.sleep(0)
    assert [watcher.calls for watcher in watchers] == [["try"]] * 10
    assert scheduled == [1]


async def test_it_completes_operations_whose_condition_holds(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """The condition is read when the check runs, not when ``check_soon`` is called."""
    operation = park(purgatory, "key", name="answer")
    purgatory.check_soon("key")
    operation.ready = True
    assert await operation == "answer"


async def test_a_key_without_watchers_is_dropped(purgatory: Purgatory[Op]) -> None:
    """A key is also dropped if its operations end before the turn is over."""
    operation = park(purgatory, "left")
    purgatory.check_soon("left")
    purgatory.check_soon("empty")
    operation.cancel()
    await asyncio.sleep(0)
    assert operation.calls == []
    assert not purgatory._soon
    check(purgatory, keys=0)


async def test_an_operation_parked_between_the_call_and_the_check_is_tried(purgatory: Purgatory[Op]) -> None:
    """The operation is tried, because an extra try is harmless and a missing try would be a lost check."""
    purgatory.check_soon("key")
    operation = park(purgatory, "key")
    await asyncio.sleep(0)
    assert operation.calls == ["try"]


async def test_a_key_named_while_it_is_checked_is_checked_again(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A call while the key is being checked causes another check afterwards."""

    def again(op: Op) -> None:
        if op.calls.count("try") == 2:
            purgatory.check_soon("a")
        elif op.calls.count("try") == 3:
            op.ready = True

    op = Op(5, on_try=again)
    purgatory.try_complete_else_watch(op, ["a"])
    purgatory.check_soon("a")
    await clock.settle()
    assert op.calls == ["try"] * 3 + ["complete"]


async def test_a_call_from_a_callback_is_a_separate_check(purgatory: Purgatory[Op]) -> None:
    """A call from a callback starts a separate check, which the running check does not include."""
    second = park(purgatory, "b", ready=False)
    first = park(purgatory, "a", on_complete=lambda _: purgatory.check_soon("b"))
    first.ready = second.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert second.outcome is Outcome.PENDING
    await asyncio.sleep(0)
    assert second.outcome is Outcome.COMPLETED


async def test_a_check_within_a_later_check_is_queued(purgatory: Purgatory[Op]) -> None:
    """As in every callback, the nested check returns 0 and runs before the slice ends."""
    counted: list[int] = []
    trying = park(purgatory, "a")
    trying._on_try = lambda _: counted.append(purgatory.check_and_complete("b"))
    first = park(purgatory, "a")
    first._on_complete = lambda _: counted.append(purgatory.check_and_complete("b"))
    second = park(purgatory, "b")
    first.ready = second.ready = True
    purgatory.check_soon("a")
    await turns_until(lambda: not purgatory._soon)
    assert counted == [0, 0]
    assert second.outcome is Outcome.COMPLETED
    purgatory._check()


async def test_an_operation_that_raises_is_reported_and_the_others_are_tried(
    purgatory: Purgatory[Op], reported: list[dict[str, Any]]
) -> None:
    """An operation that raises prevents neither other tries on its key nor the checks of other keys."""

    def boom(operation: Op) -> None:
        if operation.ready:
            raise Boom

    bad = park(purgatory, "a", on_try=boom)
    same, other = park(purgatory, "a"), park(purgatory, "b")
    bad.ready = same.ready = other.ready = True
    purgatory.check_soon("a")
    purgatory.check_soon("b")
    await asyncio.sleep(0)
    assert [bad.outcome, same.outcome, other.outcome] == [Outcome.FAILED, Outcome.COMPLETED, Outcome.COMPLETED]
    assert [type(context["exception"]) for context in reported] == [Boom]


async def test_a_key_whose_comparison_raised_once_is_checked_when_it_is_named_again(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """The failed check is reported and dropped; it does not prevent the next check of the key."""

    class Key:
        broken = False

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if Key.broken:
                raise Boom
            return isinstance(other, Key)

    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    operation = park(purgatory, Key())
    purgatory.check_soon(Key())
    Key.broken = True
    await clock.settle()
    assert [type(error) for error in reported] == [Boom]
    Key.broken = False
    operation.ready = True
    purgatory.check_soon(Key())
    await clock.settle()
    assert operation.outcome is Outcome.COMPLETED


async def test_bad_keys_are_refused(purgatory: Purgatory[Op]) -> None:
    """An unhashable key raises TypeError at once, and nothing is scheduled."""
    unhashable: list[Any] = [[], ([],)]
    for key in unhashable:
        with pytest.raises(TypeError, match="unhashable"):
            purgatory.check_soon(key)
        assert not purgatory._soon
        assert not purgatory._soon.scheduled


def test_it_needs_a_running_loop() -> None:
    """Without a running loop it raises RuntimeError, and the key is not kept."""
    purgatory = Purgatory[Op]("soon")
    with pytest.raises(RuntimeError):
        purgatory.check_soon("key")
    assert not purgatory._soon


# Coalesced checks with a value: one check serves all calls, with the largest value or without a value


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


# ``check_soon`` with many watchers or keys runs in slices and is fair to all keys, whatever happens between slices


async def test_many_watchers_are_tried_in_slices(purgatory: Purgatory[Op]) -> None:
    """Other tasks run between two slices, and every operation is tried once."""
    watchers = [park(purgatory, "key") for _ in range(5000)]
    purgatory.check_soon("key")
    assert await turns_until(lambda: not purgatory._soon) > 10
    assert all(watcher.calls == ["try"] for watcher in watchers)


async def test_a_long_list_is_checked_in_slices(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """A key with many watchers does not block the loop: other callbacks run between slices, and every watcher is
    tried.
    """
    ops = [Op(5) for _ in range(2000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["hot"])
        op.ready = True
    progress: list[int] = []

    def look() -> None:
        progress.append(len(purgatory))
        if len(purgatory):
            asyncio.get_running_loop().call_soon(look)

    purgatory.check_soon("hot")
    look()
    await clock.settle()
    assert len(purgatory) == 0
    steps = [before - after for before, after in itertools.pairwise(progress)]
    assert len(steps) > 5
    assert max(steps) <= 512
    assert all(op.completions == 1 for op in ops)


async def test_many_keys_are_checked_in_slices(purgatory: Purgatory[Op]) -> None:
    """Many keys with few watchers share a slice and do not block the loop."""
    watchers = [park(purgatory, number) for number in range(5000)]
    for number in range(5000):
        purgatory.check_soon(number)
    assert 10 < await turns_until(lambda: not purgatory._soon) < 500
    assert all(watcher.calls == ["try"] for watcher in watchers)


# Turns


async def test_a_short_key_does_not_wait_for_a_long_one(purgatory: Purgatory[Op]) -> None:
    """If one key has 5000 watchers and another has one, the single watcher is tried within the first slice."""
    for _ in range(5000):
        park(purgatory, "long")
    single = park(purgatory, "short")
    purgatory.check_soon("long")
    purgatory.check_soon("short")
    await asyncio.sleep(0)
    assert single.calls == ["try"]
    assert purgatory._soon
    await turns_until(lambda: not purgatory._soon)


async def test_a_key_with_one_watcher_is_served_before_a_hot_one_is_done(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """The check of a key with one watcher runs before the check of a key with many watchers has ended."""
    order: list[str] = []
    for _ in range(2000):
        op = Op(5, on_complete=lambda _: order.append("hot"))
        purgatory.try_complete_else_watch(op, ["hot"])
        op.ready = True
    single = Op(5, on_complete=lambda _: order.append("single"))
    purgatory.try_complete_else_watch(single, ["single"])
    single.ready = True
    purgatory.check_soon("hot")
    purgatory.check_soon("single")
    await clock.settle()
    assert order.index("single") < 100
    assert len(order) == 2001


async def test_a_key_that_names_itself_again_and_again_leaves_the_others_their_turn(
    purgatory: Purgatory[Op],
) -> None:
    """An endless chain of checks of one key does not starve a long check of another key."""
    going_on = True

    def again(_: Op) -> None:
        if going_on:
            purgatory.check_soon("chain")

    park(purgatory, "chain", on_try=again)
    watchers = [park(purgatory, "long") for _ in range(2000)]
    purgatory.check_soon("chain")
    purgatory.check_soon("long")
    await turns_until(lambda: all(watcher.calls for watcher in watchers))
    going_on = False
    await turns_until(lambda: not purgatory._soon)


async def test_a_key_named_in_every_turn_is_not_walked_many_times_at_once(purgatory: Purgatory[Op]) -> None:
    """Calls during a check share one later check, so any number of calls causes at most two checks."""
    watchers = [park(purgatory, "key") for _ in range(3000)]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert watchers[0].calls
    assert not watchers[-1].calls
    while not watchers[-1].calls:
        purgatory.check_soon("key")
        await asyncio.sleep(0)
    await turns_until(lambda: not purgatory._soon)
    assert {len(watcher.calls) for watcher in watchers} == {2}


# Between two slices


async def test_operations_that_end_between_two_slices_are_skipped(purgatory: Purgatory[Op]) -> None:
    """The check skips ended operations and continues after them, even if all neighbors have left."""
    watchers = [park(purgatory, "key") for _ in range(3000)]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    mark = sum(bool(watcher.calls) for watcher in watchers)
    assert 0 < mark < 1000
    for watcher in watchers[mark - 5 : mark + 500]:
        watcher.cancel()
    await turns_until(lambda: not purgatory._soon)
    assert not any(watcher.calls for watcher in watchers[mark : mark + 500])
    assert all(watcher.calls == ["try"] for watcher in watchers[mark + 500 :])


async def test_operations_that_leave_or_arrive_between_slices_are_not_tried(
    purgatory: Purgatory[Op], clock: VirtualClock
) -> None:
    """The check tries neither operations that have left nor operations that arrived after it began."""
    ops = [Op(5) for _ in range(1000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["hot"])
    late: list[Op] = []

    def meddle(_: Op) -> None:
        if not late:
            late.append(Op(5))
            purgatory.try_complete_else_watch(late[0], ["hot"])
            for op in ops[500:]:
                op.cancel()

    ops[0]._on_try = meddle
    purgatory.check_soon("hot")
    await clock.settle()
    assert [op.calls.count("try") for op in ops] == [2] * 500 + [1] * 500
    assert late[0].calls == ["try"]


async def test_the_key_is_emptied_and_filled_again_between_two_slices(purgatory: Purgatory[Op]) -> None:
    """The check ends; the new operations had their first try, and a later call tries them again."""
    watchers = [park(purgatory, "key") for _ in range(3000)]
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert len(purgatory.cancel_for_key("key")) == 3000
    newcomer = park(purgatory, "key")
    await turns_until(lambda: not purgatory._soon)
    assert newcomer.calls == []
    purgatory.check_soon("key")
    await asyncio.sleep(0)
    assert newcomer.calls == ["try"]
    assert not watchers[-1].calls


async def test_closing_during_a_walk_answers_every_operation(clock: VirtualClock) -> None:
    """The check continues before the operations expire, and no operation is answered twice."""
    async with Purgatory[Op]("soon", clock=clock) as purgatory:
        watchers = [park(purgatory, "key") for _ in range(3000)]
        for watcher in watchers:
            watcher.ready = True
        purgatory.check_soon("key")
        await asyncio.sleep(0)
    assert not purgatory._soon
    assert {watcher.completions for watcher in watchers} == {1}
    assert {watcher.outcome for watcher in watchers} == {Outcome.COMPLETED}
