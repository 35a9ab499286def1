"""``expired_by_closing``: an operation that ends because its purgatory closes, as opposed to one at its deadline."""

import asyncio

from purgatory import Event, Observer, Outcome, Purgatory
from purgatory.core.operation.lifecycle import EXPIRED, EXPIRED_BY_CLOSING
from purgatory.core.stats.record_buffer import RecordBuffer
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op, check
from tests.sansio import make_purgatory


class Endings(Observer):
    """Keeps the events of expired operations."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def expired(self, event: Event) -> None:
        self.events.append(event)


class States(RecordBuffer):
    """Keeps the states of records."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[int] = []

    def flush(self) -> None:
        self.states.append(self.values[0])
        self.values = []


async def test_a_deadline_and_closing_are_told_apart(clock: VirtualClock) -> None:
    """Both have expired; only the second one by closing, in the operation, its callbacks, events and statistics."""
    seen: list[tuple[str, bool, bool]] = []

    def note(op: Op) -> None:
        seen.append((op.name, op.expired, op.expired_by_closing))

    endings, states = Endings(), States()
    async with Purgatory[Op]("test", clock=clock, observers=[endings, states]) as purgatory:
        deadline, done, closing = (
            Op(timeout, name=name, on_complete=note, on_expiration=note)
            for timeout, name in ((1, "deadline"), (5, "done"), (5, "closing"))
        )
        for op in (deadline, done, closing):
            purgatory.try_complete_else_watch(op, ["a"])
        assert not closing.expired_by_closing
        await clock.advance(1)
        assert done.force_complete()
        check(purgatory, expired=1, expired_by_closing=0)
    check(purgatory, submitted=3, completed=1, expired=1, expired_by_closing=1, parked=0)
    assert seen == [
        ("deadline", True, False),
        ("deadline", True, False),
        ("done", False, False),
        ("closing", True, True),
        ("closing", True, True),
    ]
    assert [op.expired_by_closing for op in (deadline, done, closing)] == [False, False, True]
    assert (closing.outcome, closing.is_completed, closing.result()) == (Outcome.EXPIRED, True, "closing")
    assert repr(closing) == "<Op EXPIRED by closing timeout=5>"
    assert [(event.operation.name, event.outcome, event.expired_by_closing) for event in endings.events] == [
        ("deadline", Outcome.EXPIRED, False),
        ("closing", Outcome.EXPIRED, True),
    ]
    assert [event.lateness for event in endings.events] == [0.0, None]
    assert states.states == [EXPIRED, 1, EXPIRED_BY_CLOSING]


async def test_a_deadline_within_the_grace_is_a_deadline(purgatory: Purgatory[Op], clock: VirtualClock) -> None:
    """What ends while the purgatory closes with grace ends as usual."""
    within, beyond = Op(1), Op(10)
    for op in (within, beyond):
        purgatory.try_complete_else_watch(op, ["a"])
    closing = asyncio.create_task(purgatory.aclose(grace=5))
    await clock.advance(5)
    await closing
    assert (within.expired, within.expired_by_closing) == (True, False)
    assert (beyond.expired, beyond.expired_by_closing) == (True, True)
    assert purgatory.statistics().lateness.count == 1


def test_an_operation_that_is_overdue_has_no_lateness() -> None:
    """An operation that closing ends after its deadline adds nothing to the lateness: the reaper was not late."""
    endings, clock = Endings(), ManualClock(1_000)
    room = make_purgatory(clock, observers=[endings])
    room.try_complete_else_watch(Op(1), ["a"])
    clock.time_ms += 5_000
    assert room._core.expire_some(10) == 1
    assert room.statistics().lateness.count == 0
    assert [event.lateness for event in endings.events] == [None]
