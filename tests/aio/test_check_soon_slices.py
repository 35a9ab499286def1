"""``check_soon`` with many watchers or keys runs in slices and is fair to all keys, whatever happens between slices."""

import asyncio
import itertools

from purgatory import Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, park, turns_until


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
    """Pending checks are dropped, and no operation is answered twice."""
    async with Purgatory[Op]("soon", clock=clock) as purgatory:
        watchers = [park(purgatory, "key") for _ in range(3000)]
        for watcher in watchers:
            watcher.ready = True
        purgatory.check_soon("key")
        await asyncio.sleep(0)
    await turns_until(lambda: not purgatory._soon)
    assert {watcher.completions for watcher in watchers} == {1}
    assert {watcher.outcome for watcher in watchers} == {Outcome.COMPLETED, Outcome.EXPIRED}
