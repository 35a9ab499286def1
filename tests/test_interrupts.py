"""KeyboardInterrupt passes through, and what was asked for before it came is not forgotten."""

from collections.abc import Callable

import pytest

from purgatory import DelayedOperation, Event, Observer, Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, Recorder, check


class Ask(DelayedOperation[str]):
    """Asks two functions: whether it is complete, and what to do then."""

    def __init__(self, condition: Callable[[], object], then: Callable[[], object] = lambda: None) -> None:
        super().__init__(None)
        self.condition = condition
        self.then = then

    def try_complete(self) -> bool:
        return bool(self.condition())

    def on_complete(self) -> str:
        self.then()
        return "done"


class Once:
    """Raises KeyboardInterrupt the first time that it is called once it is armed."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self) -> bool:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return False


async def test_those_behind_an_interrupted_watcher_are_tried_later() -> None:
    """A queued check that is interrupted goes on in the next turn with whoever it had not tried."""
    clock = VirtualClock()
    ready: list[int] = []
    interrupt = Once()
    async with Purgatory[Ask]("test", clock=clock) as purgatory:

        def arm() -> None:
            interrupt.armed = True
            ready.append(1)
            purgatory.check_and_complete("b")

        behind = Ask(lambda: ready)
        purgatory.try_complete_else_watch(Ask(interrupt), ["b"])
        purgatory.try_complete_else_watch(behind, ["b"])
        start: list[int] = []
        purgatory.try_complete_else_watch(Ask(lambda: start, arm), ["a"])
        start.append(1)
        with pytest.raises(KeyboardInterrupt):
            purgatory.check_and_complete("a")
        await clock.settle()
        assert behind.outcome is Outcome.COMPLETED
        purgatory._check()


async def test_an_interrupted_park_leaves_nothing_parked() -> None:
    """When a check that its own try asked for is interrupted, the operation that was being parked is withdrawn."""
    interrupt = Once()
    async with Purgatory[Ask]("test", clock=VirtualClock()) as purgatory:
        purgatory.try_complete_else_watch(Ask(interrupt), ["a"])
        interrupt.armed = True
        operation = Ask(lambda: purgatory.check_and_complete("a"))
        with pytest.raises(KeyboardInterrupt):
            await purgatory.park(operation, ["b"])
        assert operation.outcome is Outcome.CANCELLED
        assert len(purgatory) == 1
        purgatory._check()


async def test_parking_a_parked_operation_does_not_withdraw_it() -> None:
    """The second park is refused, and the first goes on."""
    async with Purgatory[Ask]("test", clock=VirtualClock()) as purgatory:
        operation = Ask(lambda: False)
        purgatory.try_complete_else_watch(operation, ["a"])
        with pytest.raises(ValueError, match="parked already"):
            await purgatory.park(operation, ["b"])
        assert operation.outcome is Outcome.PENDING
        assert operation.keys == ("a",)


def test_where_no_loop_runs_an_interrupt_passes_as_it_is() -> None:
    """The check that a callback asked for cannot be done later, and that is no reason for another error."""
    purgatory = Purgatory[Ask]("test", clock=VirtualClock())
    interrupt = Once()
    start: list[int] = []
    purgatory.try_complete_else_watch(Ask(interrupt), ["b"])
    purgatory.try_complete_else_watch(Ask(lambda: start, lambda: purgatory.check_and_complete("b")), ["a"])
    start.append(1)
    interrupt.armed = True
    with pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete("a")
    purgatory._check()


async def test_an_unhashable_key_asks_for_no_turn() -> None:
    """The error comes before anything is asked of the loop."""
    async with Purgatory[Ask]("test", clock=VirtualClock()) as purgatory:
        key: list[int] = []
        with pytest.raises(TypeError, match="unhashable"):
            purgatory.check_soon(key)  # type: ignore[arg-type]
        assert not purgatory._soon_scheduled


async def test_an_interrupt_by_an_observer_passes_through_when_all_else_is_told(clock: VirtualClock) -> None:
    """What an observer has done before it is interrupted is told at once, and nothing is kept for later."""

    class Interrupted(Observer):
        def parked(self, event: Event) -> None:
            event.operation.cancel()
            raise KeyboardInterrupt

    recorder = Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[Interrupted(), recorder]) as purgatory:
        with pytest.raises(KeyboardInterrupt):
            purgatory.try_complete_else_watch(Op(timeout=1.0, name="a"), ["a"])
        assert recorder.events == [("cancelled", "a")]
        purgatory._check()
        check(purgatory, parked=0, cancelled=1)
