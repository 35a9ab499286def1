"""``add``: which tasks a timer takes, and that adding a task again moves it."""

from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Outcome, TimerTask
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.core.timer.bench import Bench
from tests.helpers import Op
from tests.sansio import QuietPurgatory


def test_only_tasks_are_added_to_a_timer() -> None:
    """A class is not a task either."""
    timer = BaseTimer(1, 20, ManualClock())
    wrong: Any
    for wrong, shown in (("x", "'x'"), (TimerTask, ".*TimerTask"), (None, "None")):
        with pytest.raises(TypeError, match=rf"^task must be a TimerTask, got {shown}"):
            timer.add(wrong)
    with pytest.raises(TypeError, match=r"^now_ms must be an int, got 1\.5$"):
        timer.expire_due(1.5)
    assert timer.size == 0


def test_only_operations_with_a_deadline_are_added_to_a_timer(room: QuietPurgatory) -> None:
    """By hand, outside a purgatory: with a timeout or an absolute deadline.  A parked one has its place already."""
    timer = room._core.timer
    with pytest.raises(ValueError, match=r"^task must have a deadline, got <Op PENDING timeout=None>"):
        timer.add(Op(None))
    parked = Op(5.0)
    room.try_complete_else_watch(parked, ["a"])
    other = BaseTimer(1, 20, ManualClock())
    for into in (timer, other):
        with pytest.raises(ValueError, match=r"^task must not be parked, got <Op PENDING on .*>: extend\(\) moves"):
            into.add(parked)
    room._check()
    relative, absolute, passed = Op(1.0), Op(None), Op(0.0)
    start_ms = timer.clock.now_ms()
    absolute.extend_to(start_ms / 1000 + 2.0)
    for op in (relative, absolute, passed):
        timer.add(op)
    assert timer.expire_due(start_ms) == 1
    assert [relative.expiration_ms, absolute.expiration_ms] == [start_ms + 1000, start_ms + 2000]
    assert timer.expire_due(start_ms + 2000) == 2
    assert all(op.expired for op in (relative, absolute, passed))


def test_the_delay_of_an_absolute_deadline() -> None:
    """Before parking it is that of no timeout; it is never a code of the library."""
    op = Op(7.0)
    op.extend_to(5.0)
    assert op.delay_ms == -1
    assert op.timeout is None
    assert repr(op) == "<Op PENDING deadline=5>"
    op.extend_to(None)
    assert repr(op) == "<Op PENDING timeout=None>"


@pytest.mark.parametrize("delay_ms", [5, 50])
@pytest.mark.parametrize("make", [TimerTask, lambda delay_ms: Op(delay_ms / 1000)])
def test_adding_a_scheduled_task_to_its_timer_moves_it(make: Callable[[int], TimerTask], delay_ms: int) -> None:
    """Its delay counts from the second call, and the first deadline is gone; the same for an operation of its own."""
    clock = ManualClock()
    timer = BaseTimer(1, 20, clock)
    task = make(delay_ms)
    timer.add(task)
    clock.time_ms += 3
    timer.add(task)
    assert timer.size == 1
    assert task.expiration_ms == clock.time_ms + delay_ms
    assert timer.expire_due(clock.time_ms + delay_ms - 1) == 0
    assert timer.expire_due(clock.time_ms + delay_ms) == 1
    assert timer.size == 0


def test_adding_a_scheduled_task_moves_it() -> None:
    """A task is on the timer once; adding it again moves it."""
    bench = Bench()
    task = bench.add(10)
    bench.core.schedule(task, 500, 0)
    assert bench.core.size == 1
    assert bench.move_to(499) == []
    assert bench.move_to(500) == [10]


def test_a_task_moves_from_one_timer_to_another() -> None:
    """Adding a task to a second timer removes it from the first one."""
    here, there = Bench(), Bench()
    task = here.add(10)
    there.core.schedule(task, 20, 0)
    assert (here.core.size, there.core.size) == (0, 1)
    assert here.move_to(30) == []
    there.core.expire_due(30)
    assert here.log == [10]


@pytest.mark.parametrize("timeout", [0.001, 0.002, 5.0])
def test_an_operation_in_its_own_callback_is_no_longer_parked(room: QuietPurgatory, timeout: float) -> None:
    """A timer takes it, however short its timeout is; it has ended, so nothing follows when it is due."""
    timer = room._core.timer
    op = Op(timeout, on_complete=timer.add)
    room.try_complete_else_watch(op, ["a"])
    assert op.force_complete()
    assert op.scheduled
    room._check()
    assert timer.expire_due(timer.clock.now_ms() + 5000) == 1
    assert op.outcome is Outcome.COMPLETED
    assert op.completions == 1


def test_a_task_on_the_timer_of_another_thread_is_not_moved() -> None:
    """That thread may be changing the bucket at the same time."""
    theirs, ours = (BaseTimer(1, 20, ManualClock()) for _ in range(2))
    task = TimerTask(5)
    theirs.add(task)

    def refuse() -> None:
        raise RuntimeError("another thread")

    theirs._guard.bind(lambda: False, refuse)
    with pytest.raises(RuntimeError, match="another thread"):
        ours.add(task)
    theirs._guard.bind(lambda: True, refuse)
    assert (theirs.size, ours.size) == (1, 0)
    assert task.cancel()
