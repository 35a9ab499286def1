"""The statistics of a purgatory: its name and the waits."""

from purgatory import Event, Observer
from purgatory.testing import ManualClock
from tests.helpers import Op
from tests.sansio import QuietPurgatory, make_purgatory, pass_time


def test_the_statistics_name_the_purgatory(room: QuietPurgatory) -> None:
    """The statistics contain the name of the purgatory."""
    assert room.statistics().name == room.name == "test"


def test_the_statistics_have_waits_and_lateness() -> None:
    """The quantiles of waits and lateness are in seconds."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, tick_ms=20)
    ops = [Op(0.05), Op(10), Op(10)]
    for op in ops:
        room.try_complete_else_watch(op, ["a"])
    pass_time(clock, room, 2000)
    ops[1].force_complete()
    ops[2].cancel()
    statistics = room.statistics()
    assert statistics.wait.count == 3
    assert statistics.wait.p50 == 2.0
    assert statistics.wait.max == 2.0
    assert statistics.lateness.count == 1
    assert statistics.lateness.max == 0
    assert (statistics.completed, statistics.expired, statistics.cancelled, statistics.failed) == (1, 1, 1, 0)


def test_an_operation_that_an_observer_completes_was_parked() -> None:
    """``immediate`` counts only operations that were not parked; ``wait`` counts the others."""

    class Completes(Observer):
        def parked(self, event: Event) -> None:
            event.operation.force_complete()

    room = make_purgatory(ManualClock(), observers=[Completes()])
    assert room.try_complete_else_watch(Op(5, ready=True), ["a"])
    assert room.try_complete_else_watch(Op(5), ["a"])
    statistics = room.statistics()
    assert (statistics.submitted, statistics.completed, statistics.immediate) == (2, 2, 1)
    assert statistics.wait.count == 1
