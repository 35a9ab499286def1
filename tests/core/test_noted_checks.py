"""The notes of checks for an inspector: which keys are checked while it looks, and whether operations wait on them."""

from collections.abc import Hashable
from typing import Any

import pytest

from purgatory import Purgatory
from purgatory.core.purgatory import BasePurgatory
from purgatory.testing import VirtualClock
from tests.helpers import Op
from tests.sansio import QuietPurgatory


def note(room: BasePurgatory) -> list[tuple[Hashable, bool]]:
    """Begin to note the checks, and return the list that gets them."""
    noted: list[tuple[Hashable, bool]] = []
    room._core.queued.note_into(noted)
    return noted


async def test_every_check_is_noted_with_or_without_a_watcher(clock: VirtualClock) -> None:
    """Parking, ending, and closing do not end the notes; nested, coalesced and limited checks are noted as well."""
    async with Purgatory[Any]("test", clock=clock) as room:
        room.check("before")
        noted = note(room)
        room.try_complete_else_watch(Op(None), ["a"])
        room.check("a")
        room.check("b")
        room.try_complete_else_watch(nested := Op(5.0, on_complete=lambda _: room.check("c")), ["d"])
        nested.force_complete()
        room.check_soon("a")
        room.check_soon("e")
        await clock.settle()
        room.check("a", limit=1)
        room.try_complete_else_watch(Op(1.0), ["f"])
        await clock.advance(2.0)
        room.check(("g", 1), 7)
        assert noted == [
            ("a", True), ("b", False), ("c", False), ("a", True), ("e", False), ("a", True), (("g", 1), False),
        ]  # fmt: skip
        room._check()
        room._core.queued.end_notes()
        room.check("after")
        assert len(noted) == 7


def test_the_notes_are_bounded(room: QuietPurgatory) -> None:
    """After a thousand checks, no more are noted until the next call."""
    noted = note(room)
    for number in range(1500):
        room.check(number)
    assert len(noted) == 1000
    assert room._core.queued.busy == 0
    noted = note(room)
    room.check("a")
    assert noted == [("a", False)]


@pytest.mark.parametrize("begin", [True, False])
def test_notes_that_begin_or_end_in_a_callback(room: QuietPurgatory, begin: bool) -> None:
    """Queued checks stay queued, and the purgatory is as it should be afterwards."""
    noted: list[tuple[Hashable, bool]] = []
    if not begin:
        room._core.queued.note_into(noted)

    def callback(_: Op) -> None:
        if begin:
            room._core.queued.note_into(noted)
        else:
            room._core.queued.end_notes()
        assert room.check("b") == 0

    room.try_complete_else_watch(ready := Op(5.0, on_complete=callback), ["a"])
    room.try_complete_else_watch(other := Op(5.0), ["b"])
    ready.ready = other.ready = True
    assert room.check("a") == 2
    room._check()
    assert noted == ([("b", True)] if begin else [("a", True)])
