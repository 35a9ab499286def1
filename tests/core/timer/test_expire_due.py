"""``expire_due``: a limit bounds the work of one call, and the remaining tasks keep their order."""

import pytest

from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock, VirtualClock
from tests.core.timer.bench import Bench, take_everything_off
from tests.helpers import Boom, Task


@pytest.mark.parametrize("late_ms", [95, 100, 300, 5_000, 70_000])
def test_what_is_added_while_others_are_late_does_not_run_before_them(late_ms: int) -> None:
    """The wheel's time stays at the pending work, so a bucket never contains tasks of two revolutions."""
    bench = Bench()
    bench.add(3, "first")
    bench.add(90, "second")
    bench.now_ms = late_ms
    bench.add(10, "third")
    bench.add(90, "fourth")
    assert bench.move_to(late_ms + 90) == ["first", "second", "third", "fourth"]


def test_a_limit_bounds_the_work_of_a_call() -> None:
    """A limited call runs or moves that many tasks, and leaves the rest for the next call."""
    bench = Bench()
    for number in range(10):
        bench.add(5, number)
    assert bench.move_to(5, limit=4) == [0, 1, 2, 3]
    assert bench.core.next_expiration_ms == 5
    assert bench.core.is_due(5)
    assert bench.move_to(5, limit=4) == [4, 5, 6, 7]
    assert bench.move_to(5) == [8, 9]
    assert not bench.core.is_due(5)


@pytest.mark.parametrize("left_over", ["due already", "a bucket", "a coarse bucket"])
def test_what_was_due_before_the_call_runs_though_a_slice_is_left_over(left_over: str) -> None:
    """A call without a limit runs the tasks that earlier slices left, and those that became due in between."""
    bench = Bench()
    for number in range(3):
        bench.add({"due already": 0, "a bucket": 5, "a coarse bucket": 40}[left_over], number)
    bench.now_ms = 0 if left_over == "due already" else 40
    bench.move_to(bench.now_ms, 1)
    bench.add(0, "between")
    bench.move_to(bench.now_ms)
    assert sorted(map(str, bench.log)) == ["0", "1", "2", "between"]
    assert bench.core.size == 0


def test_what_is_added_between_slices_keeps_its_order() -> None:
    """Tasks that are due when they are added run in order of arrival, across slices and interrupts."""

    class Adds(Task):
        def run(self) -> None:
            super().run()
            if self.name == "interrupt":
                raise KeyboardInterrupt
            bench.add(0, f"{self.name}+")

    bench = Bench()
    for name in ("a", "b", "interrupt", "c"):
        bench.core.schedule(Adds(0, bench.log, name), 0, 0)
    bench.move_to(0, 1)
    for name in ("d", "e"):
        bench.core.schedule(Adds(0, bench.log, name), 0, 0)
    with pytest.raises(KeyboardInterrupt):
        bench.move_to(0)
    assert bench.log == ["a", "b", "interrupt"]
    bench.move_to(0, 2)
    assert bench.log == ["a", "b", "interrupt", "c", "a+"]
    bench.move_to(0)
    assert bench.log == ["a", "b", "interrupt", "c", "a+", "d", "e", "b+", "c+"]
    bench.move_to(0)
    assert bench.log[9:] == ["d+", "e+"]
    assert bench.core.size == 0


def test_many_that_are_due_when_added_between_slices_run_in_their_order_a_slice_at_a_time() -> None:
    """If many more tasks wait than a slice can run, they keep their order, and each slice has bounded work."""
    bench = Bench()
    added = 0
    for _ in range(40):
        for _ in range(25):
            bench.add(0, added)
            added += 1
        assert bench.core.expire_due(bench.now_ms, 7) == 7
        bench.core._check()
        assert bench.core.size == added - len(bench.log)
    while bench.core.is_due(bench.now_ms):
        bench.core.expire_due(bench.now_ms, 7)
    assert bench.log == list(range(added))


def test_overdue_tasks_run_before_later_deadlines_though_many_are_cancelled() -> None:
    """A task that is due when it is added runs before a later bucket, even if tasks are cancelled between slices."""
    bench = Bench()
    for number in range(3):
        bench.add(0, number)
    bench.core.expire_due(0, 1)
    leaving = [bench.add(0, "leaves") for _ in range(4)]
    bench.core.expire_due(0, 1)
    for number in range(3, 9):
        bench.add(0, number)
    bench.add(1, "later")
    bench.core.expire_due(0, 1)
    for task in leaving:
        task.cancel()
    bench.core._check()
    bench.core.expire_due(1, 20)
    assert bench.log == [*range(9), "later"]


def test_overdue_tasks_left_by_a_slice_run_before_later_buckets() -> None:
    """A task that was due when it was added, and that a slice left, runs before a bucket that expires later."""
    bench = Bench()
    for name in ("a", "b"):
        bench.add(0, name)
    bench.add(5, "bucket")
    assert bench.move_to(0, 1) == ["a"]
    bench.add(0, "called up")
    assert bench.move_to(0, 1) == ["b"]
    bench.now_ms = 10
    bench.add(100, "far")  # the wheel would catch up with the time here
    assert bench.core.wheel.current_time_ms == 0
    assert bench.move_to(10) == ["called up", "bucket"]


def test_taking_off_goes_on_behind_a_cascade_that_was_cut_short() -> None:
    """A timer that closes during a cascade keeps the order of arrival for equal deadlines."""
    bench = Bench()
    bench.add(405, "from level 3")
    bench.add(100, "the hundredth")
    assert bench.move_to(100) == ["the hundredth"]
    bench.add(305, "first from level 2")
    bench.add(305, "second from level 2")
    assert bench.move_to(400, 1) == []  # one of two is moved
    assert [task.name for task in take_everything_off(bench.core)] == [
        "from level 3",
        "first from level 2",
        "second from level 2",
    ]


@pytest.mark.parametrize("now_ms", [10**18, -(10**18)])
def test_the_limits_of_the_time_are_valid(now_ms: int) -> None:
    """``expire_due`` takes every time up to its limits."""
    assert BaseTimer(1, 20, VirtualClock()).expire_due(now_ms) == 0
    with pytest.raises(ValueError, match="now_ms must be at most"):
        BaseTimer(1, 20, VirtualClock()).expire_due(now_ms * 2)


def test_expiring_from_inside_a_task_does_nothing() -> None:
    """A nested call returns 0 and leaves the work to the outer call."""
    bench = Bench()
    nested = []

    class Nested(Task):
        def run(self) -> None:
            super().run()
            nested.append(bench.core.expire_due(100))

    bench.core.schedule(Nested(5, bench.log, "nested"), 5, 0)
    bench.add(6, "next")
    assert bench.move_to(100) == ["nested", "next"]
    assert nested == [0]


def test_without_an_error_handler_expire_due_raises_the_error_of_a_task() -> None:
    """A bare BaseTimer has no handler, so the caller of ``expire_due`` gets the error of a task."""
    clock = ManualClock(1_000_000)
    timer = BaseTimer(1, 20, clock)

    def fail() -> None:
        raise Boom

    timer.call_later(0, fail)
    timer.add(task := Task(0, []))
    with pytest.raises(Boom):
        timer.expire_due(clock.time_ms)
    assert timer.expire_due(clock.time_ms) == 1
    assert task.log == [0]
