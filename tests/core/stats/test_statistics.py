"""The statistics of a purgatory: its name, the waits, and the hot keys."""

import contextlib

import pytest

from purgatory import Purgatory, PurgatoryFull
from purgatory.testing import VirtualClock
from tests.helpers import Op, check


async def test_the_statistics_name_the_purgatory(purgatory: Purgatory[Op]) -> None:
    """The statistics contain the name of the purgatory."""
    assert purgatory.statistics().name == purgatory.name == "test"


async def test_the_statistics_have_waits_and_lateness(clock: VirtualClock) -> None:
    """The quantiles of waits and lateness are in seconds."""
    async with Purgatory[Op]("test", clock=clock, tick_ms=20) as purgatory:
        ops = [Op(0.05), Op(10), Op(10)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["a"])
        await clock.advance(2)
        ops[1].force_complete()
        ops[2].cancel()
        statistics = purgatory.statistics()
        assert statistics.wait.count == 3
        assert statistics.wait.p50 == 2.0
        assert statistics.wait.max == 2.0
        assert statistics.lateness.count == 1
        assert statistics.lateness.max == 0
        assert (statistics.completed, statistics.expired, statistics.cancelled, statistics.failed) == (1, 1, 1, 0)


async def test_refusals_are_counted(clock: VirtualClock) -> None:
    """``refused`` counts each PurgatoryFull, outside ``submitted``; ``refused_by_key`` those of the limit of a key."""
    async with Purgatory[Op]("test", clock=clock, max_parked=3, max_parked_per_key=2) as purgatory:
        for key in ("a", "a", "a", "b", "c"):
            with contextlib.suppress(PurgatoryFull):
                purgatory.try_complete_else_watch(Op(5), [key])
        with pytest.raises(PurgatoryFull):
            await purgatory.wait_until(lambda: False, key="d", timeout=5)
        purgatory.try_complete_else_watch(Op(5, ready=True), ["a"])
        check(purgatory, refused=3, refused_by_key=1, submitted=4, parked=3, completed=1)


async def test_hot_keys(purgatory: Purgatory[Op]) -> None:
    """The keys with the most watchers come first, with their numbers; watchers with a threshold also count."""
    for number in range(5):
        purgatory.try_complete_else_watch(Op(5), ["all", f"key-{number}"])
    purgatory.try_complete_else_watch(Op(5), {"key-3": 10, "key-4": 10})
    purgatory.try_complete_else_watch(Op(5), {"key-4": 10})
    assert purgatory.hot_keys(3) == [("all", 5), ("key-4", 3), ("key-3", 2)]
    assert len(purgatory.hot_keys()) == 6
    assert purgatory.hot_keys(0) == []
    for n in (-1, 1.5, True):
        with pytest.raises(ValueError, match="n must be an int, at least 0"):
            purgatory.hot_keys(n)  # type: ignore[arg-type]
