"""An operation that was added to a timer as a task, outside a purgatory."""

import pytest

from purgatory import Outcome, PurgatoryFull
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import make_purgatory, pass_time


def raises(_: Op) -> None:
    raise Boom


@pytest.mark.parametrize("first", [0.01, 0.3, 10.0])
def test_its_deadline_cannot_be_moved(first: float) -> None:
    """It refers to no timer that could move it.  The call changes nothing, and the operation expires in time."""
    clock = ManualClock()
    timer = BaseTimer(1, 20, clock)
    op = Op(first)
    timer.add(op)
    for extend in (lambda: op.extend(20.0), lambda: op.extend(None), lambda: op.extend_to(20.0), lambda: op.extend(0)):
        with pytest.raises(ValueError, match=r"^operation must not be on a timer as a task, got <Op"):
            extend()
    timer._check()
    assert (op.timeout, op.expiration_ms) == (first, clock.now_ms() + first * 1000)
    assert timer.expire_due(clock.now_ms() + int(first * 1000) - 1) == 0
    assert timer.expire_due(clock.now_ms() + int(first * 1000)) == 1
    assert op.expired
    op = Op(first)
    timer.add(op)
    timer.add(op)  # adding it again moves it
    op.force_complete()
    assert op.extend(1.0) is False


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CANCELLED, Outcome.EXPIRED, Outcome.FAILED])
def test_it_leaves_the_timer_when_it_ends(outcome: Outcome) -> None:
    """As a parked operation does; the timer then has nothing to do."""
    timer = BaseTimer(1, 20, ManualClock())
    op = Op(5.0, on_complete=raises if outcome is Outcome.FAILED else lambda op: op.scheduled)
    timer.add(op)
    if outcome is Outcome.CANCELLED:
        assert op.cancel()
    elif outcome is Outcome.EXPIRED:
        op.run()
    elif outcome is Outcome.COMPLETED:
        assert op.force_complete()
    else:
        with pytest.raises(Boom):
            op.force_complete()
    assert op.outcome is outcome
    assert (op.scheduled, timer.size) == (False, 0)
    if op.is_completed:
        assert op.result() is False  # it had left the timer when on_complete() ran


def test_parking_it_takes_it_off_the_timer() -> None:
    """From then on, the purgatory's timer has its deadline, which begins when it is parked, and may be moved."""
    clock = ManualClock()
    room, timer = make_purgatory(clock), BaseTimer(1, 20, clock)
    ops = [Op(0.3), Op(None)]
    ops[1].extend_to(clock.time() + 0.3)
    for op in ops:
        timer.add(op)
    pass_time(clock, room, 100)
    for op in ops:
        room.try_complete_else_watch(op, ["a"])
        op.extend(0.5)
    room._check()
    assert timer.size == 0
    pass_time(clock, room, 500)
    assert [op.outcome for op in ops] == [Outcome.EXPIRED] * 2
    room._check()


def test_a_refusal_takes_it_off_the_timer() -> None:
    """It is as new: it may be parked, or added to the timer, again."""
    clock = ManualClock()
    room = make_purgatory(clock, max_parked=1)
    room.try_complete_else_watch(Op(None), ["a"])
    timer = room._core.timer
    op = Op(0.3)
    timer.add(op)
    with pytest.raises(PurgatoryFull):
        room.try_complete_else_watch(op, ["a"])
    room._check()
    assert (op.scheduled, op.expiration_ms, timer.size) == (False, None, 0)
    timer.add(op)
    pass_time(clock, room, 300)
    assert op.expired


def test_a_try_that_is_interrupted_takes_it_off_the_timer() -> None:
    """It counts as new, as any operation does after an interrupt."""

    def interrupted(_: Op) -> None:
        raise KeyboardInterrupt

    room = make_purgatory(ManualClock())
    op = Op(0.3, on_try=interrupted)
    room._core.timer.add(op)
    with pytest.raises(KeyboardInterrupt):
        room.try_complete_else_watch(op, ["a"])
    room._check()
    assert (op.scheduled, op.outcome) == (False, Outcome.PENDING)


def test_one_that_adds_itself_during_its_first_try_leaves_the_timer() -> None:
    """The try completes it before it is parked; nothing of it stays on the timer."""
    clock = ManualClock()
    room, timer = make_purgatory(clock), BaseTimer(1, 20, clock)
    op = Op(5.0, ready=True, on_try=timer.add)
    assert room.try_complete_else_watch(op, ["a"])
    assert op.is_completed
    assert (op.scheduled, timer.size, room.num_delayed) == (False, 0, 0)
    timer._check()
    room._check()
