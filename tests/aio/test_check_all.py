"""``check_all`` covers every watched key and does not block the loop."""

import asyncio

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, check, park, turns_until


async def test_every_watcher_is_tried_once(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """All keys are checked at the end of the turn, whatever the thresholds, and not before."""
    waiting = [park(purgatory, number) for number in range(100)]
    ranked = Op()
    purgatory.try_complete_else_watch(ranked, {"log": 1e9})
    ranked.calls.clear()
    for _ in range(10):
        purgatory.check_all()
    assert not any(operation.calls for operation in waiting)
    await clock.settle()
    assert {tuple(operation.calls) for operation in [*waiting, ranked]} == {("try",)}


async def test_an_empty_purgatory_has_nothing_to_check(purgatory: Purgatory[Op]) -> None:
    """On an empty purgatory, the call costs one turn, and nothing stays scheduled."""
    purgatory.check_all()
    await asyncio.sleep(0)
    assert not purgatory._soon.scheduled


async def test_a_key_that_is_named_as_well_is_checked_once(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """``check_all`` acts as a ``check_soon`` without a value, and is coalesced with other calls for the same key."""
    operation = Op()
    purgatory.try_complete_else_watch(operation, {"log": 100})
    operation.calls.clear()
    purgatory.check_soon("log", 5)
    purgatory.check_all()
    await clock.settle()
    assert operation.calls == ["try"]


async def test_collecting_the_keys_is_sliced(purgatory: Purgatory[Op]) -> None:
    """Each turn collects a bounded number of keys, even if no single turn covers all of them."""
    waiting = [park(purgatory, number) for number in range(20_000)]
    most = 0

    def collected() -> int:
        return len(purgatory._soon._queue) + len(purgatory._soon._shard_keys)

    purgatory.check_all()

    def look() -> bool:
        nonlocal most
        most = max(most, collected())
        return not purgatory._soon

    assert await turns_until(look) > 10
    assert most < 100  # the keys of one shard
    assert {tuple(operation.calls) for operation in waiting} == {("try",)}


async def test_a_hot_key_leaves_the_others_their_turn(purgatory: Purgatory[Op]) -> None:
    """Keys are collected while a key with very many watchers is still being checked."""
    hot = [park(purgatory, "hot") for _ in range(20_000)]
    single = [park(purgatory, number) for number in range(50)]
    purgatory.check_all()
    await turns_until(lambda: all(operation.calls for operation in single))
    assert not all(operation.calls for operation in hot)
    await turns_until(lambda: not purgatory._soon)
    assert all(operation.calls == ["try"] for operation in hot)


async def test_a_call_during_a_walk_starts_another_walk(purgatory: Purgatory[Op]) -> None:
    """A call during a run causes another run: every watcher is tried after the last call."""
    waiting = [park(purgatory, number) for number in range(3000)]
    purgatory.check_all()
    await turns_until(lambda: any(operation.calls for operation in waiting))
    before = [len(operation.calls) for operation in waiting]
    assert sum(before) < len(waiting)
    purgatory.check_all()
    await turns_until(lambda: not purgatory._soon)
    after = [len(operation.calls) for operation in waiting]
    assert all(now > then for then, now in zip(before, after, strict=True))
    assert max(after) <= 2


async def test_keys_that_come_and_go_meanwhile(purgatory: Purgatory[Op]) -> None:
    """Operations end and arrive between two slices; each operation that waits during the whole run is tried."""
    waiting = [park(purgatory, number) for number in range(3000)]
    purgatory.check_all()
    await asyncio.sleep(0)
    for number, operation in enumerate(waiting):
        if number % 2:
            operation.cancel()
            park(purgatory, -number - 1)
    await turns_until(lambda: not purgatory._soon)
    assert all(operation.calls == ["try"] for operation in waiting[::2])
    check(purgatory, parked=3000, keys=3000)


def test_without_a_loop_it_raises_and_schedules_nothing() -> None:
    """Without a running loop, the call raises RuntimeError, like ``check_soon``."""
    purgatory = Purgatory[Op]("soon")
    with pytest.raises(RuntimeError):
        purgatory.check_all()
    assert not purgatory._soon
