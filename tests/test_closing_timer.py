"""Closing a timer: what is on it ends then, and nothing new is taken."""

from typing import Any

import pytest

from purgatory import Outcome, Purgatory, SystemTimer
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op


async def test_a_callback_that_raises_as_its_timer_closes(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """Closing a shared timer expires its operations; what one of them raises is reported, and the rest is answered."""

    def fail(_: Op) -> None:
        raise Boom

    timer = SystemTimer(clock=clock)
    purgatory = Purgatory[Op]("test", timer=timer)
    bad, good = Op(5, on_complete=fail), Op(6, name="x")
    for op in (bad, good):
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(ValueError, match="timeout is a finite number"):
        bad.extend(-1)
    await timer.aclose()
    assert (bad.outcome, good.outcome) == (Outcome.FAILED, Outcome.EXPIRED)
    assert [type(context["exception"]) for context in reported] == [Boom]
