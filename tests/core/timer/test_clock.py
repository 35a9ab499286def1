"""A clock: its required methods, and that the state stays consistent if it fails."""

from collections.abc import Callable

import pytest

from purgatory import Purgatory
from purgatory.testing import VirtualClock
from purgatory.types import Alarm, Clock
from tests.helpers import Boom, Op, check


def test_the_bare_clock_says_what_a_clock_needs() -> None:
    """A subclass of Clock must implement the time and the wake-up; the other methods have a default."""
    clock = Clock()
    with pytest.raises(NotImplementedError):
        clock.now_ms()
    with pytest.raises(NotImplementedError):
        clock.call_at(0, print)
    assert clock.work_time() is None, "real time counts"
    assert clock.reader() is None

    class Whole(Clock):
        def now_ms(self) -> int:
            return 7

    assert Whole().ceil_ms() == 8


# Clocks that fail


async def test_a_clock_that_raises_prevents_parking(
    purgatory: Purgatory[Op], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has changed, and the operation can be submitted again."""

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
    """A clock that can no longer set an alarm."""

    broken = False

    def call_at(self, when_ms: int, callback: Callable[[], object]) -> Alarm:
        if self.broken:
            raise Boom
        return super().call_at(when_ms, callback)


async def test_a_clock_that_cannot_wake_leaves_the_counters_right() -> None:
    """An exception of a clock reaches the parking caller, and no operation is partially parked."""
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
    """If the clock raises, no operation can end, and the caller of the closing gets the error."""

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
