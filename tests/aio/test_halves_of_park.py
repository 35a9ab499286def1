"""The first half of ``park()``, for code that puts something between submitting and awaiting."""

from typing import Any

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, check


async def test_an_operation_that_waits_gives_the_future_to_await(clock: VirtualClock) -> None:
    """The purgatory need not have been entered: its reaper runs, and the deadline ends the operation."""
    purgatory = Purgatory[Any]("test", clock=clock)
    waiter = purgatory._submit_and_wait(Op(2.0, on_complete=lambda _: "answer"), ["a"])
    assert waiter is not None
    await clock.advance(1.999)
    assert not waiter.done()
    await clock.advance(0.001)
    assert await waiter == "answer"
    second = purgatory._submit_and_wait(Op(None, on_complete=lambda _: "second"), ["a"])
    assert second is not None
    purgatory.cancel_for_key("a")
    assert second.exception() is not None
    check(purgatory, expired=1, cancelled=1)
    await purgatory.aclose()


async def test_an_operation_that_has_ended_gives_none(purgatory: Purgatory[Any], clock: VirtualClock) -> None:
    """Its result is in the operation."""
    operation = Op(on_complete=lambda _: "at once")
    operation.ready = True
    assert purgatory._submit_and_wait(operation, ["a"]) is None
    assert operation.result() == "at once"
