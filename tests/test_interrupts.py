"""KeyboardInterrupt passes through, the state is whole, and what was asked for before it came is not forgotten."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedOperation, Event, Observer, Outcome, Purgatory, PurgatoryError
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, Recorder, check


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


def _interrupt(_: Any) -> None:
    raise KeyboardInterrupt


# From callbacks


@pytest.mark.parametrize("where", ["on_try", "on_complete"])
async def test_an_interrupt_in_the_callers_own_call(clock: VirtualClock, where: str) -> None:
    """From try_complete nothing was parked and the operation is as before; from on_complete it has failed."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5, ready=True)
        setattr(op, f"_{where}", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            purgatory.try_complete_else_watch(op, ["a"])
        check(purgatory, parked=0, watched=0, submitted=1 if where == "on_complete" else 0)
        assert op.outcome is (Outcome.FAILED if where == "on_complete" else Outcome.PENDING)
        if where == "on_try":
            op._on_try = lambda _: None
            assert purgatory.try_complete_else_watch(op, ["a"])


@pytest.mark.parametrize("where", ["on_try", "on_complete"])
async def test_an_interrupt_in_a_check(clock: VirtualClock, where: str) -> None:
    """It reaches whoever checks; an operation interrupted in on_complete answers its awaiters with an error."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op, behind = Op(5), Op(5)
        task = asyncio.create_task(purgatory.park(op, ["a"]))
        await clock.settle()
        purgatory.try_complete_else_watch(behind, ["a"])
        op.ready = behind.ready = True
        setattr(op, f"_{where}", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            purgatory.check_and_complete("a")
        purgatory._check()
        assert behind.outcome is Outcome.PENDING
        if where == "on_complete":
            with pytest.raises(PurgatoryError, match="KeyboardInterrupt"):
                await task
        else:
            assert op.outcome is Outcome.PENDING
            op._on_try = lambda _: None
        assert purgatory.check_and_complete("a") == (1 if where == "on_complete" else 2)
        check(purgatory, parked=0)


def test_an_interrupted_on_expiration_leaves_the_operation_expired(clock: VirtualClock) -> None:
    """KeyboardInterrupt passes through the purgatory's expiry, and the books balance."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(0, name="x", on_expiration=interrupt)
    purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(KeyboardInterrupt):
        purgatory.timer.expire_due(clock.now_ms())
    assert op.outcome is Outcome.EXPIRED
    assert op.result() == "x"
    check(purgatory, parked=0, expired=1)


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


# Queued checks


async def test_queued_checks_are_not_lost(clock: VirtualClock) -> None:
    """Checks that callbacks had asked for before the interrupt are made up for in the next turn of the loop."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        waiting = [Op(5) for _ in range(3)]
        for number, op in enumerate(waiting):
            purgatory.try_complete_else_watch(op, [number])
            op.ready = True

        def ask_and_interrupt(_: Op) -> None:
            for number in range(3):
                assert purgatory.check_and_complete(number) == 0

        waiting[1]._on_complete = _interrupt
        first = Op(5, on_complete=ask_and_interrupt)
        purgatory.try_complete_else_watch(first, ["a"])
        first.ready = True
        with pytest.raises(KeyboardInterrupt):
            purgatory.check_and_complete("a")
        purgatory._check()
        await clock.settle()
        assert waiting[2].outcome is Outcome.COMPLETED
        check(purgatory, parked=0)


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


# From observers


async def test_an_interrupt_from_an_observer(clock: VirtualClock) -> None:
    """An observer that is interrupted leaves an operation that is parked, or has ended, and books that balance."""

    class Interrupted(Recorder):
        on = ""

        def _note(self, method: str, event: Any) -> None:
            if method == self.on:
                raise KeyboardInterrupt
            super()._note(method, event)

    observer = Interrupted()
    async with Purgatory[Op]("test", clock=clock, observers=[observer]) as purgatory:
        for method in ("parked", "completed", "cancelled", "failed", "expired"):
            op = Op(5, name=method)
            observer.on = method if method == "parked" else ""
            if method == "parked":
                with pytest.raises(KeyboardInterrupt):
                    purgatory.try_complete_else_watch(op, ["a"])
                assert len(purgatory) == len(op.keys)
                op.cancel()
                purgatory._check()
                with pytest.raises(KeyboardInterrupt):
                    await purgatory.park(Op(5), ["a"])
                check(purgatory, parked=0)
                continue
            purgatory.try_complete_else_watch(op, ["a"])
            observer.on = method
            end: dict[str, Callable[[], object]] = {
                "completed": op.force_complete,
                "cancelled": op.cancel,
                "failed": functools.partial(purgatory.fail_for_key, "a", Boom()),
                "expired": op.run,
            }
            with pytest.raises(KeyboardInterrupt):
                end[method]()
            assert op.outcome.value == method
            observer.on = ""
            check(purgatory, parked=0)


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
