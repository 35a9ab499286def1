"""``on_expiration``: it runs after ``on_complete`` when an operation expires, and may do what it wants."""

from typing import Any

import pytest

from purgatory import Outcome, Purgatory
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op, check
from tests.sansio import make_purgatory, pass_time


def test_expiring_calls_on_complete_then_on_expiration() -> None:
    """On expiry, ``on_complete`` runs first and sees ``expired``; then ``on_expiration`` runs."""
    seen: list[Any] = []
    op = Op(1, on_complete=lambda op: seen.append((op.expired, op.is_completed)))
    op.run()
    assert op.calls == ["complete", "expire"]
    assert seen == [(True, True)]
    assert op.outcome is Outcome.EXPIRED
    assert op.is_completed
    assert op.expired
    op.run()
    assert op.calls == ["complete", "expire"]


def test_an_interrupted_on_expiration_leaves_the_operation_expired(clock: VirtualClock) -> None:
    """KeyboardInterrupt propagates through the expiry, and the counters balance."""

    def interrupt(_: Op) -> None:
        raise KeyboardInterrupt

    purgatory = Purgatory[Op]("test", clock=clock)
    op = Op(0, name="x", on_expiration=interrupt)
    purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(KeyboardInterrupt):
        purgatory.timer.expire_due(clock.now_ms())
    assert op.outcome is Outcome.EXPIRED
    assert op.result() == "x"
    check(purgatory, parked=0, expired=1)


def test_on_expiration_may_check_park_and_withdraw() -> None:
    """``on_expiration`` runs after the operation has ended, and may check, park and withdraw."""
    clock = ManualClock(1_000_000)
    room = make_purgatory(clock)
    other = Op(None)
    third = Op(None)

    def act(op: Op) -> None:
        assert op.outcome is Outcome.EXPIRED
        room.check_and_complete("a")
        room.try_complete_else_watch(third, ["a"])
        assert not op.cancel()

    op = Op(1, on_expiration=act)
    for waiting in (op, other):
        room.try_complete_else_watch(waiting, ["a"])
    other.ready = True
    pass_time(clock, room, 1000)
    assert other.outcome is Outcome.COMPLETED
    check(room, parked=1, completed=1, expired=1)
