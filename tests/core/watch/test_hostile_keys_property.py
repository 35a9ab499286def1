"""Random programs with keys that raise, change or act at any hash and comparison: the state stays consistent."""

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from purgatory import Outcome, PurgatoryError
from purgatory.testing import ManualClock
from tests.helpers import Boom, Op
from tests.sansio import make_purgatory, pass_time

KEYS = 5
ACTIONS = ["raise", "interrupt", "change", "cancel", "force", "check", "park", "cancel key", "extend"]
NUMBERS = st.integers(0, KEYS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), st.lists(NUMBERS, min_size=1, max_size=3), st.booleans(), st.integers(0, 300)),
        st.tuples(st.just("check"), NUMBERS, st.sampled_from([None, 3]), st.sampled_from([None, None, 1])),
        st.tuples(st.just("ready"), st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("cancel key"), NUMBERS),
        st.tuples(st.just("wait"), st.integers(1, 200)),
        st.tuples(st.just("arm"), NUMBERS, st.integers(0, 6), st.sampled_from(ACTIONS), st.integers(0, 20)),
    ),
    max_size=50,
)


class Key:
    """A key that acts at its n-th hash or comparison; many keys have the same hash."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.left = -1
        self.action: Callable[[], object] = lambda: None

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.action()

    def __hash__(self) -> int:
        number = self.number
        self._count()
        return number % 2

    def __eq__(self, other: object) -> bool:
        self._count()
        return isinstance(other, Key) and self.number == other.number

    def __repr__(self) -> str:
        raise Boom


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.room = make_purgatory(self.clock)
        self.keys = [Key(number) for number in range(KEYS)]
        self.operations: list[Op] = []

    def pick(self, number: int) -> Op:
        return self.operations[number % len(self.operations)] if self.operations else Op()

    def park(self, keys: list[int], ranked: bool, timeout_ms: int) -> None:
        operation = Op(timeout_ms / 1000)
        self.operations.append(operation)
        wanted = [self.keys[number] for number in keys]
        self.room.try_complete_else_watch(operation, dict.fromkeys(wanted, 2) if ranked else wanted)

    def act(self, action: str, key: Key, number: int) -> Callable[[], object]:
        def change() -> None:
            key.number = number % KEYS

        def boom() -> None:
            raise Boom

        def interrupt() -> None:
            raise KeyboardInterrupt

        return {
            "raise": boom,
            "interrupt": interrupt,
            "change": change,
            "cancel": lambda: self.pick(number).cancel(),
            "force": lambda: self.pick(number).force_complete(),
            "check": lambda: self.room.check_and_complete(self.keys[number % KEYS]),
            "park": lambda: self.park([number % KEYS], False, 100),
            "cancel key": lambda: self.room.cancel_for_key(self.keys[number % KEYS]),
            "extend": lambda: self.pick(number).extend(0.1),
        }[action]

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("park", keys, ranked, timeout_ms):
                self.park(keys, ranked, timeout_ms)
            case ("check", number, value, limit):
                self.room.check_and_complete(self.keys[number], value, limit=limit)
            case ("ready", number):
                self.pick(number).ready = True
            case ("cancel", number):
                self.pick(number).cancel()
            case ("cancel key", number):
                self.room.cancel_for_key(self.keys[number])
            case ("wait", milliseconds):
                pass_time(self.clock, self.room, milliseconds)
            case (_, number, left, action, argument):
                key = self.keys[number]
                key.left = left
                key.action = self.act(action, key, argument)

    def check(self) -> None:
        armed = [key.left for key in self.keys]
        for key in self.keys:
            key.left = -1
        self.room._check()
        for key, left in zip(self.keys, armed, strict=True):
            key.left = left


@given(STEPS)
@example([("park", [0], False, 0), ("arm", 1, 2, "park", 0), ("park", [0], False, 0), ("park", [1, 0, 1], False, 0)])
@example([("arm", 0, 1, "change", 1), ("park", [0, 1], True, 0)])
def test_the_state_is_consistent_after_every_step(steps: list[tuple[Any, ...]]) -> None:
    """After any key action, statistics balance, lists match the operations, and closing answers every operation."""
    world = World()
    for step in steps:
        with contextlib.suppress(Boom, KeyboardInterrupt, LookupError, ValueError, PurgatoryError):
            world.do(step)
        world.check()
    for key in world.keys:
        key.left = -1
    while len(world.room):
        before = len(world.room)
        world.room._core.expire_some(100)
        assert len(world.room) < before, "an operation cannot be answered"
        world.check()
    parked = [operation for operation in world.operations if operation.outcome is Outcome.PENDING]
    assert not any(operation.scheduled or operation.keys for operation in parked), "refused, and still known"
    assert all(operation.completions <= 1 for operation in world.operations)
