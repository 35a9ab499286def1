"""An observer that raises is detached and reported; no operation and no other observer is affected."""

import asyncio
from typing import Any

import pytest

from purgatory import Event, Observer, Outcome, Purgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Doing, Op, Recorder, check, park_named
from tests.sansio import make_purgatory


@pytest.mark.parametrize("method", ["parked", "completed", "expired", "cancelled", "failed"])
async def test_wherever_it_raises_the_operation_is_not_touched(
    clock: VirtualClock, reported: list[dict[str, Any]], method: str
) -> None:
    """The observer is detached from every event, reported once and counted; the others receive every event."""

    def boom(_: Event) -> None:
        raise Boom

    bad, recorder = Doing(**{method: boom}), Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[bad, recorder]) as purgatory:
        for _ in range(2):
            completed = park_named(purgatory, "completed", timeout=1)
            cancelled = park_named(purgatory, "cancelled")
            park_named(purgatory, "failed", "bad")
            expired = park_named(purgatory, "expired", timeout=1)
            assert completed.force_complete()
            assert cancelled.cancel()
            assert purgatory.fail_for_key("bad", Boom()) == 1
            await clock.advance(1)
            assert expired.outcome is Outcome.EXPIRED
        check(purgatory, parked=0, watched=0, num_delayed=0, observers_detached=1)
        assert not purgatory._core._notifier._leaving
    assert len(recorder.events) == 16
    (context,) = reported
    assert context["observer"] is bad
    assert "observer of purgatory 'events'" in context["message"]
    assert [seen for seen, _ in bad.seen].count(method) == 1
    assert bad.seen[-1][0] == method


@pytest.mark.parametrize("error", [Boom(), asyncio.CancelledError()])
async def test_an_observer_that_raises_is_detached_and_reported(
    clock: VirtualClock, reported: list[dict[str, Any]], error: BaseException
) -> None:
    """The observer receives no more events; the operation and the other observers are not affected."""

    class Bad(Observer):
        received = 0

        def completed(self, event: Any) -> None:
            self.received += 1
            raise error

    bad, recorder = Bad(), Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[bad, recorder]) as purgatory:
        for name in ("one", "two"):
            op = Op(5, name=name)
            purgatory.try_complete_else_watch(op, ["a"])
            op.ready = True
            assert purgatory.check_and_complete("a") == 1
            assert op.result() == name
        check(purgatory, completed=2, observers_detached=1)
    assert bad.received == 1
    assert [method for method, _ in recorder.events] == ["parked", "completed"] * 2
    (context,) = reported
    assert context["exception"] is error
    assert context["observer"] is bad


def test_two_observers_that_raise_at_the_same_event() -> None:
    """Each observer is reported once and detached."""

    def boom(_: Event) -> None:
        raise Boom

    first, second = Doing(completed=boom), Doing(completed=boom)
    room = make_purgatory(ManualClock(), observers=[first, second])
    park_named(room, "x").force_complete()
    park_named(room, "y").force_complete()
    check(room, completed=2, observers_detached=2)
    assert room.detached == [first, second]
    assert first.seen == second.seen == [("parked", "x"), ("completed", "x")]


def test_an_observer_detached_in_a_nested_event() -> None:
    """If an observer completes another operation and raises at that event, it is detached, and both complete."""
    victims: list[Op] = []

    def nest(event: Event) -> None:
        if event.operation.name == "outer":
            victims[0].force_complete()
        else:
            raise Boom

    bad, recorder = Doing(completed=nest), Recorder()
    room = make_purgatory(ManualClock(), observers=[bad, recorder])
    victims.append(park_named(room, "inner"))
    outer = park_named(room, "outer")
    assert outer.force_complete()
    assert victims[0].outcome is Outcome.COMPLETED
    check(room, parked=0, completed=2, observers_detached=1)
    assert [name for method, name in recorder.events if method == "completed"] == ["outer", "inner"]
    assert len(room.detached) == 1


async def test_an_observer_detached_during_nested_endings_leaves_the_other_in_order(clock: VirtualClock) -> None:
    """The other observer receives the events of both endings in order."""

    def fail(_: Event) -> None:
        raise Boom

    recorder = Recorder()
    observers: list[Any] = [Doing(cancelled=fail), recorder]
    async with Purgatory[Op]("detached", clock=clock, observers=observers) as purgatory:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        inner = park_named(purgatory, "inner", "a", "b")
        outer = park_named(purgatory, "outer", "c", "d", on_complete=lambda _: inner.cancel())
        outer.force_complete()
        ended = [(event.operation.name, event.keys) for event in recorder.seen[2:]]
        assert ended == [("inner", ("a", "b")), ("outer", ("c", "d"))]
        assert purgatory.statistics().observers_detached == 1


def test_detaching_the_last_observer_keeps_no_operation() -> None:
    """An observer detached while an operation completes leaves no reference to that operation."""

    class Bad(Observer):
        def cancelled(self, event: Any) -> None:
            raise Boom

    room = make_purgatory(ManualClock(), observers=[Bad()])
    victim = Op(5)
    op = Op(5, on_complete=lambda _: victim.cancel() or None)
    for waiting in (victim, op):
        room.try_complete_else_watch(waiting, ["a"])
    assert op.force_complete()
    assert not room._core._notifier._leaving
    assert len(room.detached) == 1


async def test_awaiters_are_answered_though_every_observer_raises(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The awaiting tasks get their answers before the observers get the event."""

    def boom(_: Event) -> None:
        raise Boom

    async with Purgatory[Op]("events", clock=clock, observers=[Doing(completed=boom)]) as purgatory:
        operation = Op(5, name="answer")
        task = asyncio.ensure_future(purgatory.park(operation, ["key"]))
        await asyncio.sleep(0)
        operation.force_complete()
        assert await task == "answer"
    assert len(reported) == 1
