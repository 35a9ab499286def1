"""How tasks cascade from coarse wheels to fine ones: counts, order, slices, and memory errors."""

import pytest

from purgatory import COMPILED
from purgatory.core.timer.delay_queue import DelayQueue
from purgatory.core.timer.task_list import TimerTaskList
from purgatory.core.timer.wheel import TimingWheel
from tests.core.timer.bench import DAY_MS, Bench, take_everything_off
from tests.helpers import Task


def test_a_task_of_450_ms_cascades_exactly_twice() -> None:
    """The task is in the bucket of 400, then of 440, then of 450, and the clock needs three turns."""
    bench = Bench()
    bench.add(450)
    assert [level.occupancy() for level in bench.core.wheel.levels()] == [[], [], [(400, 1)]]
    assert bench.move_to(400) == []
    assert [level.occupancy() for level in bench.core.wheel.levels()] == [[], [(440, 1)], []]
    assert bench.move_to(440) == []
    assert [level.occupancy() for level in bench.core.wheel.levels()] == [[(450, 1)], [], []]
    assert bench.core.cascades == 2
    assert bench.move_to(449) == []
    assert bench.move_to(450) == [450]
    assert bench.core.cascades == 2
    assert bench.core.size == 0


@pytest.mark.parametrize(("delay_ms", "cascades"), [(399, 1), (400, 0), (420, 1), (421, 2), (8_000, 0), (8_400, 1)])
def test_a_task_due_at_the_start_of_a_coarse_bucket_does_not_cascade(delay_ms: int, cascades: int) -> None:
    """The task runs when the bucket expires, as in Kafka; only tasks that move to another bucket have cascaded."""
    bench = Bench()
    bench.add(delay_ms)
    assert bench.jumps()[-1] == delay_ms
    assert bench.log == [delay_ms]
    assert bench.core.cascades == cascades


def test_the_clock_jumps_from_bucket_to_bucket() -> None:
    """The clock has work only at the times of the three buckets."""
    bench = Bench()
    bench.add(450)
    assert bench.jumps() == [400, 440, 450]


def test_one_task_in_an_hour_takes_one_turn_per_level() -> None:
    """A task that is due in an hour needs at most five cascades and the expiry."""
    bench = Bench(start_ms=1_234_567)
    bench.add(3_600_000)
    times = bench.jumps()
    assert times[-1] == 1_234_567 + 3_600_000
    assert len(times) <= 6


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
def test_delays_of_days_arrive(tick_ms: int) -> None:
    """Delays of a day, a month and thirty years only need more levels."""
    bench = Bench(tick_ms, 20, 12_345)
    days = [1, 30, 365 * 30]
    for number in days:
        bench.add(number * DAY_MS, number)
    for number in days:
        due_ms = 12_345 + number * DAY_MS
        rounded_ms = due_ms + -due_ms % tick_ms
        assert bench.move_to(rounded_ms - 1) == []
        assert bench.move_to(rounded_ms) == [number]


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("deadline_ms", [400, 405, 419, 450, 8_000, 8_005, 8_450])
def test_equal_deadlines_keep_their_order_though_coarse_buckets_fall_due_together(deadline_ms: int, limit: int) -> None:
    """Tasks that were added at different distances are on different levels, whose buckets cascade at the same time."""
    bench = Bench()
    for added_ms in sorted(deadline_ms - left_ms for left_ms in (8_450, 8_005, 405, 390, 50, 21, 5, 1)):
        if added_ms >= 0:
            bench.move_to(added_ms)
            bench.add(deadline_ms - added_ms, added_ms)
    while bench.core.size:
        next_ms = bench.core.next_expiration_ms
        assert next_ms is not None
        bench.move_to(next_ms, limit)
    assert bench.log == sorted(bench.log)


def test_equal_deadlines_keep_their_order_in_slices_of_one() -> None:
    """A cascade interrupted after every task keeps the order of arrival."""
    bench = Bench()
    for number in range(4):
        bench.add(450, number)
    bench.move_to(300)
    for number in range(4, 8):
        bench.add(150, number)
    bench.move_to(399)
    bench.core.expire_due(450, 1)  # one task of the coarse bucket is moved, three are not
    bench.now_ms = 450
    for number in range(8, 10):
        bench.core.schedule(Task(0, bench.log, number), 450, 450)
    while bench.core.is_due(450):
        bench.core.expire_due(450, 1)
        bench.core._check()
    assert bench.log == list(range(10))


@pytest.mark.skipif(COMPILED, reason="the methods of compiled classes cannot be replaced")
def test_a_bucket_that_could_not_be_queued_is_queued_by_the_next_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the queue entry cannot be allocated, the task is refused, and later tasks still run."""
    bench = Bench()

    def fail(queue: DelayQueue, expiration_ms: int, wheel: TimingWheel, bucket: TimerTaskList) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(DelayQueue, "push", fail)
        for delay_ms in (5, 450):
            with pytest.raises(MemoryError):
                bench.add(delay_ms)
    bench.core._check()
    assert bench.core.size == 0
    bench.add(5)
    bench.add(450)
    assert bench.move_to(5) == [5]
    assert bench.move_to(450) == [450]


@pytest.mark.skipif(COMPILED, reason="the methods of compiled classes cannot be replaced")
def test_a_cascade_without_memory_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that cannot be put into a finer bucket stays in place, and no task is lost."""
    bench = Bench()
    for delay_ms in (410, 450, 490):
        bench.add(delay_ms)
    pushed = DelayQueue.push

    def fail_for_440(queue: DelayQueue, expiration_ms: int, wheel: TimingWheel, bucket: TimerTaskList) -> None:
        if expiration_ms == 440:
            raise MemoryError
        pushed(queue, expiration_ms, wheel, bucket)

    with monkeypatch.context() as patch:
        patch.setattr(DelayQueue, "push", fail_for_440)
        with pytest.raises(MemoryError):
            bench.move_to(400)
        bench.core._check()
        assert bench.core.size == 3
    assert bench.move_to(500) == [410, 450, 490]


def test_a_later_deadline_is_found_out_when_the_old_one_comes_up() -> None:
    """A task whose expiration was moved to a later time is reinserted and not run."""
    bench = Bench()
    task = bench.add(5)
    task._expiration_ms = 450
    assert bench.move_to(5) == []
    assert bench.move_to(449) == []
    assert bench.move_to(450) == [5]


def test_after_an_idle_day_a_short_delay_is_placed_on_the_finest_wheel() -> None:
    """If no task is queued, the wheel's time follows the clock, so a new task does not cascade."""
    bench = Bench()
    bench.now_ms = DAY_MS
    bench.add(5, "short")
    assert bench.move_to(DAY_MS + 5) == ["short"]
    assert bench.core.cascades == 0


@pytest.mark.parametrize("cascaded", [0, 1, 2])
def test_clearing_returns_equal_deadlines_in_the_order_of_arrival(cascaded: int) -> None:
    """The earlier task is on a coarser level, or in a bucket that a slice has left half cascaded."""
    bench = Bench()
    for added_ms, number in ((0, 0), (0, 1), (100, 2), (390, 3)):
        bench.move_to(added_ms)
        bench.add(405 - added_ms, number)
    if cascaded:
        bench.move_to(400, cascaded)
    assert [task.name for task in take_everything_off(bench.core)] == [0, 1, 2, 3]
