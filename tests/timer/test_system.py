"""The timer's bookkeeping: what runs when, told the time."""

import random
from typing import Any

import pytest

from purgatory.timer.system import TimerHeart
from tests.helpers import Boom, Task

DAY_MS = 86_400_000


class Bench:
    """A heart, the time, and a log of what ran when."""

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> None:
        self.now_ms = start_ms
        self.log: list[Any] = []
        self.errors: list[tuple[BaseException, Any]] = []
        self.heart = TimerHeart(tick_ms, wheel_size, start_ms, self._on_error, (Exception,))

    def _on_error(self, error: BaseException, task: Any) -> None:
        self.errors.append((error, task))

    def add(self, delay_ms: int, name: Any = None) -> Task:
        task = Task(delay_ms, self.log, name)
        self.heart.schedule(task, self.now_ms + delay_ms, self.now_ms)
        self.heart._check()
        return task

    def move_to(self, now_ms: int, limit: int = 0) -> list[Any]:
        """Set the time, run what is due, and return what ran."""
        self.now_ms = now_ms
        before = len(self.log)
        ran = self.heart.expire_due(now_ms, limit)
        self.heart._check()
        assert ran == len(self.log) - before
        return self.log[before:]

    def jumps(self) -> list[int]:
        """Go from one expiration to the next until nothing is left, and return the times."""
        times = []
        while (next_ms := self.heart.next_expiration_ms) is not None:
            times.append(next_ms)
            self.move_to(next_ms)
        return times


def test_a_task_of_450_ms_cascades_exactly_twice() -> None:
    """It stands in the bucket of 400, then of 440, then of 450, and the clock makes three turns."""
    bench = Bench()
    bench.add(450)
    assert [level.occupancy() for level in bench.heart.wheel.levels()] == [[], [], [(400, 1)]]
    assert bench.move_to(400) == []
    assert [level.occupancy() for level in bench.heart.wheel.levels()] == [[], [(440, 1)], []]
    assert bench.move_to(440) == []
    assert [level.occupancy() for level in bench.heart.wheel.levels()] == [[(450, 1)], [], []]
    assert bench.heart.cascades == 2
    assert bench.move_to(449) == []
    assert bench.move_to(450) == [450]
    assert bench.heart.cascades == 2
    assert bench.heart.size == 0


def test_the_clock_jumps_from_bucket_to_bucket() -> None:
    """Nothing has to be done at any time but those of the three buckets."""
    bench = Bench()
    bench.add(450)
    assert bench.jumps() == [400, 440, 450]


def test_one_task_in_an_hour_takes_one_turn_per_level() -> None:
    """An hour is five cascades and the expiry itself, at most."""
    bench = Bench(start_ms=1_234_567)
    bench.add(3_600_000)
    times = bench.jumps()
    assert times[-1] == 1_234_567 + 3_600_000
    assert len(times) <= 6


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
@pytest.mark.parametrize("start_ms", [0, 3, 1_000_003])
def test_never_early_and_never_later_than_a_tick(tick_ms: int, start_ms: int) -> None:
    """Each task runs at its deadline rounded up to the tick, whatever the tick and the beginning."""
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
    while (next_ms := bench.heart.next_expiration_ms) is not None:
        now_ms = max(next_ms, bench.now_ms)
        for name in bench.move_to(now_ms):
            assert 0 <= now_ms - due[name] < tick_ms + 40
    assert sorted(bench.log) == list(range(300))


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
def test_when_the_time_is_kept_up_with_lateness_is_below_a_tick(tick_ms: int) -> None:
    """Told every expiration in time, the timer is late by less than a tick, and exact with a tick of 1 ms."""
    bench = Bench(tick_ms, 20, 1_000_003)
    source = random.Random(tick_ms)
    due = {}
    for number in range(400):
        delay_ms = source.randrange(1, source.choice([30, 3_000, 300_000, 3 * DAY_MS]))
        due[number] = bench.now_ms + delay_ms
        bench.add(delay_ms, number)
    while (next_ms := bench.heart.next_expiration_ms) is not None:
        for name in bench.move_to(next_ms):
            assert 0 <= next_ms - due[name] < tick_ms
    assert len(bench.log) == 400


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
def test_delays_of_days_arrive(tick_ms: int) -> None:
    """A day, a month and thirty years are only more levels."""
    bench = Bench(tick_ms, 20, 12_345)
    days = [1, 30, 365 * 30]
    for number in days:
        bench.add(number * DAY_MS, number)
    for number in days:
        due_ms = 12_345 + number * DAY_MS
        rounded_ms = due_ms + -due_ms % tick_ms
        assert bench.move_to(rounded_ms - 1) == []
        assert bench.move_to(rounded_ms) == [number]


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
@pytest.mark.parametrize("delay_ms", [0, -1, -50, -DAY_MS])
def test_what_is_due_already_runs_in_the_next_call(tick_ms: int, delay_ms: int) -> None:
    """A task that is due when it is added is not run in there, and is run by the next call, in the middle of a tick."""
    bench = Bench(tick_ms, 20, 1_003)
    task = bench.add(delay_ms, "due")
    assert bench.log == []
    assert task.scheduled
    assert bench.heart.is_due(1_003)
    assert bench.move_to(1_003) == ["due"]
    assert bench.heart.size == 0
    assert not bench.heart.is_due(1_003)


@pytest.mark.parametrize("tick_ms", [1, 7, 20, 100])
def test_a_cancelled_task_does_not_run(tick_ms: int) -> None:
    """A task can be taken off on every level, and before it is due or due already."""
    bench = Bench(tick_ms)
    tasks = [bench.add(delay_ms) for delay_ms in (0, 5, 50, 500, 50_000, DAY_MS)]
    assert [task.cancel() for task in tasks] == [True] * 6
    assert bench.heart.size == 0
    assert bench.heart.next_expiration_ms is None
    assert bench.move_to(2 * DAY_MS) == []
    assert [task.cancel() for task in tasks] == [False] * 6


def test_equal_deadlines_run_in_the_order_of_arrival() -> None:
    """FIFO holds for one deadline that was reached through different levels."""
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
    """Whoever came first stands in a bucket that nobody has looked at yet, or that a slice has left half cascaded."""
    bench = Bench()
    bench.move_to(added_ms)
    for number in range(3):
        bench.add(400 - added_ms, number)
    bench.move_to(399)
    if limit:
        bench.move_to(400, limit)
    bench.now_ms = 400
    bench.add(0, 3)
    while bench.heart.is_due(400):
        bench.move_to(400, limit)
    assert bench.log == [0, 1, 2, 3]


def test_what_is_due_when_it_is_added_runs_before_later_deadlines() -> None:
    """A slice that is left over does not put it behind buckets that fall due afterwards, however far these go on."""
    bench = Bench()
    for deadline_ms in (10, 10, 11, 11, 11, 12, 12, 12):
        bench.add(deadline_ms, deadline_ms)
    bench.move_to(10, 1)
    bench.add(0, "due")
    bench.move_to(11, 2)
    assert bench.log == [10, 10, "due"]
    bench.heart.schedule(Task(0, bench.log, "due as well"), 11, 12)
    bench.move_to(12)
    assert bench.log == [10, 10, "due", 11, 11, 11, "due as well", 12, 12, 12]


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("deadline_ms", [400, 405, 419, 450, 8_000, 8_005, 8_450])
def test_equal_deadlines_keep_their_order_though_coarse_buckets_fall_due_together(deadline_ms: int, limit: int) -> None:
    """Added from further and further off, they stand on different levels, whose buckets cascade at the same time."""
    bench = Bench()
    for added_ms in sorted(deadline_ms - left_ms for left_ms in (8_450, 8_005, 405, 390, 50, 21, 5, 1)):
        if added_ms >= 0:
            bench.move_to(added_ms)
            bench.add(deadline_ms - added_ms, added_ms)
    while bench.heart.size:
        next_ms = bench.heart.next_expiration_ms
        assert next_ms is not None
        bench.move_to(next_ms, limit)
    assert bench.log == sorted(bench.log)


def test_equal_deadlines_keep_their_order_in_slices_of_one() -> None:
    """A cascade that is interrupted after every task puts nobody before an earlier one."""
    bench = Bench()
    for number in range(4):
        bench.add(450, number)
    bench.move_to(300)
    for number in range(4, 8):
        bench.add(150, number)
    bench.move_to(399)
    bench.heart.expire_due(450, 1)  # one task of the coarse bucket is moved, three are not
    bench.now_ms = 450
    for number in range(8, 10):
        bench.heart.schedule(Task(0, bench.log, number), 450, 450)
    while bench.heart.is_due(450):
        bench.heart.expire_due(450, 1)
        bench.heart._check()
    assert bench.log == list(range(10))


def test_deadlines_run_in_order_after_a_long_stop() -> None:
    """After the clock has stood still, what fell due meanwhile runs in the order of its deadlines."""
    bench = Bench()
    source = random.Random(1)
    delays = [source.randrange(1, 20_000) for _ in range(500)]
    for delay_ms in delays:
        bench.add(delay_ms)
    assert bench.move_to(DAY_MS) == sorted(delays)


@pytest.mark.parametrize("tick_ms", [1, 2, 3, 20])
def test_scheduling_tells_when_to_come_back(tick_ms: int) -> None:
    """The time of the bucket, which for the next tick is the deadline, rounded up; of one that is due the time now."""
    bench = Bench(tick_ms, start_ms=6000)
    heart = bench.heart
    assert heart.schedule(Task(0, bench.log), 6001, 6000) == 6000 + tick_ms
    assert heart.next_expiration_ms == 6000 + tick_ms
    assert heart.schedule(Task(0, bench.log), 6000 + tick_ms, 6000) == 6000 + tick_ms
    far = Task(0, bench.log)
    assert heart.schedule(far, 6000 + 25 * tick_ms, 6000) == 6000 + 20 * tick_ms
    assert far.expiration_ms == 6000 + 25 * tick_ms
    assert heart.schedule(Task(0, bench.log), 6000, 6000) == 6000
    assert heart.next_expiration_ms == 6000


@pytest.mark.parametrize(
    ("tick_ms", "deadline_ms", "rounded_ms"), [(20, 1005, 1005), (20, 1006, 1020), (2, 1007, 1008)]
)
def test_only_what_lies_ahead_is_rounded(tick_ms: int, deadline_ms: int, rounded_ms: int) -> None:
    """A deadline that is due now stays as it is: rounded up it would lie ahead."""
    heart = Bench(tick_ms, start_ms=1000).heart
    assert heart.rounded_ms(deadline_ms, 1005) == rounded_ms
    task = Task(0, [])
    heart.schedule(task, deadline_ms, 1005)
    assert task.expiration_ms == rounded_ms


@pytest.mark.parametrize("late_ms", [95, 100, 300, 5_000, 70_000])
def test_what_is_added_while_others_are_late_does_not_run_before_them(late_ms: int) -> None:
    """The wheel's time stays at what has still to be worked off, so no two rounds meet in one bucket."""
    bench = Bench()
    bench.add(3, "first")
    bench.add(90, "second")
    bench.now_ms = late_ms
    bench.add(10, "third")
    bench.add(90, "fourth")
    assert bench.move_to(late_ms + 90) == ["first", "second", "third", "fourth"]


def test_a_limit_bounds_the_work_of_a_call() -> None:
    """A limited call runs or moves so many tasks and keeps the rest for the next one."""
    bench = Bench()
    for number in range(10):
        bench.add(5, number)
    assert bench.move_to(5, limit=4) == [0, 1, 2, 3]
    assert bench.heart.next_expiration_ms == 5
    assert bench.heart.is_due(5)
    assert bench.move_to(5, limit=4) == [4, 5, 6, 7]
    assert bench.move_to(5) == [8, 9]
    assert not bench.heart.is_due(5)


@pytest.mark.parametrize("left_over", ["due already", "a bucket", "a coarse bucket"])
def test_what_was_due_before_the_call_runs_though_a_slice_is_left_over(left_over: str) -> None:
    """A call without a limit runs what earlier slices have left, and what has become due between them."""
    bench = Bench()
    for number in range(3):
        bench.add({"due already": 0, "a bucket": 5, "a coarse bucket": 40}[left_over], number)
    bench.now_ms = 0 if left_over == "due already" else 40
    bench.move_to(bench.now_ms, 1)
    bench.add(0, "between")
    bench.move_to(bench.now_ms)
    assert sorted(map(str, bench.log)) == ["0", "1", "2", "between"]
    assert bench.heart.size == 0


def test_what_is_added_between_slices_keeps_its_order() -> None:
    """Due already, they run in the order in which they were added, also where slices end and an interrupt passes."""

    class Adds(Task):
        def run(self) -> None:
            super().run()
            if self.name == "interrupt":
                raise KeyboardInterrupt
            bench.add(0, f"{self.name}+")

    bench = Bench()
    for name in ("a", "b", "interrupt", "c"):
        bench.heart.schedule(Adds(0, bench.log, name), 0, 0)
    bench.move_to(0, 1)
    for name in ("d", "e"):
        bench.heart.schedule(Adds(0, bench.log, name), 0, 0)
    with pytest.raises(KeyboardInterrupt):
        bench.move_to(0)
    assert bench.log == ["a", "b", "interrupt"]
    bench.move_to(0, 2)
    assert bench.log == ["a", "b", "interrupt", "c", "a+"]
    bench.move_to(0)
    assert bench.log == ["a", "b", "interrupt", "c", "a+", "d", "e", "b+", "c+"]
    bench.move_to(0)
    assert bench.log[9:] == ["d+", "e+"]
    assert bench.heart.size == 0


def test_many_that_are_due_when_added_between_slices_run_in_their_order_a_slice_at_a_time() -> None:
    """Far more wait for their turn than a slice can run: they keep their order, and each slice does its share alone."""
    bench = Bench()
    added = 0
    for _ in range(40):
        for _ in range(25):
            bench.add(0, added)
            added += 1
        assert bench.heart.expire_due(bench.now_ms, 7) == 7
        bench.heart._check()
        assert bench.heart.size == added - len(bench.log)
    while bench.heart.is_due(bench.now_ms):
        bench.heart.expire_due(bench.now_ms, 7)
    assert bench.log == list(range(added))


def test_where_many_that_were_called_up_are_cancelled_the_others_still_come_before_later_deadlines() -> None:
    """What was due when it was added keeps its turn before a later bucket, whoever left between two slices."""
    bench = Bench()
    for number in range(3):
        bench.add(0, number)
    bench.heart.expire_due(0, 1)
    leaving = [bench.add(0, "leaves") for _ in range(4)]
    bench.heart.expire_due(0, 1)
    for number in range(3, 9):
        bench.add(0, number)
    bench.add(1, "later")
    bench.heart.expire_due(0, 1)
    for task in leaving:
        task.cancel()
    bench.heart._check()
    bench.heart.expire_due(1, 20)
    assert bench.log == [*range(9), "later"]


def test_a_callback_that_clears_the_timer_takes_everyone_off() -> None:
    """Those whose bucket is being worked off, those who were due when they were added, and those who still wait."""
    bench = Bench()
    cleared: list[Any] = []

    class Clears(Task):
        def run(self) -> None:
            super().run()
            cleared.extend(task.name for task in bench.heart.clear())

    bench.add(10, "first")
    bench.heart.schedule(Clears(10, bench.log, "clears"), 10, 0)
    bench.add(10, "third")
    bench.add(500, "far")
    bench.move_to(10, 1)
    bench.add(0, "due")
    bench.move_to(10)
    assert bench.log == ["first", "clears"]
    assert cleared == ["third", "due", "far"]
    assert bench.heart.size == 0


def test_a_task_that_adds_itself_again_does_not_hold_the_call() -> None:
    """What a callback adds that is due already waits for the next call."""
    bench = Bench()

    class Again(Task):
        def run(self) -> None:
            super().run()
            bench.heart.schedule(self, bench.now_ms, bench.now_ms)

    bench.heart.schedule(Again(0, bench.log, "again"), 0, 0)
    assert bench.move_to(0) == ["again"]
    assert bench.move_to(0) == ["again"]
    assert bench.heart.size == 1


def test_a_task_may_cancel_and_move_its_neighbours() -> None:
    """Tasks of the bucket that is being worked off can leave it and can be put elsewhere."""
    bench = Bench()

    class Meddler(Task):
        def run(self) -> None:
            super().run()
            assert victim.cancel()
            bench.heart.schedule(moved, 30, bench.now_ms)

    bench.heart.schedule(Meddler(5, bench.log, "meddler"), 5, 0)
    victim = bench.add(5, "victim")
    moved = bench.add(5, "moved")
    bench.add(5, "last")
    assert bench.move_to(5) == ["meddler", "last"]
    assert bench.move_to(29) == []
    assert bench.move_to(30) == ["moved"]
    assert not victim.scheduled


def test_adding_a_scheduled_task_moves_it() -> None:
    """A task is on the timer once; adding it again is moving it."""
    bench = Bench()
    task = bench.add(10)
    bench.heart.schedule(task, 500, 0)
    assert bench.heart.size == 1
    assert bench.move_to(499) == []
    assert bench.move_to(500) == [10]


def test_a_task_moves_from_one_timer_to_another() -> None:
    """Adding a task to a second timer takes it off the first."""
    here, there = Bench(), Bench()
    task = here.add(10)
    there.heart.schedule(task, 20, 0)
    assert (here.heart.size, there.heart.size) == (0, 1)
    assert here.move_to(30) == []
    there.heart.expire_due(30)
    assert here.log == [10]


def test_a_task_that_raises_harms_no_other() -> None:
    """The error is reported with its task, and the tasks behind it run."""
    bench = Bench()

    class Bad(Task):
        def run(self) -> None:
            super().run()
            raise Boom

    bad = Bad(5, bench.log, "bad")
    bench.heart.schedule(bad, 5, 0)
    bench.add(5, "good")
    assert bench.move_to(5) == ["bad", "good"]
    ((error, task),) = bench.errors
    assert isinstance(error, Boom)
    assert task is bad


def test_an_interrupt_passes_through_and_loses_no_task() -> None:
    """KeyboardInterrupt leaves the call, and the next call goes on behind the task that raised."""
    bench = Bench()

    class Interrupt(Task):
        def run(self) -> None:
            super().run()
            raise KeyboardInterrupt

    bench.heart.schedule(Interrupt(5, bench.log, "interrupt"), 5, 0)
    bench.add(5, "behind")
    with pytest.raises(KeyboardInterrupt):
        bench.heart.expire_due(5)
    bench.heart._check()
    assert bench.log == ["interrupt"]
    assert bench.heart.is_due(5)
    assert bench.move_to(5) == ["behind"]


def test_expiring_from_inside_a_task_does_nothing() -> None:
    """A nested call returns 0 and leaves the work to the outer one."""
    bench = Bench()
    nested = []

    class Nested(Task):
        def run(self) -> None:
            super().run()
            nested.append(bench.heart.expire_due(100))

    bench.heart.schedule(Nested(5, bench.log, "nested"), 5, 0)
    bench.add(6, "next")
    assert bench.move_to(100) == ["nested", "next"]
    assert nested == [0]


def test_a_later_deadline_is_found_out_when_the_old_one_comes_up() -> None:
    """A task whose expiration was moved back in place is put in again, not run."""
    bench = Bench()
    task = bench.add(5)
    task._expiration_ms = 450
    assert bench.move_to(5) == []
    assert bench.move_to(449) == []
    assert bench.move_to(450) == [5]


def test_after_an_idle_day_a_short_delay_is_placed_on_the_finest_wheel() -> None:
    """The wheel's time follows the clock when nothing is queued, so a new task does not cascade."""
    bench = Bench()
    bench.now_ms = DAY_MS
    bench.add(5, "short")
    assert bench.move_to(DAY_MS + 5) == ["short"]
    assert bench.heart.cascades == 0


@pytest.mark.parametrize("cascaded", [0, 1, 2])
def test_clearing_hands_out_equal_deadlines_in_the_order_of_arrival(cascaded: int) -> None:
    """Whoever came first stands on a coarser level, or in a bucket that a slice has left half cascaded."""
    bench = Bench()
    for added_ms, number in ((0, 0), (0, 1), (100, 2), (390, 3)):
        bench.move_to(added_ms)
        bench.add(405 - added_ms, number)
    if cascaded:
        bench.move_to(400, cascaded)
    assert [task.name for task in bench.heart.clear()] == [0, 1, 2, 3]  # type: ignore[attr-defined]


def test_clearing_hands_out_every_task_in_the_order_of_deadlines() -> None:
    """What a closing timer takes off comes from every level, due or half worked off, in order."""
    bench = Bench()
    for delay_ms in (DAY_MS, 5, 450, 0, 5, 30):
        bench.add(delay_ms)
    bench.heart.expire_due(5, 1)
    tasks = bench.heart.clear()
    assert [task.delay_ms for task in tasks] == [5, 5, 30, 450, DAY_MS]
    assert not any(task.scheduled for task in tasks)
    assert bench.heart.size == 0
    assert bench.heart.next_expiration_ms is None
