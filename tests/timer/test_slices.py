"""What a limit bounds, and that what is left over keeps its place."""

import pytest

from tests.helpers import Task
from tests.timer.bench import Bench


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
