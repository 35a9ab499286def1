"""The bucket: tasks in the order of arrival, which leave it without a search."""

from purgatory import TimerTask, TimerTaskList
from purgatory.core.timer.task_list import TaskCounter
from tests.helpers import Task


def test_tasks_keep_their_order_and_are_counted() -> None:
    """A bucket holds its tasks in order of arrival."""
    counter = TaskCounter()
    bucket = TimerTaskList(counter)
    assert bucket.is_empty
    tasks = [TimerTask(10) for _ in range(5)]
    for task in tasks:
        bucket.add(task)
    assert list(bucket) == tasks
    assert counter.value == 5
    assert bucket._check() == 5
    assert not bucket.is_empty


def test_adding_a_task_again_does_not_count_it_twice() -> None:
    """Adding a task to its own bucket moves it to the end, and it is counted once."""
    counter = TaskCounter()
    bucket = TimerTaskList(counter)
    first, second = TimerTask(0), TimerTask(0)
    for task in (first, second, first):
        bucket.add(task)
    assert list(bucket) == [second, first]
    assert counter.value == 2


def test_a_task_is_in_one_bucket_at_a_time() -> None:
    """If three buckets with a common counter exchange tasks, the sum is correct."""
    counter = TaskCounter()
    buckets = [TimerTaskList(counter) for _ in range(3)]
    tasks = [TimerTask(0) for _ in range(10)]
    for bucket in buckets:
        for task in tasks:
            bucket.add(task)
        assert [b._check() for b in buckets] == [10 if b is bucket else 0 for b in buckets]
        assert counter.value == 10


def test_counters_of_different_timers_stay_apart() -> None:
    """A task that moves from one timer to another is counted only by its current timer."""
    here, there = TaskCounter(), TaskCounter()
    one, other = TimerTaskList(here), TimerTaskList(there)
    task = TimerTask(0)
    one.add(task)
    other.add(task)
    assert (here.value, there.value) == (0, 1)


def test_remove_returns_whether_the_task_was_there() -> None:
    """Only the bucket that holds a task can remove it, and only once."""
    bucket, other = TimerTaskList(), TimerTaskList()
    task = TimerTask(0)
    assert not bucket.remove(task)
    bucket.add(task)
    assert not other.remove(task)
    assert bucket.remove(task)
    assert not bucket.remove(task)
    assert bucket.is_empty


def test_cancelling_takes_a_task_out_of_the_middle() -> None:
    """Tasks leave from the middle and the ends, and the others keep their order."""
    bucket = TimerTaskList()
    tasks = [TimerTask(number) for number in range(6)]
    for task in tasks:
        bucket.add(task)
    assert [tasks[number].cancel() for number in (0, 3, 5)] == [True, True, True]
    assert [task.delay_ms for task in bucket] == [1, 2, 4]
    assert not tasks[3].cancel()
    assert bucket._check() == 3


def test_popping_the_first_task() -> None:
    """The tasks come out in the order of arrival, until the bucket is empty."""
    bucket = TimerTaskList()
    tasks = [TimerTask(number) for number in range(3)]
    for task in tasks:
        bucket.add(task)
    assert [bucket.pop_first() for _ in range(4)] == [*tasks, None]
    assert bucket.is_empty
    assert not tasks[0].scheduled


def test_the_repr_of_a_bucket() -> None:
    """The ``repr`` of a bucket contains its expiration and its number of tasks."""
    bucket = TimerTaskList()
    bucket.add(Task(0, []))
    assert repr(bucket) == "<TimerTaskList expiration_ms=-1 tasks=1>"
