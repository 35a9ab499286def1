"""Random requests in random order: no request is answered twice, the counters match, and everything ends."""

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purgatory.testing import VirtualClock
from tests.examples.group.harness import CoordinatorHarness, RecordedRequest, coordinating

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "enter",
                "enter",
                "join",
                "join",
                "sync",
                "sync",
                "heartbeat",
                "leave",
                "static",
                "withdraw",
                "wait",
                "delete",
            ]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


class RandomClients:
    """Clients that send arbitrary requests."""

    def __init__(self, harness: CoordinatorHarness) -> None:
        self.harness = harness
        self.asked: list[RecordedRequest] = []
        self.joins: list[RecordedRequest] = []

    def ids(self) -> list[str]:
        groups = self.harness.coordinator.groups
        return [*groups["g"].members, *groups["g"].pending, "nobody"] if "g" in groups else ["nobody"]

    def results(self) -> list[Any]:
        return [one.result for one in self.joins if not one.waits]

    def enter(self, number: int) -> None:
        self._note(self.harness.join(require_known_member_id=number % 2 == 0))

    def static(self, number: int) -> None:
        self._note(self.harness.join(instance_id=f"s{number % 3}"))

    def join(self, number: int) -> None:
        ids = self.ids()
        metadata = b"changed" if number > 5 else b"range-metadata"
        self._note(self.harness.join(ids[number % len(ids)], protocols=(("range", metadata),)))

    def sync(self, number: int) -> None:
        for result in self.results()[-1 - number :][:1]:
            self.asked.append(self.harness.sync(result))

    def heartbeat(self, number: int) -> None:
        for result in self.results()[-1 - number :][:1]:
            self.harness.heartbeat(result)

    def leave(self, number: int) -> None:
        ids = self.ids()
        self.harness.coordinator.leave("g", ids[number % len(ids)])

    def withdraw(self, number: int) -> None:
        waiting = [one for one in self.asked if one.waits and one.parked is not None]
        if waiting:
            parked = waiting[number % len(waiting)].parked
            assert parked is not None
            if parked.withdraw():
                self.asked = [one for one in self.asked if one.parked is not parked]

    def delete(self, _: int) -> None:
        self.harness.coordinator.delete("g")

    def _note(self, asked: RecordedRequest) -> None:
        self.asked.append(asked)
        self.joins.append(asked)


@given(_STEPS)
def test_any_sequence_of_requests_keeps_the_books(steps: list[tuple[str, int]]) -> None:
    """The invariants hold after every step; when enough time has passed, no request waits and no member is left."""

    async def play() -> None:
        clock = VirtualClock()
        async with coordinating(clock, max_size=5) as harness:
            clients = RandomClients(harness)
            for name, number in steps:
                if name == "wait":
                    await clock.advance(number * 2.0)
                else:
                    step: Callable[[int], None] = getattr(clients, name)
                    step(number)
                harness.check()
                assert all(len(one.answers) <= 1 for one in clients.asked)
            await clock.advance(1000.0)
            assert all(len(one.answers) == 1 for one in clients.asked)
            assert [len(purgatory) for purgatory in harness.coordinator.purgatories] == [0, 0, 0]
            assert all(not group.members for group in harness.coordinator.groups.values())

    asyncio.run(play())
