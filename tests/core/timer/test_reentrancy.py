"""Tasks that add, cancel or move other tasks, clear the timer or raise, while the timer runs them."""

from typing import Any

import pytest

from tests.core.timer.bench import Bench, take_everything_off
from tests.helpers import Boom, Task


def test_a_callback_that_clears_the_timer_removes_every_task() -> None:
    """Clearing removes the tasks of the current bucket, tasks due when they were added, and later tasks."""
    bench = Bench()
    cleared: list[Any] = []

    class Clears(Task):
        def run(self) -> None:
            super().run()
            cleared.extend(task.name for task in take_everything_off(bench.core))

    bench.add(10, "first")
    bench.core.schedule(Clears(10, bench.log, "clears"), 10, 0)
    bench.add(10, "third")
    bench.add(500, "far")
    bench.move_to(10, 1)
    bench.add(0, "due")
    bench.move_to(10)
    assert bench.log == ["first", "clears"]
    assert cleared == ["third", "due", "far"]
    assert bench.core.size == 0


def test_a_task_that_adds_itself_again_does_not_hold_the_call() -> None:
    """A task that a callback adds and that is already due waits for the next call."""
    bench = Bench()

    class Again(Task):
        def run(self) -> None:
            super().run()
            bench.core.schedule(self, bench.now_ms, bench.now_ms)

    bench.core.schedule(Again(0, bench.log, "again"), 0, 0)
    assert bench.move_to(0) == ["again"]
    assert bench.move_to(0) == ["again"]
    assert bench.core.size == 1


def test_a_task_may_cancel_and_move_its_neighbours() -> None:
    """Tasks of the bucket that is being processed can be cancelled and moved."""
    bench = Bench()

    class Meddler(Task):
        def run(self) -> None:
            super().run()
            assert victim.cancel()
            bench.core.schedule(moved, 30, bench.now_ms)

    bench.core.schedule(Meddler(5, bench.log, "meddler"), 5, 0)
    victim = bench.add(5, "victim")
    moved = bench.add(5, "moved")
    bench.add(5, "last")
    assert bench.move_to(5) == ["meddler", "last"]
    assert bench.move_to(29) == []
    assert bench.move_to(30) == ["moved"]
    assert not victim.scheduled


def test_a_task_that_raises_affects_no_other() -> None:
    """The error is reported with its task, and the tasks after it run."""
    bench = Bench()

    class Bad(Task):
        def run(self) -> None:
            super().run()
            raise Boom

    bad = Bad(5, bench.log, "bad")
    bench.core.schedule(bad, 5, 0)
    bench.add(5, "good")
    assert bench.move_to(5) == ["bad", "good"]
    ((error, task),) = bench.errors
    assert isinstance(error, Boom)
    assert task is bad


def test_an_interrupt_passes_through_and_loses_no_task() -> None:
    """KeyboardInterrupt leaves the call, and the next call continues after the task that raised."""
    bench = Bench()

    class Interrupt(Task):
        def run(self) -> None:
            super().run()
            raise KeyboardInterrupt

    bench.core.schedule(Interrupt(5, bench.log, "interrupt"), 5, 0)
    bench.add(5, "behind")
    with pytest.raises(KeyboardInterrupt):
        bench.core.expire_due(5)
    bench.core._check()
    assert bench.log == ["interrupt"]
    assert bench.core.is_due(5)
    assert bench.move_to(5) == ["behind"]
