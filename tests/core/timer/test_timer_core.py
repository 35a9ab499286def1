"""The timer core decides which task runs when, driven by explicit times."""

import random
from typing import Any

import pytest

from purgatory.core.timer.task import FAR_MS
from tests.core.timer.bench import DAY_MS, Bench, take_everything_off
from tests.helpers import Task


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
@pytest.mark.parametrize("start_ms", [0, 3, 1_000_003])
def test_never_early_and_never_later_than_a_tick(tick_ms: int, start_ms: int) -> None:
    """Each task runs at its deadline rounded up to the tick, for any tick and start time."""
    bench = Bench(tick_ms, 20, start_ms)
    source = random.Random(tick_ms * 31 + start_ms)
    due: dict[int, int] = {}
    for number in range(300):
        delay_ms = source.choice([source.randrange(1, 50), source.randrange(1, 5_000), source.randrange(1, 3 * DAY_MS)])
        due[number] = bench.now_ms + delay_ms
        bench.add(delay_ms, number)
        if number % 10 == 0:
            bench.now_ms += source.randrange(0, 40)
            for name in bench.move_to(bench.now_ms):
                assert bench.now_ms - due[name] >= 0
    while (next_ms := bench.core.next_expiration_ms) is not None:
        now_ms = max(next_ms, bench.now_ms)
        for name in bench.move_to(now_ms):
            assert 0 <= now_ms - due[name] < tick_ms + 40
    assert sorted(bench.log) == list(range(300))


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
def test_when_the_time_is_kept_up_with_lateness_is_below_a_tick(tick_ms: int) -> None:
    """A timer that is called at every expiration is late by less than a tick, and exact with a tick of 1 ms."""
    bench = Bench(tick_ms, 20, 1_000_003)
    source = random.Random(tick_ms)
    due = {}
    for number in range(400):
        delay_ms = source.randrange(1, source.choice([30, 3_000, 300_000, 3 * DAY_MS]))
        due[number] = bench.now_ms + delay_ms
        bench.add(delay_ms, number)
    while (next_ms := bench.core.next_expiration_ms) is not None:
        for name in bench.move_to(next_ms):
            assert 0 <= next_ms - due[name] < tick_ms
    assert len(bench.log) == 400


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
@pytest.mark.parametrize("delay_ms", [0, -1, -50, -DAY_MS])
def test_what_is_due_already_runs_in_the_next_call(tick_ms: int, delay_ms: int) -> None:
    """A task that is due when it is added does not run in that call, but in the next one, even within a tick."""
    bench = Bench(tick_ms, 20, 1_003)
    task = bench.add(delay_ms, "due")
    assert bench.log == []
    assert task.scheduled
    assert bench.core.is_due(1_003)
    assert bench.move_to(1_003) == ["due"]
    assert bench.core.size == 0
    assert not bench.core.is_due(1_003)


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
def test_a_cancelled_task_does_not_run(tick_ms: int) -> None:
    """A task can be cancelled on every level, before and after it becomes due."""
    bench = Bench(tick_ms)
    tasks = [bench.add(delay_ms) for delay_ms in (0, 5, 50, 500, 50_000, DAY_MS)]
    assert [task.cancel() for task in tasks] == [True] * 6
    assert bench.core.size == 0
    assert bench.core.next_expiration_ms is None
    assert bench.move_to(2 * DAY_MS) == []
    assert [task.cancel() for task in tasks] == [False] * 6


def test_equal_deadlines_run_in_the_order_of_arrival() -> None:
    """Tasks with equal deadlines on different levels run in order of arrival."""
    bench = Bench()
    bench.add(8_450, 0)
    bench.add(8_450, 1)
    for number, now_ms in enumerate((100, 7_000, 8_030, 8_100, 8_431, 8_440, 8_449), start=2):
        bench.move_to(now_ms)
        bench.add(8_450 - now_ms, number)
    assert bench.move_to(8_450) == list(range(9))


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("added_ms", [0, 100, 390])
def test_what_is_due_when_it_is_added_waits_for_equal_deadlines_before_it(added_ms: int, limit: int) -> None:
    """The earlier task is in a bucket that has not been processed, or that a slice has left half cascaded."""
    bench = Bench()
    bench.move_to(added_ms)
    for number in range(3):
        bench.add(400 - added_ms, number)
    bench.move_to(399)
    if limit:
        bench.move_to(400, limit)
    bench.now_ms = 400
    bench.add(0, 3)
    while bench.core.is_due(400):
        bench.move_to(400, limit)
    assert bench.log == [0, 1, 2, 3]


def test_what_is_due_when_it_is_added_runs_before_later_deadlines() -> None:
    """Buckets that expire later do not run before it, however many of them a slice has left."""
    bench = Bench()
    for deadline_ms in (10, 10, 11, 11, 11, 12, 12, 12):
        bench.add(deadline_ms, deadline_ms)
    bench.move_to(10, 1)
    bench.add(0, "due")
    bench.move_to(11, 2)
    assert bench.log == [10, 10, "due"]
    bench.core.schedule(Task(0, bench.log, "due as well"), 11, 12)
    bench.move_to(12)
    assert bench.log == [10, 10, "due", 11, 11, 11, "due as well", 12, 12, 12]


def test_deadlines_run_in_order_after_a_long_stop() -> None:
    """After the clock has stopped, tasks that became due meanwhile run in deadline order."""
    bench = Bench()
    source = random.Random(1)
    delays = [source.randrange(1, 20_000) for _ in range(500)]
    for delay_ms in delays:
        bench.add(delay_ms)
    assert bench.move_to(DAY_MS) == sorted(delays)


@pytest.mark.parametrize(
    ("tick_ms", "deadline_ms", "rounded_ms"), [(20, 1005, 1005), (20, 1006, 1020), (2, 1007, 1008)]
)
def test_only_what_lies_ahead_is_rounded(tick_ms: int, deadline_ms: int, rounded_ms: int) -> None:
    """A deadline that is due now is not rounded up, because it would then be in the future."""
    core = Bench(tick_ms, start_ms=1000).core
    task = Task(0, [])
    core.schedule(task, deadline_ms, 1005)
    assert task.expiration_ms == rounded_ms


def test_clearing_hands_out_every_task_in_the_order_of_deadlines() -> None:
    """Clearing removes the tasks of every level, due or half processed, in deadline order."""
    bench = Bench()
    for delay_ms in (DAY_MS, 5, 450, 0, 5, 30):
        bench.add(delay_ms)
    bench.core.expire_due(5, 1)
    tasks = take_everything_off(bench.core)
    assert [task.delay_ms for task in tasks] == [5, 5, 30, 450, DAY_MS]
    assert not any(task.scheduled for task in tasks)
    assert bench.core.size == 0
    assert bench.core.next_expiration_ms is None


def test_rescheduling_to_now_is_not_rounded_up() -> None:
    """A deadline that is moved to now is due now, not at the end of the tick."""
    bench = Bench(20)
    task = bench.add(100, "task")
    bench.now_ms = 5
    bench.core.reschedule(task, 5, 5)
    assert task.expiration_ms == 5
    assert bench.move_to(5) == ["task"]


def test_rescheduling_to_the_same_deadline_keeps_the_order() -> None:
    """A task whose deadline does not change keeps its place among equal deadlines."""
    bench = Bench()
    first = bench.add(10, "first")
    bench.add(10, "second")
    assert bench.core.reschedule(first, 10, 0) == FAR_MS
    assert bench.move_to(10) == ["first", "second"]


@pytest.mark.parametrize("tick_ms", [1, 7])
def test_a_deadline_moved_by_one_tick_is_not_early(tick_ms: int) -> None:
    """The task is still in its old bucket, and must not run with it."""
    bench = Bench(tick_ms)
    task = bench.add(2 * tick_ms, "task")
    bench.core.reschedule(task, 3 * tick_ms, 0)
    assert bench.move_to(2 * tick_ms) == []
    assert bench.move_to(3 * tick_ms) == ["task"]


def test_draining_takes_as_many_tasks_as_its_limit() -> None:
    """The limit counts each task once."""
    bench = Bench()
    for number in range(10):
        bench.add(5, number)
    assert [len(bench.core.drain(4)) for _ in range(3)] == [4, 4, 2]


def test_draining_from_inside_a_task_lets_no_other_due_task_run() -> None:
    """A task may close the timer: those that are due with it are left for draining, in their order."""
    bench = Bench()
    drained: list[Any] = []

    class Closing(Task):
        def run(self) -> None:
            super().run()
            drained.extend(bench.core.drain(1))

    bench.core.schedule(Closing(5, bench.log, "closing"), 5, 0)
    for name in ["second", "third"]:
        bench.add(5, name)
    assert bench.move_to(5) == ["closing"]
    assert [task.name for task in drained] == ["second"]
    assert [task.name for task in take_everything_off(bench.core)] == ["third"]
