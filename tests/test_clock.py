"""A clock: what it needs, how a timer reads it, and that the books are right where it fails."""

from collections.abc import Callable

import pytest

from purgatory import Purgatory, TimerTask
from purgatory.clock import Alarm, Clock, MonotonicClock
from purgatory.testing import VirtualClock
from purgatory.timekeeper import Timekeeper
from tests.helpers import Boom, Op, check


def test_the_bare_clock_says_what_a_clock_needs() -> None:
    """A subclass of Clock must tell the time and wake; the rest has a meaning of its own."""
    clock = Clock()
    with pytest.raises(NotImplementedError):
        clock.now_ms()
    with pytest.raises(NotImplementedError):
        clock.call_at(0, print)
    assert clock.effort() <= clock.effort()

    class Whole(Clock):
        def now_ms(self) -> int:
            return 7

    assert Whole().ceil_ms() == 8


def test_a_timer_on_the_usual_clock_counts_from_the_time_rounded_up() -> None:
    """Both ways of adding a task read the same clock."""
    timer = Timekeeper(1, 20, None)
    clock = timer.clock
    assert isinstance(clock, MonotonicClock)
    clock._read = timer._read = lambda: 1e9 + 0.3456
    task = TimerTask(10)
    timer.add(task)
    assert task.expiration_ms == 1_000_000_000_356
    assert timer.call_later(0.01, print).expiration_ms == 1_000_000_000_356


# Clocks that fail


async def test_no_time_no_parking(
    purgatory: Purgatory[Op], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the clock raises, nothing has changed, and the operation can be handed over again."""

    def broken(self: VirtualClock) -> int:
        raise OSError("no time")

    op = Op(5)
    monkeypatch.setattr(VirtualClock, "ceil_ms", broken)
    with pytest.raises(OSError, match="no time"):
        purgatory.try_complete_else_watch(op, ["a"])
    monkeypatch.undo()
    assert op.calls == []
    check(purgatory, submitted=0)
    assert not purgatory.try_complete_else_watch(op, ["a"])
    check(purgatory, submitted=1, parked=1, watched=1)


class _NoAlarms(VirtualClock):
    """A clock that cannot wake anybody any more."""

    broken = False

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        if self.broken:
            raise Boom
        return super().call_at(when_ms, callback)


async def test_a_clock_that_cannot_wake_leaves_the_books_right() -> None:
    """An exception from a clock reaches whoever parks, and nothing is half parked."""
    clock = _NoAlarms()
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        await clock.settle()
        clock.broken = True
        with pytest.raises(Boom):
            purgatory.try_complete_else_watch(Op(5), ["a"])
        check(purgatory, parked=0, watched=0, num_delayed=0)
        with pytest.raises(Boom):
            await purgatory.park(Op(5), ["a"])
        check(purgatory, parked=0)
        clock.broken = False
        op = Op(5)
        purgatory.try_complete_else_watch(op, ["a"])
        await clock.advance(5)
        assert op.expired


async def test_a_clock_that_fails_does_not_make_closing_spin(clock: VirtualClock) -> None:
    """An operation that cannot leave, because the clock raises, is an error for whoever closes, not a loop."""

    class Broken(VirtualClock):
        broken = False

        def now_ms(self) -> int:
            if self.broken:
                raise OSError("no clock")
            return super().now_ms()

    broken = Broken()
    purgatory = Purgatory[Op]("test", clock=broken)
    purgatory.try_complete_else_watch(Op(None), ["a"])
    broken.broken = True
    with pytest.raises(OSError, match="no clock"):
        await purgatory.aclose()
    broken.broken = False
    await purgatory.aclose()
