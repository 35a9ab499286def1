"""An operation that was added to a timer as a task, outside a purgatory."""

import pytest

from purgatory import Outcome, PurgatoryClosed, PurgatoryFull, TimerTask
from purgatory.core.timer.base_timer import BaseTimer
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import make_purgatory, pass_time


def raises(_: Op) -> None:
    raise Boom


class _BetweenMilliseconds(ManualClock):
    def ceil_ms(self) -> int:
        return self.now_ms() + 1


@pytest.mark.parametrize(("timeout", "expiration_ms"), [(0.0, 500), (0.001, 502), (0.25, 751)])
def test_its_deadline_is_not_early(timeout: float, expiration_ms: int) -> None:
    """The time is between 500 and 501 ms; a delay begins at the later one, and no delay means now.

    Adding the operation again later starts the delay anew.
    """
    clock = _BetweenMilliseconds(500)
    timer = BaseTimer(1, 20, clock)
    op = Op(timeout)
    timer.add(op)
    assert op.expiration_ms == expiration_ms
    clock.time_ms += 1
    timer.add(op)
    assert op.expiration_ms == expiration_ms + 1


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


class _Raising:
    """A key that raises when it is compared, so the purgatory cannot put an operation on it."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise Boom


def _interrupt(_: Op) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["another timer", "the purgatory's timer"])
@pytest.mark.parametrize("why", ["full", "closed by the try", "interrupted", "a key raises", "one key of two raises"])
def test_a_submission_that_raises_leaves_it_on_the_timer(why: str, own: bool, absolute: bool) -> None:
    """Its awaiters rely on the deadline, which is unchanged.  It is new, so it may be parked afterward."""
    clock = ManualClock()
    room = make_purgatory(clock, max_parked=1 if why == "full" else None)
    timer = room._core.timer if own else BaseTimer(1, 20, clock)
    room.try_complete_else_watch(Op(None), [_Raising()])

    def close(_: Op) -> None:
        room._core.closed = True

    ops = [Op(None if absolute else 0.3) for _ in range(2)]
    for op in ops:
        if absolute:
            op.extend_to(clock.time() + 0.3)
        timer.add(op)
    expiration_ms = ops[0].expiration_ms
    pass_time(clock, room, 100)
    keys = {"a key raises": [_Raising()], "one key of two raises": ["a", _Raising()]}.get(why, ["a"])
    for op in ops:
        op._on_try = {"closed by the try": close, "interrupted": _interrupt}.get(why, op._on_try)
        with pytest.raises((PurgatoryFull, PurgatoryClosed, KeyboardInterrupt, Boom)):
            room.try_complete_else_watch(op, keys)
        room._core.closed = False
        assert (op.scheduled, op.expiration_ms, op.outcome) == (True, expiration_ms, Outcome.PENDING)
    assert timer.size == 2
    room._check()
    timer._check()
    if why != "full":
        ops[0]._on_try = ops[1]._on_complete
        room.try_complete_else_watch(ops[0], ["a"])
        assert (timer.size, room.num_delayed) == (2 if own else 1, 1)
    clock.time_ms += 199
    timer.expire_due(clock.now_ms())
    assert not ops[1].expired
    clock.time_ms += 1
    timer.expire_due(clock.now_ms())
    assert ops[1].expired
    room._core.timer.expire_due(clock.now_ms() + (0 if absolute else 100))
    assert ops[0].expired or why == "full"
    room._check()
    timer._check()


@pytest.mark.parametrize("deadline", [None, 0.1, 0.5])
def test_one_that_moves_its_deadline_during_its_first_try(deadline: float | None) -> None:
    """The deadline of the timer no longer holds; the new one begins when the operation is parked."""
    clock = ManualClock()
    room, timer = make_purgatory(clock), BaseTimer(1, 20, clock)
    ops = [
        Op(0.3, on_try=lambda op: op.extend(deadline) and None),
        Op(0.3, on_try=lambda op: op.extend_to(None if deadline is None else clock.time() + deadline) and None),
    ]
    for op in ops:
        timer.add(op)
        room.try_complete_else_watch(op, ["a"])
        op._on_try = op._on_complete
    assert (timer.size, room.num_delayed) == (0, 0 if deadline is None else 2)
    room._check()
    timer._check()
    clock.time_ms += 300
    timer.expire_due(clock.now_ms())
    assert [op.expired for op in ops] == [False, False]
    pass_time(clock, room, 0)
    assert [op.expired for op in ops] == [deadline == 0.1] * 2
    pass_time(clock, room, 200)
    assert [op.expired for op in ops] == [deadline is not None] * 2
    room._check()


def test_a_deadline_that_passes_during_the_first_try() -> None:
    """The timer expires the operation, which is then not parked."""
    clock = ManualClock()
    room, timer = make_purgatory(clock), BaseTimer(1, 20, clock)

    def wait(_: Op) -> None:
        clock.time_ms += 300
        assert timer.expire_due(clock.now_ms()) == 1

    op = Op(0.3, on_try=wait)
    timer.add(op)
    assert not room.try_complete_else_watch(op, ["a"])
    assert (op.outcome, len(room), timer.size) == (Outcome.EXPIRED, 0, 0)
    room._check()
    timer._check()


@pytest.mark.parametrize("full", [False, True])
def test_one_that_adds_itself_during_its_first_try_is_on_one_timer(full: bool) -> None:
    """If it is parked, it is on the purgatory's timer; if it is refused, it stays on the other timer."""
    clock = ManualClock()
    room, timer = make_purgatory(clock, max_parked=1), BaseTimer(1, 20, clock)
    op = Op(0.3, on_try=timer.add)
    if full:
        room.try_complete_else_watch(Op(None), ["a"])
        with pytest.raises(PurgatoryFull):
            room.try_complete_else_watch(op, ["a"])
    else:
        room.try_complete_else_watch(op, ["a"])
    assert (op.scheduled, timer.size, room.num_delayed) == (True, int(full), int(not full))
    room._check()
    timer._check()
    clock.time_ms += 300
    for each in (timer, room._core.timer):
        each.expire_due(clock.now_ms())
    assert op.expired
    room._check()


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


def test_one_that_extends_itself_and_is_refused_is_new() -> None:
    """It has left its timer for a deadline that a later submission does not use."""
    clock = ManualClock()
    full, room, timer = make_purgatory(clock, max_parked=1), make_purgatory(clock), BaseTimer(1, 20, clock)
    full.try_complete_else_watch(Op(None), ["a"])
    op = Op(1.0, on_try=lambda op: op.extend(9.0) and None)
    timer.add(op)
    with pytest.raises(PurgatoryFull):
        full.try_complete_else_watch(op, ["a"])
    assert (timer.size, op.outcome) == (0, Outcome.PENDING)
    op._on_try = op._on_complete
    room.try_complete_else_watch(op, ["a"])
    assert op.expiration_ms == clock.now_ms() + int(op.timeout * 1000)
    room._check()


@pytest.mark.parametrize("timeout", [0, 1])
def test_one_that_a_timer_has_lost_starts_over(timeout: int) -> None:
    """The timer's deadline is left over, and a purgatory does not use it, not even during the first try."""
    clock = ManualClock()
    room, timer = make_purgatory(clock), BaseTimer(1, 20, clock)
    seen: list[int | None] = []
    op = Op(timeout, on_try=lambda op: seen.append(op.expiration_ms))
    timer.add(op)
    assert TimerTask.cancel(op)  # not the operation's own cancel(), which would end it
    pass_time(clock, room, 500)
    room.try_complete_else_watch(op, ["a"])
    assert seen == [None]
    assert op.expiration_ms == clock.now_ms() + timeout * 1000
    room._check()
