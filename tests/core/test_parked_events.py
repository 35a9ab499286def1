"""``parked_events``: the events of the operations that wait."""

from purgatory import Event, Outcome
from purgatory.testing import ManualClock
from tests.helpers import Recorder, park_named
from tests.sansio import make_purgatory


def test_parked_events_equal_the_original_events() -> None:
    """The event made on demand equals the parked event, also for an operation that is due at once."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(1_000_000), observers=[recorder])
    park_named(room, "due", "a", timeout=0)
    park_named(room, "for ever", "b", "c")
    park_named(room, "soon", "b", timeout=0.001)
    for event, original in zip(room.parked_events(), recorder.seen, strict=True):
        for field in Event.__slots__:
            assert getattr(event, field) == getattr(original, field), field
        assert event.outcome is Outcome.PENDING
        assert event.finished_ms is None
    assert [event.deadline_ms for event in recorder.seen] == [1_000_000, None, 1_000_001]
