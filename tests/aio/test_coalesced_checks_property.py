"""Coalesced checks: after any schedule, each operation has been tried since its key was last named."""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome
from purgatory.aio.coalesced_checks import CoalescedChecks
from purgatory.testing import ManualClock
from tests.helpers import Op
from tests.sansio import make_purgatory

KEYS = "abc"
VALUES = st.none() | st.integers(0, 9)
THRESHOLDS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9), min_size=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), THRESHOLDS, st.booleans()),
        st.tuples(st.just("name"), st.sampled_from(KEYS), VALUES),
        st.tuples(st.just("name many"), st.dictionaries(st.sampled_from(KEYS), VALUES)),
        st.tuples(st.just("name all")),
        st.tuples(st.just("work"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.sampled_from(KEYS)),
        st.tuples(st.just("ready"), st.integers(0, 20)),
        st.tuples(st.just("interrupt"), st.integers(0, 20)),
        st.tuples(st.just("chain"), st.integers(0, 20), st.sampled_from(KEYS), VALUES),
    ),
    max_size=60,
)


class Waiter(Op):
    """A waiter that records its last try, can be interrupted once, and can name a key when it completes."""

    def __init__(self, world: "World", thresholds: dict[str, int] | None) -> None:
        super().__init__(None)
        self.world = world
        self.thresholds = thresholds
        self.is_parked = False
        self.is_reached = False
        self.tried_at = 0
        self.interrupts = False
        self.names: tuple[str, int | None] | None = None

    def concerns(self, key: str, value: int | None) -> bool:
        """Return whether a check of the key with the value must try the operation."""
        if key not in self.keys:
            return False
        return self.thresholds is None or value is None or self.thresholds[key] <= value

    def try_complete(self) -> bool:
        assert self.is_reached or not self.is_parked, "it is tried below its threshold"
        self.world.moment += 1
        self.tried_at = self.world.moment
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return self.ready

    def on_complete(self) -> None:
        if self.names is not None:
            self.world.name(*self.names)


class World:
    def __init__(self) -> None:
        self.room = make_purgatory(ManualClock())
        self.checks = CoalescedChecks(self.room._core)
        self.waiters: list[Waiter] = []
        self.moment = 0
        self.must_be_tried_after: dict[int, int] = {}

    def name(self, key: str, value: int | None) -> None:
        self.checks.add(key, value)
        self.note({key: value})

    def note(self, named: dict[str, int | None]) -> None:
        self.moment += 1
        for number, waiter in enumerate(self.waiters):
            if any(waiter.concerns(key, value) for key, value in named.items()):
                self.must_be_tried_after[number] = self.moment
                waiter.is_reached = True

    def work(self, number: int) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self.checks.work(number)

    def pick(self, number: int) -> Waiter | None:
        return self.waiters[number] if number < len(self.waiters) else None

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("park", thresholds, ranked):
                waiter = Waiter(self, thresholds if ranked else None)
                self.waiters.append(waiter)
                self.room.try_complete_else_watch(waiter, thresholds if ranked else list(thresholds))
                waiter.is_parked = True
                # A check that was requested earlier may run with a value that reaches the threshold.
                waiter.is_reached = not ranked or bool(self.checks)
            case ("name", key, value):
                self.name(key, value)
            case ("name many", named):
                self.checks.add_many(dict(named))
                self.note(named)
            case ("name all",):
                self.checks.add_all()
                self.note(dict.fromkeys(KEYS))
            case ("work", number):
                self.work(number)
            case ("clear", key):
                self.room.cancel_for_key(key)
            case (what, number, *rest):
                waiter_or_none = self.pick(number)
                if waiter_or_none is None:
                    return
                match what:
                    case "end":
                        waiter_or_none.cancel()
                    case "ready":
                        waiter_or_none.ready = True
                    case "interrupt":
                        waiter_or_none.interrupts = True
                    case _:
                        waiter_or_none.names = (rest[0], rest[1])


@given(STEPS)
def test_every_parked_operation_is_tried(steps: list[tuple[Any, ...]]) -> None:
    """In any schedule of checks, arrivals, ends and interrupts, every operation that must be tried is tried."""
    world = World()
    for step in steps:
        world.do(step)
        world.room._check()
    portions = 0
    while world.checks:
        world.work(3)
        portions += 1
        assert portions < 1000, "it does not end"
    for number, moment in world.must_be_tried_after.items():
        waiter = world.waiters[number]
        if waiter.outcome is Outcome.PENDING:
            assert waiter.tried_at > moment, f"{number} was not tried after its key was named"
            assert not waiter.ready or waiter.interrupts or waiter.tried_at > 0
    assert not world.checks._checks
