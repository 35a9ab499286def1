"""Early cascades: with many tasks on the timer, a coarse bucket is emptied before it expires."""

import random

import pytest

from purgatory import Purgatory, SystemTimer
from purgatory.testing import VirtualClock
from tests.core.timer.bench import Bench
from tests.helpers import Op, Task


def _levels(bench: Bench) -> list[list[tuple[int, int]]]:
    return [level.occupancy() for level in bench.core.wheel.levels()]


def test_a_coarse_bucket_is_emptied_from_half_a_tick_before_it_falls_due() -> None:
    """At 400 only the tasks due at 400 remain; the others are where a cascade at 400 would have put them."""
    bench = Bench(early_from=1)
    for delay_ms in (400, 450, 790):
        bench.add(delay_ms)
    assert bench.core.next_early_ms() == 200
    assert bench.cascade_early(199) == 0
    assert bench.cascade_early(200) == 3
    assert _levels(bench) == [[], [(400, 1), (440, 1), (780, 1)], []]
    assert bench.core.next_early_ms() == 390
    assert bench.cascade_early(390) == 1
    assert _levels(bench) == [[(400, 1)], [(440, 1), (780, 1)], []]
    assert bench.core.next_expiration_ms == 400
    assert bench.jumps() == [400, 440, 450, 780, 790]
    assert bench.log == [400, 450, 790]


def test_a_task_of_450_ms_still_cascades_twice() -> None:
    """An early cascade moves a task to the same levels as a cascade on time."""
    bench = Bench(early_from=1)
    bench.add(450)
    for now_ms in (200, 399, 400, 430, 449):
        bench.move_to(now_ms)
        bench.cascade_early(now_ms)
    assert bench.core.cascades == 2
    assert bench.move_to(450) == [450]


def test_new_tasks_for_a_bucket_that_is_being_emptied_go_to_the_finer_levels() -> None:
    """New tasks therefore stay behind older ones with the same deadline, and the coarse bucket only becomes smaller."""
    bench = Bench(early_from=1)
    for number in range(3):
        bench.add(750, number)
    assert bench.cascade_early(300, limit=1) == 1
    bench.add(450, 3)
    assert _levels(bench) == [[], [(740, 2)], [(400, 2)]]
    assert bench.cascade_early(300) == 2
    bench.move_to(750)
    assert bench.log == [0, 1, 2, 3]


def test_a_finer_level_is_emptied_before_a_coarser_one_is_touched() -> None:
    """Otherwise a newer task with the same deadline would cascade later and end up before an older one."""
    bench = Bench(early_from=1)
    for number in range(4):
        bench.add(8_005, number)
    bench.cascade_early(4_000, limit=1)
    bench.move_to(7_620)
    bench.add(385, 4)
    bench.move_to(7_995)
    while bench.cascade_early(7_995, limit=1):
        pass
    assert _levels(bench)[0] == [(8_005, 5)]
    bench.move_to(8_005)
    assert bench.log == [0, 1, 2, 3, 4]


def test_a_bucket_that_falls_due_half_emptied_is_cascaded_to_its_end() -> None:
    """The tasks that an early cascade has left move when the bucket expires, in the right order."""
    bench = Bench(early_from=1)
    for number in range(5):
        bench.add(450, number)
    assert bench.cascade_early(395, limit=2) == 2
    bench.now_ms = 398
    bench.add(52, 5)
    bench.move_to(450)
    assert bench.log == [0, 1, 2, 3, 4, 5]
    assert bench.core.cascades == 10 + 1


def test_a_deadline_that_was_moved_back_is_kept() -> None:
    """A task whose deadline was moved to a later time goes to the bucket of that deadline."""
    bench = Bench(early_from=1)
    task = bench.add(450, "later")
    bench.add(450, "on time")
    bench.core.reschedule(task, 5_000, 0)
    assert bench.cascade_early(300) == 2
    assert bench.move_to(4_999) == ["on time"]
    assert bench.move_to(5_000) == ["later"]


@pytest.mark.parametrize("early_from", [2, 1000])
def test_nothing_is_moved_early_while_there_are_few_tasks(early_from: int) -> None:
    """With fewer tasks than the limit, there is no early cascade, and no time is scheduled for one."""
    bench = Bench(early_from=early_from)
    task = bench.add(450)
    assert bench.core.next_early_ms() > 10**17
    assert bench.cascade_early(399) == 0
    bench.add(20)
    assert (bench.core.next_early_ms() < 400) is (early_from == 2)
    task.cancel()
    assert bench.core.next_early_ms() > 10**17


def test_a_coarse_bucket_may_be_due_after_finer_ones() -> None:
    """The early cascade begins half a tick, rounded down, before the coarse bucket falls due."""
    bench = Bench(wheel_size=5, early_from=1)
    bench.add(3)
    bench.add(8)
    assert bench.core.next_early_ms() == 5 - 2


def test_the_limit_holds_for_all_levels_together() -> None:
    """If the buckets of two levels are moved early in one call, the limit and the result count the tasks of both."""
    bench = Bench(early_from=1)
    for _ in range(3):
        bench.add(450)
    bench.now_ms = 300
    bench.add(105)
    assert bench.cascade_early(395, limit=2) == 2
    assert _levels(bench) == [[(405, 1)], [(440, 1)], [(400, 2)]]
    assert bench.cascade_early(395) == 2


def test_nothing_is_moved_early_while_a_task_is_due() -> None:
    """Due tasks run before any early cascade."""
    bench = Bench(early_from=1)
    bench.add(300)
    bench.add(450)
    assert bench.cascade_early(320) == 0
    assert bench.move_to(320) == [300]
    assert bench.cascade_early(320) == 1


def test_a_bucket_far_away_is_not_touched_and_an_empty_timer_has_none() -> None:
    """Only the bucket that expires next on its level is cascaded early."""
    bench = Bench(early_from=1)
    assert bench.core.next_early_ms() > 10**17
    bench.add(7_000)
    assert bench.core.next_early_ms() == 6_600
    assert bench.cascade_early(6_599) == 0
    assert bench.cascade_early(6_600) == 1


@pytest.mark.parametrize("wheel_size", [2, 3, 20])
@pytest.mark.parametrize("tick_ms", [1, 7])
def test_many_tasks_run_in_the_order_without_early_cascades(tick_ms: int, wheel_size: int) -> None:
    """Two timers with the same tasks have the same logs, although one cascades early in portions of three."""
    rng = random.Random(wheel_size * tick_ms)
    plain, early = Bench(tick_ms, wheel_size, early_from=10**6), Bench(tick_ms, wheel_size, early_from=1)
    pairs: list[list[Task]] = []
    now_ms = 0
    for number in range(1_500):
        now_ms += rng.choice((0, 0, 1, 3))
        delay_ms = rng.choice((1, 30, rng.randrange(500), rng.randrange(10_000)))
        pairs.append([])
        for bench in (plain, early):
            bench.core.expire_due(now_ms)
            task = Task(delay_ms, bench.log, number)
            bench.core.schedule(task, now_ms + delay_ms, now_ms)
            pairs[-1].append(task)
        early.core.cascade_early(now_ms, 3)
        if number % 5 == 0:
            for task in rng.choice(pairs):
                task.cancel()
    early.core._check()
    for later_ms in range(now_ms, 16_000):
        assert plain.core.expire_due(later_ms) == early.core.expire_due(later_ms)
        early.core.cascade_early(later_ms, 3)
    assert plain.core.size == early.core.size == 0
    assert plain.log == early.log
    assert early.core.cascades > 500


# With a reaper


async def test_the_reaper_cascades_early_and_nothing_is_early(clock: VirtualClock) -> None:
    """With a thousand operations due in 450 ms, the bucket of 400 is empty when it expires."""
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        ops = [Op(0.45) for _ in range(1_000)]
        for op in ops:
            purgatory.try_complete_else_watch(op, ["a"])
        await clock.advance(0.399)
        assert purgatory.timer.cascades == 1_000
        assert [level.occupancy() for level in purgatory.timer.wheel.levels()][2] == []
        await clock.advance(0.05)
        assert not any(op.expired for op in ops)
        await clock.advance(0.001)
        assert all(op.expired for op in ops)
        assert purgatory.timer.cascades == 2_000


@pytest.mark.parametrize(
    ("number", "wake_ups"), [(1, [400, 440, 449]), (999, [400, 440, 449]), (1_000, [200, 430, 449])]
)
async def test_an_early_cascade_replaces_the_wake_up_for_a_cascade(
    clock: VirtualClock, number: int, wake_ups: list[int]
) -> None:
    """With fewer than a thousand tasks, the timer wakes only when buckets expire."""
    async with SystemTimer(clock=clock) as timer:
        begin_ms = clock.now_ms()
        for _ in range(number):
            timer.call_later(0.449, int)
        await clock.settle()
        planned = []
        while clock.next_alarm_ms is not None:
            planned.append(clock.next_alarm_ms - begin_ms)
            await clock.advance((clock.next_alarm_ms - clock.now_ms()) / 1000)
        assert timer.size == 0
        assert planned == wake_ups
