"""Observers: what they are told, when, and that whatever they do harms nobody."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from purgatory import Event, Observer, Outcome, Purgatory, PurgatoryFull
from purgatory.testing import VirtualClock
from tests.helpers import Boom, Op, Recorder, check


class Doing(Observer):
    """Does something at a kind of event, and writes down the events it saw."""

    def __init__(self, **actions: Callable[[Event], object]) -> None:
        self.actions = actions
        self.seen: list[tuple[str, str]] = []

    def _act(self, method: str, event: Event) -> None:
        self.seen.append((method, event.operation.name))
        action = self.actions.get(method)
        if action is not None:
            action(event)

    def parked(self, event: Event) -> None:
        self._act("parked", event)

    def completed(self, event: Event) -> None:
        self._act("completed", event)

    def expired(self, event: Event) -> None:
        self._act("expired", event)

    def cancelled(self, event: Event) -> None:
        self._act("cancelled", event)

    def failed(self, event: Event) -> None:
        self._act("failed", event)


def park(purgatory: Purgatory[Op], name: str, *keys: Hashable, **arguments: Any) -> Op:
    operation = Op(name=name, **arguments)
    purgatory.try_complete_else_watch(operation, keys or ["key"])
    return operation


class Polite(Observer):
    """Overrides everything, and calls what it overrides."""

    def __init__(self) -> None:
        self.heard = 0

    def parked(self, event: Event) -> None:
        super().parked(event)
        self.heard += 1

    def completed(self, event: Event) -> None:
        super().completed(event)
        self.heard += 1

    def expired(self, event: Event) -> None:
        super().expired(event)
        self.heard += 1

    def cancelled(self, event: Event) -> None:
        super().cancelled(event)
        self.heard += 1

    def failed(self, event: Event) -> None:
        super().failed(event)
        self.heard += 1


# What they are told


async def test_an_event_tells_the_whole_wait(clock: VirtualClock) -> None:
    """Operation, purgatory, keys in their order, times on the purgatory's clock, wait and lateness."""
    recorder = Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[recorder]) as purgatory:
        await clock.advance(5)
        operation = park(purgatory, "x", "b", "a", "b", timeout=2)
        await clock.advance(2)
    parked, expired = recorder.seen
    assert (parked.operation, parked.purgatory, parked.op_id, parked.kind) == (operation, "events", 1, "Op")
    assert (parked.keys, expired.keys) == (("b", "a"), ("b", "a"))
    assert (parked.parked_ms, parked.deadline_ms, parked.finished_ms) == (1_005_000, 1_007_000, None)
    assert (expired.parked_ms, expired.deadline_ms, expired.finished_ms) == (1_005_000, 1_007_000, 1_007_000)
    assert (parked.wait, parked.lateness, parked.deadline) == (None, None, 1007.0)
    assert (expired.wait, expired.lateness, expired.finished_at) == (2.0, 0.0, 1007.0)
    assert (parked.outcome, expired.outcome) == (Outcome.PENDING, Outcome.EXPIRED)


async def test_lateness_is_what_the_loop_was_busy(clock: VirtualClock) -> None:
    """The time from the deadline to the expiry; none for one that is expired early by closing."""
    recorder = Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[recorder]) as purgatory:
        park(purgatory, "late", timeout=1)
        park(purgatory, "early", timeout=60)
        clock._now_ns += 1_250_000_000  # the loop was busy: nobody looked at the clock
        await clock.settle()
        purgatory.timer.expire_due(clock.now_ms())
    late, early = (event for event in recorder.seen if event.outcome is Outcome.EXPIRED)
    assert (late.lateness, late.wait) == (0.25, 1.25)
    assert early.lateness is None


async def test_an_extended_deadline_is_the_one_that_is_told(clock: VirtualClock) -> None:
    """At the end, not the deadline with which it came."""
    recorder = Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[recorder]) as purgatory:
        park(purgatory, "later", timeout=1).extend(3)
        park(purgatory, "never", timeout=1).extend(None)
        await clock.advance(3)
        purgatory.cancel_for_key("key")
    assert [event.deadline for event in recorder.seen] == [1001.0, 1001.0, 1003.0, None]


async def test_the_result_can_be_read_and_the_books_are_closed(clock: VirtualClock) -> None:
    """When an observer hears of an end, the operation has its outcome and has left the room."""
    found: list[Any] = []

    def look(event: Event) -> None:
        found.append((event.operation.result(), event.operation.keys, len(purgatory)))
        assert purgatory.statistics().parked == 0

    async with Purgatory[Op]("events", clock=clock, observers=[Doing(completed=look)]) as purgatory:
        park(purgatory, "x").force_complete()
        park(purgatory, "y", ready=True)
    assert found == [("x", (), 0), ("y", (), 0)]


async def test_only_what_is_heard_is_told(clock: VirtualClock) -> None:
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
        park(purgatory, "a", timeout=1)
        park(purgatory, "b").cancel()
        await clock.advance(1)
    assert (ends.names, parks.names) == (["a"], ["a", "b"])


async def test_what_was_refused_is_not_told(clock: VirtualClock) -> None:
    """An operation that found no room, or bad keys, has had no life here."""
    recorder = Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[recorder], max_parked=1) as purgatory:
        park(purgatory, "in")
        with pytest.raises(PurgatoryFull):
            park(purgatory, "out")
        with pytest.raises(TypeError):
            purgatory.try_complete_else_watch(Op(name="bad"), [[]])  # type: ignore[list-item]
        assert recorder.events == [("parked", "in")]


async def test_one_that_ends_in_its_first_try_was_never_parked(clock: VirtualClock) -> None:
    """It is told with no keys and no wait, whichever way it ended."""
    recorder = Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[recorder]) as purgatory:

        def boom(_: Op) -> None:
            raise Boom

        park(purgatory, "completed", ready=True)
        park(purgatory, "cancelled", on_try=lambda operation: operation.cancel())
        with pytest.raises(Boom):
            park(purgatory, "failed", on_try=boom)
    assert recorder.events == [(name, name) for name in ("completed", "cancelled", "failed")]
    assert {(event.keys, event.wait) for event in recorder.seen} == {((), 0.0)}


# What they may do


async def test_one_that_cancels_what_is_being_parked(clock: VirtualClock) -> None:
    """Whoever parks gets the answer of a withdrawn operation, and nothing is left."""
    observer = Doing(parked=lambda event: event.operation.cancel())
    async with Purgatory[Op]("events", clock=clock, observers=[observer]) as purgatory:
        operation = park(purgatory, "x", timeout=5)
        assert operation.outcome is Outcome.CANCELLED
        with pytest.raises(Exception, match="withdrawn"):
            await purgatory.park(Op(5, name="y"), ["key"])
        check(purgatory, parked=0, watched=0, num_delayed=0, cancelled=2)
    assert observer.seen == [("parked", "x"), ("cancelled", "x"), ("parked", "y"), ("cancelled", "y")]


async def test_one_that_completes_what_is_being_parked(clock: VirtualClock) -> None:
    """The answer is there at once."""
    observer = Doing(parked=lambda event: event.operation.force_complete())
    async with Purgatory[Op]("events", clock=clock, observers=[observer]) as purgatory:
        assert await purgatory.park(Op(5, name="x"), ["key"]) == "x"
        operation = Op(5, name="y")
        assert purgatory.try_complete_else_watch(operation, ["key"])
        check(purgatory, parked=0, num_delayed=0, completed=2)


@pytest.mark.parametrize("ending", ["completed", "expired", "cancelled", "failed"])
async def test_one_that_checks(clock: VirtualClock, ending: str) -> None:
    """A check from any event completes whose condition holds, before the call that caused it returns."""
    purgatory: Purgatory[Op]
    observer = Doing(**{ending: lambda _: purgatory.check_and_complete("other")})
    async with Purgatory[Op]("events", clock=clock, observers=[observer]) as purgatory:
        other = park(purgatory, "other", "other")
        other.ready = True
        operation = park(purgatory, "x", timeout=1)
        match ending:
            case "completed":
                operation.force_complete()
            case "expired":
                await clock.advance(1)
            case "cancelled":
                operation.cancel()
            case _:
                purgatory.fail_for_key("key", Boom())
        assert other.outcome is Outcome.COMPLETED
        purgatory._check()


async def test_one_that_parks_another(clock: VirtualClock) -> None:
    """For each end a new beginning, a hundred times over, without nesting."""

    def next_one(event: Event) -> None:
        number = int(event.operation.name) + 1
        if number < 100:
            park(purgatory, str(number), timeout=1)

    observer = Doing(expired=next_one)
    async with Purgatory[Op]("events", clock=clock, observers=[observer]) as purgatory:
        park(purgatory, "0", timeout=1)
        await clock.advance(99)
        assert len(purgatory) == 1
        await clock.advance(1)
        check(purgatory, parked=0, expired=100)


async def test_one_that_extends_what_has_just_been_parked(clock: VirtualClock) -> None:
    """The deadline it gives holds."""
    observer = Doing(parked=lambda event: event.operation.extend(5))
    async with Purgatory[Op]("events", clock=clock, observers=[observer]) as purgatory:
        operation = park(purgatory, "x", timeout=1)
        await clock.advance(4.999)
        assert operation.outcome is Outcome.PENDING
        await clock.advance(0.001)
        assert operation.outcome is Outcome.EXPIRED


async def test_a_long_chain_of_completions_by_observers(clock: VirtualClock) -> None:
    """Ten thousand operations, each completed by the observer of the one before: constant stack, all counted."""

    def check_next(event: Event) -> None:
        purgatory.check_and_complete(int(event.operation.name) + 1)

    async with Purgatory[Op]("events", clock=clock, observers=[Doing(completed=check_next)]) as purgatory:
        for number in range(10_000):
            park(purgatory, str(number), number).ready = True
        assert purgatory.check_and_complete(0) == 10_000
        check(purgatory, parked=0, completed=10_000)


# One that raises


@pytest.mark.parametrize("method", ["parked", "completed", "expired", "cancelled", "failed"])
async def test_wherever_it_raises_the_operation_is_not_touched(
    clock: VirtualClock, reported: list[dict[str, Any]], method: str
) -> None:
    """It is detached from every event, reported once and counted; the others hear everything."""

    def boom(_: Event) -> None:
        raise Boom

    bad, recorder = Doing(**{method: boom}), Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[bad, recorder]) as purgatory:
        for _ in range(2):
            completed = park(purgatory, "completed", timeout=1)
            cancelled = park(purgatory, "cancelled")
            park(purgatory, "failed", "bad")
            expired = park(purgatory, "expired", timeout=1)
            assert completed.force_complete()
            assert cancelled.cancel()
            assert purgatory.fail_for_key("bad", Boom()) == 1
            await clock.advance(1)
            assert expired.outcome is Outcome.EXPIRED
        check(purgatory, parked=0, watched=0, num_delayed=0, observers_detached=1)
        assert not purgatory._desk._hearing._leaving
    assert len(recorder.events) == 16
    (context,) = reported
    assert context["observer"] is bad
    assert "observer of purgatory 'events'" in context["message"]
    assert [seen for seen, _ in bad.seen].count(method) == 1
    assert bad.seen[-1][0] == method


async def test_two_that_raise_at_the_same_event(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """Each is told once, each is detached."""

    def boom(_: Event) -> None:
        raise Boom

    first, second = Doing(completed=boom), Doing(completed=boom)
    async with Purgatory[Op]("events", clock=clock, observers=[first, second]) as purgatory:
        park(purgatory, "x").force_complete()
        park(purgatory, "y").force_complete()
        check(purgatory, completed=2, observers_detached=2)
    assert [context["observer"] for context in reported] == [first, second]
    assert first.seen == second.seen == [("parked", "x"), ("completed", "x")]


async def test_detached_in_a_nested_event(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """One that completes another operation, at whose event it raises: it is out, and neither operation minds."""
    victims: list[Op] = []

    def nest(event: Event) -> None:
        if event.operation.name == "outer":
            victims[0].force_complete()
        else:
            raise Boom

    bad, recorder = Doing(completed=nest), Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[bad, recorder]) as purgatory:
        victims.append(park(purgatory, "inner"))
        outer = park(purgatory, "outer")
        assert outer.force_complete()
        assert victims[0].outcome is Outcome.COMPLETED
        check(purgatory, parked=0, completed=2, observers_detached=1)
    assert [name for method, name in recorder.events if method == "completed"] == ["outer", "inner"]
    assert len(reported) == 1


async def test_awaiters_are_answered_though_every_observer_raises(
    clock: VirtualClock, reported: list[dict[str, Any]]
) -> None:
    """The answer does not wait for the telling."""

    def boom(_: Event) -> None:
        raise Boom

    async with Purgatory[Op]("events", clock=clock, observers=[Doing(completed=boom)]) as purgatory:
        operation = Op(5, name="answer")
        task = asyncio.ensure_future(purgatory.park(operation, ["key"]))
        await asyncio.sleep(0)
        operation.force_complete()
        assert await task == "answer"
    assert len(reported) == 1


async def test_an_override_may_call_what_it_overrides(clock: VirtualClock) -> None:
    """The methods of the protocol do nothing, and are there to be called by a subclass."""
    observer = Polite()
    async with Purgatory[Op]("polite", clock=clock, observers=[observer]) as purgatory:
        park(purgatory, "x").force_complete()
        park(purgatory, "x", timeout=1)
        await clock.advance(1)
        park(purgatory, "x").cancel()
        park(purgatory, "x")
        purgatory.fail_for_key("key", Boom())
        check(purgatory, completed=1, expired=1, cancelled=1, failed=1)
    assert observer.heard == 8


async def test_who_ends_within_another_is_told_with_its_own_keys(clock: VirtualClock) -> None:
    """Three endings, each in the callback of the one before: every event names the keys and times of its operation."""
    recorder = Recorder()
    async with Purgatory[Op]("nested", clock=clock, observers=[recorder]) as purgatory:
        third = park(purgatory, "third", "e", "f")
        await clock.advance(1)
        second = park(purgatory, "second", "c", "d", on_complete=lambda _: third.cancel())
        first = park(purgatory, "first", "a", "b", on_complete=lambda _: second.force_complete())
        await clock.advance(1)
        first.force_complete()
        ended = {event.operation.name: event for event in recorder.seen[3:]}
        assert {name: event.keys for name, event in ended.items()} == {
            "first": ("a", "b"),
            "second": ("c", "d"),
            "third": ("e", "f"),
        }
        assert {name: event.wait for name, event in ended.items()} == {"first": 1, "second": 1, "third": 2}
        check(purgatory, parked=0, completed=2, cancelled=1)


async def test_one_detached_in_the_midst_leaves_the_other_in_order(clock: VirtualClock) -> None:
    """While an ending runs within another an observer is detached; the other one is told of both as if nothing was."""

    def fail(_: Event) -> None:
        raise Boom

    recorder = Recorder()
    observers = [Doing(cancelled=fail), recorder]
    async with Purgatory[Op]("detached", clock=clock, observers=observers) as purgatory:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        inner = park(purgatory, "inner", "a", "b")
        outer = park(purgatory, "outer", "c", "d", on_complete=lambda _: inner.cancel())
        outer.force_complete()
        ended = [(event.operation.name, event.keys) for event in recorder.seen[2:]]
        assert ended == [("inner", ("a", "b")), ("outer", ("c", "d"))]
        assert purgatory.statistics().observers_detached == 1


async def test_the_deadline_in_an_event_is_that_on_the_timer(clock: VirtualClock) -> None:
    """For who waited it is rounded up to the tick, or moved; for who never did it is what it would have been."""
    recorder = Recorder()
    async with Purgatory[Op]("ticks", clock=clock, tick_ms=20, observers=[recorder]) as purgatory:
        park(purgatory, "waited", timeout=0.005).force_complete()
        park(purgatory, "moved", timeout=0.005).extend(1)
        purgatory.cancel_for_key("key")
        park(purgatory, "at once", timeout=0.005, ready=True)
        outer = park(purgatory, "outer", on_complete=lambda _: inner.cancel())
        inner = park(purgatory, "inner", timeout=0.005)
        outer.force_complete()
    ended = {event.operation.name: event for event in recorder.seen if event.outcome is not Outcome.PENDING}
    parked_ms = 1_000_000
    assert {name: event.deadline_ms for name, event in ended.items()} == {
        "waited": parked_ms + 20,
        "moved": parked_ms + 1000,
        "at once": parked_ms + 5,
        "inner": parked_ms + 20,
        "outer": None,
    }


async def test_the_event_of_one_that_waits_tells_all_there_is(clock: VirtualClock) -> None:
    """Asked for afterwards it says what the parked event said: also for one that is due at once."""
    recorder = Recorder()
    async with Purgatory[Op]("late", clock=clock, observers=[recorder]) as purgatory:
        park(purgatory, "due", "a", timeout=0)
        park(purgatory, "for ever", "b", "c")
        park(purgatory, "soon", "b", timeout=0.001)
        for event, told in zip(purgatory.parked_events(), recorder.seen, strict=True):
            for field in Event.__slots__:
                assert getattr(event, field) == getattr(told, field), field
            assert event.outcome is Outcome.PENDING
            assert event.finished_ms is None
        assert [event.deadline_ms for event in recorder.seen] == [1_000_000, None, 1_000_001]


async def test_only_a_failure_has_an_error(clock: VirtualClock) -> None:
    """The result of a completed operation is no error, and neither is a withdrawal."""
    recorder = Recorder()
    async with Purgatory[Op]("errors", clock=clock, observers=[recorder]) as purgatory:
        park(purgatory, "result").force_complete()
        park(purgatory, "withdrawn").cancel()
        boom = Boom()
        park(purgatory, "failed")
        purgatory.fail_for_key("key", boom)
    assert [event.error for event in recorder.seen[1::2]] == [None, None, boom]


def test_an_observer_that_overrides_nothing_is_none() -> None:
    """It would never hear anything: an error says so, and names the methods that there are."""

    class Deaf(Observer):
        pass

    with pytest.raises(TypeError, match="is no observer: it has none of the methods parked, completed, expired"):
        Purgatory[Op]("deaf", observers=[Deaf()])


def test_what_nobody_hears_is_not_told() -> None:
    """Of an observer that overrides one method the others are not called, though they are inherited."""

    class One(Observer):
        def cancelled(self, event: Event) -> None:
            pass

    hearing = Purgatory[Op]("one", observers=[One()])._desk._hearing
    assert [len(told) for told in hearing._tell] == [0, 0, 0, 1, 0]


async def test_what_an_observer_does_is_told_after_what_it_was_told_of(clock: VirtualClock) -> None:
    """One observer ends the operation when it hears of its parking: the next one hears of both in their order."""

    class Meddler(Observer):
        def parked(self, event: Event) -> None:
            event.operation.cancel()

        def cancelled(self, event: Event) -> None:
            if event.keys == ("a",):
                purgatory.try_complete_else_watch(Op(timeout=1.0), ["b"])

    recorder = Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[Meddler(), recorder]) as purgatory:
        purgatory.try_complete_else_watch(Op(timeout=1.0), ["a"])
        told = [(method, event.keys) for (method, _), event in zip(recorder.events, recorder.seen, strict=True)]
        assert told == [("parked", ("a",)), ("cancelled", ("a",)), ("parked", ("b",)), ("cancelled", ("b",))]
        check(purgatory, parked=0, cancelled=2)


async def test_a_timeout_of_nothing_is_a_deadline(clock: VirtualClock) -> None:
    """Zero seconds is a deadline at the moment of parking; only None is none."""
    recorder = Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[recorder]) as purgatory:
        for timeout in (0.0, 0.001, None):
            purgatory.try_complete_else_watch(Op(timeout), ["a"])
        purgatory.cancel_for_key("a")
    cancelled = [event for (method, _), event in zip(recorder.events, recorder.seen, strict=True) if method != "parked"]
    deadlines = [None if event.deadline_ms is None else event.deadline_ms - event.parked_ms for event in cancelled]
    assert deadlines == [0, 1, None]


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


async def test_they_hear_every_ending_once(clock: VirtualClock) -> None:
    """parked and one ending for each operation that waited; only completed for one that never did."""
    recorder = Recorder()
    async with Purgatory[Op]("test", clock=clock, observers=[recorder]) as purgatory:
        purgatory.try_complete_else_watch(Op(5, name="now", ready=True), ["a"])
        ops = {name: Op(5, name=name) for name in ("completed", "cancelled", "failed", "expired")}
        for op in ops.values():
            purgatory.try_complete_else_watch(op, [op.name, "all"])
        ops["completed"].ready = True
        await clock.advance(1)
        purgatory.check_and_complete("completed")
        ops["cancelled"].cancel()
        purgatory.fail_for_key("failed", Boom())
        await clock.advance(4)
    assert recorder.events == [
        ("completed", "now"),
        *[("parked", name) for name in ops],
        ("completed", "completed"),
        ("cancelled", "cancelled"),
        ("failed", "failed"),
        ("expired", "expired"),
    ]
    expired = recorder.seen[-1]
    assert expired.keys == ("expired", "all")
    assert (expired.wait, expired.lateness, expired.parked_at) == (5.0, 0.0, 1000.0)
    assert (expired.deadline, expired.finished_at, expired.kind) == (1005.0, 1005.0, "Op")
    failed = recorder.seen[-2]
    assert isinstance(failed.error, Boom)
    assert failed.lateness is None
    now = recorder.seen[0]
    assert (now.keys, now.wait) == ((), 0.0)
    parked = recorder.seen[1]
    assert (parked.wait, parked.finished_at, parked.outcome) == (None, None, Outcome.PENDING)
    assert repr(failed) == "<Event failed Op #4 of 'test' on ['failed', 'all']>"


@pytest.mark.parametrize("error", [Boom(), asyncio.CancelledError()])
async def test_one_that_raises_is_detached_and_reported(
    clock: VirtualClock, reported: list[dict[str, Any]], error: BaseException
) -> None:
    """It hears nothing more, the operation and the other observers are not touched."""

    class Bad(Observer):
        heard = 0

        def completed(self, event: Any) -> None:
            self.heard += 1
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
    assert bad.heard == 1
    assert [method for method, _ in recorder.events] == ["parked", "completed"] * 2
    (context,) = reported
    assert context["exception"] is error
    assert context["observer"] is bad


async def test_the_last_one_detached_leaves_nothing(clock: VirtualClock, reported: list[dict[str, Any]]) -> None:
    """When the only observer goes while an operation is being completed, no trace of that operation stays."""

    class Bad(Observer):
        def cancelled(self, event: Any) -> None:
            raise Boom

    async with Purgatory[Op]("test", clock=clock, observers=[Bad()]) as purgatory:
        victim = Op(5)
        op = Op(5, on_complete=lambda _: victim.cancel() or None)
        for waiting in (victim, op):
            purgatory.try_complete_else_watch(waiting, ["a"])
        assert op.force_complete()
        assert not purgatory._desk._hearing._leaving
    assert len(reported) == 1
