"""Observers may call the purgatory that calls them: each action creates its own event, and events are not nested."""

from typing import Any

import pytest

from purgatory import Event, Observer, OperationCancelled, Outcome, Purgatory
from purgatory.core.stats.record_buffer import RecordBuffer
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Doing, Op, Recorder, check, park_named
from tests.sansio import QuietPurgatory, make_purgatory, pass_time


class Polite(Observer):
    """An observer that overrides every method, and calls the overridden one."""

    def __init__(self) -> None:
        self.received = 0

    def parked(self, event: Event) -> None:
        super().parked(event)
        self.received += 1

    def completed(self, event: Event) -> None:
        super().completed(event)
        self.received += 1

    def expired(self, event: Event) -> None:
        super().expired(event)
        self.received += 1

    def cancelled(self, event: Event) -> None:
        super().cancelled(event)
        self.received += 1

    def failed(self, event: Event) -> None:
        super().failed(event)
        self.received += 1


async def test_an_observer_may_cancel_the_operation_being_parked(clock: VirtualClock) -> None:
    """The parking task gets OperationCancelled, and nothing is left."""
    observer = Doing(parked=lambda event: event.operation.cancel())
    async with Purgatory[Op]("events", clock=clock, observers=[observer]) as purgatory:
        operation = park_named(purgatory, "x", timeout=5)
        assert operation.outcome is Outcome.CANCELLED
        with pytest.raises(OperationCancelled, match="was cancelled before"):
            await purgatory.park(Op(5, name="y"), ["key"])
        check(purgatory, parked=0, watched=0, num_delayed=0, cancelled=2)
    assert observer.seen == [("parked", "x"), ("cancelled", "x"), ("parked", "y"), ("cancelled", "y")]


async def test_an_observer_may_complete_the_operation_being_parked(clock: VirtualClock) -> None:
    """The parking task receives the result at once."""
    observer = Doing(parked=lambda event: event.operation.force_complete())
    async with Purgatory[Op]("events", clock=clock, observers=[observer]) as purgatory:
        assert await purgatory.park(Op(5, name="x"), ["key"]) == "x"
        operation = Op(5, name="y")
        assert purgatory.try_complete_else_watch(operation, ["key"])
        check(purgatory, parked=0, num_delayed=0, completed=2)


@pytest.mark.parametrize("ending", ["completed", "expired", "cancelled", "failed"])
def test_an_observer_may_check(ending: str) -> None:
    """A check from any event completes the operations whose condition holds, before the causing call returns."""
    clock = ManualClock(1_000_000)
    room: QuietPurgatory
    observer = Doing(**{ending: lambda _: room.check_and_complete("other")})
    room = make_purgatory(clock, observers=[observer])
    other = park_named(room, "other", "other")
    other.ready = True
    operation = park_named(room, "x", timeout=1)
    match ending:
        case "completed":
            operation.force_complete()
        case "expired":
            pass_time(clock, room, 1000)
        case "cancelled":
            operation.cancel()
        case _:
            room.fail_for_key("key", Boom())
    assert other.outcome is Outcome.COMPLETED
    room._check()


def test_an_observer_may_park_another_operation() -> None:
    """Each ending parks a new operation, a hundred times, without nesting."""
    clock = ManualClock(1_000_000)

    def next_one(event: Event) -> None:
        number = int(event.operation.name) + 1
        if number < 100:
            park_named(room, str(number), timeout=1)

    observer = Doing(expired=next_one)
    room = make_purgatory(clock, observers=[observer])
    park_named(room, "0", timeout=1)
    pass_time(clock, room, 99_000)
    assert len(room) == 1
    pass_time(clock, room, 1000)
    check(room, parked=0, expired=100)


def test_an_observer_may_extend_the_operation_just_parked() -> None:
    """An operation that an observer extends expires at the new deadline."""
    clock = ManualClock(1_000_000)
    observer = Doing(parked=lambda event: event.operation.extend(5))
    room = make_purgatory(clock, observers=[observer])
    operation = park_named(room, "x", timeout=1)
    pass_time(clock, room, 4999)
    assert operation.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert operation.outcome is Outcome.EXPIRED


def test_a_long_chain_of_completions_by_observers() -> None:
    """Ten thousand operations, each completed by the observer of the previous one, use constant stack space."""

    def check_next(event: Event) -> None:
        room.check_and_complete(int(event.operation.name) + 1)

    room = make_purgatory(ManualClock(), observers=[Doing(completed=check_next)])
    for number in range(10_000):
        park_named(room, str(number), number).ready = True
    assert room.check_and_complete(0) == 10_000
    check(room, parked=0, completed=10_000)


def test_the_events_an_observer_causes_follow_the_current_event() -> None:
    """If one observer ends an operation at its parked event, the next observer receives both events in order."""

    class Meddler(Observer):
        def parked(self, event: Event) -> None:
            event.operation.cancel()

        def cancelled(self, event: Event) -> None:
            if event.keys == ("a",):
                room.try_complete_else_watch(Op(timeout=1.0), ["b"])

    recorder = Recorder()
    room = make_purgatory(ManualClock(), observers=[Meddler(), recorder])
    room.try_complete_else_watch(Op(timeout=1.0), ["a"])
    seen = [(method, event.keys) for (method, _), event in zip(recorder.events, recorder.seen, strict=True)]
    assert seen == [("parked", ("a",)), ("cancelled", ("a",)), ("parked", ("b",)), ("cancelled", ("b",))]
    check(room, parked=0, cancelled=2)


async def test_an_observer_may_park_and_complete(clock: VirtualClock) -> None:
    """An observer may use the purgatory that calls it."""

    class Actor(Observer):
        def parked(self, event: Any) -> None:
            if event.operation.name == "at once":
                event.operation.force_complete()

        def completed(self, event: Any) -> None:
            if event.operation.name == "first":
                purgatory.try_complete_else_watch(Op(5, name="second"), ["b"])
                purgatory.check_and_complete("a")

    async with Purgatory[Op]("test", clock=clock, observers=[Actor()]) as purgatory:
        first, third = Op(5, name="first"), Op(5, name="third")
        for op in (first, third):
            purgatory.try_complete_else_watch(op, ["a"])
            op.ready = True
        assert purgatory.check_and_complete("a") == 2
        check(purgatory, parked=1, completed=2)
        at_once = Op(5, name="at once")
        assert purgatory.try_complete_else_watch(at_once, ["a"])
        assert await at_once == "at once"
        waiting = Op(5, name="at once")
        assert await purgatory.park(waiting, ["a"]) == "at once"
        check(purgatory, parked=1, completed=4)


# Which methods


async def test_only_the_methods_of_an_observer_are_called(clock: VirtualClock) -> None:
    """An observer may have any of the methods, inherited from ``Observer`` or not; the others are not called."""

    class Ends:
        def __init__(self) -> None:
            self.names: list[str] = []

        def expired(self, event: Event) -> None:
            self.names.append(event.operation.name)

    class Parks(Observer):
        def __init__(self) -> None:
            self.names: list[str] = []

        def parked(self, event: Event) -> None:
            self.names.append(event.operation.name)

    ends, parks = Ends(), Parks()
    async with Purgatory[Op]("events", clock=clock, observers=[ends, parks]) as purgatory:  # type: ignore[list-item]
        park_named(purgatory, "a", timeout=1)
        park_named(purgatory, "b").cancel()
        await clock.advance(1)
    assert (ends.names, parks.names) == (["a"], ["a", "b"])


def test_methods_that_are_not_overridden_are_not_called() -> None:
    """Only the overridden method is registered, though the others are inherited."""

    class One(Observer):
        def cancelled(self, event: Event) -> None:
            pass

    notifier = Purgatory[Op]("one", observers=[One()])._core._notifier
    assert [len(methods) for methods in notifier._methods] == [0, 0, 0, 1, 0, 0]


def test_the_observers_are_listed_once_each() -> None:
    """Those with methods and those with a buffer, whether they were given to the purgatory or attached later."""

    class Buffer(RecordBuffer):
        def flush(self) -> None:
            """Keep the values."""

    given = [Polite(), Buffer(), Buffer(), Recorder()]
    notifier = make_purgatory(ManualClock(), observers=given)._core._notifier
    attached = Recorder()
    notifier.attach(attached)
    listed = notifier.observers()
    assert len(listed) == 5
    assert {id(observer) for observer in listed} == {id(observer) for observer in [*given, attached]}
    for observer in given:
        notifier.detach(observer)
    assert notifier.observers() == [attached]


def test_an_override_may_call_the_overridden_method() -> None:
    """The methods of the protocol do nothing, and a subclass may call them."""
    clock = ManualClock(1_000_000)
    observer = Polite()
    room = make_purgatory(clock, observers=[observer])
    park_named(room, "x").force_complete()
    park_named(room, "x", timeout=1)
    pass_time(clock, room, 1000)
    park_named(room, "x").cancel()
    park_named(room, "x")
    room.fail_for_key("key", Boom())
    check(room, completed=1, expired=1, cancelled=1, failed=1)
    assert observer.received == 8


def test_an_observer_without_methods_is_refused() -> None:
    """The error lists the available methods."""

    class Deaf(Observer):
        pass

    with pytest.raises(
        TypeError,
        match="an observer must have one of the methods parked, completed, expired",
    ):
        Purgatory[Op]("deaf", observers=[Deaf()])


async def test_an_observer_may_use_the_purgatory_to_which_it_is_attached(clock: VirtualClock) -> None:
    """The purgatory is complete when the observer receives it."""

    class Guest(Observer):
        def completed(self, event: Event) -> None:
            """Ignore the event."""

        def attached(self, purgatory: Purgatory[Any]) -> None:
            self.changes = purgatory.changes(["a"])
            purgatory.check_soon("a")
            purgatory.check_all()
            with pytest.raises(RuntimeError, match="belongs to no event loop yet"):
                purgatory.check_threadsafe("a")

    guest = Guest()
    async with Purgatory[Any]("test", clock=clock, observers=[guest]), guest.changes as changes:
        assert await anext(changes) == "a"
