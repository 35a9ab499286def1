"""A purgatory without a loop, as an object."""

from purgatory.testing import ManualClock
from tests.sansio import make_purgatory


def test_an_idle_purgatory_is_true() -> None:
    """Code such as ``given or make_purgatory()`` uses the purgatory that it was given, although its length is 0."""
    room = make_purgatory(ManualClock())
    assert len(room) == 0
    assert room
