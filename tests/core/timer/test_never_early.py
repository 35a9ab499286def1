"""Nothing fires before its deadline, although the timer does not count the clock's fractions of a millisecond."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import SystemTimer
from purgatory.core.purgatory import BasePurgatory
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.types import Alarm, Clock
from tests.helpers import Op, Task

TICKS = [1, 3, 10]


class FractionalClock(Clock):
    """A clock set by hand, in milliseconds with a fraction, as a real one has it."""

    def __init__(self, at: float = 1000.2) -> None:
        self.at = at

    def now_ms(self) -> int:
        return int(self.at)

    def ceil_ms(self) -> int:
        return int(self.at) + 1

    def time(self) -> float:
        return self.at / 1000

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        return Alarm(asyncio.get_running_loop().call_later(3600.0, callback))


class FractionalReader(FractionalClock):
    """The same with the function that saves a method call, as the default clock has it."""

    def reader(self) -> Callable[[], float]:
        return lambda: self.at / 1000


CLOCKS = [FractionalClock, FractionalReader]


def expired_at(op: Op, timer: BaseTimer, clock: FractionalClock) -> float:
    """Move the clock on by tenths of a millisecond until the operation has expired; return the time."""
    for _ in range(200):
        timer.expire_due(clock.now_ms())
        if op.expired:
            return clock.at
        clock.at = round(clock.at + 0.1, 1)
    raise AssertionError(f"{op!r} has not expired")


@pytest.mark.parametrize("kind", CLOCKS)
@pytest.mark.parametrize("tick_ms", TICKS)
@pytest.mark.parametrize("deadline", [1.0003, 1.0009, 1.001, 1.0011, 1.0047])
def test_a_deadline_within_the_current_millisecond_has_not_passed(
    deadline: float, tick_ms: int, kind: type[FractionalClock]
) -> None:
    """Set before or after parking, it expires the operation at the deadline or later, by at most a tick."""
    for parks_first in (True, False):
        clock = kind()
        timer = BaseTimer(tick_ms, 20, clock)
        room = BasePurgatory("x", timer)
        op = Op(None)
        if parks_first:
            room.try_complete_else_watch(op, ["a"])
        op.extend_to(deadline)
        if not parks_first:
            room.try_complete_else_watch(op, ["a"])
        assert deadline * 1000 <= expired_at(op, timer, clock) <= deadline * 1000 + tick_ms + 1
        room._check()


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("kind", CLOCKS)
@pytest.mark.parametrize("tick_ms", [1, 10])
def test_the_deadline_of_a_timeout_within_the_current_millisecond_has_not_passed(
    tick_ms: int, kind: type[FractionalClock], moved: bool
) -> None:
    """``timeout_at`` and ``reschedule`` cancel the block at the deadline, not at the start of that millisecond."""
    clock = kind()

    async def main() -> None:
        async with (
            SystemTimer(clock=clock, tick_ms=tick_ms) as timer,
            timer.timeout_at(None if moved else 1.0007) as block,
        ):
            if moved:
                block.reschedule(1.0007)
            for _ in range(20 * tick_ms):
                timer.expire_due(clock.now_ms())
                await asyncio.sleep(0)  # raises as soon as the block is cancelled
                clock.at = round(clock.at + 0.1, 1)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert 1000.7 <= clock.at <= 1000.7 + tick_ms + 1


@pytest.mark.parametrize("kind", CLOCKS)
@pytest.mark.parametrize("tick_ms", TICKS)
@pytest.mark.parametrize("delay_ms", [1, 2, 30])
def test_a_task_that_is_added_again_is_not_early(delay_ms: int, tick_ms: int, kind: type[FractionalClock]) -> None:
    """Its delay counts from the time rounded up, as that of a new task does."""
    clock = kind()
    timer = BaseTimer(tick_ms, 20, clock)
    log: list[Any] = []
    task = Task(100, log)
    timer.add(task)
    clock.at = added = 1050.7
    task.delay_ms = delay_ms
    timer.add(task)
    while task.scheduled:
        timer.expire_due(clock.now_ms())
        if task.scheduled:
            clock.at = round(clock.at + 0.1, 1)
    assert added + delay_ms <= clock.at <= added + delay_ms + tick_ms + 1


@pytest.mark.parametrize("kind", CLOCKS)
@pytest.mark.parametrize("tick_ms", TICKS)
def test_what_is_due_when_it_is_added_runs_at_once(tick_ms: int, kind: type[FractionalClock]) -> None:
    """A delay of zero and a deadline that has passed do not wait for the next millisecond."""
    clock = kind()
    timer = BaseTimer(tick_ms, 20, clock)
    room = BasePurgatory("x", timer)
    log: list[Any] = []
    timer.add(Task(0, log))
    timer.add(Task(-5, log))
    timer.call_later(0.0, log.append, "later")
    timed_out, passed, moved = Op(0.0), Op(None), Op(50.0)
    passed.extend_to(1.0)
    for op in (timed_out, passed, moved):
        room.try_complete_else_watch(op, ["a"])
    moved.extend_to(0.5)
    assert log == []
    assert timer.expire_due(clock.now_ms()) == 6
    assert log == [0, -5, "later"]
    assert timed_out.expired
    assert passed.expired
    assert moved.expired
    room._check()


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["at", "in", "move"]), st.integers(0, 60)), max_size=20))
@pytest.mark.parametrize("tick_ms", TICKS)
def test_no_operation_is_early(tick_ms: int, steps: list[tuple[int, str, int]]) -> None:
    """Whatever is parked and moved when: the time at the expiry is at least the deadline, and at most a tick more."""
    clock = FractionalReader(1000.0)
    timer = BaseTimer(tick_ms, 20, clock)
    room = BasePurgatory("x", timer)
    deadlines: dict[Op, float] = {}
    late: list[float] = []

    def note(op: Op) -> None:
        late.append(clock.at - deadlines[op])

    for wait, what, tenths in steps:
        for _ in range(wait):
            clock.at = round(clock.at + 0.1, 1)
            timer.expire_due(clock.now_ms())
        at = round(clock.at + tenths / 10, 1)
        waiting = [op for op in deadlines if op.keys]
        op = waiting[0] if what == "move" and waiting else Op(tenths / 10_000, on_complete=note)
        deadlines[op] = at
        if what != "in":
            op.extend_to(at / 1000)
        if not op.keys:
            room.try_complete_else_watch(op, ["a"])
    for _ in range(300):
        clock.at = round(clock.at + 0.1, 1)
        timer.expire_due(clock.now_ms())
    assert len(room) == 0
    assert all(0 <= lateness <= tick_ms + 1.01 for lateness in late), late
