"""A threshold skips unnecessary tries and never changes an outcome: the same schedule with and without thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory import DelayedOperation
from purgatory.testing import ManualClock
from tests.sansio import QuietPurgatory, make_purgatory, pass_time

KEYS = "abc"
VALUES = st.integers(0, 12)
TIMEOUTS = st.none() | st.integers(0, 900)


@dataclass
class Park:
    """Park an operation that waits until all of its keys, or any of them, have reached their thresholds."""

    wants: dict[str, int]
    every: bool
    timeout_ms: int | None
    plain: bool  # parked without thresholds in both runs
    then: tuple[str, int] | None  # its callback raises a value and checks
    fails: bool  # its condition raises once it holds


@dataclass
class Put:
    """Set the value of a key, which may be lower than before, and check the key."""

    key: str
    value: int
    with_value: bool  # the check passes the value


@dataclass
class Wait:
    milliseconds: int


@dataclass
class Cancel:
    key: str


@dataclass
class Extend:
    number: int
    timeout_ms: int | None


PARKS = st.builds(
    Park,
    wants=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1),
    every=st.booleans(),
    timeout_ms=TIMEOUTS,
    plain=st.sampled_from([False, False, True]),
    then=st.none() | st.tuples(st.sampled_from(KEYS), VALUES),
    fails=st.sampled_from([False, False, False, True]),
)
STEPS = st.lists(
    PARKS
    | st.builds(Put, key=st.sampled_from(KEYS), value=VALUES, with_value=st.sampled_from([True, True, True, False]))
    | st.builds(Wait, milliseconds=st.integers(1, 500))
    | st.builds(Cancel, key=st.sampled_from(KEYS))
    | st.builds(Extend, number=st.integers(0, 30), timeout_ms=TIMEOUTS),
    max_size=60,
)


@dataclass
class World:
    """One run: the values of the keys, the operations, and the outcome and time of each."""

    thresholds: bool
    tick_ms: int
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000_000))
    values: dict[str, int] = field(default_factory=dict)
    operations: list["Waiter"] = field(default_factory=list)
    moments: dict[int, tuple[str, int]] = field(default_factory=dict)
    tries: int = 0

    def __post_init__(self) -> None:
        self.room: QuietPurgatory = make_purgatory(self.clock, tick_ms=self.tick_ms)

    def run(self, steps: Sequence[Any]) -> None:
        for step in steps:
            match step:
                case Park():
                    self.park(step)
                case Put():
                    self.put(step.key, step.value, step.with_value)
                case Wait():
                    pass_time(self.clock, self.room, step.milliseconds)
                case Cancel():
                    self.room.cancel_for_key(step.key)
                case Extend() if step.number < len(self.operations):
                    self.operations[step.number].extend(None if step.timeout_ms is None else step.timeout_ms / 1000)
            self.note_moments()
            self.room._check()

    def park(self, step: Park) -> None:
        waiter = Waiter(self, step)
        self.operations.append(waiter)
        keys: Any = step.wants if self.thresholds and not step.plain else list(step.wants)
        try:
            self.room.try_complete_else_watch(waiter, keys)
        except Failed:
            assert step.fails

    def put(self, key: str, value: int, with_value: bool = True) -> None:
        self.values[key] = value
        self.room.check_and_complete(key, value if with_value else None)

    def note_moments(self) -> None:
        for number, operation in enumerate(self.operations):
            outcome = operation.outcome.name
            if outcome != "PENDING":
                self.moments.setdefault(number, (outcome, operation.ended_ms or self.clock.time_ms))


class Failed(Exception):
    pass


class Waiter(DelayedOperation[None]):
    def __init__(self, world: World, step: Park) -> None:
        super().__init__(None if step.timeout_ms is None else step.timeout_ms / 1000)
        self.world = world
        self.step = step
        self.ended_ms: int | None = None

    def try_complete(self) -> bool:
        self.world.tries += 1
        values = self.world.values
        reached = [values.get(key, 0) >= wanted for key, wanted in self.step.wants.items()]
        holds = all(reached) if self.step.every else any(reached)
        if holds and self.step.fails:
            raise Failed
        return holds

    def on_complete(self) -> None:
        self.ended_ms = self.world.clock.time_ms
        if self.step.then is not None:
            key, value = self.step.then
            self.world.put(key, max(value, self.world.values.get(key, 0)))


@given(STEPS, st.sampled_from([1, 1, 7, 100]))
def test_outcomes_and_moments_are_the_same_with_and_without(steps: list[Any], tick_ms: int) -> None:
    """In any schedule, every operation ends the same way at the same millisecond, with no more tries."""
    hinted, plain = World(thresholds=True, tick_ms=tick_ms), World(thresholds=False, tick_ms=tick_ms)
    hinted.run(steps)
    plain.run(steps)
    assert hinted.moments == plain.moments
    assert hinted.values == plain.values
    assert hinted.tries <= plain.tries
    assert len(hinted.room) == len(plain.room)


@given(STEPS)
def test_waiting_operations_are_below_their_thresholds(steps: list[Any]) -> None:
    """After any schedule, the condition of every waiting operation is false, so no required try was skipped."""
    world = World(thresholds=True, tick_ms=1)
    world.run(steps)
    for waiter in world.operations:
        if waiter.outcome.name == "PENDING" and not waiter.step.fails:
            assert not waiter.try_complete()
