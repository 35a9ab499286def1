"""``extend_to`` and ``deadline=``: absolute deadlines on the timer's clock."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome, Purgatory, PurgatoryClosed, PurgatoryFull, SystemTimer
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op, Recorder, check, park
from tests.sansio import QuietPurgatory, make_purgatory, pass_time


@pytest.mark.parametrize("when", ["before parking", "in its first try", "parked"])
def test_it_expires_at_the_deadline_and_not_before(when: str) -> None:
    """The operation expires at its deadline, however the deadline was set and whatever timeout it had."""
    clock = ManualClock(1_000_000)
    recorder = Recorder()
    room = make_purgatory(clock, observers=[recorder])
    deadline = clock.time() + 5.0
    op = Op(1, on_try=lambda op: op.extend_to(deadline)) if when == "in its first try" else Op(1)
    if when == "before parking":
        assert op.extend_to(deadline)
    pass_time(clock, room, 500)
    room.try_complete_else_watch(op, ["key"])
    if when == "parked":
        assert op.extend_to(deadline)
    check(room, num_delayed=1)
    assert op.timeout == 4.5
    pass_time(clock, room, 4499)
    assert op.outcome is Outcome.PENDING
    pass_time(clock, room, 1)
    assert op.outcome is Outcome.EXPIRED
    assert recorder.seen[-1].deadline == deadline
    assert recorder.seen[-1].lateness == 0.0
    if when != "parked":
        assert recorder.seen[0].deadline == deadline


@pytest.mark.parametrize("when", ["before parking", "parked"])
@pytest.mark.parametrize("deadline", [-1e6, 0, 999.9])
def test_a_deadline_that_has_passed_expires_on_the_next_turn(when: str, deadline: float) -> None:
    """A deadline in the past expires on the next turn, and the lateness counts from the call."""
    clock = ManualClock(1_000_000)
    recorder = Recorder()
    room = make_purgatory(clock, observers=[recorder])
    op = Op(5)
    if when == "before parking":
        op.extend_to(deadline)
    room.try_complete_else_watch(op, ["key"])
    if when == "parked":
        op.extend_to(deadline)
    assert (op.outcome, op.timeout) == (Outcome.PENDING, 0.0)
    pass_time(clock, room, 0)
    assert op.outcome is Outcome.EXPIRED
    assert recorder.seen[-1].lateness == 0.0


def test_none_and_infinity() -> None:
    """None removes the deadline, before and after parking; infinity is a deadline that is never reached."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    ops = [Op(5) for _ in range(3)]
    ops[0].extend_to(None)
    ops[1].extend_to(float("inf"))
    for op in ops:
        room.try_complete_else_watch(op, ["key"])
    ops[2].extend_to(None)
    check(room, num_delayed=1)
    pass_time(clock, room, 1_000_000_000)
    assert [op.outcome for op in ops] == [Outcome.PENDING] * 3
    room.cancel_for_key("key")


@pytest.mark.parametrize("deadline", ["5", True, float("nan"), 1e16, -(10**400), [1]])
async def test_a_bad_deadline_changes_nothing(purgatory: Purgatory[Op], deadline: Any) -> None:
    """A bad deadline raises TypeError or ValueError, and the timeout is unchanged."""
    op, parked = Op(5), park(purgatory, "key", timeout=5)
    before = parked.expiration_ms
    for each in (op, parked):
        with pytest.raises((TypeError, ValueError), match="deadline must be a number of seconds"):
            each.extend_to(deadline)
        assert each.timeout == 5
    assert parked.expiration_ms == before
    with pytest.raises((TypeError, ValueError), match="deadline must be a number of seconds"):
        await purgatory.wait_until(lambda: True, keys=["a"], deadline=deadline)
    parked.cancel()


def test_after_the_end_it_returns_false(room: QuietPurgatory) -> None:
    """``extend_to`` of an ended operation returns False."""
    op = park(room, "key", timeout=5)
    op.cancel()
    assert not op.extend_to(5000)
    assert not op.extend_to(None)


def test_a_refused_operation_keeps_its_deadline() -> None:
    """After PurgatoryFull it can be parked again and expires at the same time."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock, max_parked=1)
    first, op = park(room, "key"), Op()
    op.extend_to(1005)
    assert repr(op) == "<Op PENDING deadline=1005>"
    assert op.timeout is None
    with pytest.raises(PurgatoryFull):
        room.try_complete_else_watch(op, ["key"])
    first.cancel()
    pass_time(clock, room, 2000)
    room.try_complete_else_watch(op, ["key"])
    pass_time(clock, room, 3000)
    assert op.outcome is Outcome.EXPIRED


def test_one_that_completes_at_once_has_its_deadline_in_the_event() -> None:
    """The event contains the given deadline, although it was never on the timer."""
    recorder = Recorder()
    room = make_purgatory(ManualClock(1_000_000), observers=[recorder])
    op = Op(ready=True)
    op.extend_to(1005)
    assert room.try_complete_else_watch(op, ["key"])
    assert [event.deadline for event in recorder.seen] == [1005.0]


async def test_on_a_closed_timer_it_raises(clock: VirtualClock) -> None:
    """``extend_to`` raises PurgatoryClosed, because the deadline could not be met; the operation still waits."""
    timer = SystemTimer(clock=clock)
    async with Purgatory[Op]("test", timer=timer) as purgatory:
        op = park(purgatory, "key")
        await timer.aclose()
        with pytest.raises(PurgatoryClosed):
            op.extend_to(1005)
        assert op.outcome is Outcome.PENDING


@given(
    tick_ms=st.sampled_from([1, 7, 20]),
    offset=st.floats(-2, 100),
    late_ms=st.integers(0, 3000),
    parked_first=st.booleans(),
)
def test_never_early_at_most_a_tick_late(tick_ms: int, offset: float, late_ms: int, parked_first: bool) -> None:
    """The operation is on time at every tick, for past and future deadlines, set before or after parking."""
    clock = ManualClock(1_000_003)
    room = make_purgatory(clock, tick_ms=tick_ms)
    ended: list[int] = []
    op = Op(50, on_complete=lambda _: ended.append(clock.now_ms()))
    deadline = clock.time() + offset
    if parked_first:
        room.try_complete_else_watch(op, ["key"])
    else:
        op.extend_to(deadline)
    pass_time(clock, room, late_ms)
    set_ms = clock.now_ms()
    if parked_first:
        op.extend_to(deadline)
    else:
        room.try_complete_else_watch(op, ["key"])
    pass_time(clock, room, 0)
    room._core.timer.expire_due(clock.now_ms())
    pass_time(clock, room, 200_000)
    assert len(ended) == 1
    earliest_ms = max(deadline * 1000, set_ms)
    assert earliest_ms - 1e-3 <= ended[0] <= earliest_ms + 1 + tick_ms
    room._check()
