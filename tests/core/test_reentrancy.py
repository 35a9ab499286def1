"""Checks, parks and withdrawals from inside callbacks are queued and run in order, in constant stack space."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import Outcome, Purgatory, PurgatoryClosed, SystemTimer
from purgatory.testing import ManualClock, VirtualClock
from tests.helpers import Op, check
from tests.sansio import QuietPurgatory, make_purgatory

# Checks


def test_a_check_from_a_callback_is_queued_and_counted_by_the_outermost_call(room: QuietPurgatory) -> None:
    """The check returns 0, and runs in order before the outermost call returns, which counts its completions."""
    order: list[str] = []

    def then(*keys: str) -> Callable[[Op], None]:
        def callback(op: Op) -> None:
            order.append(op.name)
            for key in keys:
                assert room.check_and_complete(key) == 0

        return callback

    tree = {"a": ("b", "c"), "b": ("d",), "c": ("e",), "d": (), "e": ()}
    for name, following in tree.items():
        op = Op(5, name=name, on_complete=then(*following))
        room.try_complete_else_watch(op, [name])
        op.ready = True
    assert room.check_and_complete("a") == 5
    assert order == ["a", "b", "c", "d", "e"]
    check(room, parked=0, completed=5)


@pytest.mark.parametrize("ending", ["force", "run"])
def test_a_check_within_an_ending_is_queued(room: QuietPurgatory, ending: str) -> None:
    """In every kind of ending, the check in the callback returns 0, and runs before the ending returns."""
    counted: list[int] = []
    other = Op(None)
    op = Op(5, on_complete=lambda _: counted.append(room.check_and_complete("b")))
    room.try_complete_else_watch(op, ["a"])
    room.try_complete_else_watch(other, ["b"])
    other.ready = True
    if ending == "force":
        op.force_complete()
    else:
        op.run()
    assert counted == [0]
    assert other.outcome is Outcome.COMPLETED
    room._check()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["check", "park", "force", "expire", "soon"])
async def test_a_chain_of_a_hundred_thousand_uses_constant_stack(clock: VirtualClock, start: str) -> None:
    """Each operation completes the next one, whichever call starts the chain."""
    length = 100_000
    async with Purgatory[Op]("test", clock=clock) as purgatory:
        deepest = 0

        class Link(Op):
            def __init__(self, number: int) -> None:
                super().__init__(None)
                self.number = number

            def try_complete(self) -> bool:
                return self.ready

            def on_complete(self) -> None:
                nonlocal deepest
                if self.number % 1000 == 0:
                    depth = 0
                    frame: Any = sys._getframe()
                    while frame is not None:
                        depth, frame = depth + 1, frame.f_back
                    deepest = max(deepest, depth)
                purgatory.check_and_complete(self.number + 1)

        links = [Link(number) for number in range(length)]
        for link in links[1:]:
            purgatory.try_complete_else_watch(link, [link.number])
            link.ready = True
        first = links[0]
        if start == "park":
            first.ready = True
            assert await purgatory.park(first, [0]) is None
        elif start == "force":
            purgatory.try_complete_else_watch(first, [0])
            assert first.force_complete()
        elif start == "expire":
            first.extend(1)
            purgatory.try_complete_else_watch(first, [0])
            await clock.advance(1)
        elif start == "soon":
            purgatory.try_complete_else_watch(first, [0])
            first.ready = True
            purgatory.check_soon(0)
            await clock.settle()
        else:
            purgatory.try_complete_else_watch(first, [0])
            first.ready = True
            assert purgatory.check_and_complete(0) == length
        check(purgatory, parked=0, completed=length - (start == "expire"))
        assert 0 < deepest < 120


# Parks, withdrawals, closing


def test_cancelling_a_key_from_inside_try_complete(room: QuietPurgatory) -> None:
    """An operation that withdraws its whole key while it is tried is cancelled with the others, and not completed."""
    withdrawn: list[Op] = []
    ops = [Op(5) for _ in range(5)]
    for op in ops:
        room.try_complete_else_watch(op, ["a", "b"])
        op.ready = True
    ops[0].ready = False
    ops[1]._on_try = lambda _: withdrawn.extend(room.cancel_for_key("a"))
    assert room.check_and_complete("a") == 0
    assert withdrawn == ops
    assert {op.outcome for op in ops} == {Outcome.CANCELLED}
    assert [op.completions for op in ops] == [0] * 5
    assert ops[2].calls == ["try"]
    check(room, parked=0, watched=0, cancelled=5)


def test_parking_from_inside_try_complete_keeps_the_order_of_arrival(room: QuietPurgatory) -> None:
    """An operation that is parked within another's first try is tried before that one."""
    order: list[str] = []
    inner = Op(5, name="inner", on_try=lambda op: order.append(op.name))

    def park_inner(op: Op) -> None:
        order.append(op.name)
        if not inner.keys:
            room.try_complete_else_watch(inner, ["a"])

    outer = Op(5, name="outer", on_try=park_inner)
    room.try_complete_else_watch(outer, ["a"])
    room._check()
    order.clear()
    room.check_and_complete("a")
    assert order == ["inner", "outer"]


def test_an_operation_parked_during_a_check_of_its_key_waits_for_the_next(room: QuietPurgatory) -> None:
    """An operation that arrives during a check has had its own try; the next check tries it again."""
    arrived: list[Op] = []

    def park_another(_: Op) -> None:
        arrived.append(Op(5))
        room.try_complete_else_watch(arrived[-1], ["a"])

    ops = [Op(5, on_complete=park_another) for _ in range(3)]
    for op in ops:
        room.try_complete_else_watch(op, ["a"])
        op.ready = True
    assert room.check_and_complete("a") == 3
    assert [op.calls for op in arrived] == [["try"]] * 3
    room.check_and_complete("a")
    assert [op.calls for op in arrived] == [["try", "try"]] * 3


async def test_an_operation_whose_first_try_closes_the_purgatory_is_refused(clock: VirtualClock) -> None:
    """The caller gets PurgatoryClosed, and the operation is still PENDING."""
    timer = SystemTimer(clock=clock)
    async with timer:
        purgatory = Purgatory[Op]("test", timer=timer)

        def close(_: Op) -> None:
            with pytest.raises(StopIteration):
                purgatory.aclose().send(None)  # no operation waits, so it ends without waiting

        op = Op(5, on_try=close)
        with pytest.raises(PurgatoryClosed):
            purgatory.try_complete_else_watch(op, ["a"])
        assert op.outcome is Outcome.PENDING
        check(purgatory, submitted=0, parked=0, watched=0)


class EndingClock(ManualClock):
    """A clock that calls ``then`` once, at the reading with the given number."""

    then: Callable[[], object] | None = None
    number = 0

    def now_ms(self) -> int:
        self._count()
        return super().now_ms()

    def ceil_ms(self) -> int:
        self._count()
        return super().ceil_ms()

    def _count(self) -> None:
        if self.then is not None:
            self.number -= 1
            if self.number < 0:
                then, self.then = self.then, None
                then()


USES: dict[str, Callable[[QuietPurgatory, Op], object]] = {
    "park": lambda room, op: room.try_complete_else_watch(op, ["a"]),
    "cancel": lambda room, op: op.cancel(),
    "complete": lambda room, op: op.force_complete(),
    "expire": lambda room, op: op.run(),
    "extend": lambda room, op: op.extend(7),
    "extend to": lambda room, op: op.extend_to(9.0),
}
# How often each of these reads the clock.
READINGS = {"park": 2, "cancel": 1, "complete": 1, "expire": 1, "extend": 2, "extend to": 2}


@pytest.mark.parametrize("ending", ["cancel", "force_complete", "run"])
@pytest.mark.parametrize(("use", "number"), [(use, number) for use in USES for number in range(READINGS[use])])
def test_reading_the_clock_ends_the_operation(use: str, number: int, ending: str) -> None:
    """The operation ends once, the gauges balance, and it is neither on a key nor on the timer."""
    clock = EndingClock()
    room = make_purgatory(clock)
    ended: list[str] = []
    op = Op(5, on_complete=lambda _: ended.append("complete"))
    if use != "park":
        room.try_complete_else_watch(op, ["a"])
    clock.then, clock.number = getattr(op, ending), number
    if (use, number) == ("park", 0):
        with pytest.raises(ValueError, match="has ended"):
            room.try_complete_else_watch(op, ["a"])
        room._check()
        assert room.statistics().submitted == 0
        return
    returned = USES[use](room, op)
    assert clock.then is None
    room._check()
    assert op.outcome is not Outcome.PENDING
    if use in {"cancel", "complete"}:
        assert returned is False  # the clock ended it, not this call
    else:
        assert returned is False or (use, number) != ("extend", 0)
    assert len(ended) <= 1
    statistics = room.statistics()
    assert statistics.completed + statistics.expired + statistics.cancelled == statistics.submitted == 1
    assert not op.scheduled


def test_reading_the_clock_parks_the_operation_that_is_being_parked() -> None:
    """The outer call refuses it, as it refuses any operation that is already parked."""
    clock = EndingClock()
    room = make_purgatory(clock)
    op = Op(5)
    clock.then = lambda: room.try_complete_else_watch(op, ["b"])
    with pytest.raises(ValueError, match="is parked already"):
        room.try_complete_else_watch(op, ["a"])
    assert op.keys == ("b",)
    check(room, parked=1, watched=1, submitted=1)
