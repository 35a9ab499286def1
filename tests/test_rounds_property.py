"""Checks that are done later: after any schedule, whoever waited when its key was named has been tried since."""

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory import Outcome
from purgatory.rounds import Rounds

from .helpers import Op
from .sansio import HandClock, make_room

KEYS = "abc"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("park"), st.sets(st.sampled_from(KEYS), min_size=1), st.booleans()),
        st.tuples(st.just("name"), st.sampled_from(KEYS)),
        st.tuples(st.just("work"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.sampled_from(KEYS)),
        st.tuples(st.just("ready"), st.integers(0, 20)),
        st.tuples(st.just("interrupt"), st.integers(0, 20)),
        st.tuples(st.just("chain"), st.integers(0, 20), st.sampled_from(KEYS)),
    ),
    max_size=60,
)


class Waiter(Op):
    """Knows when it was tried last, can be interrupted once, and can name a key when it completes."""

    def __init__(self, world: "World") -> None:
        super().__init__(None)
        self.world = world
        self.tried_at = 0
        self.interrupts = False
        self.names: str | None = None

    def try_complete(self) -> bool:
        self.world.moment += 1
        self.tried_at = self.world.moment
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return self.ready

    def on_complete(self) -> None:
        if self.names is not None:
            self.world.name(self.names)


class World:
    def __init__(self) -> None:
        self.room = make_room(HandClock())
        self.rounds = Rounds(self.room._desk)
        self.waiters: list[Waiter] = []
        self.moment = 0
        self.must_be_tried_after: dict[int, int] = {}

    def name(self, key: str) -> None:
        self.moment += 1
        self.rounds.add(key)
        for number, waiter in enumerate(self.waiters):
            if key in waiter.keys:
                self.must_be_tried_after[number] = self.moment

    def work(self, number: int) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self.rounds.work(number)

    def pick(self, number: int) -> Waiter | None:
        return self.waiters[number] if number < len(self.waiters) else None

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("park", keys, ranked):
                waiter = Waiter(self)
                self.waiters.append(waiter)
                ordered = sorted(keys)
                self.room.try_complete_else_watch(waiter, dict.fromkeys(ordered, 5) if ranked else ordered)
            case ("name", key):
                self.name(key)
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
                        waiter_or_none.names = rest[0]


@given(STEPS)
def test_nobody_is_forgotten(steps: list[tuple[Any, ...]]) -> None:
    """Keys are named, watchers come, end and interrupt between any two portions; in the end all have had their try."""
    world = World()
    for step in steps:
        world.do(step)
        world.room._check()
    portions = 0
    while world.rounds:
        world.work(3)
        portions += 1
        assert portions < 1000, "it goes on without end"
    for number, moment in world.must_be_tried_after.items():
        waiter = world.waiters[number]
        if waiter.outcome is Outcome.PENDING:
            assert waiter.tried_at > moment, f"{number} was not tried after its key was named"
            assert not waiter.ready or waiter.interrupts or waiter.tried_at > 0
    assert not world.rounds._walks
    assert not world.rounds._again
