"""``parked_events``: the events of the operations that wait."""

from purgatory import Event, Outcome, Purgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op, Recorder, park_named


async def test_parked_events_equal_the_original_events(clock: VirtualClock) -> None:
    """The event made on demand equals the parked event, also for an operation that is due at once."""
    recorder = Recorder()
    async with Purgatory[Op]("late", clock=clock, observers=[recorder]) as purgatory:
        park_named(purgatory, "due", "a", timeout=0)
        park_named(purgatory, "for ever", "b", "c")
        park_named(purgatory, "soon", "b", timeout=0.001)
        for event, original in zip(purgatory.parked_events(), recorder.seen, strict=True):
            for field in Event.__slots__:
                assert getattr(event, field) == getattr(original, field), field
            assert event.outcome is Outcome.PENDING
            assert event.finished_ms is None
        assert [event.deadline_ms for event in recorder.seen] == [1_000_000, None, 1_000_001]
