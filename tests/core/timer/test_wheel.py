"""The wheels, driven by explicit times."""

import pytest

from purgatory import TimerTask, TimingWheel
from purgatory.core.timer.delay_queue import DelayQueue
from purgatory.core.timer.task import NOT_QUEUED
from purgatory.core.timer.task_list import TimerTaskList


def test_the_levels_are_those_of_the_table() -> None:
    """With 1 ms and 20 buckets the intervals are 20 ms, 400 ms, 8 s, 160 s, 3 200 s and 64 000 s."""
    wheel = TimingWheel(1, 20, 0)
    wheel.bucket_for(63_999_999)
    levels = wheel.levels()
    assert [level.interval_ms for level in levels] == [20, 400, 8_000, 160_000, 3_200_000, 64_000_000]
    assert [level.tick_ms for level in levels] == [1, 20, 400, 8_000, 160_000, 3_200_000]
    assert [level.level for level in levels] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [
        (1, 1), (19, 1), (20, 2), (399, 2), (400, 3), (7_999, 3), (8_000, 4), (159_999, 4), (160_000, 5),
        (3_199_999, 5), (3_200_000, 6), (63_999_999, 6), (64_000_000, 7),
    ],
)  # fmt: skip
def test_a_delay_goes_to_its_level(delay_ms: int, level: int) -> None:
    """A level is used from its own tick up to just below its interval."""
    wheel = TimingWheel(1, 20, 0)
    task = TimerTask(delay_ms)
    assert wheel.add(task, delay_ms)
    assert len(wheel.levels()) == level
    ((expiration_ms, number),) = wheel.levels()[-1].occupancy()
    assert expiration_ms <= delay_ms < expiration_ms + wheel.levels()[-1].tick_ms
    assert number == 1
    assert wheel._check() == 1


def test_overflow_wheels_come_on_demand() -> None:
    """An overflow wheel is created when a task needs it, and is then kept."""
    wheel = TimingWheel(10, 5, 1000)
    assert wheel.overflow_wheel is None
    assert wheel.add(TimerTask(0), 1060)
    above = wheel.overflow_wheel
    assert above is not None
    assert above.tick_ms == 50
    assert wheel.add(TimerTask(0), 1061)
    assert wheel.overflow_wheel is above


def test_what_is_due_within_the_tick_is_not_taken() -> None:
    """The wheel does not accept a task that is due or within the current tick; the caller handles it."""
    wheel = TimingWheel(10, 5, 1000)
    for expiration_ms in (999, 1000, 1005, 1009):
        task = TimerTask(0)
        assert not wheel.add(task, expiration_ms)
        assert not task.scheduled
    assert wheel.add(TimerTask(0), 1010)


def test_the_time_moves_in_ticks_on_all_levels() -> None:
    """The time of each level is a multiple of its tick; within a tick nothing moves."""
    wheel = TimingWheel(10, 5, 1000)
    wheel.add(TimerTask(0), 1060)
    wheel.advance(1009)
    assert wheel.current_time_ms == 1000
    wheel.advance(1060)
    assert wheel.current_time_ms == 1060
    assert wheel.overflow_wheel is not None
    assert wheel.overflow_wheel.current_time_ms == 1050


def test_the_start_is_rounded_down_to_a_tick() -> None:
    """The start of a wheel is a multiple of its tick."""
    assert TimingWheel(7, 20, 100).current_time_ms == 98


def test_an_emptied_bucket_is_reused_two_turns_of_the_wheel_later() -> None:
    """A processed bucket is used for a later time, and is queued again."""
    queue = DelayQueue()
    wheel = TimingWheel(1, 20, 0, queue)
    wheel.add(TimerTask(5), 5)
    bucket = wheel.bucket_at(5)
    assert queue.pop_due(5) == (5, wheel)
    taken = wheel.take(5, TimerTaskList(wheel._counter))
    assert taken is bucket
    assert taken.expiration_ms == NOT_QUEUED
    wheel.advance(5)
    taken.pop_first()
    wheel.add(TimerTask(20), 24)
    wheel.add(TimerTask(20), 5 + 19)
    again = wheel.bucket_at(45)
    assert again is wheel.bucket_at(5)
    assert again is not wheel.bucket_at(25)
    assert queue.peek_ms() == 24
    assert queue.pop_due(24) == (24, wheel)
    due = wheel.take(24, taken)
    while due.pop_first() is not None:
        pass
    wheel.advance(26)
    wheel.add(TimerTask(19), 45)
    assert again.expiration_ms == 45
    assert wheel._check() == 1


@pytest.mark.parametrize(
    ("tick_ms", "wheel_size", "error", "message"),
    [
        (0, 20, ValueError, "^tick_ms must be at least 1, got 0$"),
        (-1, 20, ValueError, "^tick_ms must be at least 1, got -1$"),
        (10**15 + 1, 20, ValueError, f"^tick_ms must be at most {10**15}, got {10**15 + 1}$"),
        (
            1,
            1,
            ValueError,
            r"^wheel_size must be at least 2 \(a single bucket cannot distinguish now from later\), got 1$",
        ),
        (1, 65_537, ValueError, "^wheel_size must be at most 65536, got 65537$"),
        (1.0, 20, TypeError, "tick_ms|int"),
        (1, "20", TypeError, "wheel_size|int"),
        (True, 20, TypeError, "tick_ms|int"),
    ],
)
def test_a_wheel_that_cannot_turn_is_refused(tick_ms: int, wheel_size: int, error: type, message: str) -> None:
    """A tick must be at least 1 ms, and a wheel must have at least two buckets."""
    with pytest.raises(error, match=message):
        TimingWheel(tick_ms, wheel_size)


def test_a_wheel_says_where_it_stands() -> None:
    """The ``repr`` of a wheel contains level, tick, size, interval and time."""
    assert repr(TimingWheel(7, 3, 15)) == (
        "<TimingWheel level=1 tick_ms=7 wheel_size=3 interval_ms=21 current_time_ms=14>"
    )


def test_two_buckets_are_enough() -> None:
    """Two buckets are the minimum to separate the present from later times; overflow wheels have two buckets as
    well.
    """
    wheel = TimingWheel(1, 2, 0)
    wheel.place(TimerTask(0), 3)
    assert [level.interval_ms for level in wheel.levels()] == [2, 4]
    assert wheel._check() == 1


def test_a_wheel_by_itself_counts_its_tasks() -> None:
    """Without a timer, a wheel creates its own queue and counter, and both ways of adding a task agree."""
    wheel = TimingWheel(1, 20, 100)
    added, placed = TimerTask(0), TimerTask(0)
    assert wheel.add(added, 105)
    assert added.expiration_ms == 105
    assert wheel.place(placed, 105) == 105
    assert wheel.occupancy() == [(105, 2)]
    assert wheel._check() == 2
    assert wheel._counter.value == 2
    assert not wheel.add(TimerTask(0), 100)


@pytest.mark.parametrize("back_ms", [1, 19, 20, 21, 400, 5000])
def test_the_time_of_a_wheel_does_not_go_back(back_ms: int) -> None:
    """The time never decreases on any level."""
    wheel = TimingWheel(20, 20, 0)
    wheel.place(TimerTask(0), 100_000)
    wheel.advance(50_000)
    before = [(level.current_time_ms, level._horizon_ms) for level in wheel.levels()]
    wheel.advance(50_000 - back_ms)
    assert [(level.current_time_ms, level._horizon_ms) for level in wheel.levels()] == before


@pytest.mark.slow
@pytest.mark.parametrize(("tick_ms", "wheel_size"), [(10**15, 2), (1, 65_536)])
def test_the_largest_wheel_is_accepted(tick_ms: int, wheel_size: int) -> None:
    """The limits themselves are valid."""
    wheel = TimingWheel(tick_ms, wheel_size)
    assert (wheel.tick_ms, wheel.wheel_size) == (tick_ms, wheel_size)


def test_a_cascade_moves_as_many_tasks_as_its_limit() -> None:
    """``cascade`` returns the number of moved tasks, and leaves the others in the coarse bucket."""
    wheel = TimingWheel(1, 20, 0)
    for _ in range(10):
        wheel.add(TimerTask(0), 25)
    coarse = wheel.levels()[1].take(20, TimerTaskList())
    wheel.advance(20)
    assert [wheel.cascade(coarse, 20, 4) for _ in range(4)] == [4, 4, 2, 0]
    assert coarse.is_empty
