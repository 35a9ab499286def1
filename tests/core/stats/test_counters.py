"""The counters behind the statistics: refusals, and operations that complete at once."""

import contextlib

import pytest

from purgatory import Purgatory, PurgatoryFull
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op, check
from tests.sansio import make_purgatory


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


def test_refusals_for_a_client_are_counted() -> None:
    """The transport that knows the client adds them; ``refused_by_client`` is zero before."""
    room = make_purgatory(ManualClock())
    check(room, refused=0, refused_by_client=0)
    room._core.counters.refused_by_client += 2
    check(room, refused=0, refused_by_client=2)


def test_operations_that_complete_at_once_are_counted() -> None:
    """Operations that complete at once are counted as completed, and also separately."""
    room = make_purgatory(ManualClock())
    for _ in range(3):
        assert room.try_complete_else_watch(Op(ready=True), ["a"])
    check(room, immediate=3, completed=3, submitted=3)
