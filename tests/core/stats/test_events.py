"""The events that observers receive for each operation, with keys, times and outcome."""

from typing import Any

import pytest

from purgatory import Event, Outcome, Purgatory, PurgatoryFull
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Boom, Doing, Op, Recorder, check, park, park_named
from tests.sansio import make_purgatory, pass_time


def test_observers_receive_every_ending_once() -> None:
    """An operation that waits has a parked event and one ending; an operation that does not wait has one ending."""
    clock = ManualClock(1_000_000)
    recorder = Recorder()
    room = make_purgatory(clock, observers=[recorder])
    room.try_complete_else_watch(Op(5, name="now", ready=True), ["a"])
    ops = {name: Op(5, name=name) for name in ("completed", "cancelled", "failed", "expired")}
    for op in ops.values():
        room.try_complete_else_watch(op, [op.name, "all"])
    ops["completed"].ready = True
    pass_time(clock, room, 1000)
    room.check_and_complete("completed")
    ops["cancelled"].cancel()
    room.fail_for_key("failed", Boom())
    pass_time(clock, room, 4000)
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


def test_the_deadline_of_an_operation_without_time_to_wait() -> None:
    """The time at which it was parked, or would have been; without a timeout, there is no deadline."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(1_000_000), observers=[recorder])
    for timeout in (0, None):
        park_named(room, "ready", ready=True, timeout=timeout)
        park_named(room, "parked", timeout=timeout).cancel()
    assert [(method, event.deadline) for (method, _), event in zip(recorder.events, recorder.seen, strict=True)] == [
        *[(method, 1000.0) for method in ("completed", "parked", "cancelled")],
        *[(method, None) for method in ("completed", "parked", "cancelled")],
    ]


def test_an_event_has_the_whole_wait() -> None:
    """The event contains the operation, the purgatory, the ordered keys, the times, the wait and the lateness."""
    clock = ManualClock(1_000_000)
    recorder = Recorder()
    room = make_purgatory(clock, name="events", observers=[recorder])
    pass_time(clock, room, 5000)
    operation = park_named(room, "x", "b", "a", "b", timeout=2)
    pass_time(clock, room, 2000)
    parked, expired = recorder.seen
    assert (parked.operation, parked.purgatory, parked.op_id, parked.kind) == (operation, "events", 1, "Op")
    assert (parked.keys, expired.keys) == (("b", "a"), ("b", "a"))
    assert (parked.parked_ms, parked.deadline_ms, parked.finished_ms) == (1_005_000, 1_007_000, None)
    assert (expired.parked_ms, expired.deadline_ms, expired.finished_ms) == (1_005_000, 1_007_000, 1_007_000)
    assert (parked.wait, parked.lateness, parked.deadline) == (None, None, 1007.0)
    assert (expired.wait, expired.lateness, expired.finished_at) == (2.0, 0.0, 1007.0)
    assert (parked.outcome, expired.outcome) == (Outcome.PENDING, Outcome.EXPIRED)


def test_at_the_event_the_operation_has_ended_and_is_counted() -> None:
    """When an observer receives an ending, the operation has its outcome and has left the purgatory."""
    found: list[Any] = []

    def look(event: Event) -> None:
        found.append((event.operation.result(), event.operation.keys, len(room)))
        assert room.statistics().parked == 0

    room = make_purgatory(ManualClock(), observers=[Doing(completed=look)])
    park_named(room, "x").force_complete()
    park_named(room, "y", ready=True)
    assert found == [("x", (), 0), ("y", (), 0)]


def test_a_refused_operation_makes_no_event() -> None:
    """Observers receive nothing for an operation beyond a limit or with bad keys."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(), observers=[recorder], max_parked=1)
    park_named(room, "in")
    with pytest.raises(PurgatoryFull):
        park_named(room, "out")
    with pytest.raises(TypeError):
        room.try_complete_else_watch(Op(name="bad"), [[]])
    assert recorder.events == [("parked", "in")]


def test_an_operation_that_ends_in_its_first_try_was_never_parked() -> None:
    """The event of an operation that never waited has no keys and no wait, whatever its ending."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(), observers=[recorder])

    def boom(_: Op) -> None:
        raise Boom

    park_named(room, "completed", ready=True)
    park_named(room, "cancelled", on_try=lambda operation: operation.cancel())
    with pytest.raises(Boom):
        park_named(room, "failed", on_try=boom)
    assert recorder.events == [(name, name) for name in ("completed", "cancelled", "failed")]
    assert {(event.keys, event.wait) for event in recorder.seen} == {((), 0.0)}


def test_nested_endings_have_their_own_keys() -> None:
    """If each of three endings is in the callback of the previous one, each event has its own keys and times."""
    clock = ManualClock(1_000_000)
    recorder = Recorder()
    room = make_purgatory(clock, observers=[recorder])
    third = park_named(room, "third", "e", "f")
    pass_time(clock, room, 1000)
    second = park_named(room, "second", "c", "d", on_complete=lambda _: third.cancel())
    first = park_named(room, "first", "a", "b", on_complete=lambda _: second.force_complete())
    pass_time(clock, room, 1000)
    first.force_complete()
    ended = {event.operation.name: event for event in recorder.seen[3:]}
    assert {name: event.keys for name, event in ended.items()} == {
        "first": ("a", "b"),
        "second": ("c", "d"),
        "third": ("e", "f"),
    }
    assert {name: event.wait for name, event in ended.items()} == {"first": 1, "second": 1, "third": 2}
    check(room, parked=0, completed=2, cancelled=1)


def test_only_a_failure_has_an_error() -> None:
    """Only the event of a failed operation has an error."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(), observers=[recorder])
    park_named(room, "result").force_complete()
    park_named(room, "withdrawn").cancel()
    boom = Boom()
    park_named(room, "failed")
    room.fail_for_key("key", boom)
    assert [event.error for event in recorder.seen[1::2]] == [None, None, boom]


# Lateness and deadlines


async def test_lateness_is_the_time_the_loop_was_busy(clock: VirtualClock) -> None:
    """Lateness is the time from the deadline to the expiry; an operation that closing expires early has none."""
    recorder = Recorder()
    async with Purgatory[Op]("events", clock=clock, observers=[recorder]) as purgatory:
        park_named(purgatory, "late", timeout=1)
        park_named(purgatory, "early", timeout=60)
        clock._now_ns += 1_250_000_000  # the loop was busy: the clock was not read
        await clock.settle()
        purgatory.timer.expire_due(clock.now_ms())
    late, early = (event for event in recorder.seen if event.outcome is Outcome.EXPIRED)
    assert (late.lateness, late.wait) == (0.25, 1.25)
    assert early.lateness is None


def test_without_a_deadline_there_is_no_lateness() -> None:
    """An operation without a deadline whose ``run()`` other code calls expires, and is not late."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(), observers=[recorder])
    park_named(room, "endless").run()
    expired = recorder.seen[-1]
    assert expired.outcome is Outcome.EXPIRED
    assert (expired.deadline, expired.lateness, expired.expired_by_closing) == (None, None, False)


def test_an_event_has_the_extended_deadline() -> None:
    """The event of the ending contains the last deadline, not the first one."""
    clock = ManualClock(1_000_000)
    recorder = Recorder()
    room = make_purgatory(clock, observers=[recorder])
    park_named(room, "later", timeout=1).extend(3)
    park_named(room, "never", timeout=1).extend(None)
    pass_time(clock, room, 3000)
    room.cancel_for_key("key")
    assert [event.deadline for event in recorder.seen] == [1001.0, 1001.0, 1003.0, None]


def test_the_deadline_in_an_event_is_that_on_the_timer() -> None:
    """The event contains the rounded or moved deadline; if the operation never waited, the one it would have had."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(1_000_000), tick_ms=20, observers=[recorder])
    park_named(room, "waited", timeout=0.005).force_complete()
    park_named(room, "moved", timeout=0.005).extend(1)
    room.cancel_for_key("key")
    park_named(room, "at once", timeout=0.005, ready=True)
    inner: Op
    outer = park_named(room, "outer", on_complete=lambda _: inner.cancel())
    inner = park_named(room, "inner", timeout=0.005)
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


def test_an_absolute_deadline_is_in_the_event_of_an_operation_that_completes_at_once() -> None:
    """The operation was never on the timer, but it had a deadline all the same."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(1_000_000), observers=[recorder])
    op = Op(None, name="at once", ready=True)
    op.extend_to(1005.0)
    assert room.try_complete_else_watch(op, ["a"])
    (completed,) = recorder.seen
    assert (completed.outcome, completed.deadline) == (Outcome.COMPLETED, 1005.0)


def test_a_timeout_of_zero_is_a_deadline() -> None:
    """Zero seconds is a deadline at the time of parking; only None means no deadline."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(), observers=[recorder])
    for timeout in (0.0, 0.001, None):
        room.try_complete_else_watch(Op(timeout), ["a"])
    room.cancel_for_key("a")
    cancelled = [event for (method, _), event in zip(recorder.events, recorder.seen, strict=True) if method != "parked"]
    deadlines = [None if event.deadline_ms is None else event.deadline_ms - event.parked_ms for event in cancelled]
    assert deadlines == [0, 1, None]


def test_an_operation_does_not_finish_before_it_was_parked() -> None:
    """Within a millisecond, the rounded time of parking is not after the rounded time of the ending."""

    class Fraction(ManualClock):
        def ceil_ms(self) -> int:
            return self.time_ms + 1

    recorder = Recorder()
    room = make_purgatory(Fraction(1_000_000), observers=[recorder])
    operation = park(room, "a", name="x")
    operation.ready = True
    assert room.check_and_complete("a") == 1
    completed = recorder.seen[-1]
    assert completed.parked_ms == 1_000_001
    assert completed.finished_ms == 1_000_001


def test_two_purgatories_of_one_name_have_different_numbers() -> None:
    """``instance`` distinguishes them in events, and is the same in all events of one purgatory."""
    recorders = [Recorder(), Recorder()]
    for recorder in recorders:
        room = make_purgatory(ManualClock(0), observers=[recorder])
        for key in ("a", "b"):
            park(room, key).force_complete()
    first, second = ({event.instance for event in recorder.seen} for recorder in recorders)
    assert len(first) == len(second) == 1
    assert None not in first | second
    assert first != second
