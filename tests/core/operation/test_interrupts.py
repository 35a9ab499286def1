"""KeyboardInterrupt propagates, the state stays consistent, and checks that were requested before it run."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import DelayedOperation, Event, Observer, Outcome, Purgatory, PurgatoryError
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Doing, Op, Recorder, check, park
from tests.sansio import QuietPurgatory, RecordingHooks, make_purgatory


class Ask(DelayedOperation[str]):
    """An operation that calls one function as its condition, and another when it completes."""

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
    """A function that raises KeyboardInterrupt at its first call after it is armed."""

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
def test_an_interrupt_in_the_callers_own_call(room: QuietPurgatory, where: str) -> None:
    """From ``try_complete``, nothing is parked and the operation is unchanged; from ``on_complete``, it fails."""
    op = Op(5, ready=True)
    setattr(op, f"_{where}", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        room.try_complete_else_watch(op, ["a"])
    check(room, parked=0, watched=0, submitted=1 if where == "on_complete" else 0)
    assert op.outcome is (Outcome.FAILED if where == "on_complete" else Outcome.PENDING)
    if where == "on_try":
        op._on_try = lambda _: None
        assert room.try_complete_else_watch(op, ["a"])


@pytest.mark.parametrize("where", ["on_try", "on_complete"])
async def test_an_interrupt_in_a_check(clock: VirtualClock, where: str) -> None:
    """The interrupt reaches the caller of the check; an operation that is interrupted in ``on_complete`` fails."""
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


async def test_an_interrupted_park_leaves_nothing_parked() -> None:
    """If a check that the operation's own try requested is interrupted, the operation is withdrawn."""
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
    """Checks that callbacks requested before the interrupt run in the next turn of the loop."""
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


async def test_operations_behind_an_interrupted_watcher_are_tried_later() -> None:
    """An interrupted queued check continues in the next turn with the operations that it has not tried."""
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


def test_without_a_loop_an_interrupt_passes_unchanged() -> None:
    """Without a loop, the queued check cannot run later, and this raises no other error."""
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
    """The operation stays parked or ended, and the counters balance."""

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


def test_an_interrupt_by_an_observer_passes_after_all_other_events() -> None:
    """Events that an observer caused before its interrupt are sent at once, and none is kept."""

    class Interrupted(Observer):
        def parked(self, event: Event) -> None:
            event.operation.cancel()
            raise KeyboardInterrupt

    recorder = Recorder()
    room = make_purgatory(ManualClock(), observers=[Interrupted(), recorder])
    with pytest.raises(KeyboardInterrupt):
        room.try_complete_else_watch(Op(timeout=1.0, name="a"), ["a"])
    assert recorder.events == [("cancelled", "a")]
    room._check()
    check(room, parked=0, cancelled=1)


@pytest.mark.parametrize("observed", [True, False])
def test_an_interrupt_in_the_librarys_own_callback_passes_after_the_event(observed: bool) -> None:
    """The observers are notified of the end, although the callback that runs before them has been interrupted."""
    observer = Doing()
    room = make_purgatory(ManualClock(), observers=[observer] if observed else [])
    operation = park(room, "a", name="x")
    room._core.call_when_ended(operation, lambda: _interrupt(None))
    with pytest.raises(KeyboardInterrupt):
        operation.cancel()
    assert observer.seen == ([("parked", "x"), ("cancelled", "x")] if observed else [])
    check(room, parked=0, cancelled=1)


@pytest.mark.parametrize("ending", ["completed", "expired", "cancelled", "failed"])
async def test_an_interrupted_observer_leaves_no_awaiter_without_an_answer(clock: VirtualClock, ending: str) -> None:
    """Observers are called after every awaiter has its answer, so an interrupt in one cannot prevent it."""

    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    observer = Doing(**{ending: interrupt})
    async with Purgatory[Op]("test", clock=clock, observers=[observer]) as purgatory:
        op = Op(5, name="x")
        parker = purgatory.park(op, ["a"])
        first, second = parker.send(None), next(op.__await__())
        op.ready = True
        end: dict[str, Callable[[], object]] = {
            "completed": lambda: purgatory.check_and_complete("a"),
            "expired": lambda: purgatory.timer.expire_due(clock.now_ms() + 5000),
            "cancelled": op.cancel,
            "failed": lambda: purgatory.fail_for_key("a", Boom()),
        }
        with pytest.raises(KeyboardInterrupt):
            end[ending]()
        for waiter in (first, second):
            assert waiter.done()
            if ending in ("completed", "expired"):
                assert waiter.result() == "x"
            else:
                assert waiter.exception() is not None
        check(purgatory, parked=0)
        parker.close()


async def test_the_answer_is_there_when_on_expiration_runs(clock: VirtualClock) -> None:
    """In ``on_expiration`` the result is available and the awaiters have it, so an interrupt does not lose it."""
    seen: list[Any] = []

    def look(op: Op) -> None:
        seen.extend([op.result(), *[waiter.done() and waiter.result() for waiter in waiters]])
        raise KeyboardInterrupt

    async with Purgatory[Op]("test", clock=clock) as purgatory:
        op = Op(5, name="x", on_expiration=look)
        parker = purgatory.park(op, ["a"])
        waiters = [parker.send(None), next(op.__await__())]
        with pytest.raises(KeyboardInterrupt):
            purgatory.timer.expire_due(clock.now_ms() + 5000)
        assert seen == ["x", "x", "x"]
        parker.close()


def test_interrupted_checks_are_put_off_in_their_order() -> None:
    """The interrupted check runs first, then the checks queued after it."""

    class Later(RecordingHooks):
        def check_later(self, key: Any, value: Any, limit: int | None) -> None:
            later.append(key)

    def check_keys(_: Op) -> None:
        for key in ("first", "second", "third"):
            room.check_and_complete(key)

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    later: list[Any] = []
    room = make_purgatory(ManualClock(), hooks=Later())
    checking, interrupted = park(room, "a", on_complete=check_keys), park(room, "first")
    checking.ready = True
    interrupted._on_try = interrupt
    with pytest.raises(KeyboardInterrupt):
        room.check_and_complete("a")
    assert later == ["first", "second", "third"]
    room._check()
