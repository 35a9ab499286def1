"""The statistics of a purgatory: its name and the waits."""

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op


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
