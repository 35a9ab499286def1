"""The delay queue: it holds the buckets that hold tasks, by their expiration."""

from purgatory import TimerTask, TimingWheel
from purgatory.core.timer.delay_queue import DelayQueue
from purgatory.core.timer.task import NOT_QUEUED
from purgatory.core.timer.task_list import TimerTaskList


def test_a_bucket_is_queued_once_however_many_tasks_it_holds() -> None:
    """The size of the delay queue depends on the number of buckets, not on the number of tasks."""
    queue = DelayQueue()
    wheel = TimingWheel(1, 20, 0, queue)
    for _ in range(100):
        wheel.add(TimerTask(5), 5)
    assert len(queue) == 1
    assert queue.operations == 1


def test_an_emptied_bucket_is_dropped_when_it_comes_up() -> None:
    """A bucket whose tasks were all cancelled is skipped, and its slot becomes free."""
    queue = DelayQueue()
    wheel = TimingWheel(1, 20, 0, queue)
    gone, later = TimerTask(3), TimerTask(9)
    wheel.add(gone, 3)
    wheel.add(later, 9)
    gone.cancel()
    assert queue.next_ms() == 3
    assert queue.peek_ms() == 9
    assert queue.pop_due(8) is None
    assert queue.pop_due(9) == (9, wheel)
    assert wheel.bucket_at(3).expiration_ms == NOT_QUEUED
    assert queue.next_ms() is None


def test_the_earliest_bucket_can_be_read_without_a_change() -> None:
    """Empty buckets are passed over, and they remain queued."""
    queue = DelayQueue()
    assert queue.earliest_ms() is None
    wheel = TimingWheel(1, 20, 0, queue)
    tasks = {due_ms: TimerTask(due_ms) for due_ms in (3, 7, 9)}
    for due_ms, task in tasks.items():
        wheel.add(task, due_ms)
    found = [queue.earliest_ms()]
    for task in tasks.values():
        task.cancel()
        found.append(queue.earliest_ms())
    assert found == [3, 7, 9, None]
    assert (queue.operations, len(queue)) == (3, 3)


def test_the_earliest_bucket_is_not_the_second_in_the_heap() -> None:
    """Only the first entry of a heap has a place of its own."""
    queue = DelayQueue()
    wheel = TimingWheel(1, 20, 0, queue)
    first, *_ = tasks = [TimerTask(due_ms) for due_ms in (3, 9, 7)]
    for task in tasks:
        wheel.add(task, task.delay_ms)
    first.cancel()
    assert queue.earliest_ms() == 7


def test_due_buckets_that_were_emptied_are_dropped_on_the_way() -> None:
    """Removing the due buckets skips the empty ones."""
    queue = DelayQueue()
    wheel = TimingWheel(1, 20, 0, queue)
    gone, later = TimerTask(3), TimerTask(9)
    wheel.add(gone, 3)
    wheel.add(later, 9)
    gone.cancel()
    assert queue.pop_due(9) == (9, wheel)
    assert queue.pop_due(9) is None
    assert queue.peek_ms() is None


def test_of_equal_times_the_bucket_that_runs_comes_last() -> None:
    """Coarse buckets cascade before it, the coarsest last, because its tasks belong before the others."""
    queue = DelayQueue()
    wheel = TimingWheel(1, 20, 0, queue)
    for now_ms in (0, 4_000, 7_700, 7_990):
        wheel.advance(now_ms)
        wheel.place(TimerTask(0), 8_000)
    levels = []
    while (found := queue.pop_due(8_000)) is not None:
        found[1].take(8_000, TimerTaskList(wheel._counter))
        levels.append(found[1].level)
    assert levels == [2, 3, 4, 1]


def test_the_queue_counts_what_a_wheel_is_there_to_save() -> None:
    """There is one push when a bucket is first filled, and one pop when it expires or is found empty."""
    queue = DelayQueue()
    wheel = TimingWheel(1, 20, 0, queue)
    tasks = [TimerTask(0) for _ in range(5)]
    for task, due_ms in zip(tasks, (5, 5, 7, 9, 9), strict=True):
        wheel.place(task, due_ms)
    assert (queue.operations, len(queue)) == (3, 3)
    assert queue.pop_due(4) is None
    assert queue.pop_due(5) == (5, wheel)
    assert (queue.operations, len(queue)) == (4, 2)
    wheel.take(5, TimerTaskList(wheel._counter))
    tasks[2].cancel()
    assert queue.peek_ms() == 9
    assert (queue.operations, len(queue)) == (5, 1)
    tasks[3].cancel()
    tasks[4].cancel()
    assert queue.pop_due(20) is None
    assert (queue.operations, len(queue)) == (6, 0)
